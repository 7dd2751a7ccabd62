#!/usr/bin/env bash
# Builds the npm package and the page into crates/web/dist. `build.sh --check` only checks whether that is possible here.
#
# It needs Node.js and a Rust compiler with the standard library for wasm32-unknown-unknown: that of rustup
# (`rustup target add wasm32-unknown-unknown`), or the one that PTERON_WASM_RUSTC names. `toolchain.sh` creates one from
# Debian packages.
#
# The module for several threads (`pteron.threads.wasm`) is built, too, if the compiler has the standard library for
# wasm32-wasip1-threads (`rustup target add wasm32-wasip1-threads`): `build.sh --check-threads` checks that, and
# `build.sh --one-thread` leaves it out.
set -euo pipefail
cd "$(dirname "$0")"

target=wasm32-unknown-unknown
threads=wasm32-wasip1-threads
export RUSTC="${PTERON_WASM_RUSTC:-rustc}"

lacks() {
    printf '%s\n' "$*" >&2
    exit 2
}
command -v "$RUSTC" >/dev/null || lacks "there is no compiler $RUSTC; PTERON_WASM_RUSTC names one"
command -v node >/dev/null || lacks "the package is laid out by Node.js, which is not installed"
std="$("$RUSTC" --print target-libdir --target $target)"
compgen -G "$std/libstd*.rlib" >/dev/null || lacks "$RUSTC has no standard library for $target: run \`rustup target add $target\`," \
    "or name a compiler that has it with PTERON_WASM_RUSTC (on Debian, crates/web/toolchain.sh makes one)"

# rustup's compilers include a linker; others may not.
linker="${CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER:-}"
host="$("$RUSTC" -vV | sed -n 's/^host: //p')"
if [ -z "$linker" ] && [ ! -x "$("$RUSTC" --print sysroot)/lib/rustlib/$host/bin/rust-lld" ]; then
    others="$(env -u RUSTC rustc --print sysroot 2>/dev/null || true)/lib/rustlib/$host/bin/rust-lld"
    linker="$(command -v wasm-ld || command -v wasm-ld-19 || (ls "$others" 2>/dev/null) || true)"
    [ -n "$linker" ] || lacks "there is no linker for $target: install lld (wasm-ld), or name one with" \
        "CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER"
fi
[ -z "$linker" ] || export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER="$linker"
[ "${1:-}" != --check ] || exit 0

# The start-up object of a library under WASI: only rustup's standard library includes it.
reactor="$("$RUSTC" --print target-libdir --target $threads 2>/dev/null || true)/self-contained/crt1-reactor.o"
[ "${1:-}" != --one-thread ] || no_threads="as asked"
[ -f "$reactor" ] || no_threads="$RUSTC has no standard library for $threads: run \`rustup target add $threads\`"
[ "${1:-}" != --check-threads ] || { [ -z "${no_threads-}" ] && exit 0; lacks "$no_threads"; }

export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS="-C target-feature=+simd128"
build() { cargo rustc --locked --profile web -p pteron-web --target "$1" --crate-type cdylib; }
build $target
modules=("${CARGO_TARGET_DIR:-../../target}/$target/web/pteron_web.wasm")
if [ -z "${no_threads-}" ]; then
    # JavaScript creates the memory, so that the workers can have it: threads.js knows its first size.
    flags=(-C target-feature=+simd128 -C "link-arg=$reactor" -C link-arg=--export=_initialize
        -C link-arg=--initial-memory=16777216 -C link-arg=--max-memory=4294967296)
    CARGO_TARGET_WASM32_WASIP1_THREADS_RUSTFLAGS="${flags[*]}" build $threads
    modules+=("${CARGO_TARGET_DIR:-../../target}/$threads/web/pteron_web.wasm")
else
    echo "without the module for several threads: $no_threads" >&2
fi
node pack.mjs "${modules[@]}"

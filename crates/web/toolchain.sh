#!/usr/bin/env bash
# Creates a Rust compiler with the standard library for wasm32-unknown-unknown from Debian packages, for machines where rustup
# cannot provide one: `toolchain.sh FOLDER`, and then `PTERON_WASM_RUSTC=FOLDER/rustc crates/web/build.sh`. Nothing is
# installed. It downloads 140 MB, takes two minutes of processor time, and leaves 0.6 GB. It uses rustup's cargo.
set -euo pipefail

[ $# = 1 ] || { echo "usage: toolchain.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
folder=$PWD
# All packages must have the same version: rustc does not load metadata of another version.
version=$(apt-cache show rustc-web | sed -n 's/^Version: //p' | head -n 1)
std=$(apt-cache show "rustc-web=$version" | sed -n 's/.*libstd-rust-web-dev (= \([^)]*\)).*/\1/p' | head -n 1)
unpack() { for deb in ./*.deb; do dpkg-deb -x "$deb" "$folder"; rm "$deb"; done; }

mkdir -p debs && cd debs
apt-get download "rustc-web=$version" "libstd-rust-web-dev=${std:-$version}"
library=$(dpkg-deb -f libstd-rust-web-dev_*.deb Depends | tr ',' '\n' | sed -n 's/^ *\(libstd-rust-web-[0-9.]*\) .*/\1/p' | head -n 1)
apt-get download "$library=$version"
llvm=$(dpkg-deb -f libstd-rust-web-[0-9]*.deb Depends | tr ',' '\n' | sed -n 's/^ *\(libllvm[0-9]*\).*/\1/p' | head -n 1)
apt-get download "$llvm"
unpack
apt-get download "rust-web-src=$version"
# Unpack only the standard library of the source.
dpkg-deb --fsys-tarfile rust-web-src_*.deb | tar -x -C "$folder" --wildcards './usr/src/rustc-*/library' './usr/lib/rustlib/src'
rm rust-web-src_*.deb
cd ..

cat >rustc <<'WRAPPER'
#!/bin/sh
usr=$(dirname "$(readlink -f "$0")")/usr
LD_LIBRARY_PATH=$(echo "$usr"/lib/*-linux-gnu):$(echo "$usr"/lib/llvm-*/lib) exec "$usr/bin/rustc" "$@"
WRAPPER
chmod +x rustc
./rustc --version

# Build an empty crate with -Zbuild-std, and install the standard library that results.
mkdir -p empty/src
printf '[package]\nname = "empty"\nedition = "2024"\n[profile.release]\npanic = "abort"\n[workspace]\n' >empty/Cargo.toml
: >empty/src/lib.rs
(cd empty && env -u CARGO_TARGET_DIR RUSTC="$folder/rustc" RUSTC_BOOTSTRAP=1 cargo build --release \
    -Zbuild-std=std,panic_abort --target wasm32-unknown-unknown)
target=usr/lib/rustlib/wasm32-unknown-unknown/lib
mkdir -p $target
cp empty/target/wasm32-unknown-unknown/release/deps/lib*.r{lib,meta} $target
rm -rf $target/libempty* empty debs usr/src
echo "PTERON_WASM_RUSTC=$folder/rustc"

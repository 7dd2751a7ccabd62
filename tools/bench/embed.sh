#!/usr/bin/env bash
# Measures what Pteron adds to an application: clean builds of `tests/embed` with the kernels of one program and with all
# kernels, in three profiles. Prints the rows of lab/embed.md: build time in seconds, then stripped size in bytes.
set -euo pipefail
cd "$(dirname "$0")/../../tests/embed"
target=$(mktemp -d)
trap 'rm -rf "$target"' EXIT

printf '| profile | kernels | wall s | user s | stripped bytes |\n| --- | --- | --: | --: | --: |\n'
for profile in dev release size; do
    for features in "" every-operator; do
        rm -rf "${target:?}"/*
        TIMEFORMAT='%R | %U'
        seconds=$({ time cargo build --quiet --locked --profile "$profile" --features "$features" --target-dir "$target" 2>/dev/null; } 2>&1)
        folder=$profile
        [ "$profile" = dev ] && folder=debug
        strip -o "$target/stripped" "$target/$folder/embed"
        printf '| %s | %s | %s | %s |\n' "$profile" "${features:-of one program}" "$seconds" "$(stat -c %s "$target/stripped")"
    done
done
printf '\n%s crates\n' "$(cargo tree --locked --prefix none -e normal | sed 's/ .*//' | sort -u | wc -l)"

#!/usr/bin/env python3
"""Measures what each cargo feature of `pteron` adds to an application: crates, CPU seconds of a clean build, stripped bytes.

Builds `tests/embed` (profile release) without features, with each feature alone and with the default ones, in one temporary
target folder. Each rustc process is timed separately, in user seconds, which other work on the machine hardly affects;
a feature's seconds are the sum over all crates of its build, including those reused from an earlier build, but without build
scripts and Cargo itself. Prints the rows of lab/embed.md.

    tools/bench/features.py [FEATURES]...
"""
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

EMBED = pathlib.Path(__file__).resolve().parents[2] / "tests/embed"
ALONE = ["bef", "bef-backend", "compile", "ndarray", "tools", "image", "safetensors", "training", "xnnpack"]
LOG = "PTERON_RUSTC_SECONDS"


def rustc(arguments):
    """RUSTC_WRAPPER: runs rustc and logs its user seconds under the `extra-filename` suffix of the crate."""
    status = subprocess.run(arguments).returncode
    suffix = [a.removeprefix("extra-filename=") for a in arguments if a.startswith("extra-filename=")]
    if suffix:
        with open(os.environ[LOG], "a") as log:
            log.write(f"{suffix[0]} {resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime}\n")
    return status


def build(features, target, log):
    """Builds, and returns the number of dependencies, the user seconds, and the executable."""
    environment = dict(os.environ, RUSTC_WRAPPER=__file__, CARGO_INCREMENTAL="0", **{LOG: str(log)})
    environment.pop("CARGO_TARGET_DIR", None)
    command = ["cargo", "build", "--release", "--locked", "--quiet", "--message-format=json"]
    command += ["--features", features, "--target-dir", str(target)]
    out = subprocess.run(command, cwd=EMBED, env=environment, stdout=subprocess.PIPE, check=True).stdout
    files, executable = set(), None
    for message in map(json.loads, out.splitlines()):
        files.update(message.get("filenames", []))
        executable = message.get("executable") or executable
    spent = dict(line.split() for line in log.read_text().splitlines())
    seconds = 0.0
    for suffix, taken in spent.items():
        # An executable is built with the suffix and then hard-linked to its plain name, which Cargo reports.
        if any(suffix in file for file in files) or suffix in newest(target):
            seconds += float(taken)
    tree = ["cargo", "tree", "--locked", "--prefix", "none", "-e", "normal", "--features", features]
    lines = subprocess.check_output(tree, cwd=EMBED, text=True).splitlines()
    crates = {tuple(line.split()[:2]) for line in lines if line}
    return len(crates) - 1, seconds, pathlib.Path(executable)


def newest(target):
    """The suffix of the most recently built executable."""
    built = [f for f in (target / "release/deps").glob("embed-*") if not f.suffix]
    return max(built, key=lambda f: f.stat().st_mtime).name.removeprefix("embed")


def main():
    chosen = sys.argv[1:] or ["", "every-operator", *ALONE, "default-features"]
    print("| features | crates | user s | stripped bytes |\n| --- | --: | --: | --: |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        target, log = pathlib.Path(folder, "target"), pathlib.Path(folder, "log")
        for features in chosen:
            crates, seconds, executable = build(features, target, log)
            stripped = pathlib.Path(folder, "stripped")
            subprocess.run(["strip", "-o", stripped, executable], check=True)
            print(f"| {features or 'none'} | {crates} | {seconds:.0f} | {stripped.stat().st_size:,} |", flush=True)


if __name__ == "__main__":
    if LOG in os.environ and len(sys.argv) > 1 and "rustc" in pathlib.Path(sys.argv[1]).name:
        sys.exit(rustc(sys.argv[1:]))
    main()

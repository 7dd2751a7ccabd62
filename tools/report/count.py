"""Counts the files under folders that `pteron report` opens, and compares with Netron on the same files.

    pip download netron --no-deps && unzip netron-*.whl 'netron/*'
    python tools/report/count.py target/release/pteron netron FOLDER…

Skips files that are meant to be refused: those in a folder `bad` and those whose name begins with `err_`.
"""

import collections
import pathlib
import subprocess
import sys
import tempfile

KINDS = {".pte", ".bpte", ".ptd", ".pt2", ".bef", ".mlir", ".etdp"}


def files_of(folders):
    for folder in folders:
        for path in sorted(pathlib.Path(folder).rglob("*")):
            meant = "bad" in path.parts or path.name.startswith("err_")
            if path.suffix in KINDS and not meant:
                yield path


def main():
    pteron, netron, *folders = sys.argv[1:]
    files = list(files_of(folders))
    opened, sizes = collections.Counter(), []
    with tempfile.TemporaryDirectory() as work:
        page = pathlib.Path(work) / "page.html"
        for path in files:
            done = subprocess.run([pteron, "report", path, "-o", page], capture_output=True, text=True)
            if done.returncode == 0:
                opened[path.suffix] += 1
                sizes.append((page.stat().st_size, path))
            else:
                print(f"pteron: {path}: {done.stderr.splitlines()[0] if done.stderr else done.returncode}")
    lines = "".join(f"{path.resolve()}\n" for path in files)
    script = pathlib.Path(__file__).with_name("netron.mjs")
    done = subprocess.run(["node", script, netron], input=lines, capture_output=True, text=True)
    theirs, why = collections.Counter(), collections.Counter()
    for line in done.stdout.splitlines():
        word, rest = line.split(" ", 1)
        if word == "ok":
            theirs[pathlib.Path(rest).suffix] += 1
        elif word == "failed":
            why[rest.rsplit(": ", 1)[-1]] += 1
    all_kinds = collections.Counter(path.suffix for path in files)
    for kind, count in sorted(all_kinds.items()):
        print(f"{kind:6} {count:5} files: pteron report opens {opened[kind]}, Netron {theirs[kind]}")
    for reason, count in why.most_common(8):
        print(f"Netron, {count} times: {reason}")
    largest = max(sizes)
    print(f"the largest page has {largest[0]} bytes: {largest[1]}")


if __name__ == "__main__":
    main()

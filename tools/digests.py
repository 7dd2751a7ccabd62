#!/usr/bin/env python3
"""Records a digest of everything that a command computes and writes, to compare two builds bit by bit.

    tools/digests.py PTERON OUT FOLDER...
    tools/digests.py --compare OLD NEW

Of each folder: the outputs of all runs of `verify --matrix` (programs) and of `verify --archives`, and the files that `compile`,
`retarget`, `strip` and `translate` write of the archives (.pt2), programs (.pte) and BEF programs (.bef, .mlir) in it. A line is what was
done, and its digest; a command that fails has its exit status instead. Cases whose outputs are random are left out.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile

BACKENDS = ("none", "bef", "xnnpack")


def edits(path):
    """The commands that write a file made of this one, and how each is called."""
    kind = path.suffix
    if kind == ".pt2":
        return [(f"compile {backend}", ["compile", path, "--backend", backend]) for backend in BACKENDS]
    if kind == ".pte":
        retargets = [(f"retarget {backend}", ["retarget", path, "--backend", backend]) for backend in BACKENDS]
        return retargets + [("strip", ["strip", path]), ("strip names", ["strip", path, "--names"])]
    if kind in (".bef", ".mlir"):
        return [("translate", ["translate", path])]
    return []


def written(pteron, path, arguments):
    """The digest of the file that a command writes, or its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "out")
        data = [arg for file in sorted(path.parent.glob("*.ptd")) for arg in ("--data", file)]
        extra = data if arguments[0] == "retarget" else []
        done = subprocess.run([pteron, *arguments, *extra, "-o", out], capture_output=True, check=False)
        if done.returncode != 0 or not out.exists():
            return f"exit {done.returncode}"
        return hashlib.sha256(out.read_bytes()).hexdigest()


def is_random(folder):
    """Whether a case says that its outputs are random."""
    for name in ("case.json", "cases.json"):
        file = pathlib.Path(folder, name)
        if file.exists() and '"random"' in file.read_text():
            return True
    return False


def record(pteron, out, folders):
    lines = []
    for folder in folders:
        for way in (["--matrix", "--demo-backends"], ["--archives"]):
            with tempfile.NamedTemporaryFile() as digests:
                command = [pteron, "verify", *way, folder, "--digests", digests.name]
                subprocess.run(command, capture_output=True, check=False)
                for line in pathlib.Path(digests.name).read_text().splitlines():
                    setting, case, *rest = line.split("\t")
                    if not is_random(case):
                        lines.append("\t".join(["verify " + way[0], setting, case, *rest]))
        paths = sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file())
        jobs = [(path, *edit) for path in paths for edit in edits(path)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            done = pool.map(lambda job: written(pteron, job[0], job[2]), jobs)
            lines += [f"{what}\t{path}\t{digest}" for (path, what, _), digest in zip(jobs, done)]
        print(f"{folder}: {len(lines)} digests so far", file=sys.stderr)
    pathlib.Path(out).write_text("\n".join(sorted(lines)) + "\n")


def compare(old, new):
    def read(path):
        rows = (line.rpartition("\t") for line in pathlib.Path(path).read_text().splitlines())
        return {what: digest for what, _, digest in rows}

    old, new = read(old), read(new)
    differ = [what for what in old if what in new and old[what] != new[what]]
    for name, some in (("only in the old", old.keys() - new), ("only in the new", new.keys() - old), ("differ", differ)):
        for what in sorted(some):
            print(f"{name}: {what}")
    print(f"{len(old.keys() & new.keys())} digests compared, {len(differ)} differ")
    return 1 if differ or old.keys() != new.keys() else 0


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--compare":
        sys.exit(compare(*sys.argv[2:]))
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    record(*sys.argv[1:3], sys.argv[3:])

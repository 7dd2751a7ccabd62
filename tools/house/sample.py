#!/usr/bin/env python3
"""Draws random one-line doc comments and random function names from crates/*/src, to be judged by a reader.

    tools/house/sample.py [--seed 1] [--count 30] [--root .]

A one-line doc comment is a `///` line with none above or below it; the line that it documents is printed with it. Functions and
comments of tests are left out. The same seed draws the same sample of the same source.
Needs only Python's standard library.
"""

import argparse
import pathlib
import random
import re

DOC = re.compile(r"\s*///(?!/) ?(.*)")
FUNCTION = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:(?:const|async|unsafe|extern(?:\s+\"[^\"]*\")?)\s+)*fn\s+(\w+)")


def sources(root):
    """The files of all crates, without modules of tests."""
    for folder in sorted(root.glob("crates/**/src")):
        for file in sorted(folder.rglob("*.rs")):
            if "tests" not in file.with_suffix("").relative_to(folder).parts:
                yield file


def outside_tests(lines):
    """The lines of a file with their numbers, without its inline modules of tests, which end at a brace of the same indentation."""
    end = None
    for i, line in enumerate(lines):
        if end is not None:
            if line == end:
                end = None
            continue
        if re.fullmatch(r"#\[cfg\((test|all\(test, .*\))\)\]", line.strip()):
            module = next((following for following in lines[i + 1 :] if not following.strip().startswith("#[")), "")
            if re.match(r"\s*(pub\S*\s+)?mod\s+\w+\s*\{", module):
                end = line[: len(line) - len(line.lstrip())] + "}"
                continue
        yield i + 1, line


def documented(lines, number):
    """What a doc comment in line `number` documents: the next line that is neither empty nor an attribute."""
    below = (line.strip() for line in lines[number:])
    return next((line for line in below if line and not line.startswith("#[")), "")


def collect(root):
    comments, functions = [], []
    for file in sources(root):
        where = file.relative_to(root)
        lines = file.read_text(encoding="utf-8").splitlines()
        kept = list(outside_tests(lines))
        for number, line in kept:
            above = lines[number - 2] if number > 1 else ""
            below = lines[number] if number < len(lines) else ""
            doc = DOC.match(line)
            if doc and not DOC.match(above) and not DOC.match(below):
                comments.append((f"{where}:{number}", doc[1].strip(), documented(lines, number)))
            function = FUNCTION.match(line)
            if function:
                functions.append((f"{where}:{number}", function[1]))
    return comments, functions


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30, help="how many of each [default: 30]")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2], help="the repository")
    args = parser.parse_args()
    comments, functions = collect(args.root)
    chance = random.Random(args.seed)
    print(f"{len(comments)} one-line doc comments, {len(functions)} functions; seed {args.seed}\n")
    for where, text, item in chance.sample(comments, min(args.count, len(comments))):
        print(f"{where}  {text}\n    {item[:120]}")
    print()
    for where, name in chance.sample(functions, min(args.count, len(functions))):
        print(f"{name:40} {where}")


if __name__ == "__main__":
    main()

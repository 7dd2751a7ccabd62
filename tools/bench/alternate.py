#!/usr/bin/env python3
"""Measures two builds of the command against each other: both run the same programs, in turns, and the least times are compared.

    tools/bench/alternate.py OLD NEW FOLDER|FILE.pte... [--threads 1] [--rounds 5] [--seconds 0.2] [--cold] [--json FILE]

Each turn is a process of its own, pinned to as many CPUs as it has threads; which build goes first changes every round. Inputs are
zeros. A row has the least time of an execution with each build, in microseconds, and the ratio of the new one to the old one; the last
line is the geometric mean of the ratios. `≠` marks programs whose outputs are not the same bits in both builds. With `--cold`, the
times are CPU times (user and system) of processes that load the program and run it once.

Exit status: 1 if no program ran with both builds. Needs only Python's standard library; Linux.
"""

import argparse
import json
import pathlib
import statistics
import sys

from beside import process, title


class Build:
    """One of the two commands, with one program."""

    def __init__(self, command, program, args):
        self.command = [command, "run", str(program), "--json", "--threads", str(args.threads)]
        self.args = args
        self.times, self.outputs, self.runs = [], None, 3

    def turn(self):
        if self.args.cold:
            printed, (cpu, _) = process(self.command, self.args.threads)
            self.outputs = printed["outputs"]
            self.times.append(cpu * 1e6)
            return
        latency = self.run()
        if self.runs == 3:
            # A short turn first, to determine how many runs fill a turn.
            self.runs = max(4, min(100_000, int(self.args.seconds * 1e3 / latency["median_ms"])))
            latency = self.run()
        self.times.append(latency["min_ms"] * 1e3)

    def run(self):
        printed, _ = process([*self.command, "--repeat", str(self.runs)], self.args.threads)
        if self.outputs is None:
            self.outputs = printed["outputs"]
        return printed["latency"]


def measure(program, args):
    old, new = Build(args.old, program, args), Build(args.new, program, args)
    for turn in range(args.rounds):
        for build in (old, new) if turn % 2 == 0 else (new, old):
            build.turn()
    return {
        "program": title(program),
        "old_us": min(old.times),
        "new_us": min(new.times),
        "ratio": min(new.times) / min(old.times),
        "same_outputs": json.dumps(old.outputs) == json.dumps(new.outputs),
    }


def programs(paths):
    for path in map(pathlib.Path, paths):
        yield from sorted(path.rglob("*.pte")) if path.is_dir() else [path]


def line(row):
    differs = "" if row["same_outputs"] else "  ≠"
    return f"{row['program']:36} {row['old_us']:12.2f} {row['new_us']:12.2f} {row['ratio']:7.3f}{differs}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the command before a change")
    parser.add_argument("new", help="the command after it")
    parser.add_argument("programs", nargs="+", help="programs, or folders of programs, whose method is forward")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each build [default: 5]")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a turn [default: 0.2]")
    parser.add_argument("--cold", action="store_true", help="measure loading and the first run instead")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    args = parser.parse_args()
    rows = []
    print(f"{'program':36} {'old µs':>12} {'new µs':>12} {'ratio':>7}")
    for program in programs(args.programs):
        try:
            rows.append(measure(program, args))
        except (RuntimeError, OSError) as error:
            print(f"left out: {program}: {error}", file=sys.stderr)
            continue
        print(line(rows[-1]), flush=True)
    if not rows:
        raise SystemExit("no program ran with both builds")
    mean = statistics.geometric_mean(row["ratio"] for row in rows)
    print(f"{'geometric mean of ' + str(len(rows)):36} {'':12} {'':12} {mean:7.3f}")
    if args.json:
        args.json.write_text(json.dumps({"geometric_mean": mean, "programs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

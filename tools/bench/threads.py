#!/usr/bin/env python3
"""Measures the speedup of a second thread: runs the same programs on Pteron with one thread and with two, alternately.

    python tools/bench/threads.py target/release/pteron MODEL.pte... [--seconds 240]

Each turn is a separate process that is pinned to as many CPUs as it has threads and executes the program for about a
second. The shortest execution of all turns is reported, to reduce the influence of other load on the machine. The given time is
divided evenly between the programs; no turn begins after its end. Inputs are zeros.
"""

import argparse
import time

from beside import Pteron, title


def measure(pteron, model, seconds):
    """The shortest execution on one thread and on two, in milliseconds, and the number of turns of each."""
    sides = {threads: Pteron(pteron, model, threads) for threads in (1, 2)}
    end, turns = time.monotonic() + seconds, 0
    while turns == 0 or time.monotonic() < end:
        for side in sides.values():
            side.steady(1)
        turns += 1
    return {threads: min(side.minima) for threads, side in sides.items()}, turns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pteron")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--seconds", type=float, default=240)
    options = parser.parse_args()
    print("| program | 1 thread, ms | 2 threads, ms | gain | turns |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for model in options.models:
        best, turns = measure(options.pteron, model, options.seconds / len(options.models))
        print(f"| {title(model)} | {best[1]:.3f} | {best[2]:.3f} | {best[1] / best[2]:.2f} | {turns} |", flush=True)

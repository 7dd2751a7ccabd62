#!/usr/bin/env python3
"""What a second thread gains: the same programs by Pteron on one thread and on two, in turns.

    python tools/bench/threads.py target/release/pteron MODEL.pte... [--seconds 240]

Each turn is a process of its own that is pinned to as many CPUs as it has threads and executes the program for about a
second; of all turns the shortest execution counts, so that other work on the machine matters as little as possible. No
turn begins after the time that is given, which is shared out evenly. Inputs are zeros.
"""

import argparse
import time

from beside import Pteron, title


def measure(pteron, model, seconds):
    """The shortest executions on one thread and on two, in milliseconds, and the number of turns of each."""
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

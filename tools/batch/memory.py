"""Measures the memory of workers: whether they share one copy of the weights per machine.

    python tools/batch/memory.py PROGRAM [--workers 1 2 3] [--ray] [--no-prepare] [--cache FOLDER]

Starts processes, or Ray actors, that call a pickled `pteron.batch.Mapper`, and reads their proportional set size from /proc, in
which a page shared by several processes counts once in total. Their memory before they received the mapper is subtracted.
Prints a row of a Markdown table for each number of workers: total MB, MB added by the last worker, and the latter as a percentage
of the program's file size. Compare a plain program, one with `--cache`, one compiled with `backends=["bef"], native=True`, and
`--no-prepare`: weights that are packed at load time are private to each process.
"""

import argparse
import multiprocessing
import os
import pickle

import numpy

from pteron.batch import Mapper


def pss():
    """The proportional set size of this process in bytes."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))


class Worker:
    def held(self):
        return pss()

    def call(self, pickled):
        self.model = pickle.loads(pickled)
        sizes = {column.name or str(i): column for i, column in enumerate(self.model.inputs)}
        rows = max(self.model.batch_sizes, default=1)
        batch = {name: numpy.zeros((rows, *column.row), column.dtype) for name, column in sizes.items()}
        self.model(batch)
        return os.getpid()


def serve(pipe):
    worker = Worker()
    while True:
        name, arguments = pipe.recv()
        pipe.send(getattr(worker, name)(*arguments))


class Process:
    """A worker in a separate process."""

    def __init__(self):
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=serve, args=(other,), daemon=True)
        self.process.start()

    def ask(self, name, *arguments):
        self.pipe.send((name, arguments))
        return self.pipe.recv()

    def end(self):
        self.process.terminate()
        self.process.join()


class Actor:
    """A worker that is a Ray actor."""

    def __init__(self):
        import ray

        self.ray, self.worker = ray, ray.remote(num_cpus=0)(Worker).remote()

    def ask(self, name, *arguments):
        return self.ray.get(getattr(self.worker, name).remote(*arguments))

    def end(self):
        self.ray.kill(self.worker)


def held(kind, count, pickled):
    """Bytes that the mapper adds to this many workers in total."""
    workers = [kind() for _ in range(count)]
    before = sum(worker.ask("held") for worker in workers)
    for worker in workers:
        worker.ask("call", pickled)
    after = sum(worker.ask("held") for worker in workers)
    for worker in workers:
        worker.end()
    return after - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--no-prepare", action="store_true")
    parser.add_argument("--cache")
    options = parser.parse_args()
    if options.ray:
        import ray

        ray.init(num_cpus=2, include_dashboard=False, logging_level="error", object_store_memory=100 << 20)
    extra = {"inputs": None, "prepare": not options.no_prepare, "check": False, "cache": options.cache}
    model = Mapper(options.program, **extra)
    names = [column.name or str(i) for i, column in enumerate(model.inputs)]
    pickled = pickle.dumps(Mapper(options.program, **{**extra, "inputs": names}))
    size = os.path.getsize(options.program)
    last = 0
    for count in options.workers:
        total = held(Actor if options.ray else Process, count, pickled)
        print(f"| {count} | {total / 1e6:.1f} | {(total - last) / 1e6:.1f} | {(total - last) / size:.0%} |", flush=True)
        last = total


if __name__ == "__main__":
    main()

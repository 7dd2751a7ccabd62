#!/usr/bin/env python3
"""Runs the same program files on Pteron and on the reference runtime, each in its own process, and prints a table.

    python tools/bench/beside.py target/release/pteron MODEL.pte... [--threads 1,2] [--markdown TABLE.md]

Steady: executions after the first; the runtimes alternate in turns of --seconds, --rounds times. Reported are the minimum,
and the median of the turns' medians. Cold: load and first inference in a fresh process, including its start and end; CPU time
(user and system), wall-clock time, and peak memory; each is the minimum over --rounds processes.
Inputs are zeros. GNU time measures memory. Processes are pinned to as many CPUs as they have threads.

`reference.cpp` in this folder is the reference's process, without Python or PyTorch. It is built with `c++` from the headers
and libraries of pip's `executorch` (found in the Python that runs this script, or --wheel), unless --reference names a built one.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent


def installed():
    """The folder of pip's `executorch` package."""
    package = importlib.util.find_spec("executorch")
    if package is None:
        raise SystemExit("no executorch in this Python: pip install executorch, or name its folder with --wheel")
    return pathlib.Path(package.submodule_search_locations[0])


def build(wheel, folder):
    """Builds the reference's process, linked to the libraries of `wheel`."""
    libraries = ["", "_kernels_optimized", "_kernels_quantized", "_backend_xnnpack", "_threadpool", "_etdump"]
    program = pathlib.Path(folder) / "reference"
    headers = wheel / "include"
    command = ["c++", "-O1", "-std=c++20", "-w", "-DC10_USING_CUSTOM_GENERATED_MACROS", f"-I{headers}"]
    command += [f"-I{headers}/executorch/runtime/core/portable_type/c10", str(HERE / "reference.cpp"), "-o", str(program)]
    command += [f"-L{wheel}/lib", f"-Wl,-rpath,{wheel}/lib", "-Wl,--no-as-needed"]
    subprocess.run(command + [f"-lexecutorch{name}" for name in libraries], check=True)
    return str(program)


def core(cpu):
    """The package and core of a logical CPU."""
    topology = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return tuple((topology / name).read_text() for name in ("physical_package_id", "core_id"))
    except OSError:
        return cpu


def pin(threads):
    """A function that pins the process to this many CPUs, on different cores as far as possible."""
    cpus = sorted(os.sched_getaffinity(0), reverse=True)
    firsts = list({core(cpu): cpu for cpu in cpus}.values())
    cpus = (firsts + [cpu for cpu in cpus if cpu not in firsts])[:threads]
    return lambda: os.sched_setaffinity(0, cpus)


def process(command, threads):
    """The JSON that the process printed, and its CPU and wall-clock seconds."""
    with tempfile.TemporaryFile() as out:
        start = time.monotonic()
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, preexec_fn=pin(threads))
        _, status, usage = os.wait4(child.pid, 0)
        clock = time.monotonic() - start
        if status != 0:
            raise RuntimeError(f"status {status}: {' '.join(command)}")
        out.seek(0)
        return json.loads(out.read()), (usage.ru_utime + usage.ru_stime, clock)


def peak(command, threads):
    """The peak memory of a process in MiB. GNU time starts it, because the kernel's figure for a direct child of Python would
    include Python's own memory."""
    timed = ["/usr/bin/time", "-f", "%M", *command]
    done = subprocess.run(timed, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=pin(threads), text=True)
    return float(done.stderr.split()[-1]) / 1024


def cold(command, threads):
    return (*process(command, threads)[1], peak(command, threads))


class Reference:
    def __init__(self, command, model, threads):
        self.command, self.threads = [command, model, str(threads)], threads
        self.minima, self.medians, self.cold = [], [], []

    def steady(self, seconds):
        times, _ = process([*self.command, str(seconds)], self.threads)
        self.minima.append(times["min_ms"])
        self.medians.append(times["median_ms"])

    def start(self):
        self.cold.append(cold([*self.command, "0"], self.threads))


class Pteron:
    def __init__(self, command, model, threads):
        self.command, self.threads = [command, "run", model, "--json", "--threads", str(threads)], threads
        self.minima, self.medians, self.cold = [], [], []
        self.runs = 3

    def steady(self, seconds):
        times = self.turn()
        if self.runs == 3:
            # A short turn first, to determine how many runs fill a turn.
            self.runs = max(4, min(100_000, int(seconds * 1e3 / times["median_ms"])))
            times = self.turn()
        self.minima.append(times["min_ms"])
        self.medians.append(times["median_ms"])

    def turn(self):
        return process([*self.command, "--repeat", str(self.runs)], self.threads)[0]["latency"]

    def start(self):
        self.cold.append(cold(self.command, self.threads))


def title(model):
    """The name of a program in the table; for conformance cases the name of their folder."""
    path = pathlib.Path(model)
    return path.parent.name if path.stem == "model" else path.stem


def measure(model, threads, reference, args):
    both = [Reference(reference, model, threads), Pteron(args.pteron, model, threads)]
    for _ in range(args.rounds):
        for side in both:
            side.start()
            if args.seconds > 0:
                side.steady(args.seconds)
    row = {"program": title(model), "threads": threads}
    for name, side in zip(("reference", "pteron"), both, strict=True):
        if side.minima:
            row[f"{name}_min_ms"] = min(side.minima)
            row[f"{name}_median_ms"] = statistics.median(side.medians)
        for key, values in zip(("cpu_s", "clock_s", "peak_mib"), zip(*side.cold, strict=True), strict=True):
            row[f"{name}_{key}"] = min(values)
    return row


COLUMNS = [("min_ms", 1, "ms"), ("median_ms", 1, "median ms"), ("cpu_s", 1e3, "cold CPU ms"), ("clock_s", 1e3, "cold clock ms")]
COLUMNS += [("peak_mib", 1, "peak MiB")]


def table(rows):
    titles, lines = ["program", "threads"], []
    shown = [column for column in COLUMNS if f"reference_{column[0]}" in rows[0]]
    for _, _, title in shown:
        titles += [f"{title}: reference", "Pteron", "ratio"]
    for row in rows:
        line = [row["program"], str(row["threads"])]
        for key, scale, _ in shown:
            reference, pteron = row[f"reference_{key}"] * scale, row[f"pteron_{key}"] * scale
            line += [f"{reference:.3g}", f"{pteron:.3g}", f"{pteron / reference:.2f}"]
        lines.append(line)
    means = ["geometric mean", ""]
    for key, _, _ in shown:
        ratios = [row[f"pteron_{key}"] / row[f"reference_{key}"] for row in rows]
        means += ["", "", f"{statistics.geometric_mean(ratios):.2f}"]
    rule = ["---", "---:"] + ["---:"] * (len(titles) - 2)
    return "\n".join("| " + " | ".join(line) + " |" for line in [titles, rule, *lines, means])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pteron", help="the command")
    parser.add_argument("models", nargs="+", help="program files whose method is forward")
    parser.add_argument("--threads", default="1", help="thread counts, separated by commas [default: 1]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each runtime [default: 5]")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a steady turn, 0 for cold only [default: 0.5]")
    parser.add_argument("--reference", help="the reference's process, already built")
    parser.add_argument("--wheel", type=pathlib.Path, help="the folder `executorch` of pip's package")
    parser.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        reference = args.reference or build(args.wheel or installed(), folder)
        for model in args.models:
            for threads in map(int, args.threads.split(",")):
                try:
                    rows.append(measure(model, threads, reference, args))
                except RuntimeError as error:
                    print(f"left out: {error}", file=sys.stderr)
                    continue
                print(table(rows[-1:]).splitlines()[2], file=sys.stderr, flush=True)
    print(table(rows))
    if args.markdown:
        args.markdown.write_text(table(rows) + "\n")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

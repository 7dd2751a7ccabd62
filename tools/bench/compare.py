#!/usr/bin/env python3
"""Compares the speed of networks on the reference runtime (pip's executorch) and on Pteron.

A network is exported twice: `plain`, without delegates, and `lowered`, in which XNNPACK takes all
operators that it supports. The reference runs the lowered program, Pteron the plain one, which should not be much
slower. The runtimes alternate, each in its own process that is pinned to
as many CPUs as it has threads; the first run of a turn is not counted. Outputs are compared with
PyTorch's and with each other.

    pip install executorch torch torchvision
    tools/bench/compare.py                              # every network of networks.py, 1 and 2 threads
    tools/bench/compare.py resnet18 vit_tiny --threads 1
    tools/bench/compare.py --corpus FOLDER              # every pair NAME, NAME_xnn of conformance cases
    tools/bench/compare.py --same                       # the reference runs the plain program as well
    tools/bench/compare.py --lowered                    # Pteron runs the lowered program as well
    tools/bench/compare.py --lowered --corpus FOLDER    # every case NAME_xnn..., quantized ones included

Times are per execution, including setting the inputs; memory is the peak of the process, for the
reference without the memory of Python and torch before the program was loaded.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from beside import pin

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Tolerance of outputs relative to the largest element; rounding errors accumulate over a network.
AGREE = 1e-3


@dataclasses.dataclass
class Network:
    """The files of a network."""

    name: str
    plain: pathlib.Path
    lowered: pathlib.Path
    inputs: list
    expected: list


@dataclasses.dataclass
class Measured:
    """The measurements of one runtime."""

    times: list = dataclasses.field(default_factory=list)
    memory: float = 0.0
    outputs: list = dataclasses.field(default_factory=list)

    def minimum(self):
        return min(map(min, self.times))

    def median(self):
        """The median of the turns' medians."""
        return statistics.median(statistics.median(t) for t in self.times)


# The reference's side: a worker process that loads a program once and runs it on request.


def status(field, process="self"):
    """A memory field of /proc/PID/status in MiB; 0 if the process has none."""
    try:
        lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


def worker(program, threads, inputs):
    import torch
    from executorch.extension.pybindings import portable_lib

    portable_lib._unsafe_reset_threadpool(threads)
    torch.set_num_threads(threads)
    values = [torch.from_numpy(np.load(path)) for path in inputs]
    before = status("VmRSS")
    module = portable_lib._load_for_executorch(program)
    outputs = module.run_method("forward", values)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "save" in request:
            for i, output in enumerate(outputs):
                if isinstance(output, torch.Tensor):
                    np.save(pathlib.Path(request["save"]) / f"output{i}.npy", output.float().numpy())
            print(json.dumps({"memory": status("VmHWM") - before}), flush=True)
            continue
        module.run_method("forward", values, False)
        times, end = [], time.perf_counter() + request["seconds"]
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            module.run_method("forward", values, False)
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps({"times": times}), flush=True)


class Reference:
    """The reference's side: a worker process."""

    def __init__(self, program, network, threads):
        command = [sys.executable, __file__, "--worker", str(threads), str(program), *map(str, network.inputs)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=pin(threads),
        )
        self.measured = Measured()
        self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the reference stopped: {' '.join(self.process.args)}")
        return json.loads(line)

    def ask(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def turn(self, seconds):
        self.measured.times.append(self.ask({"seconds": seconds})["times"])

    def finish(self):
        with tempfile.TemporaryDirectory() as folder:
            self.measured.memory = self.ask({"save": folder})["memory"]
            self.measured.outputs = load_outputs(folder)
        self.process.stdin.close()
        self.process.wait()


class Pteron:
    """Pteron's side: the command, run once per turn."""

    def __init__(self, command, program, network, threads):
        inputs = [f"@{path}" for path in network.inputs]
        self.command = [command, "run", str(program), *inputs, "--json", "--threads", str(threads)]
        self.threads = threads
        self.runs = 3
        self.measured = Measured()

    def turn(self, seconds):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            with open(report, "wb") as out:
                process = subprocess.Popen(
                    [*self.command, "--output", folder, "--repeat", str(self.runs)],
                    stdout=out,
                    preexec_fn=pin(self.threads),
                )
                # The kernel's rusage of a child includes the memory that its parent had at the fork.
                while process.poll() is None:
                    self.measured.memory = max(self.measured.memory, status("VmHWM", process.pid))
                    time.sleep(0.01)
            if process.returncode != 0:
                raise SystemExit(f"pteron failed: {' '.join(process.args)}")
            latency = json.loads(report.read_text())["latency"]
            self.measured.outputs = load_outputs(folder)
        # A short first turn only determines how many runs fill a turn.
        if self.runs > 3 or latency["median_ms"] * 3 > seconds * 1e3:
            self.measured.times.append([latency["min_ms"], latency["median_ms"], latency["p99_ms"]])
        self.runs = max(3, min(100_000, int(seconds * 1e3 / latency["median_ms"])))


def load_outputs(folder):
    files = sorted(pathlib.Path(folder).glob("output*.npy"), key=lambda p: int(p.stem[6:]))
    return [np.load(path) for path in files]


def difference(outputs, expected):
    """The largest difference, relative to the largest element."""
    worst = 0.0
    for a, b in zip(outputs, expected, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if a.size:
            a, b = a.astype(np.float64), b.astype(np.float64)
            worst = max(worst, float(np.max(np.abs(a - b)) / max(np.max(np.abs(b)), 1e-30)))
    return worst


def corpus(folder, names, only_lowered):
    """Pairs of conformance cases of the same network, or only the lowered ones, with the inputs and outputs of their first run."""
    for case in sorted(folder.glob("*_xnn*/case.json" if only_lowered else "*_xnn/case.json")):
        lowered, plain = case.parent, case.parent.with_name(case.parent.name.removesuffix("_xnn"))
        plain = lowered if only_lowered else plain
        if not (plain / "case.json").exists() or (names and plain.name not in names):
            continue
        about = json.loads((plain / "case.json").read_text())
        run = about["runs"][0]
        if any(v["kind"] != "tensor" for v in run["inputs"] + run["outputs"]):
            continue
        scratch = pathlib.Path(tempfile.mkdtemp(prefix=f"{plain.name}-"))
        inputs = []
        for i, spec in enumerate(run["inputs"]):
            np.save(scratch / f"input{i}.npy", stored(plain, spec))
            inputs.append(scratch / f"input{i}.npy")
        expected = [stored(plain, spec) for spec in run["outputs"]]
        files = [f / json.loads((f / "case.json").read_text())["model"] for f in (plain, lowered)]
        yield Network(plain.name, *files, inputs, expected)


def stored(folder, spec):
    raw = (folder / spec["file"]).read_bytes()[spec["offset"] :][: spec["nbytes"]]
    return np.frombuffer(raw, dtype=spec["dtype"]).reshape(spec["shape"])


def exported(names, folder):
    import networks

    for name in names or networks.NETWORKS:
        print(f"exporting {name}", file=sys.stderr)
        target = networks.export(name, folder)
        inputs = sorted(target.glob("input*.npy"))
        expected = [np.load(path) for path in sorted(target.glob("expected*.npy"))]
        yield Network(name, target / "plain.pte", target / "lowered.pte", inputs, expected)


def measure(network, threads, args):
    program = network.plain if args.same else network.lowered
    contestants = [
        Reference(program, network, threads),
        Pteron(args.pteron, network.lowered if args.lowered else network.plain, network, threads),
    ]
    contestants[1].turn(args.seconds)
    for _ in range(args.rounds):
        for contestant in contestants:
            contestant.turn(args.seconds)
    contestants[0].finish()
    reference, pteron = (c.measured for c in contestants)
    worst = max(difference(pteron.outputs, network.expected), difference(pteron.outputs, reference.outputs))
    return {
        "network": network.name,
        "threads": threads,
        "reference_median_ms": reference.median(),
        "reference_min_ms": reference.minimum(),
        "pteron_median_ms": pteron.median(),
        "pteron_min_ms": pteron.minimum(),
        "ratio_median": pteron.median() / reference.median(),
        "ratio_min": pteron.minimum() / reference.minimum(),
        "reference_mib": reference.memory,
        "pteron_mib": pteron.memory,
        "difference": worst,
        "agrees": worst <= AGREE,
    }


COLUMNS = [
    ("network", "network", "{}"),
    ("threads", "threads", "{}"),
    ("reference_median_ms", "reference median ms", "{:.3f}"),
    ("reference_min_ms", "min ms", "{:.3f}"),
    ("pteron_median_ms", "Pteron median ms", "{:.3f}"),
    ("pteron_min_ms", "min ms", "{:.3f}"),
    ("ratio_median", "ratio of medians", "{:.2f}"),
    ("ratio_min", "of minima", "{:.2f}"),
    ("reference_mib", "reference MiB", "{:.0f}"),
    ("pteron_mib", "Pteron MiB", "{:.0f}"),
    ("difference", "difference", "{:.0e}"),
]


def table(rows, markdown):
    lines = [[title for _, title, _ in COLUMNS]]
    lines += [[form.format(row[key]) for key, _, form in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    if not markdown:
        text = (" ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(l, widths))) for l in lines)
        return "\n".join(text)
    lines.insert(1, ["---"] + ["---:"] * (len(COLUMNS) - 1))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main():
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[3], int(sys.argv[2]), sys.argv[4:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", help="networks to measure [default: all]")
    parser.add_argument("--threads", default="1,2", help="thread counts [default: 1,2]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each runtime [default: 5]")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn [default: 0.5]")
    parser.add_argument("--corpus", type=pathlib.Path, help="measure conformance cases of this folder")
    parser.add_argument("--same", action="store_true", help="both run the plain program (slow)")
    parser.add_argument("--lowered", action="store_true", help="both run the lowered program")
    parser.add_argument("--files", type=pathlib.Path, default=ROOT / "target/bench", help="folder of the exported programs")
    parser.add_argument("--pteron", default=str(ROOT / "target/release/pteron"), help="the command")
    parser.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    args = parser.parse_args()
    chosen = corpus(args.corpus, args.networks, args.lowered) if args.corpus else exported(args.networks, args.files)
    rows = []
    for network in list(chosen):
        for threads in map(int, args.threads.split(",")):
            rows.append(measure(network, threads, args))
            print(table(rows[-1:], False).splitlines()[-1], file=sys.stderr)
    print(table(rows, False))
    if args.markdown:
        args.markdown.write_text(table(rows, True) + "\n")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    wrong = [row["network"] for row in rows if not row["agrees"]]
    if wrong:
        raise SystemExit(f"outputs differ: {', '.join(wrong)}")


if __name__ == "__main__":
    main()

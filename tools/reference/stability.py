#!/usr/bin/env python3
"""Measures how far the reference runtime's own outputs of a case move when the inputs, or the f32 constants outside
delegates, are perturbed to neighbouring floats. Prints the differences beside the case's tolerance.

    python tools/reference/stability.py CASE... [--times 20] [--pteron target/release/pteron] [--relative E]

A random half of the elements moves to the next larger or smaller float. With `--relative E` every element instead gets
a normally distributed relative error of standard deviation E. Constants are perturbed only with `--pteron`, which
locates them in the file. Needs torch and executorch.
"""

import argparse
import json
import pathlib
import re
import subprocess

import numpy
import torch
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer


def tensor(folder, entry):
    data = (folder / entry["file"]).read_bytes()[entry["offset"] :][: entry["nbytes"]]
    return torch.from_numpy(numpy.frombuffer(data, entry["dtype"]).reshape(entry["shape"]).copy())


def neighbour(x, generator, relative=None):
    if not x.is_floating_point():
        return x
    if relative:
        return x * (1 + relative * torch.randn(x.shape, generator=generator))
    moved = torch.nextafter(x, torch.where(torch.rand(x.shape, generator=generator) < 0.5, -torch.inf, torch.inf))
    return torch.where(torch.rand(x.shape, generator=generator) < 0.5, x, moved)


def constants(pteron, model):
    """Byte ranges in the file of the program's own f32 constants."""
    text = subprocess.run([pteron, "print", model], capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"float32\[[^\]]*\] +constant \d+, bytes (\d+)\.\.(\d+) of the file", text)))


def moved_constants(model, places, generator, relative):
    data = bytearray(model)
    for start, end in ((int(a), int(b)) for a, b in places):
        elements = torch.frombuffer(bytearray(data[start:end]), dtype=torch.float32)
        data[start:end] = neighbour(elements, generator, relative).numpy().tobytes()
    return bytes(data)


def exceeding(found, expected, tolerance):
    """The number of elements beyond the tolerance, and the largest difference."""
    difference = (found - expected).abs()
    return int((difference > tolerance["atol"] + tolerance["rtol"] * expected.abs()).sum()), float(difference.max())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", type=pathlib.Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--pteron")
    parser.add_argument("--relative", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for folder in options.cases:
        case = json.loads((folder / "case.json").read_text())
        path = folder / case["model"]
        model = path.read_bytes()
        run = case["runs"][0]
        inputs = [tensor(folder, x) for x in run["inputs"]]
        expected = [tensor(folder, x) for x in run["outputs"]]
        tolerance = case.get("tolerance") or {"atol": 1e-4, "rtol": 1e-4}

        def differs(model, inputs):
            program = _load_for_executorch_from_buffer(model)
            outputs = [o.clone() for o in program.run_method(run["method"], inputs)]
            each = [exceeding(o, e, tolerance) for o, e in zip(outputs, expected) if e.is_floating_point()]
            return sum(n for n, _ in each), max(d for _, d in each)

        def show(what, runs):
            beyond = sum(n > 0 for n, _ in runs)
            largest = [float(f"{d:.3g}") for d in sorted(d for _, d in runs)]
            print(f"  {what}: {beyond} of {len(runs)} runs differ by more, elements {sorted(n for n, _ in runs)}")
            print(f"    largest differences {largest}")

        print(f"{folder.name}: tolerance {tolerance}")
        show("as it is", [differs(model, inputs)])
        seeds = [torch.Generator().manual_seed(i) for i in range(options.times)]
        show("inputs moved", [differs(model, [neighbour(x, g, options.relative) for x in inputs]) for g in seeds])
        if options.pteron and (places := constants(options.pteron, path)):
            show("constants moved", [differs(moved_constants(model, places, g, options.relative), inputs) for g in seeds])

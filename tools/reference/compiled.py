#!/usr/bin/env python3
"""Compiles the torch.export archives beside conformance cases and runs the programs on the reference runtime.

    python tools/reference/compiled.py PTERON FOLDER... [--backend xnnpack] [--eager] [--report FILE]

Compiles every `model.pt2` and `model_core.pt2` under the folders, by default without a backend. `executorch.runtime`
loads and runs the program on the inputs of its case; the outputs are compared with the recorded outputs within the
corpus tolerances. With `--eager` the expected outputs are computed by PyTorch from the archive itself, for archives
whose weights or state differ from the recorded ones. Programs run in a child process, which is restarted after a
crash. Needs executorch and numpy.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

TOLERANCE = {"float32": 1e-4, "float64": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}


def tensor(folder, value):
    """A recorded tensor, in its recorded dim order."""
    import torch
    raw = (folder / value["file"]).read_bytes()[value["offset"]:value["offset"] + value["nbytes"]]
    dtype = getattr(torch, value["dtype"])
    if not raw:
        return torch.zeros(value["shape"], dtype=dtype)
    t = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(value["shape"])
    order = value["dim_order"]
    if order != sorted(order):
        t = t.permute(order).contiguous().permute([order.index(d) for d in range(len(order))])
    return t


def value(folder, v):
    if v["kind"] == "tensor":
        return tensor(folder, v)
    return v.get("value")


def differs(found, expected, tolerance):
    import torch
    if not isinstance(expected, torch.Tensor):
        return None if found == expected else f"{found} where {expected} is recorded"
    if list(found.shape) != list(expected.shape) or found.dtype != expected.dtype:
        return f"{found.dtype}{list(found.shape)} where {expected.dtype}{list(expected.shape)} is recorded"
    if expected.is_complex():
        found, expected = torch.view_as_real(found), torch.view_as_real(expected)
    if not expected.is_floating_point():
        return None if torch.equal(found, expected) else "other elements"
    a, b = found.double(), expected.double()
    scale = b[b.isfinite()].abs().max().item() if b[b.isfinite()].numel() else 1.0
    rtol = tolerance or TOLERANCE[str(expected.dtype).removeprefix("torch.")]
    if torch.allclose(a, b, rtol=0, atol=rtol * max(scale, 0.1), equal_nan=True):
        return None
    either = a.isfinite() & b.isfinite()
    other = (~torch.isclose(a, b, equal_nan=True) & ~either).sum().item()
    by = (a - b)[either].abs().max().item() if either.any() else 0.0
    return f"differs by {by:.3g}" + (f", and {other} elements are infinite or NaN on one side" if other else "")


def run_case(program, case, archive):
    """Runs all runs of a case and returns the verdict with the first difference. If `archive` is given, its module
    computes the expected outputs in place of the recorded ones."""
    # Registers the kernels of `quantized_decomposed`.
    import executorch.kernels.quantized  # noqa: F401
    from executorch.runtime import Runtime
    folder = case.parent
    record = json.loads(case.read_text())
    loaded = Runtime.get().load_program(program)
    methods = {}
    tolerance = record.get("tolerance", {}).get("rtol")
    module = None
    if archive:
        import torch
        module = torch.export.load(archive).module()
    for i, run in enumerate(record["runs"]):
        if run.get("runtime_error") or run.get("reference_departs") or run.get("outputs") is None:
            continue
        name = run.get("method", "forward")
        if name not in methods:
            methods[name] = loaded.load_method(name)
        inputs = [value(folder, v) for v in run["inputs"]]
        if module:
            from torch.utils import _pytree as tree
            expected = tree.tree_leaves(module(*inputs))
        else:
            expected = [value(folder, v) for v in run["outputs"]]
        outputs = methods[name].execute(inputs)
        for k, (found, known) in enumerate(zip(outputs, expected, strict=True)):
            problem = differs(found, known, tolerance)
            if problem:
                return "differs", f"run {i}, output {k}: {problem}"
    return "agrees", ""


def serve():
    """Child process: runs each case named on standard input and prints a line of JSON with the verdict."""
    for line in sys.stdin:
        program, case, archive = json.loads(line)
        try:
            answer = run_case(program, pathlib.Path(case), archive)
        except Exception as e:
            answer = "reference fails", str(e)[:600]
        print("\0" + json.dumps(answer), flush=True)


class Reference:
    """Handle of the child process that runs programs."""

    def __init__(self, log):
        self.log, self.child = log, None

    def run(self, program, case, archive):
        if self.child is None:
            self.log.seek(0)
            self.log.truncate()
            self.child = subprocess.Popen([sys.executable, __file__, "--child"], stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, stderr=self.log, text=True)
        start = self.log.seek(0, 2)
        self.child.stdin.write(json.dumps([str(program), str(case), archive and str(archive)]) + "\n")
        self.child.stdin.flush()
        for line in self.child.stdout:
            if line.startswith("\0"):
                what, why = json.loads(line[1:])
                break
        else:
            what, why = "reference fails", f"the process died: {self.child.wait()}"
            self.child = None
        self.log.seek(start)
        said = [line.strip() for line in self.log.read().splitlines() if "rror" in line or "heck failed" in line]
        return what, " | ".join([why, *said[:2]])[:600] if what == "reference fails" else why


def check(pteron, backend, case, archive, program, reference, eager):
    command = [pteron, "compile", archive, "--operators", "portable", "--backend", backend, "-o", program]
    compiled = subprocess.run(command, capture_output=True, text=True)
    if compiled.returncode:
        return "does not compile", compiled.stderr.strip()
    return reference.run(program, case, archive if eager else None)


def main():
    if "--child" in sys.argv:
        return serve()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pteron")
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--backend", default="none")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--report", type=pathlib.Path)
    args = parser.parse_args()
    cases = sorted(c for f in args.folders for c in f.rglob("case.json"))
    counts, lines = collections.Counter(), []
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryFile("w+") as log:
        program, reference = pathlib.Path(work) / "model.pte", Reference(log)
        for case in cases:
            for name in ("model.pt2", "model_core.pt2"):
                archive = case.parent / name
                if archive.exists():
                    what, why = check(args.pteron, args.backend, case, archive, program, reference, args.eager)
                    counts[what] += 1
                    if what != "agrees":
                        lines.append(f"{case.parent.name}/{name}: {what}: {why}")
                        print(lines[-1], flush=True)
    total = ", ".join(f"{n} {what}" for what, n in counts.most_common())
    print(total)
    if args.report:
        args.report.write_text("\n".join([total, *lines]) + "\n")
    return int(counts.total() != counts["agrees"])


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Compiles the torch.export archives beside conformance cases and runs what comes of it on the reference runtime.

    python tools/reference/compiled.py PTERON FOLDER... [--report FILE]

Every `model.pt2` and `model_core.pt2` under the folders is compiled with `--backend none`; the program is loaded by
`executorch.runtime`, run on the inputs of its case and compared with the recorded outputs, by the tolerances of the
corpus. Each program runs in a process of its own, because the reference can die of one. Needs executorch and numpy.
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
    """A recorded tensor, in the layout that the caller had."""
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
    if not expected.is_floating_point():
        return None if torch.equal(found, expected) else "other elements"
    a, b = found.double(), expected.double()
    scale = b[b.isfinite()].abs().max().item() if b[b.isfinite()].numel() else 1.0
    rtol = tolerance or TOLERANCE[str(expected.dtype).removeprefix("torch.")]
    if torch.allclose(a, b, rtol=0, atol=rtol * max(scale, 0.1), equal_nan=True):
        return None
    return f"differs by {(a - b).abs().nan_to_num(0).max().item():.3g}"


def run_case(program, case):
    """Runs every run of a case; prints what is wrong as JSON."""
    from executorch.runtime import Runtime
    folder = case.parent
    record = json.loads(case.read_text())
    loaded = Runtime.get().load_program(program)
    methods = {}
    tolerance = record.get("tolerance", {}).get("rtol")
    for i, run in enumerate(record["runs"]):
        if run.get("runtime_error") or run.get("reference_departs") or run.get("outputs") is None:
            continue
        name = run.get("method", "forward")
        if name not in methods:
            methods[name] = loaded.load_method(name)
        outputs = methods[name].execute([value(folder, v) for v in run["inputs"]])
        for k, (found, recorded) in enumerate(zip(outputs, run["outputs"], strict=True)):
            problem = differs(found, value(folder, recorded), tolerance)
            if problem:
                print(json.dumps(f"run {i}, output {k}: {problem}"))
                return
    print(json.dumps(None))


def check(pteron, case, archive, work):
    program = work / "model.pte"
    compiled = subprocess.run([pteron, "compile", archive, "-o", program], capture_output=True, text=True)
    if compiled.returncode:
        return "does not compile", compiled.stderr.strip()
    ran = subprocess.run([sys.executable, __file__, "--child", program, case], capture_output=True, text=True,
                         timeout=600)
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("null", '"'))]
    if ran.returncode or not lines:
        log = (ran.stderr.strip().splitlines() or [f"status {ran.returncode}"])
        errors = [line for line in log if "rror" in line or "heck failed" in line] or log
        return "reference fails", " | ".join(errors[-3:])[:600]
    problem = json.loads(lines[-1])
    return ("differs", problem) if problem else ("agrees", "")


def main():
    if "--child" in sys.argv:
        return run_case(sys.argv[2], pathlib.Path(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pteron")
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--report", type=pathlib.Path)
    args = parser.parse_args()
    cases = sorted(c for f in args.folders for c in f.rglob("case.json"))
    counts, lines = collections.Counter(), []
    with tempfile.TemporaryDirectory() as work:
        for case in cases:
            for name in ("model.pt2", "model_core.pt2"):
                archive = case.parent / name
                if archive.exists():
                    what, why = check(args.pteron, case, archive, pathlib.Path(work))
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

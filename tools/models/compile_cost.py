#!/usr/bin/env python3
"""Compares `pteron compile` with the reference exporter on archives: seconds, peak memory and planned bytes.

    python tools/models/compile_cost.py PTERON [NAME...] [--runs N]

The reference is `to_edge_transform_and_lower(torch.export.load(archive)).to_executorch()`, without a partitioner, in a
separate process whose time includes Python's imports; a second figure excludes them. The best of several runs is reported.
Only child processes import PyTorch, because the kernel's peak memory of a child starts at that of its parent at the fork.
Needs torch, torchvision and executorch; `vit_tiny` needs timm.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


NAMES = "mobilenet_v2", "resnet18", "vit_tiny"


def export(name, archive):
    import torch
    import torchvision.models as m
    if name == "vit_tiny":
        import timm
        model = timm.create_model("vit_tiny_patch16_224", pretrained=False)
    else:
        model = m.get_model(name, weights=None)
    torch.export.save(torch.export.export(model.eval(), (torch.randn(1, 3, 224, 224),)), archive)


def reference(archive):
    import torch
    from executorch.exir import to_edge_transform_and_lower
    start = time.time()
    program = to_edge_transform_and_lower(torch.export.load(archive)).to_executorch()
    pathlib.Path(archive + ".pte").write_bytes(program.buffer)
    plan = program.executorch_program.execution_plan[0]
    print("\0" + json.dumps([time.time() - start, sum(plan.non_const_buffer_sizes)]))


def measured(command):
    """Runs a command; returns its seconds, peak memory in bytes, and output."""
    start = time.time()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise RuntimeError(f"{command[0]} ended with {status}")
    return time.time() - start, usage.ru_maxrss * 1024, out


def main():
    if "--reference" in sys.argv:
        return reference(sys.argv[-1])
    if "--export" in sys.argv:
        return export(*sys.argv[-2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pteron")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    print("| model | weights | compile | reference | without imports | times | memory | reference | planned | reference |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    mb = lambda n: f"{n / 1e6:.2f} MB"
    for name in args.names or NAMES:
        with tempfile.TemporaryDirectory() as work:
            archive = f"{work}/m.pt2"
            subprocess.run([sys.executable, __file__, "--export", name, archive], check=True)
            ours = [measured([args.pteron, "compile", archive, "-o", f"{work}/m.pte", "--json"]) for _ in range(args.runs)]
            theirs = [measured([sys.executable, __file__, "--reference", archive]) for _ in range(args.runs)]
            report = json.loads(ours[0][2])["methods"][0]
            inside, planned = zip(*(json.loads(out.split("\0")[1]) for _, _, out in theirs))
            (a, b), (m, n) = [[min(r[i] for r in runs) for runs in (ours, theirs)] for i in (0, 1)]
            print(f"| {name} | {mb(report['constant_bytes'])} | {a:.3f} s | {b:.2f} s | {min(inside):.2f} s | {b / a:.0f} | "
                  f"{mb(m)} | {mb(n)} | {report['arena_bytes']} | {planned[0]} |", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times single operators on Pteron and on the reference runtime's own kernels, alternately, and prints a table.

    python tools/bench/operator_times.py target/release/pteron FOLDER [--only NAME...] [--threads 1]

Each program is one operator, or the operators that ExecuTorch's exporter decomposes it into, exported without delegates by pip's
`executorch`, which must be installed in the Python that runs this script. The programs are kept in FOLDER. Inputs are zeros. The times
come from `beside.py`: the minimum over all executions after the first, in processes that alternate.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import warnings

HERE = pathlib.Path(__file__).resolve().parent


def cases():
    """Operators by family and name: the function and its inputs."""
    import torch
    import torch.nn.functional as F

    def r(*sizes):
        return torch.rand(*sizes) * 2 - 1

    def indices(*sizes, below):
        return torch.randint(0, below, sizes)

    rows, images, small = r(4, 8192), r(2, 64, 32, 32), r(1, 16, 32, 32)
    matrix, table, words = r(64, 512), r(512, 64), r(1, 32000)
    numbers, chosen = indices(64, 128, below=1000), indices(256, below=512)
    some, parts = indices(4, 4096, below=8192), r(4, 4096)
    module = torch.nn
    return {
        "extremes": {
            "argmax": (lambda x: x.argmax(-1), words),
            "argmin across rows": (lambda x: x.argmin(0), matrix),
            "max": (lambda x: x.max(-1), rows),
            "max across rows": (lambda x: x.max(0), matrix),
            "max of int64": (lambda x: x.max(-1), numbers),
            "min of short rows": (lambda x: x.min(1), r(128, 197)),
            "amax": (lambda x: x.amax(-1), rows),
            "amin across channels": (lambda x: x.amin(1), images),
            "any": (lambda x: (x > 3).any(-1), rows),
        },
        "order": {
            "topk of 50": (lambda x: x.topk(50), words),
            "topk of 5": (lambda x: x.topk(5), r(128, 197)),
            "sort": (lambda x: x.sort(-1), rows),
            "nonzero": (lambda x: (x + 1).nonzero(), rows),
        },
        "along a dimension": {
            "softmax": (lambda x: x.softmax(-1), rows),
            "softmax across rows": (lambda x: x.softmax(0), matrix),
            "softmax of classes of pixels": (lambda x: x.softmax(1), r(2, 21, 32, 32)),
            "log_softmax": (lambda x: x.log_softmax(-1), rows),
            "cumsum": (lambda x: x.cumsum(-1), rows),
            "cumsum across rows": (lambda x: x.cumsum(0), matrix),
        },
        "reductions": {
            "sum across channels": (lambda x: x.sum(1), images),
            "mean": (lambda x: x.mean(-1), rows),
            "mean of images": (lambda x: x.mean((2, 3)), images),
            "var": (lambda x: x.var(-1), rows),
            "prod": (lambda x: x.prod(-1), rows),
            "norm": (lambda x: x.norm(dim=-1), rows),
        },
        "norms": {
            "layer_norm": (lambda x: F.layer_norm(x, (512,)), matrix),
            "group_norm": (lambda x: F.group_norm(x, 8), images),
            "batch_norm": (module.BatchNorm2d(64), images),
            "rms": (lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6), matrix),
        },
        "functions": {
            "exp": (torch.exp, rows),
            "log": (lambda x: (x + 2).log(), rows),
            "tanh": (torch.tanh, rows),
            "sigmoid": (torch.sigmoid, rows),
            "erf": (torch.erf, rows),
            "sin": (torch.sin, rows),
            "atan": (torch.atan, rows),
            "sqrt": (lambda x: (x + 2).sqrt(), rows),
            "pow": (lambda x: (x + 2) ** 1.7, rows),
            "floor": (torch.floor, rows),
            "round": (torch.round, rows),
            "clamp": (lambda x: x.clamp(-1, 1), rows),
        },
        "activations": {
            "gelu": (F.gelu, rows),
            "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), rows),
            "silu": (F.silu, rows),
            "hardswish": (F.hardswish, rows),
            "leaky_relu": (F.leaky_relu, rows),
            "elu": (F.elu, rows),
            "mish": (F.mish, rows),
            "glu": (F.glu, rows),
        },
        "pairs": {
            "add": (lambda x, y: x + y, (rows, rows + 1)),
            "add of a column": (lambda x, y: x + y, (images, r(64, 1, 1))),
            "mul of rows": (lambda x, y: x * y, (table, r(512, 1))),
            "div": (lambda x, y: x / y, (rows, rows + 9)),
            "maximum": (torch.maximum, (rows, rows + 1)),
            "atan2": (torch.atan2, (rows, rows + 1)),
            "where": (lambda x: torch.where(x > 0, x, x * 2), rows),
            "remainder": (lambda x: x.remainder(1.3), rows),
            "add of int64": (lambda x: x + 3, numbers),
            "to float16": (lambda x: x.half(), rows),
            "to int32": (lambda x: x.to(torch.int32), rows),
        },
        "places": {
            "gather": (lambda x, i: x.gather(1, i), (rows, some)),
            "scatter": (lambda x, i, s: x.scatter(1, i, s), (rows, some, parts)),
            "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), (rows, some, parts)),
            "index_select": (lambda x, i: x.index_select(0, i), (table, chosen)),
            "index of two": (lambda x, i, j: x[i, j], (table, indices(1000, below=512), indices(1000, below=64))),
            "index_put": (lambda x, i, v: x.index_put((i,), v), (table, chosen, r(256, 64))),
            "embedding": (lambda w, i: F.embedding(i, w), (r(1000, 64), numbers)),
            "masked_fill": (lambda x: x.masked_fill(x > 0, -1.0), rows),
            "roll": (lambda x: x.roll((1, 2), (2, 3)), images),
            "pad by reflection": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), images),
        },
        "shapes": {
            "permute": (lambda x: x.permute(0, 2, 3, 1).contiguous(), images),
            "transpose": (lambda x: x.transpose(0, 1).contiguous(), r(512, 512)),
            "cat": (lambda x: torch.cat([x, x * 2], 1), images),
            "stack": (lambda x: torch.stack([x, x * 2], -1), rows),
            "split": (lambda x: [t * 1 for t in x.split(16, 1)], images),
            "slice": (lambda x: x[:, ::2, 1:-1], images),
            "flip": (lambda x: x.flip(-1), images),
            "repeat": (lambda x: x.repeat(1, 2, 1, 1), images),
            "pad": (lambda x: F.pad(x, (1, 1, 1, 1)), images),
            "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), images),
            "unfold": (lambda x: F.unfold(x, 3), small),
        },
        "windows": {
            "max_pool2d 2": (lambda x: F.max_pool2d(x, 2), images),
            "max_pool2d 3": (lambda x: F.max_pool2d(x, 3, 2, 1), images),
            "max_pool1d": (lambda x: F.max_pool1d(x, 2), r(2, 64, 512)),
            "avg_pool2d 2": (lambda x: F.avg_pool2d(x, 2), images),
            "avg_pool2d 3": (lambda x: F.avg_pool2d(x, 3, 1, 1), images),
            "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 7), images),
            "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), small),
            "nearest": (lambda x: F.interpolate(x, scale_factor=2), small),
            "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (small, r(1, 32, 32, 2))),
        },
        "products": {
            "mm": (lambda x, y: x @ y, (r(128, 256), r(256, 128))),
            "bmm": (lambda x, y: x @ y, (r(8, 64, 64), r(8, 64, 64))),
            "linear": (module.Linear(256, 512), r(32, 256)),
            "linear of one row": (module.Linear(1024, 1024), r(1, 1024)),
            "conv2d": (module.Conv2d(64, 64, 3, padding=1), images),
            "conv2d depthwise": (module.Conv2d(64, 64, 3, padding=1, groups=64), images),
            "conv1d": (module.Conv1d(64, 64, 3), r(1, 64, 256)),
            "conv_transpose2d": (module.ConvTranspose2d(16, 16, 2, stride=2), small),
            "cdist": (torch.cdist, (r(64, 32), r(64, 32))),
        },
    }


def export(function, inputs, path):
    """Exports a function as a program."""
    import torch
    from executorch.exir import EdgeCompileConfig, to_edge

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.function = function

        def forward(self, *inputs):
            return self.function(*inputs)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(Module().eval(), inputs)
        # Allow operators outside the core ATen set: the reference has kernels for many of them.
        config = EdgeCompileConfig(_check_ir_validity=False)
        path.write_bytes(to_edge(exported, compile_config=config).to_executorch().buffer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pteron", help="the command")
    parser.add_argument("folder", type=pathlib.Path, help="folder of the exported programs, which are reused")
    parser.add_argument("--only", nargs="+", help="names of operators or families")
    parser.add_argument("--threads", default="1", help="thread counts [default: 1]")
    parser.add_argument("--rounds", default="3", help="turns of each runtime [default: 3]")
    parser.add_argument("--seconds", default="0.06", help="length of a turn [default: 0.06]")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    chosen = []
    for family, members in cases().items():
        for name, (function, inputs) in members.items():
            if args.only and not {family, name} & set(args.only):
                continue
            inputs = inputs if isinstance(inputs, tuple) else (inputs,)
            path = args.folder / f"{name.replace(' ', '_')}.pte"
            if not path.exists():
                export(function, inputs, path)
            shapes = ", ".join("x".join(map(str, x.shape)) for x in inputs)
            chosen.append((family, name, shapes, path))
    with tempfile.NamedTemporaryFile(suffix=".json") as figures:
        command = [sys.executable, str(HERE / "beside.py"), args.pteron, *(str(path) for *_, path in chosen)]
        command += ["--threads", args.threads, "--rounds", args.rounds, "--seconds", args.seconds]
        subprocess.run([*command, "--json", figures.name], check=True, stdout=subprocess.DEVNULL)
        found = {(row["program"], row["threads"]): row for row in json.load(figures)}
    print("| family | operator | inputs | threads | reference µs | Pteron µs | ratio |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    ratios = []
    for family, name, shapes, path in chosen:
        for threads in map(int, args.threads.split(",")):
            row = found.get((path.stem, threads))
            if row is None:
                # The reference lacks kernels for some operators that its exporter accepts.
                print(f"| {family} | {name} | {shapes} | {threads} | does not run | | |")
                continue
            theirs, ours = (row[f"{side}_min_ms"] * 1e3 for side in ("reference", "pteron"))
            ratios.append(ours / theirs)
            print(f"| {family} | {name} | {shapes} | {threads} | {theirs:.3g} | {ours:.3g} | {ours / theirs:.2f} |")
    print(f"| geometric mean | | | | | | {statistics.geometric_mean(ratios):.2f} |")


if __name__ == "__main__":
    main()

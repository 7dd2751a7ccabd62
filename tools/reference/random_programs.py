#!/usr/bin/env python3
"""Compares random programs with PyTorch: archives as they are, compiled for the portable kernels and for all, delegated,
and what was compiled for the portable kernels also on the reference runtime.

    python tools/reference/random_programs.py PTERON FOLDER [--count 1000] [--seed 0] [--first 0] [--write-only]

A program is a chain of random operators over element types, ranks, broadcasts and, in some, a dynamic first dimension.
Several are exported as one module; one that fails is written to FOLDER as a case of its own, and a line is printed. The
last line counts. Programs whose operators are refused are counted apart, with the reason, and so are those about which
PyTorch disagrees with itself: decomposed, or with inputs that differ in their last bits. With `--write-only` each program is
written as a case, and none is run. Needs torch and executorch.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import random
import re
import subprocess
import sys
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim

from archives import write_case
from compiled import Reference, differs, run_case

DTYPES = [torch.float32] * 6 + [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8,
                               torch.int8, torch.int16, torch.bool]
WAYS = {"as it is": None, "portable": ["--operators", "portable"], "all": ["--operators", "all"],
        "xnnpack": ["--backend", "xnnpack"], "bef": ["--backend", "bef", "--operators", "all"]}


def draw(rng, dtype, sizes):
    x = torch.randn(sizes) * 2
    if dtype == torch.bool:
        return x > 0
    if not dtype.is_floating_point:
        x = torch.randint(-4, 5, sizes).float()
    return (x.abs() if dtype == torch.uint8 else x).to(dtype)


def axis(rng, x):
    return rng.randrange(-x.dim(), x.dim()) if x.dim() else 0


UNARY = ["abs", "neg", "relu", "sigmoid", "tanh", "exp2", "sin", "cos", "floor", "ceil", "round", "trunc", "sign", "square",
         "erf", "isnan", "isfinite", "logical_not", "sgn", "atan", "asinh", "expm1", "frac", "reciprocal", "rsqrt", "log1p",
         "nan_to_num", "sinc", "signbit", "bitwise_not", "positive", "deg2rad"]
ACTIVATE = ["silu", "gelu", "mish", "hardswish", "hardsigmoid", "softplus", "elu", "selu", "celu", "leaky_relu", "relu6",
            "softsign", "tanhshrink", "hardshrink", "softshrink", "logsigmoid", "hardtanh"]
BINARY = ["add", "sub", "mul", "maximum", "minimum", "eq", "ne", "lt", "ge", "atan2", "fmax", "fmin", "logical_and",
          "logical_xor", "bitwise_and", "bitwise_or", "copysign", "hypot"]
REDUCE = ["sum", "mean", "amax", "amin", "prod", "all", "any", "var", "std", "logsumexp", "argmax", "argmin", "norm", "nansum",
          "count_nonzero"]


def step(rng, values):
    """A random operator on some of the values: its label, and a function of the values."""
    i = rng.randrange(max(0, len(values) - 4), len(values))
    x = values[i]
    j = rng.randrange(len(values))
    d = axis(rng, x)
    n = x.shape[d] if x.dim() else 1
    pick = lambda f: lambda v, i=i: f(v[i])
    both = lambda f: lambda v, i=i, j=j: f(v[i], v[j])
    kind = rng.randrange(24)
    if kind < 3:
        name = rng.choice(UNARY)
        return name, pick(getattr(torch, name))
    if kind == 3:
        name = rng.choice(ACTIVATE)
        return name, pick(getattr(F, name))
    if kind < 7:
        name = rng.choice(BINARY)
        return name, both(getattr(torch, name))
    if kind == 7:
        number = rng.choice([2, -3, 0.5, 1, True, 1.5])
        f = rng.choice([lambda x: x + number, lambda x: x * number, lambda x: number - x, lambda x: x / number, lambda x: x ** 2,
                        lambda x: x > number, lambda x: x // 2, lambda x: x % 3, lambda x: torch.where(x > 0, x, number),
                        lambda x: x.clamp(-1, number), lambda x: x.clamp_min(number), lambda x: torch.add(x, x, alpha=2),
                        lambda x: torch.fmod(x, 2), lambda x: torch.div(x, 2, rounding_mode="trunc"), lambda x: x.pow(number),
                        lambda x: number * x.abs(), lambda x: x == number, lambda x: x.masked_fill(x > 0, number)])
        return f"scalar {number}", pick(f)
    if kind < 10:
        name, keep = rng.choice(REDUCE), rng.random() < 0.5
        if name in ("argmax", "argmin", "prod", "logsumexp", "amax"):
            return name, pick(lambda x: getattr(torch, name)(x, d, keepdim=keep))
        if name == "count_nonzero":
            return name, pick(lambda x: torch.count_nonzero(x, d))
        dims = rng.choice([d, None, tuple(sorted({d % max(x.dim(), 1), 0}))])
        return name, pick(lambda x: getattr(torch, name)(x, dim=dims, keepdim=keep) if dims is not None else getattr(torch, name)(x))
    if kind < 14:
        k = rng.randrange(1, max(n, 1) + 1)
        a, b = sorted((rng.randrange(-n, n + 1) if n else 0, rng.randrange(-n, n + 1) if n else 0))
        e = axis(rng, x)
        order = rng.sample(range(x.dim()), x.dim())
        shapes = [
            ("permute", lambda x: x.permute(order)), ("transpose", lambda x: x.transpose(d, e)), ("flatten", lambda x: x.flatten()),
            ("unsqueeze", lambda x: x.unsqueeze(d)), ("flip", lambda x: x.flip(d)), ("roll", lambda x: x.roll(k, d)),
            ("narrow", lambda x: x.narrow(d, 0, k)), ("slice", lambda x: x[..., ::2]), ("slice0", lambda x: x[1:]), ("slicen", lambda x: x[:, :-1]),
            ("select", lambda x: x.select(d, -1)), ("cat", lambda x: torch.cat([x, x * 1], d)), ("stack", lambda x: torch.stack([x, x + x], 0)),
            ("chunk", lambda x: x.chunk(2, d)[-1]), ("split", lambda x: x.split(k, d)[0]), ("repeat", lambda x: x.repeat(*([2] + [1] * (x.dim() - 1)))),
            ("tile", lambda x: x.tile(2)), ("interleave", lambda x: x.repeat_interleave(2, d)), ("pad", lambda x: F.pad(x, (1, 2))),
            ("pad-", lambda x: F.pad(x, (1, -1))), ("circular", lambda x: F.pad(x, (1, 1), mode="circular")),
            ("reflect", lambda x: F.pad(x, (1, 1), mode="reflect")), ("replicate", lambda x: F.pad(x, (0, 2), mode="replicate")), ("tril", lambda x: x.tril(1)),
            ("triu", lambda x: x.triu(-1)), ("diagonal", lambda x: x.diagonal(0, d, e)), ("unfold", lambda x: x.unfold(d, min(2, n), 1)), ("squeeze", lambda x: x.squeeze()),
            ("expand", lambda x: x.unsqueeze(0).expand(2, *x.shape)), ("movedim", lambda x: x.movedim(0, -1)), ("reshape", lambda x: x.reshape(x.shape[0], -1)),
            ("rot90", lambda x: torch.rot90(x, 1, (0, 1))), ("unflatten", lambda x: x.unflatten(-1, (-1, 1))), ("view", lambda x: x.contiguous().view(-1)),
        ]
        name, f = rng.choice(shapes)
        return name, pick(f)
    if kind < 16:
        dtype = rng.choice(DTYPES)
        return f"to {dtype}", pick(lambda x: x.to(dtype))
    if kind == 16:
        index = torch.randint(0, max(n, 1), (3,))
        mixed = torch.randint(-max(n, 1), max(n, 1), (2, 2))
        fs = [("index_select", lambda x: x.index_select(d, index)), ("index", lambda x: x.movedim(d, 0)[mixed]),
              ("gather", lambda x: x.gather(d, (x > 0).long() * (n - 1))), ("scatter", lambda x: x.scatter(d, torch.zeros_like(x, dtype=torch.long), x)),
              ("index_add", lambda x: x.index_add(d, index, x.index_select(d, index))), ("index_put", lambda x: x.index_put((torch.tensor([0, -1]),), x[:1])),
              ("scatter_add", lambda x: x.scatter_add(d, torch.zeros_like(x, dtype=torch.long), x)), ("setitem", lambda x: setitem(x, n)),
              ("select_scatter", lambda x: x.select_scatter(x.select(d, 0), d, -1)), ("slice_scatter", lambda x: x.slice_scatter(x.narrow(d, 0, 1), d, n - 1)),
              ("masked_scatter", lambda x: x.masked_scatter(x > 0, x.flip(0))), ("index_fill", lambda x: x.index_fill(d, index, 2)),
              ("take", lambda x: x.take(torch.tensor([0, -1]))), ("embedding", lambda x: F.embedding(index[:2] % x.shape[0], x))]
        name, f = rng.choice(fs)
        return name, pick(f)
    if kind == 17:
        descending = rng.random() < 0.5
        fs = [("sort", lambda x: torch.sort(x, d, descending, stable=True)[rng_bit]), ("argsort", lambda x: torch.argsort(x, d, descending, stable=True)),
              ("topk", lambda x: torch.topk(x, 1, d, descending)[0]), ("cumsum", lambda x: torch.cumsum(x, d)), ("cummax", lambda x: torch.cummax(x, d)[0]),
              ("median", lambda x: torch.median(x, d)[0]), ("kthvalue", lambda x: torch.kthvalue(x, 1, d)[0]), ("max", lambda x: torch.max(x, d)[0]),
              ("min", lambda x: torch.min(x, d)[1]), ("cumprod", lambda x: torch.cumprod(x, d)), ("diff", lambda x: torch.diff(x, dim=d)),
              ("softmax", lambda x: F.softmax(x, d)), ("log_softmax", lambda x: F.log_softmax(x, d)), ("logcumsumexp", lambda x: torch.logcumsumexp(x, d))]
        rng_bit = rng.randrange(2)
        name, f = rng.choice(fs)
        return name, pick(f)
    if kind == 18:
        return "matmul", both(lambda a, b: a @ b.transpose(-1, -2) if b.dim() > 1 else a @ b)
    if kind == 19:
        columns = x.shape[-1] if x.dim() else 1
        out = rng.randrange(1, 5)
        dtype = x.dtype
        w, b = draw(rng, dtype, (out, columns)), draw(rng, dtype, (out,))
        fs = [("linear", lambda x: F.linear(x, w, b)), ("linear1", lambda x: F.linear(x, w)), ("linear_vector", lambda x: F.linear(x, w[0])), ("mm", lambda x: x @ w.T),
              ("bias", lambda x: x + w[0])]
        name, f = rng.choice(fs)
        return name, pick(f)
    if kind == 20:
        fs = [("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:])), ("rms_norm", lambda x: F.rms_norm(x, x.shape[-1:])),
              ("normalize", lambda x: F.normalize(x, dim=d)), ("group_norm", lambda x: F.group_norm(x, 1)), ("glu", lambda x: F.glu(x, d))]
        if x.dim() > 1:
            c = x.shape[1]
            m, v = torch.randn(c).to(x.dtype), torch.rand(c).to(x.dtype) + 1
            fs.append(("batch_norm", lambda x: F.batch_norm(x, m, v)))
        name, f = rng.choice(fs)
        return name, pick(f)
    if kind == 21 and x.dim() in (3, 4):
        c, r = x.shape[1] if x.dim() > 2 else 1, x.dim() - 2
        w, wt = draw(rng, x.dtype, (3, c) + (2,) * r), draw(rng, x.dtype, (c, 2) + (2,) * r)
        stride, ceil = rng.randrange(1, 3), rng.random() < 0.5
        fs = [("conv", lambda x: getattr(F, f"conv{r}d")(x, w, stride=stride, padding=1)), ("transposed", lambda x: getattr(F, f"conv_transpose{r}d")(x, wt, stride=stride)),
              ("max_pool", lambda x: getattr(F, f"max_pool{r}d")(x, 2, stride, ceil_mode=ceil)), ("avg_pool", lambda x: getattr(F, f"avg_pool{r}d")(x, 2, stride, 1, ceil)),
              ("adaptive", lambda x: getattr(F, f"adaptive_avg_pool{r}d")(x, 2)), ("nearest", lambda x: F.interpolate(x, scale_factor=2.0)), ("same", lambda x: getattr(F, f"conv{r}d")(x, w, padding="same"))]
        if r == 2:
            fs += [("bilinear", lambda x: F.interpolate(x, size=(3, 5), mode="bilinear")), ("pixel", lambda x: F.pixel_unshuffle(x, 2)), ("im2col", lambda x: F.unfold(x, 2))]
        name, f = rng.choice(fs)
        return name, pick(f)
    if kind == 22:
        return "where", both(lambda a, b: torch.where(a > 0, a, b))
    return "lerp", both(lambda a, b: a + (b - a) * 0.25)


def setitem(x, n):
    y = x.clone()
    y[..., :1] = 1
    return y


class Chain(nn.Module):
    """A program: its inputs, and the functions that are applied one after the other."""

    def __init__(self, rng, dynamic):
        super().__init__()
        self.names, self.steps, self.inputs = [], [], []
        rank = rng.choice([1, 2, 2, 3, 3, 4])
        sizes = [rng.choice([1, 2, 3, 4, 5]) for _ in range(rank)]
        if dynamic:
            sizes[0] = 4
        elif rng.random() < 0.04:
            sizes[rng.randrange(rank)] = 0
        for _ in range(rng.choice([1, 2, 2])):
            self.inputs.append(draw(rng, rng.choice(DTYPES), tuple(sizes)))
        values = list(self.inputs)
        wanted = rng.randrange(2, 9)
        for _ in range(60):
            if len(self.steps) == wanted:
                break
            name, f = step(rng, values)
            try:
                y = f(values)
            except Exception:
                continue
            if not isinstance(y, torch.Tensor) or y.numel() > 4000 or y.dim() > 6 or y.is_complex() or y.dtype in (torch.uint16,):
                continue
            if y.is_floating_point() and (~y.isfinite()).any() or y.abs().max().item() > 1e4 if y.numel() and y.dtype != torch.bool else False:
                continue
            values.append(y)
            self.names.append(name)
            self.steps.append(f)
        self.values = values
        self.kept = sorted(rng.sample(range(len(self.inputs), len(values)), min(2, len(self.steps))) + [len(values) - 1])

    def forward(self, *inputs):
        values = list(inputs)
        for f in self.steps:
            values.append(f(values))
        return tuple(values[i] for i in dict.fromkeys(self.kept))


class Many(nn.Module):
    def __init__(self, chains):
        super().__init__()
        self.chains = chains

    def forward(self, *inputs):
        out = []
        for chain in self.chains:
            own, inputs = inputs[:len(chain.inputs)], inputs[len(chain.inputs):]
            out += chain(*own)
        return tuple(out)


def tolerance(chains):
    """Half precision anywhere in a chain bounds the precision of its results."""
    halves = any(v.dtype in (torch.float16, torch.bfloat16) for chain in chains for v in chain.values)
    return 0.06 if halves else None


def write(folder, chains, dynamic):
    inputs = [x for chain in chains for x in chain.inputs]
    shapes = {"inputs": tuple({0: Dim.AUTO(max=64)} for _ in inputs)} if dynamic else None
    write_case(folder, Many(chains).eval(), inputs, dynamic_shapes=shapes, tolerance=tolerance(chains))


def nudged(x):
    """A tensor whose elements are changed in their last bits."""
    if not x.is_floating_point():
        return x
    return x * (1 + torch.finfo(x.dtype).eps * torch.randint(-1, 2, x.shape)).to(x.dtype)


def undecided(chain):
    """Whether PyTorch gives more than one result for a program: how sums are rounded decides, or memory that overlaps."""
    module, inputs = Many([chain]).eval(), tuple(chain.inputs)
    expected = module(*inputs)
    found = [module(*map(nudged, inputs)) for _ in range(8)]
    with contextlib.suppress(Exception):
        found.append(torch.export.export(module, inputs).run_decompositions().module()(*inputs))
    allowed = tolerance([chain]) or 1e-5
    return any(differs(a, b, allowed) for outputs in found for a, b in zip(outputs, expected))


class Checker:
    def __init__(self, pteron, log):
        self.pteron, self.log = pteron, log
        self.reference = Reference(log)

    def one(self, folder, way):
        """What is wrong in one way: `None`, or a line."""
        archive, program = folder / "model.pt2", folder / "model.pte"
        if WAYS[way] is None or way in ("xnnpack", "bef"):
            command = [self.pteron, "verify", "--archives", "-j", "1", str(folder)]
            if WAYS[way]:
                command[2:2] = ["--backend", way]
            done = subprocess.run(command, capture_output=True, text=True)
            text = next((line for line in done.stdout.splitlines() if "FAIL" in line), (done.stdout + done.stderr)[-300:])
            return None if done.returncode == 0 else text.split("model.pt2: ")[-1][:400]
        done = subprocess.run([self.pteron, "compile", *WAYS[way], archive, "-o", program], capture_output=True, text=True)
        if done.returncode:
            return f"does not compile: {done.stderr.strip()[:400]}"
        done = subprocess.run([self.pteron, "verify", "-j", "1", str(folder)], capture_output=True, text=True)
        found = None if done.returncode == 0 else (done.stdout + done.stderr).strip()[:400]
        if found is None and way == "portable":
            what, why = self.reference.run(program, folder / "case.json", None)
            found = None if what == "agrees" else f"{what}: {why}"
        program.unlink()
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pteron")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--together", type=int, default=10)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--write-only", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    counts = collections.Counter()
    args.folder.mkdir(parents=True, exist_ok=True)
    with open(args.folder / "reference.log", "w+") as log:
        checker = Checker(args.pteron, log)
        for first in range(args.first, args.first + args.count, args.together):
            rng = random.Random(f"{args.seed} {first}")
            torch.manual_seed(args.seed * 1_000_003 + first)
            dynamic = rng.random() < 0.3
            chains = [Chain(rng, dynamic) for _ in range(args.together)]
            chains = [c for c in chains if c.steps]
            counts["programs"] += len(chains)
            if args.write_only:
                counts["not exported"] += write_each(args, first, chains, dynamic)
                continue
            group = args.folder / f"group_{first}"
            try:
                write(group, chains, dynamic)
                bad = [way for way in args.ways.split(",") if checker.one(group, way)]
            except Exception:
                bad = args.ways.split(",")
            if not bad:
                remove(group)
                continue
            remove(group)
            for k, chain in enumerate(chains):
                own = args.folder / f"p{args.seed}_{first + k}"
                try:
                    write(own, [chain], dynamic)
                except Exception as e:
                    counts["not exported"] += 1
                    remove(own)
                    continue
                problems = [(way, checker.one(own, way)) for way in bad]
                problems = [(way, what) for way, what in problems if what]
                refused = [p for p in problems if "not supported" in p[1] or "no kernel takes" in p[1]]
                if len(problems) > len(refused) and undecided(chain):
                    counts["undecided"] += 1
                    remove(own)
                    continue
                for way, what in problems:
                    counts["refused" if (way, what) in refused else "wrong"] += 1
                    print(f"{own.name} [{way}] {' '.join(chain.names)}: {' '.join(what.split())}", flush=True)
                if not problems:
                    remove(own)
    print(dict(counts), flush=True)
    return int(bool(counts["wrong"]))


def write_each(args, first, chains, dynamic):
    """Writes each program as a case of its own, and returns how many cannot be exported."""
    failed = 0
    for k, chain in enumerate(chains):
        own = args.folder / f"p{args.seed}_{first + k}"
        try:
            write(own, [chain], dynamic)
        except Exception:
            failed += 1
            remove(own)
    return failed


def remove(folder):
    for f in folder.glob("*"):
        f.unlink()
    if folder.exists():
        folder.rmdir()


if __name__ == "__main__":
    sys.exit(main())

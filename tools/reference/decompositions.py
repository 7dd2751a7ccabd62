#!/usr/bin/env python3
"""Writes an archive for each variant of the operators that the compiler decomposes, with PyTorch's outputs.

    python tools/reference/decompositions.py FOLDER [FAMILY...]
    pteron verify --archives FOLDER
    python tools/reference/compiled.py PTERON FOLDER

The variants differ in mode, sign, rank, element type, ties and empty dimensions. A variant that PyTorch itself rejects
is left out. Needs torch.
"""

import itertools
import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from archives import write_case

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
NUMBERS = [*FLOATS, *INTS]
ALL = [*NUMBERS, torch.bool]
FAMILIES = {}


def family(f):
    FAMILIES[f.__name__] = f
    return f


def data(dtype, *sizes, ties=False, nan=False):
    """Elements of both signs; with `ties`, of few values."""
    x = torch.randn(sizes) * 3
    if ties or not dtype.is_floating_point and dtype != torch.bool:
        x = torch.randint(-3, 4, sizes).float()
    if dtype == torch.bool:
        return x > 0
    if dtype == torch.uint8:
        x = x.abs()
    if nan and dtype.is_floating_point and x.numel() > 2:
        x.view(-1)[1] = float("nan")
    return x.to(dtype)


def short(value):
    return str(value).replace("torch.", "").replace(" ", "")


def options(**choices):
    """Every combination of keyword arguments."""
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values))


@family
def order():
    shapes = [(6,), (4, 9), (2, 3, 5), (), (0,), (3, 0)]
    for sizes, dtype in itertools.product(shapes, ALL):
        for dim, down, stable in itertools.product(range(-1, max(len(sizes) - 1, 0)), (False, True), (False, True)):
            if dtype not in (torch.float32, torch.int64, torch.float16) and (down or dim != -1):
                continue
            x = data(dtype, *sizes, ties=stable)
            what = f"{short(dtype)}_{sizes}_{dim}_{down}_{stable}"
            if stable:
                yield f"sort_{what}", lambda x, d=dim, e=down: torch.sort(x, dim=d, descending=e, stable=True), [x]
                yield f"argsort_{what}", lambda x, d=dim, e=down: torch.argsort(x, dim=d, descending=e, stable=True), [x]
            else:
                yield f"sort_{what}", lambda x, d=dim, e=down: torch.sort(x, dim=d, descending=e)[0], [x]
    for dtype in [torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8]:
        x = data(dtype, 3, 7)
        y = data(dtype, 3, 7, nan=True)
        yield f"msort_{short(dtype)}", torch.msort, [x]
        for name in ("median", "nanmedian", "mode"):
            f = getattr(torch, name)
            yield f"{name}_dim_{short(dtype)}", lambda x, f=f: f(x, 1), [y if name != "mode" else x]
            yield f"{name}_keep_{short(dtype)}", lambda x, f=f: f(x, 0, True)[0], [x]
            if name != "mode":
                yield f"{name}_all_{short(dtype)}", f, [y]
                yield f"{name}_one_{short(dtype)}", f, [x[0, 0].clone()]
        yield f"kthvalue_{short(dtype)}", lambda x: torch.kthvalue(x, 3, 1)[0], [x]
        yield f"kthvalue_keep_{short(dtype)}", lambda x: torch.kthvalue(x, 2, 0, True)[0], [x]
        yield f"topk_{short(dtype)}", lambda x: torch.topk(x, 3, 1, largest=False)[0], [x]
        yield f"isin_{short(dtype)}", lambda x, y: (torch.isin(x, y), torch.isin(x, y, invert=True)), [x, x[0, :3].clone()]
        edges = torch.tensor([-2, 0, 1, 1, 3]).to(dtype) if dtype != torch.uint8 else torch.tensor([0, 1, 1, 3]).to(dtype)
        for right in (False, True):
            yield f"bucketize_{short(dtype)}_{right}", lambda x, e, r=right: torch.bucketize(x, e, right=r), [y, edges]
            yield f"searchsorted_{short(dtype)}_{right}", lambda e, x, r=right: torch.searchsorted(
                e.sort()[0], x, right=r, out_int32=True), [data(dtype, 3, 5), x]
    for mode in ("linear", "lower", "higher", "nearest", "midpoint"):
        for dtype in (torch.float32, torch.float64):
            for dim, keep in ((None, False), (0, True), (1, False)):
                for name in ("quantile", "nanquantile"):
                    f = getattr(torch, name)
                    yield f"{name}_{mode}_{short(dtype)}_{dim}", lambda x, f=f, d=dim, k=keep, m=mode: (
                        f(x, 0.3, d, k, interpolation=m), f(x, torch.tensor([0.0, 0.5, 1.0], dtype=x.dtype), d, k,
                                                             interpolation=m)), [data(dtype, 4, 5, nan=True)]


@family
def pads():
    for mode in ("constant", "reflect", "replicate", "circular"):
        for rank in (1, 2, 3, 4, 5):
            for pads in ([1, 2], [-1, 2], [1, -1], [-1, -1], [0, -2], [2, 0], [1, 1, 2, 0], [-1, 0, 0, -1], [1, -1, -1, 2],
                         [1, 0, 1, 1, 0, 1], [-1, 1, 0, -1, 1, 0], [0, 0, -1, -1, 1, 1]):
                if len(pads) // 2 > rank:
                    continue
                sizes = (2, 3, 3, 4, 5)[-rank:]
                for dtype in (torch.float32, torch.int64, torch.float16, torch.bool) if rank == 3 else (torch.float32,):
                    yield (f"pad_{mode}_{rank}_{short(pads)}_{short(dtype)}",
                           lambda x, p=pads, m=mode: F.pad(x, p, mode=m), [data(dtype, *sizes)])
    for value in (1.5, float("inf"), -3):
        yield f"pad_value_{value}", lambda x, v=value: F.pad(x, [1, -1, 2, 1], value=v), [data(torch.float32, 3, 4)]
    for dtype in ALL:
        yield f"pad_value_{short(dtype)}", lambda x: F.pad(x, [1, -1, 2, 1], value=1), [data(dtype, 3, 4)]


@family
def reductions():
    over = [None, 0, -1, (0, 2), ()]
    names = ["sum", "mean", "nansum", "nanmean", "logsumexp", "var", "std", "amax", "amin", "prod", "all", "any",
             "count_nonzero", "argmax", "argmin", "norm", "aminmax", "max", "min", "var_mean", "std_mean"]
    for name, dtype in itertools.product(names, ALL):
        f = getattr(torch, name)
        for sizes in ((2, 3, 4), (), (5,), (2, 0, 3)):
            for dim in over:
                for keep in (False, True):
                    if dtype not in (torch.float32, torch.int64, torch.float16) and (sizes != (2, 3, 4) or dim not in (None, 0)):
                        continue
                    if keep and dim != 0 or dim == (0, 2) and len(sizes) != 3:
                        continue
                    kw = {} if dim is None else {"dim": dim, **({"keepdim": True} if keep else {})}
                    x = data(dtype, *sizes, nan=name.startswith("nan"))
                    yield f"{name}_{short(dtype)}_{sizes}_{short(dim)}_{keep}", lambda x, f=f, k=kw: f(x, **k), [x]
    for dtype, target in ((torch.int32, torch.float32), (torch.float32, torch.float64), (torch.bool, torch.int32),
                          (torch.float16, torch.float32), (torch.int64, torch.uint8)):
        for name in ("sum", "prod", "mean", "cumsum", "cumprod", "nansum"):
            f = getattr(torch, name)
            yield f"{name}_to_{short(dtype)}_{short(target)}", lambda x, f=f, t=target: f(x, 1, dtype=t), [data(dtype, 3, 4)]
    for p in (0, 1, 2, 3, 0.5, float("inf"), -float("inf"), "fro", "nuc"):
        for dim in (None, 1, (0, 1)):
            for dtype in (torch.float32, torch.float16, torch.float64):
                if p == "nuc":
                    continue
                yield f"norm_{p}_{short(dim)}_{short(dtype)}", lambda x, p=p, d=dim: torch.norm(x, p, dim=d), [data(dtype, 3, 4)]
                if p != "fro":
                    yield (f"vector_norm_{p}_{short(dim)}_{short(dtype)}",
                           lambda x, p=p, d=dim: torch.linalg.vector_norm(x, p, dim=d, keepdim=True), [data(dtype, 3, 4)])
    for p in (1, 2, 0.5, float("inf")):
        yield f"renorm_{p}", lambda x, p=p: torch.renorm(x, p, 1, 2.0), [data(torch.float32, 3, 4)]
        yield f"normalize_{p}", lambda x, p=p: F.normalize(x, p, 1), [data(torch.float32, 3, 4)]
        yield f"dist_{p}", lambda x, y, p=p: torch.dist(x, y, p), [data(torch.float32, 3, 4), data(torch.float32, 3, 4)]
        yield f"pdist_{p}", lambda x, p=p: F.pdist(x, p), [data(torch.float32, 5, 4)]
        yield f"cdist_{p}", lambda x, y, p=p: torch.cdist(x, y, p), [data(torch.float32, 2, 3, 4), data(torch.float32, 2, 5, 4)]
        yield f"pairwise_{p}", lambda x, y, p=p: F.pairwise_distance(x, y, p, keepdim=True), [data(torch.float32, 3, 4), data(torch.float32, 3, 4)]
    for correction in (0, 1, 2):
        yield f"var_{correction}", lambda x, c=correction: (torch.var(x, (0, 1), correction=c), torch.std(x, correction=c)), [data(torch.float32, 3, 4)]


@family
def scans():
    for name, dtype in itertools.product(["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "diff"], ALL):
        f = getattr(torch, name)
        for sizes in ((4, 5), (), (0,), (2, 1, 3)):
            for dim in (0, -1):
                if dtype not in (torch.float32, torch.int64, torch.float16) and sizes != (4, 5):
                    continue
                yield f"{name}_{short(dtype)}_{sizes}_{dim}", lambda x, f=f, d=dim: f(x, dim=d), [data(dtype, *sizes, ties=True)]
    for n in (0, 1, 2, 4):
        yield f"diff_{n}", lambda x, n=n: torch.diff(x, n, prepend=x[:, :1]), [data(torch.float32, 3, 4)]
    yield "trapezoid", lambda x: (torch.trapezoid(x), torch.trapezoid(x, dx=0.5, dim=0), torch.cumulative_trapezoid(x)), [data(torch.float32, 3, 4)]
    yield "trapezoid_x", lambda y, x: torch.trapezoid(y, x), [data(torch.float32, 3, 4), data(torch.float32, 4)]


UNARY = ["abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "rad2deg", "digamma", "erf",
         "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "lgamma",
         "log", "log10", "log1p", "log2", "logical_not", "neg", "positive", "reciprocal", "round", "rsqrt", "sigmoid", "sign",
         "sgn", "signbit", "sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "nan_to_num", "i0", "logit",
         "bitwise_not", "relu", "angle", "isreal", "real", "conj"]
SPECIAL = ["entr", "erfcx", "expit", "i0e", "i1", "i1e", "log_ndtr", "ndtr", "ndtri", "psi", "gammaln"]


@family
def unary():
    for name, dtype in itertools.product(UNARY, ALL):
        f = getattr(torch, name)
        x = data(dtype, 3, 4, nan=True)
        if name in ("acos", "asin", "atanh", "erfinv", "logit") and dtype.is_floating_point:
            x = x / 10
        if name in ("acosh", "log", "log10", "log2", "log1p", "sqrt", "rsqrt", "lgamma", "digamma") and dtype != torch.bool:
            x = x.abs() + 1
        yield f"{name}_{short(dtype)}", f, [x]
    for name, dtype in itertools.product(SPECIAL, [torch.float32, torch.float16, torch.float64, torch.int64, torch.bool]):
        x = data(dtype, 3, 4)
        if name == "ndtri" and dtype.is_floating_point:
            x = torch.rand(3, 4).to(dtype)
        yield f"special_{name}_{short(dtype)}", getattr(torch.special, name), [x]
    for d, dtype in itertools.product((-1, 0, 2), FLOATS):
        yield f"round_{d}_{short(dtype)}", lambda x, d=d: torch.round(x, decimals=d), [data(dtype, 3, 4)]
    for p, dtype in itertools.product((1, 2, 4), (torch.float32, torch.int32)):
        yield f"mvlgamma_{p}_{short(dtype)}", lambda x, p=p: torch.mvlgamma(x.abs() + 3, p), [data(dtype, 3, 4)]
        yield f"polygamma_{p}_{short(dtype)}", lambda x, p=p: torch.polygamma(p, x.abs() + 1), [data(dtype, 3, 4)]


ACTIVATIONS = {
    "silu": F.silu, "mish": F.mish, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "softplus": F.softplus,
    "softplus_b": lambda x: F.softplus(x, 2.0, 3.0), "relu6": F.relu6, "selu": F.selu, "celu": lambda x: F.celu(x, 0.7),
    "elu": lambda x: F.elu(x, 0.7), "elu2": lambda x: torch._C._nn.elu(x, 1.5, 2.0, 0.5), "logsigmoid": F.logsigmoid,
    "softsign": F.softsign, "tanhshrink": F.tanhshrink, "hardshrink": lambda x: F.hardshrink(x, 0.3),
    "softshrink": lambda x: F.softshrink(x, 0.3), "threshold": lambda x: F.threshold(x, 0.1, -1.0),
    "glu": lambda x: F.glu(x, 1), "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 1.5), "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "leaky_relu_n": lambda x: F.leaky_relu(x, -0.2), "rrelu": F.rrelu, "softmin": lambda x: F.softmin(x, 1),
    "softmax": lambda x: F.softmax(x, 0), "log_softmax": lambda x: F.log_softmax(x, -1),
    "softmax_to": lambda x: F.softmax(x, 1, dtype=torch.float32), "prelu": lambda x: F.prelu(x, torch.full((4,), 0.3, dtype=x.dtype)),
    "prelu1": lambda x: F.prelu(x, torch.full((1,), 0.3, dtype=x.dtype)),
    "clamp": lambda x: x.clamp(-1, 1.5), "clamp_crossed": lambda x: x.clamp(2, -1), "clamp_min": lambda x: x.clamp_min(0.5),
    "clamp_max": lambda x: x.clamp(max=1), "clamp_t": lambda x: x.clamp(x[0], x[1] + 1), "clip": lambda x: x.clip(-1, 2),
    "heaviside": lambda x: torch.heaviside(x, x[0]), "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "lerp_t": lambda x: torch.lerp(x, x.flip(0), x.flip(1)), "addcmul": lambda x: torch.addcmul(x, x, x[0], value=2),
    "addcdiv": lambda x: torch.addcdiv(x, x, x[0].abs() + 1, value=2), "masked_fill": lambda x: x.masked_fill(x > 0, 3),
    "masked_fill_t": lambda x: x.masked_fill(x > 0, torch.tensor(2, dtype=x.dtype)),
    "where_s": lambda x: torch.where(x > 0, x, 1.5), "where_i": lambda x: torch.where(x > 0, 1, x),
    "where_ss": lambda x: torch.where(x > 0, 1.5, 2), "cosine": lambda x: F.cosine_similarity(x, x.flip(0), 0),
    "nan_to_num": lambda x: torch.nan_to_num(x / 0, 1.0, 2.0, -3.0), "channel_shuffle": lambda x: F.channel_shuffle(x.view(1, 4, 6, 1), 2),
    "one_minus": lambda x: 1 - x, "rdiv": lambda x: 2 / (x.abs() + 1), "rpow": lambda x: 2 ** x, "floor_s": lambda x: x // 2,
    "mod_s": lambda x: x % 3, "mod_n": lambda x: x % -3, "fmod_s": lambda x: torch.fmod(x, 2), "floor_n": lambda x: x // -2,
    "trunc_s": lambda x: torch.div(x, 2, rounding_mode="trunc"), "div_f": lambda x: torch.div(x, 1.5, rounding_mode="floor"),
    "pow2": lambda x: x ** 2, "pow_h": lambda x: x.abs() ** 0.5, "pow_n": lambda x: (x.abs() + 1) ** -1.0, "pow3": lambda x: x ** 3,
    "add_alpha": lambda x: torch.add(x, x, alpha=2), "sub_alpha": lambda x: torch.sub(x, x[0], alpha=3),
    "rsub_alpha": lambda x: torch.rsub(x, 5, alpha=2), "add_s_alpha": lambda x: torch.add(x, 3, alpha=2),
    "mul_f": lambda x: x * 1.5, "add_b": lambda x: x + True, "eq_s": lambda x: x == 1, "gt_f": lambda x: x > 0.5,
    "and_s": lambda x: x & 3, "shl": lambda x: x << 2, "shr": lambda x: x >> 1, "xor": lambda x: x ^ x[0],
    "lt_chain": lambda x: (x < 1) & (x > -1), "xlogy_s": lambda x: torch.xlogy(x, 2), "ldexp": lambda x: torch.ldexp(x, torch.tensor(3)),
    "logsumexp2": lambda x: torch.logaddexp(x, x[0]), "log2sumexp": lambda x: torch.logaddexp2(x, x[0]),
    "copysign": lambda x: torch.copysign(x, -x), "copysign_s": lambda x: torch.copysign(x, -1.0), "float_power": lambda x: torch.float_power(x, 2),
    "hypot": lambda x: torch.hypot(x, x[0]), "nextafter": lambda x: torch.nextafter(x, x + 1), "xlog1py": lambda x: torch.special.xlog1py(x, x.abs()),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0), "dropout": lambda x: F.dropout(x, 0.5, False), "sigmoid_mul": lambda x: torch.sigmoid(x) * x,
    "zeta": lambda x: torch.special.zeta(x.abs() + 2, 1.5), "rsub": lambda x: torch.rsub(x, 2),
}


@family
def activations():
    for (name, f), dtype in itertools.product(ACTIVATIONS.items(), ALL):
        yield f"{name}_{short(dtype)}", f, [data(dtype, 6, 4)]
    for (name, f) in ACTIVATIONS.items():
        yield f"{name}_empty", f, [data(torch.float32, 6, 0)]


BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "remainder", "fmod", "pow", "floor_divide", "atan2",
          "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor",
          "bitwise_left_shift", "bitwise_right_shift", "xlogy", "hypot", "copysign", "logaddexp", "true_divide", "rsub", "gcd",
          "lcm", "nextafter", "heaviside", "float_power", "arctan2", "where"]


@family
def binary():
    pairs = [(a, a) for a in ALL] + [(torch.float32, torch.int64), (torch.int32, torch.float16), (torch.bool, torch.int64),
             (torch.uint8, torch.int8), (torch.int64, torch.float64), (torch.float16, torch.bfloat16), (torch.bool, torch.float32)]
    for name, (a, b) in itertools.product(BINARY, pairs):
        f = getattr(torch, name)
        if name == "where":
            f = lambda x, y: torch.where(x > 1, x, y)
        x, y = data(a, 3, 4), data(b, 4)
        if name in ("remainder", "fmod", "floor_divide", "div", "true_divide") and not b.is_floating_point:
            y = torch.ones_like(y) if b == torch.bool else y.abs() + 1
        if name in ("pow", "float_power"):
            x, y = (x.abs() + 1 if a != torch.bool else x), (y.abs() if b != torch.bool else y)
        if "shift" in name:
            y = y.abs() if b != torch.bool else y
        yield f"{name}_{short(a)}_{short(b)}", f, [x, y]
    for name in BINARY:
        f = getattr(torch, name)
        if name == "where":
            f = lambda x, y: torch.where(x > 1, x, y)
        ints = "bitwise" in name or name in ("gcd", "lcm")
        dtype = torch.int64 if ints else torch.float32
        for a, b in (((), (3,)), ((0, 3), (3,)), ((2, 1, 3), (4, 1)), ((), ())):
            yield f"{name}_{a}_{b}", f, [data(dtype, *a).abs() + 1, data(dtype, *b).abs() + 1]
        other = torch.int64 if ints else torch.float64
        yield f"{name}_zero_dim", f, [data(torch.int32 if ints else torch.float32, 3).abs() + 1, data(other).abs() + 1]
    for mode, (a, b) in itertools.product(("floor", "trunc", None), pairs):
        y = data(b, 4)
        y = torch.ones_like(y) if b == torch.bool else y.abs() + 1
        yield f"div_{mode}_{short(a)}_{short(b)}", lambda x, y, m=mode: torch.div(x, y, rounding_mode=m), [data(a, 3, 4), y]


@family
def shapes():
    x = data(torch.float32, 2, 3, 4)
    functions = {
        "roll": lambda x: x.roll(-5, 1), "roll_all": lambda x: x.roll(7), "roll_many": lambda x: x.roll((1, -2), (0, 2)),
        "rot90": lambda x: torch.rot90(x, 3, (1, 2)), "rot90_n": lambda x: torch.rot90(x, -1, (0, 2)),
        "flip": lambda x: x.flip(0, -1), "fliplr": torch.fliplr, "flipud": torch.flipud, "repeat": lambda x: x.repeat(2, 1, 1, 2),
        "tile": lambda x: x.tile(2), "tile4": lambda x: x.tile(2, 1, 1, 1), "interleave": lambda x: x.repeat_interleave(3, -1),
        "interleave_all": lambda x: x.repeat_interleave(2), "movedim": lambda x: x.movedim((0, 1), (-1, 0)),
        "moveaxis": lambda x: torch.moveaxis(x, 0, 2), "swap": lambda x: x.swapdims(0, -1), "t": lambda x: x[0].t(), "adjoint": lambda x: x.mH,
        "unfold": lambda x: x.unfold(2, 2, 1), "unfold3": lambda x: x.unfold(-1, 3, 2), "chunk": lambda x: x.chunk(3, 2),
        "split": lambda x: x.split(3, 2), "split_sizes": lambda x: x.split([1, 0, 3], 2), "tensor_split": lambda x: x.tensor_split(3, 2),
        "tensor_split_i": lambda x: x.tensor_split((1, 3), -1), "hsplit": lambda x: x.hsplit(3), "vsplit": lambda x: x.vsplit((1,)),
        "dsplit": lambda x: x.dsplit(2), "diagonal": lambda x: x.diagonal(1, 2, 1), "diagonal_n": lambda x: x.diagonal(-1, 1, 2),
        "diag": lambda x: (torch.diag(x[0, 0], 1), torch.diag(x[0], -1)), "diag_embed": lambda x: torch.diag_embed(x, -1, 0, 2),
        "diagflat": lambda x: torch.diagflat(x, 1), "tril": lambda x: x.tril(-1), "tril2": lambda x: x.tril(2), "triu": lambda x: x.triu(-1),
        "triu2": lambda x: x.triu(2), "trace": lambda x: x[0].trace(), "narrow": lambda x: x.narrow(-1, -3, 2), "select": lambda x: x.select(1, -1),
        "slice": lambda x: x[:, -2:, ::3], "slice_empty": lambda x: x[:, 2:1], "slice_far": lambda x: x[-9:9, :, 1:100:2],
        "ellipsis": lambda x: x[..., None, 1:], "stack": lambda x: torch.stack([x, x], -1), "hstack": lambda x: torch.hstack([x, x]),
        "vstack": lambda x: torch.vstack([x, x]), "dstack": lambda x: torch.dstack([x, x]), "column_stack": lambda x: torch.column_stack([x[0, 0], x[0].T]),
        "cat_empty": lambda x: torch.cat([x, x.new_zeros(0)], 0), "cat_mixed": lambda x: torch.cat([x, x.long()], 1),
        "block_diag": lambda x: torch.block_diag(x[0], x[0, 0], x[0, 0, 0]), "cartesian": lambda x: torch.cartesian_prod(x[0, 0], x[0, 1]),
        "combinations": lambda x: torch.combinations(x[0, 0], 2), "combinations_r": lambda x: torch.combinations(x[0, 0], 3, with_replacement=True),
        "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 1], indexing="xy"), "broadcast": lambda x: torch.broadcast_tensors(x, x[0, 0]),
        "expand": lambda x: x[:, :1].expand(-1, 5, -1), "expand_as": lambda x: x[0].expand_as(x), "unflatten": lambda x: x.unflatten(-1, (2, -1)),
        "flatten": lambda x: x.flatten(0, 1), "ravel": lambda x: x.ravel(), "squeeze": lambda x: x[:, :1].squeeze(), "squeeze_d": lambda x: x[:, :1].squeeze((1, 2)),
        "atleast": lambda x: (torch.atleast_3d(x[0]), torch.atleast_2d(x[0, 0]), torch.atleast_1d(x[0, 0, 0])),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 4, 3, 2), 2), "pixel_unshuffle": lambda x: F.pixel_unshuffle(x.reshape(1, 1, 4, 6), 2),
        "unbind": lambda x: x.unbind(1), "permute": lambda x: x.permute(2, -3, 1), "transpose": lambda x: x.transpose(-1, 0),
        "as_strided": lambda x: x.as_strided((2, 3), (1, 2), 1), "view_as": lambda x: x.view_as(x.reshape(4, 6)[:, :]), "reshape": lambda x: x.reshape(-1, 6),
        "swapaxes": lambda x: x.swapaxes(1, -1), "vander": lambda x: torch.vander(x[0, 0], 3), "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] * 0, 1, -1),
        "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :2] * 0, 1, -2), "slice_scatter_step": lambda x: torch.slice_scatter(x, x[:, :, :2] * 0, 2, 0, 4, 2),
        "slice_scatter_empty": lambda x: torch.slice_scatter(x, x[:, :0], 1, 1, 1),
        "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[:, 0, :3] * 0, 1, 1, 2), "as_strided_scatter": lambda x: torch.as_strided_scatter(x, x[0, :2, :2] * 0, (2, 2), (4, 1), 1),
        "index_fill": lambda x: x.index_fill(1, torch.tensor([0, -1]), 2), "where1": lambda x: torch.where(x > 0, x, x.flip(0)), "nonneg": lambda x: x.clone().fill_(2),
        "unsqueeze": lambda x: x.unsqueeze(-2), "fill_diagonal": lambda x: x[0].clone().fill_diagonal_(3), "circ": lambda x: torch.cat([x[..., -1:], x], -1),
        "new_zeros": lambda x: (x.new_zeros(2, 3), x.new_ones(2), x.new_full((2,), 3), torch.zeros_like(x), torch.full_like(x, 3), torch.empty_like(x).fill_(1)),
        "one_hot": lambda x: F.one_hot(x.abs().long() % 5, 6), "take": lambda x: x.take(torch.tensor([[0, -1], [5, 3]])),
        "put": lambda x: x.put(torch.tensor([0, -1, 5]), x[0, 0, :3] * 0), "put_acc": lambda x: x.put(torch.tensor([0, 0, 5]), x[0, 0, :3], accumulate=True),
        "take_along": lambda x: torch.take_along_dim(x, torch.zeros(2, 1, 4, dtype=torch.long), 1), "index_select": lambda x: x.index_select(-1, torch.tensor([3, 0, 3])),
        "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flip(0)), "gather": lambda x: x.gather(2, torch.zeros(2, 2, 3, dtype=torch.long)),
        "index2": lambda x: x[torch.tensor([0, 1, -1]), :, torch.tensor([1, -2, 3])], "index_none": lambda x: x[:, torch.tensor([[0, 1], [2, -1]])],
        "index_bool": lambda x: x[:, torch.tensor([True, False, True])], "index_put": lambda x: x.index_put((torch.tensor([0, -1]),), x[0] * 2),
        "index_put_acc": lambda x: x.index_put((torch.tensor([0, 0]), torch.tensor([1, -1])), x[0, :2] * 2, accumulate=True),
        "index_put_none": lambda x: torch.ops.aten.index_put(x, [None, torch.tensor([0, 2])], x[:, :2] * 0), "setitem": lambda x: setitem(x.clone()),
        "setitem_mask": lambda x: setmask(x.clone()), "index_add": lambda x: x.index_add(1, torch.tensor([0, 0, 2]), x, alpha=2), "index_copy": lambda x: x.index_copy(1, torch.tensor([2, 0]), x[:, :2]),
        "tril_indices": lambda x: (torch.tril_indices(3, 4, 1), torch.triu_indices(4, 3, -1)), "embedding": lambda x: F.embedding(torch.tensor([[0, 2], [1, 1]]), x[0]),
    }
    def setitem(x):
        x[:, 1:, ::2] = 5
        x[0] += 1
        return x
    def setmask(x):
        x[x > 1] = 0
        return x
    for (name, f), dtype in itertools.product(functions.items(), ALL):
        if name in ("lt_chain",):
            continue
        yield f"{name}_{short(dtype)}", f, [data(dtype, 2, 3, 4)]
    for d in (-7, -2, 0, 3, 9):
        yield f"tri_{d}", lambda x, d=d: (x.tril(d), x.triu(d)), [data(torch.float32, 3, 5)]
        yield f"diag_{d}", lambda x, d=d: torch.diag_embed(x, d), [data(torch.float32, 2, 3)]


@family
def scatters():
    index = torch.tensor([[0, 2, 1, 0], [1, 1, 0, 2]])
    for dtype, dim in itertools.product(ALL, (0, 1)):
        src = data(dtype, 2, 4)
        yield f"scatter_{short(dtype)}_{dim}", lambda x, s, d=dim: x.scatter(d, index, s), [data(dtype, 3, 4), src]
        yield f"scatter_value_{short(dtype)}_{dim}", lambda x, d=dim: x.scatter(d, index, 1), [data(dtype, 3, 4)]
        yield f"scatter_add_{short(dtype)}_{dim}", lambda x, s, d=dim: x.scatter_add(d, index, s), [data(dtype, 3, 4), src]
        for reduce, own in itertools.product(("sum", "prod", "mean", "amax", "amin"), (True, False)):
            yield (f"scatter_reduce_{reduce}_{own}_{short(dtype)}_{dim}",
                   lambda x, s, d=dim, r=reduce, o=own: x.scatter_reduce(d, index, s, r, include_self=o), [data(dtype, 3, 4), src])
            if dim == 0:
                yield (f"index_reduce_{reduce}_{own}_{short(dtype)}",
                       lambda x, s, r=reduce, o=own: x.index_reduce(0, torch.tensor([0, 0]), s, r, include_self=o) if r != "sum" else x.index_add(0, torch.tensor([0, 0]), s),
                       [data(dtype, 3, 4), src])
        for reduce in ("add", "multiply"):
            yield f"scatter_{reduce}_{short(dtype)}_{dim}", lambda x, s, d=dim, r=reduce: x.scatter(d, index, s, reduce=r), [data(dtype, 3, 4), src]


@family
def products():
    for dtype in [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32]:
        ranks = {1: (4,), 2: (3, 4), 3: (2, 3, 4), 4: (5, 1, 3, 4)}
        others = {1: (4,), 2: (4, 6), 3: (2, 4, 6), 4: (5, 2, 4, 6)}
        for a, b in itertools.product(ranks.values(), others.values()):
            yield f"matmul_{short(dtype)}_{len(a)}_{len(b)}", torch.matmul, [data(dtype, *a), data(dtype, *b)]
        for rank, weight, bias in itertools.product((1, 2, 3, 4), ((6, 4), (4,)), (False, True)):
            b = [data(dtype, *((6,) if len(weight) == 2 else ()))] if bias else []
            yield f"linear_{short(dtype)}_{rank}_{len(weight)}_{bias}", F.linear, [data(dtype, *(2, 1, 3, 4)[-rank:]), data(dtype, *weight), *b]
        m, n, v, w = data(dtype, 3, 4), data(dtype, 4, 5), data(dtype, 4), data(dtype, 3)
        for beta, alpha in ((1, 1), (2, 3), (0, 1)):
            kw = {"beta": beta, "alpha": alpha}
            tag = f"{short(dtype)}_{beta}_{alpha}"
            yield f"addmm_{tag}", lambda c, a, b, k=kw: torch.addmm(c, a, b, **k), [data(dtype, 5), m, n]
            yield f"addmm_full_{tag}", lambda c, a, b, k=kw: torch.addmm(c, a, b, **k), [data(dtype, 3, 1), m, n]
            yield f"addmv_{tag}", lambda c, a, b, k=kw: torch.addmv(c, a, b, **k), [w, m, v]
            yield f"addr_{tag}", lambda c, a, b, k=kw: torch.addr(c, a, b, **k), [data(dtype, 3, 4), w, v]
            yield f"baddbmm_{tag}", lambda c, a, b, k=kw: torch.baddbmm(c, a, b, **k), [data(dtype, 2, 3, 5), data(dtype, 2, 3, 4), data(dtype, 2, 4, 5)]
            yield f"addbmm_{tag}", lambda c, a, b, k=kw: torch.addbmm(c, a, b, **k), [data(dtype, 3, 5), data(dtype, 2, 3, 4), data(dtype, 2, 4, 5)]
        yield f"mm_{short(dtype)}", torch.mm, [m, n]
        yield f"mv_{short(dtype)}", torch.mv, [m, v]
        yield f"dot_{short(dtype)}", lambda a, b: (torch.dot(a, b), torch.vdot(a, b), torch.inner(a, b)), [v, v + 1]
        yield f"outer_{short(dtype)}", lambda a, b: (torch.outer(a, b), torch.ger(a, b)), [v, w]
        yield f"inner_{short(dtype)}", torch.inner, [m, data(dtype, 2, 4)]
        yield f"kron_{short(dtype)}", torch.kron, [m, data(dtype, 2, 2)]
        yield f"kron_1_{short(dtype)}", torch.kron, [m, v]
        yield f"cross_{short(dtype)}", lambda a, b: torch.cross(a, b, 0), [data(dtype, 3, 4), data(dtype, 3, 4)]
        yield f"chain_{short(dtype)}", lambda a, b: torch.linalg.multi_dot([a, b, b.T]), [m, n]
        yield f"tensordot_{short(dtype)}", lambda a, b: torch.tensordot(a, b, ([1, 2], [0, 1])), [data(dtype, 2, 3, 4), data(dtype, 3, 4, 5)]
        yield f"tensordot0_{short(dtype)}", lambda a, b: torch.tensordot(a, b, 0), [w, v]
        for eq in ("ij,jk->ik", "ij,kj->ikj", "ij,ij->", "ii->i", "ij->ji", "...j,jk", "ij,j->i", "ij,jk,kl->il", "bij,bjk->ik"):
            parts = [data(dtype, 4, 4)] * (eq.split("->")[0].count(",") + 1)
            if eq == "ij,j->i":
                parts = [data(dtype, 4, 4), v]
            if eq.startswith("b"):
                parts = [data(dtype, 2, 4, 4)] * 2
            yield f"einsum_{eq.replace(',', '_').replace('>', '')}_{short(dtype)}", lambda *a, e=eq: torch.einsum(e, *a), parts
        yield f"matmul_empty_{short(dtype)}", torch.matmul, [data(dtype, 3, 0), data(dtype, 0, 4)]
        yield f"matmul_none_{short(dtype)}", torch.matmul, [data(dtype, 0, 3), data(dtype, 3, 4)]
        if dtype.is_floating_point:
            yield f"bilinear_{short(dtype)}", lambda a, b, w: F.bilinear(a, b, w), [m, data(dtype, 3, 5), data(dtype, 2, 4, 5)]
            yield f"matrix_power_{short(dtype)}", lambda a: (torch.linalg.matrix_power(a, 3), torch.linalg.matrix_power(a, 0)), [data(dtype, 3, 3)]
    for causal, mask, dtype in itertools.product((False, True), (None, torch.bool, torch.float32), (torch.float32, torch.float16)):
        if causal and mask:
            continue
        for heads, grouped in ((4, False), (2, True)):
            q, k = data(dtype, 2, 4, 3, 8), data(dtype, 2, heads, 5, 8)
            m = None if mask is None else data(mask, 3, 5).to(mask if mask == torch.bool else dtype)
            yield (f"attention_{causal}_{short(mask)}_{short(dtype)}_{grouped}", lambda q, k, m=m, c=causal, g=grouped:
                   F.scaled_dot_product_attention(q, k, k, attn_mask=m, is_causal=c, enable_gqa=g), [q, k])


@family
def losses():
    for dtype, reduction in itertools.product((torch.float32, torch.float16, torch.float64), ("none", "mean", "sum")):
        x, y = data(dtype, 3, 4), data(dtype, 3, 4)
        p, labels = torch.rand(3, 4).to(dtype), torch.tensor([0, 3, 1])
        tag = f"{short(dtype)}_{reduction}"
        kw = {"reduction": reduction}
        for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "kl_div", "poisson_nll_loss",
                     "multilabel_soft_margin_loss", "hinge_embedding_loss", "binary_cross_entropy_with_logits"):
            f = getattr(F, name)
            target = y.sign() if "margin" in name or "hinge" in name else p
            yield f"{name}_{tag}", lambda a, b, f=f, k=kw: f(a, b, **k), [x, target]
        yield f"bce_{tag}", lambda a, b, k=kw: F.binary_cross_entropy(a, b, weight=b, **k), [p, p.flip(0)]
        yield f"nll_{tag}", lambda a, k=kw: F.nll_loss(F.log_softmax(a, 1), labels, **k), [x]
        yield f"nll_weight_{tag}", lambda a, w, k=kw: F.nll_loss(a, labels, w, ignore_index=3, **k), [x, p[0].clone()]
        yield f"ce_{tag}", lambda a, k=kw: F.cross_entropy(a, labels, label_smoothing=0.1, **k), [x]
        yield f"ce_weight_{tag}", lambda a, w, k=kw: F.cross_entropy(a, labels, w, label_smoothing=0.1, ignore_index=0, **k), [x, p[0].clone()]
        yield f"ce_prob_{tag}", lambda a, b, k=kw: F.cross_entropy(a, b, **k), [x, p]
        yield f"nll2d_{tag}", lambda a, k=kw: F.nll_loss(a, torch.tensor([[[0, 1], [2, 3]]]), **k), [data(dtype, 1, 4, 2, 2)]
        yield f"gaussian_{tag}", lambda a, b, v, k=kw: F.gaussian_nll_loss(a, b, v, full=True, **k), [x, y, p + 0.1]
        yield f"cosine_{tag}", lambda a, b, k=kw: F.cosine_embedding_loss(a, b, torch.tensor([1, -1, 1]), margin=0.2, **k), [x, y]
        yield f"ranking_{tag}", lambda a, b, k=kw: F.margin_ranking_loss(a, b, b.sign(), margin=0.3, **k), [x, y]
        yield f"triplet_{tag}", lambda a, b, c, k=kw: F.triplet_margin_loss(a, b, c, swap=True, **k), [x, y, p]
        yield f"multi_margin_{tag}", lambda a, k=kw: F.multi_margin_loss(a, labels, p=2, margin=0.5, **k), [x]
        yield f"multilabel_{tag}", lambda a, k=kw: F.multilabel_margin_loss(a, torch.tensor([[0, 2, -1, 1]] * 3), **k), [x]
        for beta in (0.0, 0.5):
            yield f"smooth_{beta}_{tag}", lambda a, b, k=kw, q=beta: F.smooth_l1_loss(a, b, beta=q, **k), [x, y]


@family
def norms():
    for dtype in FLOATS:
        for sizes in ((2, 4), (2, 4, 5), (2, 4, 3, 3), (1, 4, 2, 3, 3)):
            w, b = data(dtype, 4), data(dtype, 4)
            x = data(dtype, *sizes)
            tag = f"{short(dtype)}_{len(sizes)}"
            rm, rv = data(dtype, 4), torch.rand(4).to(dtype) + 0.5
            yield f"batch_{tag}", lambda x, m=rm, v=rv, w=w, b=b: F.batch_norm(x, m, v, w, b), [x]
            yield f"batch_plain_{tag}", lambda x, m=rm, v=rv: F.batch_norm(x, m, v, eps=1e-3), [x]
            if dtype in (torch.float16, torch.bfloat16):
                m32, v32, w32, b32 = rm.float(), rv.float(), w.float(), b.float()
                yield f"batch_mixed_{tag}", lambda x, m=m32, v=v32, w=w32, b=b32: F.batch_norm(x, m, v, w, b), [x]
            yield f"batch_train_{tag}", lambda x, w=w, b=b: F.batch_norm(x, None, None, w, b, training=True), [x]
            yield f"group_{tag}", lambda x, w=w, b=b: F.group_norm(x, 2, w, b), [x]
            yield f"group_plain_{tag}", lambda x: F.group_norm(x, 4), [x]
            yield f"layer_{tag}", lambda x: F.layer_norm(x, x.shape[1:]), [x]
            yield f"layer_affine_{tag}", lambda x, n=sizes[-1], d=dtype: F.layer_norm(x, (n,), torch.ones(n, dtype=d) * 2, torch.ones(n, dtype=d)), [x]
            yield f"layer_weight_{tag}", lambda x, n=sizes[-1], d=dtype: F.layer_norm(x, (n,), torch.ones(n, dtype=d) * 2), [x]
            yield f"rms_{tag}", lambda x: F.rms_norm(x, x.shape[-1:]), [x]
            yield f"rms_w_{tag}", lambda x, n=sizes[-1], d=dtype: F.rms_norm(x, (n,), torch.ones(n, dtype=d) * 2, 1e-3), [x]
            if len(sizes) > 2:
                yield f"instance_{tag}", lambda x, w=w, b=b: F.instance_norm(x, weight=w, bias=b), [x]
            yield f"lrn_{tag}", lambda x: F.local_response_norm(x, 3, 0.1, 0.75, 2.0), [x]
            yield f"lrn4_{tag}", lambda x: F.local_response_norm(x, 4), [x]


@family
def pools():
    for rank, dtype in itertools.product((1, 2, 3), (torch.float32, torch.float16, torch.float64, torch.int64)):
        image = (7, 6, 5)[:rank]
        for batch in (True, False):
            x = data(dtype, *((2,) if batch else ()), 3, *image)
            for kernel, stride, pad, ceil in ((2, 2, 0, False), (3, 2, 1, False), (3, 2, 1, True), (2, 3, 0, True), (3, 1, 1, False), (2, None, 1, True)):
                tag = f"{rank}_{short(dtype)}_{batch}_{kernel}_{stride}_{pad}_{ceil}"
                mx, av = getattr(F, f"max_pool{rank}d"), getattr(F, f"avg_pool{rank}d")
                yield f"max_{tag}", lambda x, f=mx, a=(kernel, stride, pad), c=ceil: f(x, *a, ceil_mode=c), [x]
                yield f"max_indices_{tag}", lambda x, f=mx, a=(kernel, stride, pad), c=ceil: f(x, *a, ceil_mode=c, return_indices=True), [x]
                for count in (True, False):
                    yield f"avg_{tag}_{count}", lambda x, f=av, a=(kernel, stride, pad), c=ceil, n=count: f(x, *a, ceil_mode=c, count_include_pad=n), [x]
                if rank > 1:
                    yield f"avg_div_{tag}", lambda x, f=av, a=(kernel, stride, pad), c=ceil: f(x, *a, ceil_mode=c, divisor_override=3), [x]
            yield f"max_dilated_{rank}_{short(dtype)}_{batch}", lambda x, f=getattr(F, f"max_pool{rank}d"): f(x, 2, 1, 1, 2), [x]
            for size in (1, 3, 2):
                yield f"adaptive_avg_{rank}_{short(dtype)}_{batch}_{size}", lambda x, s=size, f=getattr(F, f"adaptive_avg_pool{rank}d"): f(x, s), [x]
                yield f"adaptive_max_{rank}_{short(dtype)}_{batch}_{size}", lambda x, s=size, f=getattr(F, f"adaptive_max_pool{rank}d"): f(x, s, return_indices=True), [x]
            yield f"lp_{rank}_{short(dtype)}_{batch}", lambda x, f=getattr(F, f"lp_pool{rank}d"): f(x, 2.0, 2, ceil_mode=True), [x]
            if dtype == torch.float32:
                yield f"unpool_{rank}_{batch}", lambda x, r=rank: getattr(F, f"max_unpool{r}d")(*getattr(F, f"max_pool{r}d")(x, 2, return_indices=True), 2), [x]


@family
def convolutions():
    for rank, dtype in itertools.product((1, 2, 3), FLOATS):
        image = (7, 6, 5)[:rank]
        for batch, groups, bias in itertools.product((True, False), (1, 2, 4), (True, False)):
            if dtype != torch.float32 and (not batch or groups == 2):
                continue
            x = data(dtype, *((2,) if batch else ()), 4, *image)
            b = [data(dtype, 4)] if bias else []
            w = data(dtype, 4, 4 // groups, *(3, 2, 3)[:rank])
            f, t = getattr(F, f"conv{rank}d"), getattr(F, f"conv_transpose{rank}d")
            tag = f"{rank}_{short(dtype)}_{batch}_{groups}_{bias}"
            for stride, pad, dilation in ((1, 0, 1), (2, 1, 1), (1, 2, 2), (1, "same", 1), (1, "valid", 2), (1, "same", 2)):
                yield (f"conv_{tag}_{stride}_{pad}_{dilation}", lambda x, w, *b, f=f, a=(stride, pad, dilation, groups):
                       f(x, w, b[0] if b else None, *a), [x, w, *b])
            wt = data(dtype, 4, 4 // groups, *(3, 2, 3)[:rank])
            for stride, pad, out, dilation in ((1, 0, 0, 1), (2, 1, 1, 1), (1, 1, 0, 2), (3, 0, 2, 1), (2, 1, 1, 2)):
                yield (f"transposed_{tag}_{stride}_{pad}_{out}_{dilation}", lambda x, w, *b, f=t, a=(stride, pad, out, groups, dilation):
                       f(x, w, b[0] if b else None, *a), [x, wt, *b])


@family
def resampling():
    for rank, modes in ((1, ("nearest", "linear", "nearest-exact", "area")), (2, ("nearest", "bilinear", "bicubic", "nearest-exact", "area")),
                        (3, ("nearest", "trilinear", "nearest-exact", "area"))):
        for mode, dtype in itertools.product(modes, (torch.float32, torch.float16, torch.uint8, torch.float64)):
            x = data(dtype, 2, 3, *(5, 4, 3)[:rank])
            for kw in [{"scale_factor": 2.0}, {"scale_factor": 0.6}, {"size": (7, 3, 6)[:rank]}, {"size": (1,) * rank},
                       {"scale_factor": 1.7, "recompute_scale_factor": True}]:
                for corners in (None, True, False) if "linear" in mode or "cubic" in mode else (None,):
                    yield (f"{mode}_{rank}_{short(dtype)}_{short(kw)}_{corners}".replace("'", "").replace(":", "="),
                           lambda x, m=mode, k=kw, c=corners: F.interpolate(x, mode=m, align_corners=c, **k), [x])
                    if mode in ("bilinear", "bicubic") and dtype != torch.float64:
                        yield (f"aa_{mode}_{rank}_{short(dtype)}_{short(kw)}_{corners}".replace("'", "").replace(":", "="),
                               lambda x, m=mode, k=kw, c=corners: F.interpolate(x, mode=m, align_corners=c, antialias=True, **k), [x])
    for mode, pad, corners in itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)):
        yield (f"grid_{mode}_{pad}_{corners}", lambda x, g, m=mode, p=pad, c=corners: F.grid_sample(x, g, m, p, c),
               [data(torch.float32, 2, 3, 5, 4), torch.randn(2, 3, 6, 2)])
        if mode != "bicubic":
            yield (f"grid3_{mode}_{pad}_{corners}", lambda x, g, m=mode, p=pad, c=corners: F.grid_sample(x, g, m, p, c),
                   [data(torch.float32, 1, 2, 3, 4, 3), torch.randn(1, 2, 3, 2, 3)])
    for corners in (False, True):
        yield f"affine_{corners}", lambda t, c=corners: F.affine_grid(t, (2, 3, 4, 5), c), [data(torch.float32, 2, 2, 3)]
        yield f"affine3_{corners}", lambda t, c=corners: F.affine_grid(t, (2, 3, 4, 5, 2), c), [data(torch.float32, 2, 3, 4)]
    for dtype in FLOATS:
        yield f"unfold_{short(dtype)}", lambda x: F.unfold(x, (2, 3), padding=1, stride=(2, 1)), [data(dtype, 2, 3, 5, 4)]
        yield f"fold_{short(dtype)}", lambda x: F.fold(x, (4, 5), 2, padding=1, stride=2), [data(dtype, 2, 12, 9)]
        yield f"fold_d_{short(dtype)}", lambda x: F.fold(x, (4, 5), 2, dilation=2), [data(dtype, 2, 12, 6)]


@family
def recurrent():
    for kind, bi, first, layers, bias in itertools.product(("LSTM", "GRU", "RNN"), (False, True), (False, True), (1, 2), (True, False)):
        module = getattr(nn, kind)(4, 5, layers, bias=bias, batch_first=first, bidirectional=bi)
        for state in (False, True):
            h = torch.randn(layers * (1 + bi), 3, 5)
            s = [] if not state else [(h, h + 1)] if kind == "LSTM" else [h]
            yield (f"{kind}_{bi}_{first}_{layers}_{bias}_{state}", lambda x, *a, m=module, s=s: m(x, *s), [data(torch.float32, 3, 3, 4)])
    for kind in ("LSTM", "GRU", "RNN"):
        yield f"{kind}_flat", getattr(nn, kind)(4, 5), [data(torch.float32, 3, 4)]
        cell = getattr(nn, f"{kind}Cell")(4, 5)
        yield f"{kind}_cell", lambda x, c=cell: c(x), [data(torch.float32, 3, 4)]
        yield f"{kind}_double", getattr(nn, kind)(4, 5).double(), [data(torch.float64, 2, 3, 4)]
    yield "RNN_relu", nn.RNN(4, 5, nonlinearity="relu"), [data(torch.float32, 2, 3, 4)]


@family
def spectra():
    for norm, dtype in itertools.product((None, "ortho", "forward"), (torch.float32, torch.float64)):
        for n in (None, 5, 8, 3):
            x = data(dtype, 2, 6)
            tag = f"{norm}_{short(dtype)}_{n}"
            yield f"rfft_{tag}", lambda x, n=n, o=norm: torch.view_as_real(torch.fft.rfft(x, n, norm=o)), [x]
            yield f"fft_{tag}", lambda x, n=n, o=norm: torch.view_as_real(torch.fft.fft(x, n, 0, norm=o)), [x]
            yield f"ifft_{tag}", lambda x, n=n, o=norm: torch.view_as_real(torch.fft.ifft(x, n, norm=o)), [x]
            yield f"irfft_{tag}", lambda x, n=n, o=norm: torch.fft.irfft(torch.view_as_complex(x), n, norm=o), [data(dtype, 2, 4, 2)]
            yield f"fft_abs_{tag}", lambda x, n=n, o=norm: torch.fft.fft(x, n, norm=o).abs(), [x]
        yield f"rfft2_{norm}_{short(dtype)}", lambda x, o=norm: torch.fft.rfft2(x, norm=o).abs(), [data(dtype, 2, 3, 4)]
        yield f"fft2_{norm}_{short(dtype)}", lambda x, o=norm: torch.fft.fft2(x, norm=o).real, [data(dtype, 2, 3, 4)]
        yield f"irfft2_{norm}_{short(dtype)}", lambda x, o=norm: torch.fft.irfft2(torch.fft.rfft2(x, norm=o), norm=o), [data(dtype, 2, 3, 4)]
        yield f"fftn_{norm}_{short(dtype)}", lambda x, o=norm: torch.fft.fftn(x, norm=o).imag, [data(dtype, 2, 3, 4)]
    yield "fftshift", lambda x: (torch.fft.fftshift(x), torch.fft.ifftshift(x, 1)), [data(torch.float32, 3, 5)]
    for center, one in itertools.product((False, True), (False, True)):
        yield (f"stft_{center}_{one}", lambda x, c=center, o=one: torch.view_as_real(torch.stft(
            x, 8, 4, 6, torch.hann_window(6), center=c, onesided=o, return_complex=True)), [data(torch.float32, 2, 30)])


@family
def factories():
    made = {
        "arange": lambda x: (torch.arange(3), torch.arange(5, -3, -2), torch.arange(0.5, 2.0, 0.4), torch.arange(2, 5, dtype=torch.float16)),
        "linspace": lambda x: (torch.linspace(0, 1, 5), torch.linspace(3, -2, 1), torch.linspace(0, 9, 4, dtype=torch.int64), torch.linspace(0, 1, 0)),
        "logspace": lambda x: (torch.logspace(0, 2, 5), torch.logspace(0, 1, 3, base=2)),
        "eye": lambda x: (torch.eye(3), torch.eye(2, 4), torch.eye(3, 0), torch.eye(3, dtype=torch.int64)),
        "full": lambda x: (torch.full((2, 3), 1.5), torch.full((), 3), torch.full((2,), True), torch.zeros(0, 3), torch.ones(2, dtype=torch.bfloat16)),
        "windows": lambda x: (torch.hann_window(7), torch.hamming_window(6, False), torch.blackman_window(5), torch.bartlett_window(5), torch.kaiser_window(5)),
        "scalar": lambda x: (torch.scalar_tensor(2), torch.tensor(2.5), torch.tensor([1, 2])),
        "like": lambda x: (torch.ones_like(x, dtype=torch.int32), torch.full_like(x, 2.7, dtype=torch.int64), torch.zeros_like(x, dtype=torch.bool)),
        "tri": lambda x: (torch.tril(torch.ones(3, 4), 1), torch.tril_indices(3, 3), torch.triu_indices(2, 4, 1)),
        "result": lambda x: (x.to(torch.int32), x.to(torch.bool), x.to(torch.uint8), x.half(), x.bfloat16(), x.double(), x.long().float()),
    }
    for (name, f), dtype in itertools.product(made.items(), (torch.float32, torch.int64, torch.float16)):
        yield f"{name}_{short(dtype)}", f, [data(dtype, 2, 3)]
    for a, b in itertools.permutations(ALL, 2):
        yield f"to_{short(a)}_{short(b)}", lambda x, b=b: x.to(b), [data(a, 3, 4)]


@family
def systems():
    for dtype in (torch.float32, torch.float64):
        for batch in ((), (2,)):
            a = data(dtype, *batch, 3, 3) + 4 * torch.eye(3, dtype=dtype)
            s = a @ a.mT + torch.eye(3, dtype=dtype)
            b, v = data(dtype, *batch, 3, 2), data(dtype, *batch, 3)
            tag = f"{short(dtype)}_{len(batch)}"
            yield f"inv_{tag}", torch.linalg.inv, [a]
            yield f"det_{tag}", lambda a: (torch.linalg.det(a), *torch.linalg.slogdet(a), torch.logdet(a @ a.mT)), [a]
            yield f"solve_{tag}", torch.linalg.solve, [a, b]
            yield f"solve_left_{tag}", lambda a, b: torch.linalg.solve(a, b.mT, left=False), [a, b]
            yield f"cholesky_{tag}", lambda a: (torch.linalg.cholesky(a), torch.linalg.cholesky(a, upper=True), torch.cholesky_inverse(torch.linalg.cholesky(a))), [s]
            yield f"cholesky_solve_{tag}", lambda b, a: torch.cholesky_solve(b, torch.linalg.cholesky(a)), [b, s]
            for upper, left, unit in itertools.product((False, True), (False, True), (False, True)):
                yield (f"triangular_{tag}_{upper}_{left}_{unit}", lambda a, b, u=upper, l=left, n=unit: torch.linalg.solve_triangular(
                    a, b if l else b.mT, upper=u, left=l, unitriangular=n), [a, b])
            yield f"matrix_norm_{tag}", lambda a: (torch.linalg.matrix_norm(a), torch.linalg.matrix_norm(a, 1), torch.linalg.matrix_norm(a, float("inf"))), [a]


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or FAMILIES:
        torch.manual_seed(0)
        count = left = 0
        for label, f, inputs in FAMILIES[name]():
            label = "".join(c if c.isalnum() or c in "_.-=," else "" for c in label)
            module = f if isinstance(f, nn.Module) else None
            if module is None:
                class Module(nn.Module):
                    def forward(self, *args, f=f):
                        return f(*args)
                module = Module()
            try:
                write_case(folder / f"{name}.{label}", module.eval(), inputs)
                count += 1
            except Exception as e:
                left += 1
                if "-v" in sys.argv:
                    print(f"{label}: {type(e).__name__}: {str(e)[:200]}", file=sys.stderr)
        print(f"{name}: {count} variants, {left} that PyTorch rejects", flush=True)


if __name__ == "__main__":
    main()

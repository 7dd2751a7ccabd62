#!/usr/bin/env python3
"""Writes random programs of one to six operators with PyTorch's results: conformance cases for what single-operator
cases cannot cover, such as operator fusion and its interaction with dtypes, layouts and sizes.

    pteron ops --json > ops.json
    python tools/reference/programs.py FOLDER ops.json --count 1000 --seed 1 [--small] [--only TEXT] [--having PATTERN]

Draws operators of the list that PyTorch also has, and arguments from their schemas; argument lists that PyTorch refuses
are drawn again. To find the tolerance, each program runs five more times with the results of all inexact operators
perturbed by a few units in the last place: the tolerance follows from the resulting change of the outputs, and a program is
discarded if the perturbation flips a discrete result (a comparison, an index, an infinity). `UNDEFINED` lists the
operators left out, by reason. Needs torch and executorch.
"""

import argparse
import json
import math
import pathlib
import random
import re
import resource
import signal
import sys
import warnings

import torch
from executorch.exir import schema as s
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

import operators
from operators import ALIGN, Writer, describe, record

aten = torch.ops.aten
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
FLOATS = (F32, F16, BF16, F64)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
COMPLEX = (torch.complex64, torch.complex128)
TYPES = [(F32, 44), (F16, 16), (BF16, 12), (F64, 7), (torch.int64, 6), (torch.int32, 4), (torch.int16, 2),
         (torch.int8, 2), (torch.uint8, 3), (torch.bool, 4), (torch.complex64, 2), (torch.complex128, 1)]

# Operators that are not drawn, by reason.
UNDEFINED = {
    "random numbers": {"bernoulli", "rand", "randn", "randint", "randperm", "native_dropout", "normal", "uniform",
                       "rand_like", "randn_like", "randint_like", "exponential", "geometric", "multinomial",
                       "log_normal", "cauchy", "random", "dropout"},
    "uninitialized elements": {"empty", "empty_like", "empty_strided", "resize", "new_empty", "new_empty_strided"},
    "duplicate indices write one element twice": {"put", "scatter", "index_put", "index_copy"},
    "results other than tensors of fixed shape": {"_local_scalar_dense", "item", "nonzero"},
    "signs and phases of factors are not unique": {"linalg_qr", "linalg_svd", "linalg_eigh", "linalg_lu"},
}
LEFT_OUT = set().union(*UNDEFINED.values())

# Operators with bit-identical results in every implementation: exact, or correctly rounded.
EXACT = set("""add sub rsub mul div neg abs relu clamp clamp_min clamp_max maximum minimum fmax fmin eq ne lt le gt ge
where floor ceil round trunc frac reciprocal sign sgn signbit isnan isinf isposinf isneginf isfinite logical_not
logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not masked_fill hardtanh threshold
nan_to_num copysign heaviside max_pool2d_with_indices amax amin max min argmax argmin any all count_nonzero one_hot
view_copy permute_copy transpose_copy t_copy squeeze_copy unsqueeze_copy expand_copy slice_copy select_copy cat stack
flip repeat roll narrow_copy split_copy split_with_sizes_copy unbind_copy chunk gather index index_select embedding
constant_pad_nd clone _to_copy copy alias_copy detach_copy lift_fresh_copy full full_like zeros zeros_like ones
ones_like fill arange tril triu diagonal_copy diag_embed pixel_shuffle pixel_unshuffle masked_select take scatter
slice_scatter select_scatter diagonal_scatter index_fill tril_indices triu_indices eye fmod remainder floor_divide
channel_shuffle unfold_copy as_strided_copy im2col view_as_real_copy isin bincount cummax cummin rot90 swapaxes
movedim reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
repeat_interleave bucketize searchsorted aminmax argsort sort new_full new_zeros scalar_tensor new_ones
_upsample_nearest_exact1d _upsample_nearest_exact2d upsample_nearest1d upsample_nearest2d""".split())

# Relative perturbation by dtype: about one unit in the last place.
NUDGE = {F16: 2.0**-10, BF16: 2.0**-7, F32: 1e-6, F64: 1e-12}


class Refused(Exception):
    """The drawn arguments are invalid, or the result cannot become a case."""


def base_of(name):
    return name.split("::")[1].split(".")[0]


class Op:
    """An operator of the list: its out variant, and the functional overload with the same arguments."""

    def __init__(self, name, dtypes=()):
        self.name, self.base, self.dtypes = name, base_of(name), dtypes
        packet = getattr(aten, self.base)
        self.out = getattr(packet, name.split(".", 1)[1])
        schema = self.out._schema
        self.args = [a for a in schema.arguments if not (a.is_out or (a.alias_info and a.alias_info.is_write))]
        self.outs = [a for a in schema.arguments if a.is_out]
        if not self.outs or len(self.outs) + len(self.args) != len(schema.arguments):
            raise Refused(f"{name} writes what it reads")
        wanted = [(a.name, str(a.type)) for a in self.args]
        for overload in packet.overloads():
            function = getattr(packet, overload)
            found = function._schema.arguments
            if [(a.name, str(a.type)) for a in found] == wanted and not any(a.alias_info for a in found):
                self.function = function
                return
        raise Refused(f"{name} has no function without outs")

    def __call__(self, args):
        plain = [v for a, v in zip(self.args, args) if not a.kwarg_only]
        named = {a.name: v for a, v in zip(self.args, args) if a.kwarg_only}
        results = self.function(*plain, **named)
        results = [results] if isinstance(results, torch.Tensor) else results
        return [list(r) if isinstance(r, (list, tuple)) else r for r in results] if isinstance(results, tuple) else list(results)


def listed(path):
    """The drawable operators of `pteron ops --json`."""
    found = []
    for row in json.loads(pathlib.Path(path).read_text()):
        name = row["name"]
        if not name.startswith("aten::") or "." not in name or base_of(name).rstrip("_") in LEFT_OUT:
            continue
        try:
            found.append(Op(name, row["dtypes"]))
        except (Refused, AttributeError):
            continue
    return found


class Draw:
    """Random arguments."""

    def __init__(self, seed, small):
        self.r, self.small = random.Random(seed), small
        self.g = torch.Generator().manual_seed(seed)

    def chance(self, p):
        return self.r.random() < p

    def dtype(self):
        types, weights = zip(*TYPES)
        return self.r.choices(types, weights)[0]

    def size(self):
        if self.chance(0.03):
            return 0
        return self.r.choice([1, 1, 2, 3, 4, 5, 6, 7, 8] + ([] if self.small else [9, 16, 17, 33, 65, 130]))

    def shape(self, rank=None):
        rank = self.r.choices(range(6), [4, 15, 25, 20, 28, 8])[0] if rank is None else rank
        shape = [self.size() for _ in range(rank)]
        if rank and not self.small and self.chance(0.02):
            shape = [min(n, 2) for n in shape]
            shape[self.r.randrange(rank)] = self.r.choice([1000, 5003, 9000, 40000, 300001, 1000003])
        limit = 400 if self.small else 20000
        while math.prod(shape) > limit and max(shape) < 1000:
            shape[shape.index(max(shape))] //= 2
        return shape

    def tensor(self, shape, dtype, kind=None):
        """A tensor in a random layout with elements of `kind`: normal, wide range, all equal, with special values (NaN,
        infinities, zeros), few distinct values, or positive."""
        kind = kind or self.r.choices(["normal", "wide", "equal", "special", "few", "positive"], [50, 8, 6, 14, 12, 10])[0]
        x = torch.randn(shape, generator=self.g, dtype=F64)
        if dtype.is_complex:
            # Finite only: implementations differ in complex arithmetic with infinities and NaN.
            x = torch.complex(x, torch.randn(shape, generator=self.g, dtype=F64))
        elif dtype == torch.bool:
            x = x > 0
        elif not dtype.is_floating_point:
            least = 0 if dtype == torch.uint8 else -6
            x = torch.randint(least, 7, shape, generator=self.g)
        elif kind == "wide":
            x = x * 10 ** (torch.rand(shape, generator=self.g, dtype=F64) * 9 - 4)
        elif kind == "equal":
            x = torch.full(shape, self.r.choice([0.1, 0.5, -1.0, 3.0, 0.0, 1e-3, 1000.0]), dtype=F64)
        elif kind == "few":
            x = (x * 2).round() / 2
        elif kind == "positive":
            x = x.abs() + 0.1
        elif kind == "special" and x.numel():
            flat = x.reshape(-1)
            for v in (math.nan, math.inf, -math.inf, 0.0, -0.0, 60000.0, 1e-7, 0.5, -2.5):
                if self.chance(0.5):
                    flat[self.r.randrange(flat.numel())] = v
            x = flat.reshape(shape)
        x = x.to(dtype)
        return self.random_layout(x)

    def random_layout(self, x):
        """The same elements, in a random dim order."""
        if x.dim() < 2 or self.chance(0.65) or x.numel() == 0:
            return x.contiguous()
        if x.dim() in (4, 5) and self.chance(0.6):
            order = [0, *range(2, x.dim()), 1]
        else:
            order = list(range(x.dim()))
            self.r.shuffle(order)
        back = [order.index(d) for d in range(x.dim())]
        return x.permute(order).contiguous().permute(back)

    def like(self, x, dtype=None):
        """A tensor that broadcasts with `x`."""
        shape = list(x.shape)
        if self.chance(0.4):
            shape = [1 if self.chance(0.4) else n for n in shape]
        if self.chance(0.25):
            shape = shape[self.r.randrange(len(shape) + 1):]
        return self.tensor(shape, dtype or (x.dtype if self.chance(0.85) else self.dtype()))

    def scalar(self, dtype):
        if dtype == torch.bool:
            return self.chance(0.5)
        if not dtype.is_floating_point:
            return self.r.randint(0 if dtype == torch.uint8 else -4, 6)
        return self.r.choice([0, 1, 2, 0.1, 0.5, -0.5, 3.0, -1.5, 1000.0, 60000.0, 1e-3, 2.5])

    def distinct(self, shape, dtype):
        """A tensor of distinct elements, as far as the dtype can represent them."""
        x = torch.randperm(math.prod(shape), generator=self.g).reshape(shape)
        x = x - x.numel() // 2 if dtype.is_signed else x
        return self.random_layout(x.to(F64).div(4 if dtype.is_floating_point else 1).to(dtype))

    def float(self):
        return self.r.choice([0.1, 0.5, 1.0, 2.0, 1e-3])


def refuse(test, why="arguments that do not fit"):
    if test:
        raise Refused(why)


class Program:
    """A program that grows call by call."""

    def __init__(self, draw):
        self.d, self.r = draw, draw.r
        self.calls, self.values = [], []  # values: all tensors defined so far
        self.given = {}  # id of a tensor that no call computes: "input" or "constant"
        self.used = set()

    def new(self, x, constant=None):
        self.values.append(x)
        constant = self.d.chance(0.25) if constant is None else constant
        self.given[id(x)] = "constant" if constant and x.numel() else "input"
        return x

    def fresh(self, rank=None, dtype=None, kind=None):
        return self.new(self.d.tensor(self.d.shape(rank), dtype or self.d.dtype(), kind))

    def some(self, rank=None, floating=False):
        """The first operand of a call: usually a computed tensor, mostly the last one; otherwise a new one."""
        computed = [v for v in self.values if id(v) not in self.given]
        fits = [v for v in computed if (rank is None or v.dim() == rank) and (not floating or v.is_floating_point())]
        if fits and self.d.chance(0.85):
            return fits[-1] if self.d.chance(0.7) else self.r.choice(fits)
        return self.fresh(rank, self.r.choices(FLOATS, [44, 16, 12, 7])[0] if floating else None)

    def other(self, x, dtype=None):
        """A second operand: an existing tensor of the same shape, or a new one."""
        same = [v for v in self.values if v.shape == x.shape and v.dtype == (dtype or x.dtype)]
        if same and self.d.chance(0.4):
            return self.r.choice(same)
        return self.new(self.d.like(x, dtype))

    def weights(self, shape, dtype):
        return self.new(self.d.tensor(shape, dtype, "normal"), self.d.chance(0.8))

    # `OWN` holds the generators of operators that need special arguments; others follow the schema.
    def arguments(self, op):
        own = OWN.get(op.base)
        if own:
            found = own(self, op)
            return found if isinstance(found, list) else self.by_schema(op, found)
        return self.by_schema(op, {})

    def by_schema(self, op, known):
        """Draws arguments by their schema types and names; `known` presets some by name."""
        result, x = [], None
        needs_float = op.base in FLOATING
        for a in op.args:
            kind = str(a.type)
            if a.name in known:
                v = known[a.name]
            elif a.name in ("memory_format", "layout", "device", "pin_memory"):
                v = None
            elif a.name == "dtype" and "Opt" in kind:
                v = self.d.dtype() if self.d.chance(0.25) else None
            elif kind == "Tensor":
                if x is None:
                    v = self.some(known.get("rank"), needs_float)
                elif a.name in ("index", "indices"):
                    v = self.new(torch.randint(0, max(1, min(x.shape, default=1)), self.d.shape(x.dim() if op.base in ("gather", "scatter_add") else 1), generator=self.d.g), False)
                elif a.name in ("mask", "condition"):
                    v = self.new(self.d.like(x, torch.bool))
                else:
                    v = self.other(x)
            elif kind == "Optional[Tensor]":
                v = self.other(x) if x is not None and self.d.chance(0.5) else None
            elif kind == "List[Tensor]":
                x = self.some() if x is None else x
                v = [x] + [self.other(x) for _ in range(self.r.randint(0, 2))]
            elif kind in ("number", "Optional[number]", "float") and a.name in ("p", "ord"):
                v = self.r.choice([0.0, 1.0, 2.0, 3.0, math.inf, -math.inf][:6 if kind != "float" else 4])
            elif kind == "number":
                v = self.d.scalar(x.dtype if x is not None else F32)
            elif kind == "Optional[number]":
                v = self.d.scalar(x.dtype) if self.d.chance(0.6) and x is not None else None
            elif kind == "bool":
                v = self.d.chance(0.4)
            elif kind == "Optional[bool]":
                v = None
            elif kind == "float":
                v = self.d.float()
            elif kind == "Optional[float]":
                v = self.d.float() if self.d.chance(0.4) else None
            elif a.name == "dtype":
                v = self.d.dtype()
            elif kind in ("int", "SymInt"):
                v = self.integer(a.name, x)
            elif kind in ("Optional[int]", "Optional[SymInt]"):
                v = None if self.d.chance(0.4) else self.integer(a.name, x)
            elif kind in ("List[int]", "List[SymInt]"):
                v = self.integers(a, x)
            elif kind in ("Optional[List[int]]", "Optional[List[SymInt]]"):
                v = None if self.d.chance(0.25) else self.integers(a, x)
            elif kind == "List[bool]":
                v = [self.d.chance(0.5) for _ in range(3)]
            elif kind in ("str", "Optional[str]"):
                v = self.r.choice(STRINGS.get(a.name, [None]))
                refuse(v is None and kind == "str")
            elif a.has_default_value():
                v = a.default_value
            else:
                raise Refused(f"no way to draw {a.name}: {kind}")
            if x is None and isinstance(v, torch.Tensor):
                x = v
            result.append(v)
        return result

    def integer(self, name, x):
        rank = x.dim() if x is not None else 2
        if name.startswith("dim") or name == "axis":
            return self.r.randrange(-max(rank, 1), max(rank, 1))
        if name in ("diagonal", "offset", "shift"):
            return self.r.randint(-2, 2)
        if name == "alpha":
            return 1
        if name in ("correction",):
            return self.r.randint(0, 1)
        return self.r.randint(0, 4)

    def integers(self, a, x):
        rank = x.dim() if x is not None else 2
        if a.name in ("dim", "dims"):
            n = self.r.randint(0 if a.name == "dim" else 1, max(rank, 0)) if rank else 0
            return [d - rank if self.d.chance(0.3) else d for d in self.r.sample(range(rank), n)]
        if a.name in ("size", "repeats") and x is None:
            return self.d.shape(self.r.randint(0, 3))
        return [self.r.randint(0, 3) for _ in range(rank)]

    def grow(self, op):
        before = len(self.values)
        try:
            args = self.arguments(op)
            for a in args:
                refuse(isinstance(a, torch.Tensor) and a.numel() > (2000 if self.d.small else 2_000_000))
            results = op(args)
            flat = [t for r in results for t in (r if isinstance(r, list) else [r])]
            refuse(not flat or any(not isinstance(t, torch.Tensor) for t in flat))
            limit = 3000 if self.d.small else 1_100_000
            refuse(any(t.numel() > limit or t.layout != torch.strided or t.dim() > 8 for t in flat))
            refuse(any(t.dtype == torch.complex32 for t in flat))
            # Skip complex dtypes without a kernel in this build.
            refuse(any(t.is_complex() and str(t.dtype).removeprefix("torch.") not in op.dtypes for t in tensors(args) if "fft" not in op.base))
            # Results in memory of their own, dense.
            owned = []
            for r in results:
                owned.append([dense(t) for t in r] if isinstance(r, list) else dense(r))
        except (Refused, RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AttributeError, ZeroDivisionError, MemoryError):
            for v in self.values[before:]:
                self.given.pop(id(v), None)
            del self.values[before:]
            return False
        self.calls.append((op, args, owned))
        for t in (t for r in owned for t in (r if isinstance(r, list) else [r])):
            self.values.append(t)
        for t in tensors(args):
            self.used.add(id(t))
        return True

    def results(self):
        """The program's outputs: results without uses, and a few of the others."""
        computed = [t for _, _, owned in self.calls for t in tensors(owned)]
        leaves = [t for t in computed if id(t) not in self.used]
        return leaves + [t for t in computed if id(t) in self.used and self.d.chance(0.15)]


def dense(t):
    """A copy of a tensor that an execution plan can describe: dense, without overlapping elements."""
    t = t.detach()
    try:
        plain = t.is_non_overlapping_and_dense()
    except AttributeError:
        plain = torch.ops.aten.is_non_overlapping_and_dense(t)
    return t.clone(memory_format=torch.preserve_format) if plain else t.contiguous().clone()


def real_view(t):
    """A complex tensor viewed as its real and imaginary parts; other tensors unchanged."""
    return torch.view_as_real(t.resolve_conj().resolve_neg()) if t.is_complex() else t


def tensors(args):
    for a in args:
        if isinstance(a, torch.Tensor):
            yield a
        elif isinstance(a, (list, tuple)):
            yield from (t for t in a if isinstance(t, torch.Tensor))


STRINGS = {"approximate": ["none", "tanh"], "rounding_mode": [None, "floor", "trunc"], "mode": ["constant"], "reduce": ["sum"]}

# Operators that take only floating-point tensors.
FLOATING = set("""convolution linear mm bmm addmm baddbmm addmv _softmax _log_softmax native_layer_norm native_group_norm
_native_batch_norm_legit_no_training gelu elu leaky_relu hardswish hardsigmoid silu glu prelu mean std var var_mean
std_mean logsumexp avg_pool2d avg_pool1d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d
upsample_bilinear2d grid_sampler_2d _cdist_forward _pdist_forward softplus hardshrink softshrink celu logit rms_norm
mish log_sigmoid native_batch_norm norm linalg_vector_norm nan_to_num frac floor ceil round trunc rsqrt reciprocal exp
sigmoid tanh erf log sin cos dot mv _logcumsumexp logaddexp upsample_nearest2d upsample_nearest1d pixel_shuffle
max_pool2d_with_indices""".split())

OWN = {}


def own(*names):
    def register(f):
        OWN.update(dict.fromkeys(names, f))
        return f
    return register


@own("convolution")
def convolution(p, op):
    space, r = p.r.choices([1, 2, 3], [3, 8, 2])[0], p.r
    x = p.some(2 + space, True)
    groups = r.choice([1, 1, 2, x.shape[1]])
    # Without input channels PyTorch returns no output channels, whatever the shape of the weights.
    refuse(groups == 0 or x.shape[1] == 0 or x.shape[1] % max(groups, 1) or x.shape[1] > 64)
    transposed = p.d.chance(0.2)
    out = r.choice([1, 2, 3, 4]) if not transposed else r.choice([1, 2])
    kernel = [r.choice([1, 2, 3, 3]) for _ in range(space)]
    w = [x.shape[1], out] if transposed else [out * groups, x.shape[1] // groups]
    channels = out * groups
    weight = p.weights(w + kernel, x.dtype)
    bias = p.weights([channels], x.dtype) if p.d.chance(0.5) else None
    stride, padding = [r.choice([1, 1, 2]) for _ in range(space)], [r.choice([0, 1, 1, 2]) for _ in range(space)]
    extra = [r.randrange(s) for s in stride] if transposed else [0] * space
    return [x, weight, bias, stride, padding, [r.choice([1, 1, 2]) for _ in range(space)], transposed, extra, groups]


@own("linear")
def linear(p, op):
    x = p.some(None, True)
    refuse(x.dim() == 0)
    n = p.r.choice([1, 3, 5, 16, 32])
    return [x, p.weights([n, x.shape[-1]], x.dtype), p.weights([n], x.dtype) if p.d.chance(0.5) else None]


@own("mm")
def mm(p, op):
    x = p.some(2, True)
    return [x, p.weights([x.shape[1], p.r.choice([1, 4, 17])], x.dtype)]


@own("addmm")
def addmm(p, op):
    x, n = p.some(2, True), p.r.choice([1, 4, 17])
    bias = p.weights(p.r.choice([[n], [x.shape[0], n], [x.shape[0], 1], []]), x.dtype)
    beta, alpha = (1, 1) if p.d.chance(0.7) else (p.r.choice([0, 0.5, 2]), p.r.choice([1, 0.5]))
    return [bias, x, p.weights([x.shape[1], n], x.dtype), beta, alpha]


@own("bmm", "baddbmm")
def bmm(p, op):
    x, n = p.some(3, True), p.r.choice([1, 4, 9])
    y = p.new(p.d.tensor([x.shape[0], x.shape[2], n], x.dtype, "normal"))
    return [x, y] if op.base == "bmm" else [p.weights([x.shape[0], x.shape[1], n], x.dtype), x, y, 1, 1]


@own("mv", "addmv", "dot")
def mv(p, op):
    x = p.some(1 if op.base == "dot" else 2, True)
    v = p.weights([x.shape[-1]], x.dtype)
    return [x, v] if op.base != "addmv" else [p.weights([x.shape[0]], x.dtype), x, v, 1, 1]


@own("native_layer_norm", "rms_norm")
def layer_norm(p, op):
    x = p.some(None, True)
    refuse(x.dim() == 0)
    shape = list(x.shape[-p.r.randint(1, x.dim()):])
    weight, bias = (p.weights(shape, x.dtype) if p.d.chance(0.6) else None for _ in range(2))
    return [x, shape, weight, bias, 1e-5] if op.base == "native_layer_norm" else [x, shape, weight, 1e-5]


@own("native_group_norm")
def group_norm(p, op):
    x = p.some(p.r.choice([3, 4, 4, 5]), True)
    c = x.shape[1]
    groups = p.r.choice([g for g in range(1, c + 1) if c % g == 0] or [0])
    refuse(groups == 0)
    weight, bias = (p.weights([c], x.dtype) if p.d.chance(0.6) else None for _ in range(2))
    return [x, weight, bias, x.shape[0], c, math.prod(x.shape[2:]), groups, 1e-5]


@own("_native_batch_norm_legit_no_training", "_native_batch_norm_legit")
def batch_norm(p, op):
    x = p.some(p.r.choice([2, 3, 4, 4, 5]), True)
    c = x.shape[1]
    variance = p.new(p.d.tensor([c], x.dtype, "positive"), p.d.chance(0.8))
    if "no_stats" in op.name:
        return [x, p.weights([c], x.dtype), p.weights([c], x.dtype), True, 0.1, 1e-5]
    refuse(not op.base.endswith("no_training"))
    return [x, p.weights([c], x.dtype), p.weights([c], x.dtype), p.weights([c], x.dtype), variance, 0.1, 1e-5]


@own("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool1d", "avg_pool3d")
def pool(p, op):
    space = int(op.base[op.base.index("pool") + 4])
    x = p.some(space + p.r.choice([2, 2, 2, 1]), True)
    many = lambda choices: [p.r.choice(choices) for _ in range(space)]
    kernel, stride, padding = many([1, 2, 3]), p.r.choice([[], many([1, 2])]), many([0, 0, 1])
    ceil = p.d.chance(0.3)
    if op.base.startswith("max"):
        return [x, kernel, stride, padding, many([1, 1, 2]), ceil]
    more = [] if space == 1 else [p.r.choice([None, None, 3])]
    return [x, kernel, stride, padding, ceil, p.d.chance(0.5), *more]


@own("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
     "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive(p, op):
    space = int(op.base[op.base.index("pool") + 4])
    x = p.some(space + p.r.choice([2, 2, 1]), True)
    refuse(0 in x.shape[-space:])
    return [x, [p.r.randint(1, 4) for _ in range(space)]]


def upsampling(p, op):
    space = next(int(c) for c in op.base if c in "123")
    x = p.some(space + 2, True)
    # PyTorch's antialiased upsampling reads channels-last images differently.
    refuse(op.base.endswith("aa") and not x.is_contiguous())
    size = [p.r.randint(1, 9) for _ in range(space)]
    known = {"input": x, "self": x, "output_size": size, "scale_factors": None, "scales": None}
    return known | dict.fromkeys(["scales_d", "scales_h", "scales_w"], None)


for _name in ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d",
              "upsample_bicubic2d", "upsample_trilinear3d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
              "_upsample_nearest_exact3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    OWN[_name] = upsampling


@own("unique_consecutive", "_unique2", "unique_dim")
def unique(p, op):
    # Ask for all outputs: those that are not requested are unspecified.
    x = p.some()
    return {"self": x, "return_inverse": True, "return_counts": True, "sorted": True, "dim": p.r.randrange(max(x.dim(), 1))}


@own("_pdist_forward")
def pdist(p, op):
    return {"self": p.some(2, True)}


@own("logit")
def logit(p, op):
    return {"eps": p.r.choice([None, 0.1, 1e-3])}


@own("_softmax", "_log_softmax")
def softmax(p, op):
    return {"half_to_float": False}


@own("embedding")
def embedding(p, op):
    weight = p.weights([p.r.randint(1, 9), p.r.randint(1, 6)], p.r.choice(FLOATS))
    indices = p.new(torch.randint(0, weight.shape[0], p.d.shape(p.r.randint(0, 2)), generator=p.d.g), False)
    return [weight, indices, -1, False, False]


@own("index_select", "index_add", "index_copy", "index_fill", "gather", "scatter_add", "scatter")
def indexed(p, op):
    x = p.some()
    refuse(x.dim() == 0)
    dim = p.r.randrange(x.dim())
    n = x.shape[dim]
    refuse(n == 0)
    if op.base in ("gather", "scatter_add", "scatter"):
        shape = [p.r.randint(1, m) if m and d != dim else min(m, 4) for d, m in enumerate(x.shape)]
        if op.base == "scatter_add":
            refuse(x.dtype in (F16, BF16, torch.bool))
        index = p.new(torch.randint(0, n, shape, generator=p.d.g), False)
        known = {"self": x, "dim": dim, "index": index}
        if op.base != "gather":
            known["src"] = p.new(p.d.tensor(shape, x.dtype))
        return known
    count = p.r.randint(1, n)
    index = p.new(torch.randperm(n, generator=p.d.g)[:count], False)
    shape = [count if d == dim else m for d, m in enumerate(x.shape)]
    return {"self": x, "dim": dim, "index": index, "source": p.new(p.d.tensor(shape, x.dtype)), "alpha": 1}


@own("index")
def index(p, op):
    x = p.some()
    refuse(x.dim() == 0 or 0 in x.shape)
    lists = [p.new(torch.randint(0, x.shape[d], [3], generator=p.d.g), False) for d in range(p.r.randint(1, min(2, x.dim())))]
    return [x, lists]


@own("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
     "replication_pad2d", "replication_pad3d")
def pad(p, op):
    fixed = next((int(c) for c in op.base if c in "123"), None)
    x = p.some(fixed + p.r.choice([1, 2]) if fixed else None)
    sides = fixed or p.r.randint(0, x.dim())
    least = -1 if op.base == "constant_pad_nd" and p.d.chance(0.2) else 0
    pads = [p.r.randint(least, 2) for _ in range(2 * sides)]
    return [x, pads, p.d.scalar(x.dtype)] if op.base == "constant_pad_nd" else [x, pads]


@own("view_copy", "_unsafe_view", "_reshape_alias_copy", "reshape")
def view(p, op):
    x = p.some()
    n, shape = x.numel(), []
    if n == 0:
        shape = list(x.shape) + [1]
    else:
        while n > 1 and p.d.chance(0.8):
            f = p.r.choice([f for f in range(1, min(n, 12) + 1) if n % f == 0])
            shape.append(f)
            n //= f
        shape.append(n)
        p.r.shuffle(shape)
    if op.name == "aten::view_copy.dtype_out":
        return {"self": x, "dtype": p.r.choice([torch.int32, torch.uint8, F32, F16, torch.int16])}
    # View only row-major tensors.
    x = x if x.is_contiguous() else p.new(p.d.tensor(shape, x.dtype).contiguous())
    known = {"self": x, "size": shape}
    return known | ({"stride": list(torch.empty(shape).stride())} if op.base == "_reshape_alias_copy" else {})


@own("expand_copy")
def expand(p, op):
    x = p.some()
    sizes = [p.r.choice([-1, n]) if n != 1 else p.r.choice([1, 3, -1]) for n in x.shape]
    return [x, ([p.r.randint(1, 3)] if p.d.chance(0.3) else []) + sizes, False]


@own("permute_copy")
def permute(p, op):
    x = p.some()
    order = list(range(x.dim()))
    p.r.shuffle(order)
    return [x, [d - x.dim() if p.d.chance(0.2) else d for d in order]]


@own("slice_copy", "slice_scatter")
def slicing(p, op):
    x = p.some()
    refuse(x.dim() == 0)
    dim = p.r.randrange(x.dim())
    n = x.shape[dim]
    start, end, step = p.r.choice([None, 0, 1, -2]), p.r.choice([None, n, -1, 3, 100]), p.r.choice([1, 1, 2])
    part = x.transpose(0, dim)[slice(start, end, step)].transpose(0, dim)
    known = {"self": x, "dim": dim, "start": start, "end": end, "step": step}
    return known | ({"src": p.new(p.d.tensor(list(part.shape), x.dtype))} if op.base == "slice_scatter" else {})


@own("select_copy", "select_scatter")
def select(p, op):
    x = p.some()
    refuse(x.dim() == 0 or 0 in x.shape)
    dim = p.r.randrange(x.dim())
    index = p.r.randrange(-x.shape[dim], x.shape[dim])
    part = x.select(dim, index)
    return {"self": x, "dim": dim, "index": index, "src": p.new(p.d.tensor(list(part.shape), x.dtype))} if op.base.endswith("scatter") else [x, dim, index]


@own("cat")
def cat(p, op):
    x = p.some()
    refuse(x.dim() == 0)
    dim = p.r.randrange(-x.dim(), x.dim())
    others = []
    for _ in range(p.r.randint(0, 2)):
        shape = list(x.shape)
        shape[dim] = p.d.size()
        others.append(p.new(p.d.tensor(shape, x.dtype if p.d.chance(0.9) else p.d.dtype())))
    return [[x, *others], dim]


@own("stack")
def stack(p, op):
    x = p.some()
    others = [p.new(p.d.tensor(list(x.shape), x.dtype)) for _ in range(p.r.randint(0, 2))]
    return [[x, *others], p.r.randrange(-x.dim() - 1, x.dim() + 1)]


@own("split_with_sizes_copy")
def split_sizes(p, op):
    x = p.some()
    refuse(x.dim() == 0)
    dim = p.r.randrange(x.dim())
    first = p.r.randint(0, x.shape[dim])
    return [x, [first, x.shape[dim] - first], dim]


@own("grid_sampler_2d", "grid_sampler_3d")
def grid(p, op):
    space = int(op.base[-2])
    x = p.some(2 + space, True)
    places = p.new(p.d.tensor([x.shape[0], *(p.r.randint(1, 4) for _ in range(space)), space], x.dtype, "normal"))
    return [x, places, p.r.randrange(2), p.r.randrange(3), p.d.chance(0.5)]


@own("im2col")
def im2col(p, op):
    x = p.some(4)
    two = lambda choices: [p.r.choice(choices), p.r.choice(choices)]
    return [x, two([1, 2, 3]), two([1, 2]), two([0, 1]), two([1, 2])]


@own("bucketize", "searchsorted")
def search(p, op):
    x = p.some(None, True)
    rows = list(x.shape[:-1]) if op.base == "searchsorted" and "Tensor" in op.name and x.dim() else []
    sequence = p.new(p.d.tensor([*rows, 5], x.dtype, "few").contiguous().sort(-1).values)
    known = {"boundaries": sequence, "sorted_sequence": sequence, "sorter": None, "side": None}
    return known | ({"self": x} if "Tensor" in op.name else {})


@own("bincount")
def bincount(p, op):
    x = p.new(torch.randint(0, 6, [p.r.randint(0, 9)], generator=p.d.g), False)
    return [x, None, p.r.randint(0, 8)]


@own("split_copy")
def split(p, op):
    x = p.some()
    refuse(x.dim() == 0)
    return [x, p.r.randint(1, 4), p.r.randrange(x.dim())]


@own("repeat")
def repeat(p, op):
    x = p.some()
    return [x, [p.r.randint(0 if p.d.chance(0.05) else 1, 2) for _ in range(x.dim() + p.r.randint(0, 1))]]


@own("where")
def where(p, op):
    x = p.some()
    return {"condition": p.new(p.d.like(x, torch.bool)) if p.d.chance(0.6) or x.dtype != torch.bool else x, "self": x, "other": p.other(x)}


@own("_to_copy")
def to_copy(p, op):
    return {"non_blocking": False, "dtype": p.d.dtype()}


@own("full", "zeros", "ones")
def full(p, op):
    return {"size": p.d.shape(), "fill_value": p.d.scalar(F32) * 1.0, "names": None}


@own("arange")
def arange(p, op):
    start = p.r.randint(-3, 3)
    return {"start": start, "end": start + p.r.randint(0, 9), "step": p.r.choice([1, 2, 0.5])}


@own("clamp", "clamp_min", "clamp_max")
def clamp(p, op):
    x = p.some()
    bounds = {}
    for name in ("min", "max"):
        if "Tensor" in op.name:
            bounds[name] = p.new(p.d.like(x, x.dtype)) if op.base != "clamp" or p.d.chance(0.7) else None
        elif op.base != "clamp" or p.d.chance(0.7):
            bounds[name] = p.r.choice([p.d.scalar(x.dtype), p.d.scalar(x.dtype), math.nan if x.is_floating_point() else 1])
        else:
            bounds[name] = None
    return {"self": x, **bounds}


@own("pow")
def power(p, op):
    return {"exponent": p.r.choice([2, 2.0, 0.5, 3, -1, 1.5, 0])} if op.name == "aten::pow.Tensor_Scalar_out" else {}


@own("any", "all", "amax", "amin", "sum", "mean", "prod", "std", "var", "var_mean", "std_mean", "logsumexp")
def reduction(p, op):
    return {"rank": None}


@own("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
def shift(p, op):
    # Shift nonnegative values by less than their bit width; C++ leaves other shifts undefined or implementation-defined.
    x = p.new(torch.randint(0, 7, p.d.shape(), generator=p.d.g).to(p.r.choice(INTS)), False)
    other = p.r.randint(0, 3) if "Scalar" in op.name else p.new(torch.randint(0, 4, x.shape, generator=p.d.g).to(x.dtype), False)
    names = [a.name for a in op.args]
    return {names[0]: x if str(op.args[0].type) == "Tensor" else p.r.randint(0, 6), names[1]: other if str(op.args[1].type) != "Tensor" or isinstance(other, torch.Tensor) else x}


@own("sort", "argsort", "msort", "topk", "kthvalue", "median")
def ordering(p, op):
    x = p.some() if p.d.chance(0.3) else p.new(p.d.distinct(p.d.shape(), p.d.dtype()))
    refuse(x.is_complex())
    dim = p.r.randrange(-x.dim(), x.dim()) if x.dim() else p.r.choice([0, -1])
    n = x.shape[dim] if x.dim() else 1
    k = p.r.randint(0 if op.base == "topk" else 1, max(n, 1))
    return {"self": x, "dim": dim, "k": k, "sorted": True, "stable": True}


@own("_fft_r2c", "_fft_c2c", "_fft_c2r")
def transform(p, op):
    dtype = p.r.choice([F32, F32, F64] if op.base == "_fft_r2c" else [*COMPLEX])
    computed = [v for v in p.values if v.dtype == dtype and v.dim()]
    x = p.r.choice(computed) if computed and p.d.chance(0.6) else p.new(p.d.tensor(p.d.shape(p.r.randint(1, 4)), dtype, "normal"))
    # Empty tensors have no transform. c2r gets one dim: over several, the parts of the spectrum that symmetry makes
    # redundant are unspecified.
    refuse(0 in x.shape)
    dims = p.r.sample(range(x.dim()), 1 if op.base == "_fft_c2r" else p.r.randint(1, x.dim()))
    last = 2 * (x.shape[dims[-1]] - 1) + p.r.randint(0, 1)
    refuse(op.base == "_fft_c2r" and last < 1)
    return {"self": x, "dim": dims, "normalization": p.r.randrange(3), "last_dim_size": last}


def like_result(p, forward, args, dtype):
    """A gradient: a random tensor of the shape of the (first) result of `forward`."""
    result = forward(*args)
    result = result[0] if isinstance(result, tuple) else result
    return p.new(p.d.tensor(list(result.shape), dtype, "normal"), False)


@own("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_backward(p, op):
    x, size = adaptive(p, op)
    shape = [*x.shape[:-len(size)], *size]
    return [p.new(p.d.tensor(shape, x.dtype, "normal"), False), x]


@own("avg_pool2d_backward", "avg_pool3d_backward", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def pool_backward(p, op):
    x, *rest = pool(p, op)
    forward = getattr(aten, op.base.removesuffix("_backward"))
    grad = like_result(p, forward, [x, *rest], x.dtype)
    if not op.base.startswith("max"):
        return [grad, x, *rest]
    # PyTorch's index of the maximum is outside the image for a window that is all padding.
    places = forward(x, *rest)[1]
    pixels = math.prod(x.shape[-len(rest[0]):])
    refuse(x.numel() == 0 or ((places < 0) | (places >= pixels)).any())
    return [grad, x, *rest, p.new(places, False)]


@own("convolution_backward")
def convolution_backward(p, op):
    x, weight, bias, *rest = convolution(p, op)
    grad = like_result(p, aten.convolution, [x, weight, bias, *rest], x.dtype)
    channels = weight.shape[1] * rest[-1] if rest[3] else weight.shape[0]
    return [grad, x, weight, [channels], *rest, [True] * 3]


@own("embedding_dense_backward")
def embedding_backward(p, op):
    n = p.r.randint(1, 9)
    indices = p.new(torch.randint(0, n, p.d.shape(p.r.randint(0, 2)), generator=p.d.g), False)
    grad = p.new(p.d.tensor([*indices.shape, p.r.randint(1, 6)], p.r.choice([F32, F64]), "normal"))
    return [grad, indices, n, p.r.choice([-1, 0]), p.d.chance(0.3)]


@own("native_layer_norm_backward")
def layer_norm_backward(p, op):
    x, shape, *_ = layer_norm(p, Named("native_layer_norm"))
    weight, bias = (p.weights(shape, x.dtype) for _ in range(2))
    _, mean, rstd = aten.native_layer_norm(x, shape, weight, bias, 1e-5)
    grad = p.new(p.d.tensor(list(x.shape), x.dtype, "normal"), False)
    return [grad, x, shape, p.new(mean, False), p.new(rstd, False), weight, bias, [True] * 3]


@own("native_group_norm_backward")
def group_norm_backward(p, op):
    x, _, _, n, c, pixels, groups, eps = group_norm(p, op)
    weight = p.weights([c], x.dtype)
    _, mean, rstd = aten.native_group_norm(x, weight, None, n, c, pixels, groups, eps)
    grad = p.new(p.d.tensor(list(x.shape), x.dtype, "normal"), False)
    return [grad, x, p.new(mean, False), p.new(rstd, False), weight, n, c, pixels, groups, [True] * 3]


@own("view_as_complex_copy")
def as_complex(p, op):
    return {"self": p.new(p.d.tensor([*p.d.shape(p.r.randint(0, 3)), 2], p.r.choice([F32, F64]), "normal").contiguous())}


@own("diagonal_scatter")
def diagonal(p, op):
    x = p.some()
    refuse(x.dim() < 2)
    first, second = p.r.sample(range(x.dim()), 2)
    offset = p.r.randint(-1, 1)
    part = x.diagonal(offset, first, second)
    return {"self": x, "src": p.new(p.d.tensor(list(part.shape), x.dtype)), "offset": offset, "dim1": first, "dim2": second}


@own("repeat_interleave")
def repeats(p, op):
    return {"repeats": p.new(torch.randint(0, 4, p.d.shape(1), generator=p.d.g), False), "output_size": None}


@own("col2im")
def columns(p, op):
    kernel, stride = [p.r.randint(1, 3) for _ in range(2)], [p.r.randint(1, 2) for _ in range(2)]
    size = [p.r.randint(3, 8) for _ in range(2)]
    places = math.prod((n - k) // s + 1 for n, k, s in zip(size, kernel, stride))
    shape = [p.r.randint(1, 2), p.r.randint(1, 3) * math.prod(kernel), places]
    x = p.new(p.d.tensor(shape, p.r.choice([F32, F64]), "normal"))
    return {"self": x, "output_size": size, "kernel_size": kernel, "dilation": [1, 1], "padding": [0, 0], "stride": stride}


class Named:
    """Stand-in for an operator of which only the name is used."""

    def __init__(self, base):
        self.base = self.name = base


NORMS = set("""native_layer_norm native_group_norm _native_batch_norm_legit rms_norm var std var_mean std_mean""".split())
# Functions whose absolute error is that of results of magnitude one.
ABSOLUTE = set("_log_softmax gelu mish erfc sin cos tan logit expm1 atanh log digamma lgamma logaddexp logaddexp2".split())


# Operators that select elements by comparison.
EXTREMES = set("""maximum minimum fmax fmin clamp clamp_min clamp_max amax amin max min aminmax cummax cummin _unique2
unique_dim unique_consecutive""".split())

# Operators that convert elements or scalars to the dtype of the result.
CONVERTING = set("""_to_copy copy fill scatter index_put masked_fill constant_pad_nd full_like clamp sum nansum prod cumsum
cumprod""".split())


def within(t, dtype):
    """Whether all elements are finite and in range of an integer dtype after truncation."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = t.double().trunc()
    return bool((x.isfinite() & (x >= least) & (x <= min(most, 2**62))).all())


def order_independent(t):
    """Whether the product of the elements neither overflows nor underflows f32 in any order of multiplication."""
    x = t.double().abs()
    x = x[x.isfinite() & (x > 0)].log2()
    up, down = x.clamp(min=0).sum().item(), x.clamp(max=0).sum().item()
    return bool(t.isfinite().all()) and up < 120 and down > -120 or up == 0 or down == 0 and bool((t != 0).all())


def deviates(x):
    """Whether every row's variance is large enough against its mean to avoid cancellation."""
    x = x.double()
    return x.shape[1] > 1 and bool((x.var(1) > 1e-4 * x.mean(1) ** 2).all())


def distinct(t, dim):
    """Whether the elements along a dimension are pairwise distinct, with at most one NaN."""
    if t.dim() == 0 or t.numel() == 0:
        return True
    t = t.sort(dim).values.movedim(dim, 0)
    return not (t[1:] == t[:-1]).any() and not (t.isnan()[1:] & t.isnan()[:-1]).any()


def has_both_zeros(given):
    """Whether the tensors contain both 0.0 and -0.0."""
    signs = {bool(s) for t in given if not t.is_complex() for s in t[t == 0].signbit().unique()}
    return len(signs) == 2


def defined(op, args, results):
    """Whether PyTorch and C++ specify the results of a call, and PyTorch computes them correctly."""
    ins = list(tensors(args))
    floating = [t for t in ins if t.is_floating_point()]
    to_integers = [t for t in tensors(results) if not t.is_floating_point() and t.dtype != torch.bool]
    # Conversion of an out-of-range value to an integer dtype is undefined.
    if op.base in CONVERTING and floating and any(not within(t, to.dtype) for t in floating for to in to_integers):
        return False
    # The sign of NaN, its sort position and whether two NaNs are equal are unspecified.
    if op.base in ("signbit", "copysign", "_unique2", "unique_dim", "unique_consecutive") and any(t.isnan().any() for t in floating):
        return False
    # `assume_unique` requires distinct elements.
    if op.base == "isin" and True in args and any(t.unique().numel() != t.numel() for t in ins):
        return False
    # The product overflows or underflows in some orders of multiplication.
    if op.base in ("prod", "cumprod") and floating and not order_independent(floating[0]):
        return False
    # PyTorch counts in the dtype of the elements: in half precision 2048 + 1 is 2048.
    if op.base == "histc" and any(t.dtype in (F16, BF16) for t in ins):
        return False
    # PyTorch treats images of width one as columns of one pixel.
    if op.base.endswith("_aa") and any(t.shape[-1] == 1 for t in [*ins, *tensors(results)]):
        return False
    # PyTorch's vectorized code overflows where exp(x) / 2 is still finite.
    if op.base in ("sinh", "cosh") and any((t.double().abs() > (700 if t.dtype == F64 else 88)).any() for t in floating):
        return False
    # PyTorch returns empty images unchanged, which contradicts the result shape that it reports elsewhere.
    if op.base in ("pixel_shuffle", "pixel_unshuffle") and any(t.numel() == 0 for t in ins):
        return False
    # A correction of 60000 leaves a divisor of zero.
    if op.base in ("std", "var", "std_mean", "var_mean") and 60000.0 in args:
        return False
    # 0.0 and -0.0 compare equal: PyTorch's vectorized loop and its scalar tail select different ones.
    if op.base in EXTREMES and has_both_zeros(ins):
        return False
    # PyTorch computes these powers with sqrt in every dtype but float16; sqrt of negative infinity is NaN.
    if op.base == "pow" and any(v in (0.5, -0.5) for v in args if not isinstance(v, torch.Tensor)) and any(t.dtype == F16 and (t.signbit() & ((t == 0) | t.isinf())).any() for t in ins):
        return False
    # If a window is all negative infinity, PyTorch's index for channels-last inputs loses the plane.
    if op.base == "max_pool3d_with_indices" and any((t == -math.inf).any() for t in floating[:1]):
        return False
    # PyTorch computes x * weight / std - mean * weight / std, which cancels if the channel is nearly constant.
    if op.base == "_native_batch_norm_legit" and not deviates(ins[0].transpose(0, 1).flatten(1)):
        return False
    # PyTorch computes the variance as mean(x^2) - mean(x)^2, which cancels likewise.
    if op.base == "native_group_norm" and ins[0].numel() and not deviates(ins[0].reshape(ins[0].shape[0] * args[6], -1)):
        return False
    # PyTorch's vectorized code computes no remainder for subnormal divisors.
    if op.base in ("remainder", "fmod", "floor_divide") and any(((t != 0) & (t.abs() < torch.finfo(t.dtype).tiny)).any() for t in floating):
        return False
    # PyTorch leaves the gradient of a filter tap that meets no pixel uninitialized.
    if op.base == "convolution_backward" and all(t.isfinite().all() for t in ins) and any(t.isnan().any() for t in tensors(results)):
        return False
    # Implementations differ in complex arithmetic with infinities and NaN.
    if any(t.is_complex() and not t.isfinite().all() for t in [*ins, *tensors(results)]):
        return False
    # Without a stable sort, the order of equal elements is unspecified.
    if op.base in ("topk", "kthvalue", "median", "sort", "msort") and "stable" not in op.name:
        dim = next((v for a, v in zip(op.args, args) if a.name == "dim"), 0)
        return distinct(ins[0], dim)
    integers = ins and not floating and all(not t.is_floating_point() for t in tensors(results))
    # Integer division by zero, negative integer powers and integer overflow are undefined.
    if integers and op.base in ("div", "remainder", "fmod", "floor_divide", "pow"):
        return False
    # Statistics of empty tensors are left uninitialized; those of infinities are either infinite or NaN.
    if op.base in NORMS and (any(t.numel() == 0 for t in ins) or any(t.isinf().any() for t in floating[:1])):
        return False
    # oneDNN doubles before it halves; for large elements it disagrees with PyTorch's own vectorized code.
    if op.base in ("gelu", "mish") and any((t.double().abs() > torch.finfo(t.dtype).max / 4).any() for t in floating):
        return False
    # PyTorch accumulates these in half precision, in an unspecified order.
    if op.base in ("_adaptive_avg_pool3d", "adaptive_avg_pool3d", "avg_pool3d", "index_add", "scatter_add") and any(t.dtype in (F16, BF16) for t in ins):
        return False
    half = any(t.dtype in (F16, BF16) for t in ins)
    # PyTorch computes these in half precision throughout, in an unspecified order.
    if half and (op.base in ("grid_sampler_2d", "grid_sampler_3d", "norm", "linalg_vector_norm") or "backward" in op.base):
        return False
    if half and op.base.startswith("_native_batch_norm") and not ins[0].is_contiguous():
        return False
    # Boundaries must be sorted.
    if op.base in ("searchsorted", "bucketize") and any(not torch.equal(t, t.sort(-1).values) for a, t in zip(op.args, args) if a.name in ("boundaries", "sorted_sequence")):
        return False
    # Index among equal elements: Pteron returns the first, PyTorch any.
    if op.base in ("max", "min", "cummax", "cummin", "adaptive_max_pool2d", "adaptive_max_pool3d"):
        return all(t.unique().numel() == t.numel() for t in ins[:1])
    return True


def is_exact(op, args):
    """Whether all implementations compute bit-identical results. A sum of two products, as in complex multiplication, is
    rounded once (fused) or twice."""
    scaled = any(a.name == "alpha" and v != 1 for a, v in zip(op.args, args))
    return op.base in EXACT and not scaled and not any(t.is_complex() for t in tensors(args))


def run(calls, nudge, direction):
    """Runs all calls again, with inexact results perturbed by about one unit in the last place: all in
    `direction` (1 or -1), or each element in a random direction if it is None. Returns new results by the ids of the old
    ones."""
    again = {}
    at = lambda v: again.get(id(v), v) if isinstance(v, torch.Tensor) else [at(x) for x in v] if isinstance(v, list) else v
    for op, args, owned in calls:
        results = op([at(a) for a in args])
        exact = is_exact(op, args)
        for old, new in zip(tensors([t for r in owned for t in (r if isinstance(r, list) else [r])]),
                            tensors([t for r in results for t in (r if isinstance(r, list) else [r])])):
            new = dense(new)
            if new.is_complex() and not exact:
                signs = direction or 2.0 * torch.randint(0, 2, (*new.shape, 2), generator=nudge) - 1
                scale = new.abs().double().unsqueeze(-1)
                scale = scale + (0.1 * scale.max() if op.base in SUMS and scale.numel() else 0)
                unit = NUDGE[F32 if new.dtype == torch.complex64 else F64]
                new = torch.view_as_complex(real_view(new).double() + signs * unit * scale).to(new.dtype)
            elif not exact and new.is_floating_point():
                signs = direction or 2.0 * torch.randint(0, 2, new.shape, generator=nudge).to(F64) - 1
                scale = new.double().abs()
                finite = scale[scale.isfinite()]
                if op.base in ABSOLUTE:
                    scale = scale + 1
                if op.base in SUMS and finite.numel():
                    scale = scale + 0.1 * finite.max()
                # The sign of a zero sum is unspecified; in softshrink PyTorch's vectorized loop and its scalar tail
                # return different zeros.
                if op.base in SUMS:
                    new = torch.where(new == 0, new * signs, new)
                moved = new.double() + signs * NUDGE[new.dtype] * scale.nan_to_num(0, 0, 0)
                new = torch.where(new.isfinite(), moved.to(new.dtype), new)
            again[id(old)] = new
    return again


SUMS = set("""convolution linear mm bmm addmm baddbmm addmv mv dot native_layer_norm native_group_norm
_native_batch_norm_legit_no_training cumsum _cdist_forward _pdist_forward sum mean index_add scatter_add
var std rms_norm grid_sampler_2d upsample_bilinear2d upsample_bicubic2d
_upsample_bilinear2d_aa _upsample_bicubic2d_aa add sub rsub addcmul addcdiv lerp norm linalg_vector_norm
upsample_linear1d upsample_trilinear3d softshrink _fft_c2c _fft_c2r _fft_r2c col2im convolution_backward native_layer_norm_backward native_group_norm_backward
embedding_dense_backward avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward
_adaptive_avg_pool3d_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool1d avg_pool2d
avg_pool3d adaptive_avg_pool1d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool2d adaptive_avg_pool3d
grid_sampler_3d""".split())


def coarsest(calls):
    """By id of each result: the largest expected error of any call it depends on, relative to the largest element."""
    base = {F16: 1e-3, BF16: 8e-3, F32: 4e-6, F64: 1e-9}
    found = {}
    for op, args, owned in calls:
        results = list(tensors([t for r in owned for t in (r if isinstance(r, list) else [r])]))
        own = [] if is_exact(op, args) else [base.get(real_view(t).dtype, 0.0) for t in results]
        whole = max([*own, *(found.get(id(t), 0.0) for t in tensors(args))], default=0.0)
        found.update((id(t), whole) for t in results)
    return found


def allowed(calls, outputs, seed):
    """The absolute tolerance of the outputs, or `None` if the perturbation changes them too much or flips a discrete
    result."""
    worst, errors = 0.0, coarsest(calls)
    # All up, all down, then each element in a random direction: one of these flips a result that depends on the last
    # place.
    for trial in range(5):
        moved = run(calls, torch.Generator().manual_seed(seed + trial), (1.0, -1.0)[trial] if trial < 2 else None)
        for t in outputs:
            a, b = t, moved[id(t)]
            if a.shape != b.shape or a.dtype != b.dtype:
                return None
            a, b = real_view(a), real_view(b)
            if not a.is_floating_point():
                if not torch.equal(a, b):
                    return None
                continue
            x, y = a.double(), b.double()
            if not torch.equal(x.isfinite(), y.isfinite()) or not torch.equal(x.isnan(), y.isnan()):
                return None
            finite = x.isfinite()
            difference = (x - y)[finite].abs()
            scale = x[finite].abs().max().item() if finite.any() else 0.0
            if difference.numel():
                worst_here = difference.max().item()
                if worst_here > 0.05 * scale:
                    return None
                worst = max(worst, 4 * worst_here)
            inexact = any(not is_exact(op, args) for op, args, _ in calls)
            # Some of PyTorch's functions flush subnormal results to zero.
            worst = max(worst, errors[id(t)] * scale, torch.finfo(a.dtype).tiny) if inexact else worst
    return worst


def serialize(program, outputs):
    w = Writer()
    index, constants, inputs = {}, [s.Buffer(b"")], []

    def add(v):
        if isinstance(v, torch.Tensor):
            if id(v) not in index:
                index[id(v)] = place(v)
            return index[id(v)]
        if isinstance(v, (list, tuple)) and v and isinstance(v[0], torch.Tensor):
            return w.add(s.TensorList([add(t) for t in v]))
        if isinstance(v, list) and v and isinstance(v[0], float):
            return w.add(s.DoubleList(v))
        return w.arg(v)

    def place(v):
        at = w.tensor(v, dynamic=id(v) not in program.given)
        if program.given.get(id(v)) == "constant":
            order = v.dim_order()
            data = v.permute(order).contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            constants.append(s.Buffer(data))
            tensor = w.values[at].val
            tensor.data_buffer_idx, tensor.allocation_info = len(constants) - 1, None
        elif program.given.get(id(v)) == "input":
            inputs.append((at, v))
        return at

    instructions, names = [], []
    for op, args, owned in program.calls:
        if op.name not in names:
            names.append(op.name)
        ids = [add(optional(a, v)) if not is_optional_list(a) else w.add(s.OptionalTensorList([add(t) if t is not None else -1 for t in v])) for a, v in zip(op.args, args)]
        outs = [add(r) for r in owned]
        if "List" in str(op.outs[0].type):
            outs = [w.add(s.TensorList([add(t) for t in tensors(owned)]))]
        returned = outs[0] if len(outs) == 1 else w.add(s.TensorList(outs))
        instructions.append(s.Instruction(s.KernelCall(names.index(op.name), ids + outs + [returned])))
    plan = s.ExecutionPlan(
        name="forward",
        container_meta_type=s.ContainerMetadata("", ""),
        values=w.values,
        inputs=[i for i, _ in inputs],
        outputs=[add(t) for t in outputs],
        chains=[s.Chain([], [], instructions, None)],
        operators=[s.Operator(*n.rsplit(".", 1)) for n in names],
        delegates=[],
        non_const_buffer_sizes=[0, max(w.size, ALIGN)],
    )
    whole = s.Program(
        version=0,
        execution_plan=[plan],
        constant_buffer=constants,
        backend_delegate_data=[],
        segments=[],
        constant_segment=s.SubsegmentOffsets(0, []),
    )
    return bytes(serialize_pte_binary(PTEFile(whole))), [t for _, t in inputs]


def is_optional_list(a):
    return str(a.type) == "List[Optional[Tensor]]"


def optional(a, v):
    """Converts an int argument to float if the schema asks for a float."""
    if str(a.type) in ("float", "Optional[float]") and isinstance(v, int) and not isinstance(v, bool):
        return float(v)
    return v


def one(seed, ops, weights, small):
    """Draws a program: the program, its outputs and their tolerance, or `None` if the draw failed."""
    draw = Draw(seed, small)
    program = Program(draw)
    length = draw.r.randint(1, 6)
    for _ in range(20 * length):
        if len(program.calls) == length:
            break
        op = draw.r.choices(ops, weights)[0]
        program.grow(op)
    if not program.calls:
        return None
    for op, args, owned in program.calls:
        if not defined(op, args, owned):
            return None
    outputs = program.results()
    if not outputs or sum(t.numel() * t.element_size() for t in outputs) > (6000 if small else 4 << 20):
        return None
    tolerance = allowed(program.calls, outputs, seed)
    return None if tolerance is None else (program, outputs, tolerance)


# Operators common in networks. They are drawn more often.
COMMON = set("""add sub mul div relu convolution linear mm addmm bmm _softmax mean sum native_layer_norm
_native_batch_norm_legit_no_training native_group_norm max_pool2d_with_indices avg_pool2d sigmoid tanh gelu exp where clamp
cat permute_copy view_copy eq lt hardtanh maximum minimum sqrt rsqrt pow""".split())


def expired(*_):
    raise TimeoutError


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("operators", help="output of `pteron ops --json`")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="draw small tensors and write compact JSON")
    parser.add_argument("--only", help="only operators whose name contains this text")
    parser.add_argument("--having", type=re.compile, help="only programs with a call that matches this pattern, such as 'fft|complex'")
    parser.add_argument("--each", type=int, default=250, help="programs per folder")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Discard programs that exceed the memory limit or the time limit of an attempt.
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    signal.signal(signal.SIGALRM, expired)
    ops = [op for op in listed(args.operators) if not args.only or args.only in op.name]
    weights = [6 if op.base in COMMON else 1 for op in ops]
    if args.having:
        matching = [bool(args.having.search(op.name)) for op in ops]
        weights = [w + m * sum(weights) // (1 + sum(matching)) for w, m in zip(weights, matching)]
    print(f"{len(ops)} operators", file=sys.stderr)
    seed, written, drawn = args.seed * 1_000_000, 0, {}
    while written < args.count:
        folder = args.folder / f"{args.seed}_{written // args.each:03}"
        folder.mkdir(parents=True, exist_ok=True)
        blob, cases = bytearray(), []
        while len(cases) < args.each and written < args.count:
            seed += 1
            signal.alarm(20)
            try:
                found = one(seed, ops, weights, args.small)
            except (RuntimeError, NotImplementedError, Refused, TypeError, MemoryError, TimeoutError):
                continue
            finally:
                signal.alarm(0)
            if found is None:
                continue
            program, outputs, tolerance = found
            calls = [f"{op.name}({', '.join(str(describe(a)) for a in a_s)})" for op, a_s, _ in program.calls]
            if args.having and not any(map(args.having.search, calls)):
                continue
            data, inputs = serialize(program, outputs)
            file = f"{seed}.pte"
            (folder / file).write_bytes(data)
            run_of = {"inputs": [record(t, blob) for t in inputs], "outputs": [record(t, blob) for t in outputs]}
            cases.append({"pte": file, "calls": calls, "runs": [run_of], "tolerance": {"atol": tolerance, "rtol": 0}})
            written += 1
            for op, _, _ in program.calls:
                drawn[op.name] = drawn.get(op.name, 0) + 1
        (folder / "cases.bin").write_bytes(bytes(blob))
        whole = {"op": "random", "nondeterministic": False, "computed_by": f"torch {torch.__version__}", "cases": cases}
        (folder / "cases.json").write_text(json.dumps(whole, indent=None if args.small else 1, allow_nan=False, default=str) + "\n")
        print(f"{written} programs, {len(drawn)} operators", file=sys.stderr)
    never = [op.name for op in ops if op.name not in drawn]
    print("never drawn:", ", ".join(never), file=sys.stderr)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes single-operator conformance cases with PyTorch's results, for operators without a kernel in the reference
runtime, which therefore cannot record them.

    python tools/reference/operators.py testdata/operators [NAME...]
    python tools/reference/operators.py testdata/operators --torchao SOURCES [NAME...]
    python tools/reference/operators.py --custom crates/pteron/examples/mul3.pte

The second form writes the cases with weights that torchao packs; it needs torchao's sources and g++. The third writes the
program of the custom operator example. A program is one call of the operator: its arguments in order, then its outs.
Needs torch and executorch; the `llama` operators also need executorch.extension.llm.custom_ops, which computes them.
"""

import json
import math
import pathlib
import sys

import torch
from executorch.exir import schema as s
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.tensor import scalar_type_enum

ALIGN = 16
NAN, INF = math.nan, math.inf
DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}


class Writer:
    """Builder of a program's value table and memory plan."""

    def __init__(self):
        self.values, self.size, self.inputs = [], 0, []

    def add(self, value):
        self.values.append(s.EValue(value))
        return len(self.values) - 1

    def tensor(self, t, dynamic=False):
        at = self.size
        self.size += -(-max(t.numel() * t.element_size(), 1) // ALIGN) * ALIGN
        return self.add(
            s.Tensor(
                scalar_type=scalar_type_enum(t.dtype),
                storage_offset=0,
                sizes=list(t.shape),
                dim_order=list(t.dim_order()),
                requires_grad=False,
                layout=0,
                data_buffer_idx=0,
                allocation_info=s.AllocationDetails(1, at, 0),
                shape_dynamism=s.TensorShapeDynamism.DYNAMIC_BOUND if dynamic else s.TensorShapeDynamism.STATIC,
            )
        )

    def arg(self, v):
        if isinstance(v, torch.Tensor):
            index = self.tensor(v)
            self.inputs.append((index, v))
            return index
        if v is None:
            return self.add(s.Null())
        if isinstance(v, bool):
            return self.add(s.Bool(v))
        if isinstance(v, int):
            return self.add(s.Int(v))
        if isinstance(v, float):
            return self.add(s.Double(v))
        if isinstance(v, str):
            return self.add(s.String(v))
        if isinstance(v, torch.dtype):
            return self.add(s.Int(int(scalar_type_enum(v))))
        if v and isinstance(v[0], torch.Tensor):
            return self.add(s.TensorList([self.arg(t) for t in v]))
        if v and isinstance(v[0], bool):
            return self.add(s.BoolList(v))
        return self.add(s.IntList([self.arg(i) for i in v]))


def program(name, args, outs, written):
    """The bytes of a program that calls an operator, and its input tensors. `written` lists the indices of arguments
    that the operator mutates; they are outputs too."""
    w = Writer()
    ids = [w.arg(a) for a in args]
    out_ids = [w.tensor(o, dynamic=True) for o in outs]
    returned = out_ids[0] if len(out_ids) == 1 else w.add(s.TensorList(out_ids))
    op, overload = name.rsplit(".", 1)
    call = s.Instruction(s.KernelCall(0, ids + out_ids + [returned]))
    plan = s.ExecutionPlan(
        name="forward",
        container_meta_type=s.ContainerMetadata("", ""),
        values=w.values,
        inputs=[i for i, _ in w.inputs],
        outputs=[ids[i] for i in written] + out_ids,
        chains=[s.Chain([], [], [call], None)],
        operators=[s.Operator(op, overload)],
        delegates=[],
        non_const_buffer_sizes=[0, max(w.size, ALIGN)],
    )
    whole = s.Program(
        version=0,
        execution_plan=[plan],
        constant_buffer=[],
        backend_delegate_data=[],
        segments=[],
        constant_segment=s.SubsegmentOffsets(0, []),
    )
    return bytes(serialize_pte_binary(PTEFile(whole))), [t for _, t in w.inputs]


def record(t, blob):
    """Appends a tensor's elements in row-major order to `blob` and returns its `cases.json` entry."""
    rows = t.detach().contiguous()
    data = rows.reshape(-1).view(torch.uint8).numpy().tobytes() if rows.numel() else b""
    blob.extend(b"\0" * (-len(blob) % ALIGN))
    at = len(blob)
    blob.extend(data)
    return {
        "kind": "tensor",
        "dtype": str(t.dtype).removeprefix("torch."),
        "shape": list(t.shape),
        "dim_order": list(t.dim_order()),
        "file": "cases.bin",
        "offset": at,
        "nbytes": len(data),
    }


def describe(v):
    if isinstance(v, torch.Tensor):
        return f"T[{str(v.dtype).removeprefix('torch.')}]{list(v.shape)}"
    if isinstance(v, (list, tuple)):
        return [describe(x) for x in v]
    odd = isinstance(v, torch.dtype) or (isinstance(v, float) and not math.isfinite(v))
    return str(v) if odd else v


def write(folder, name, function, calls, written=(), tolerance=None):
    """Writes the folder of an operator, with one case for each argument list in `calls`. `function` returns the mutated
    arguments (indices `written`), then the outs."""
    folder = folder / name.replace("::", "__")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    blob, cases = bytearray(), []
    for number, args in enumerate(calls):
        fresh = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        results = function(*fresh)
        results = list(results) if isinstance(results, (tuple, list)) else [results]
        outs = results[len(written):]
        data, inputs = program(name, args, outs, written)
        file = f"{number:02}.pte"
        (folder / file).write_bytes(data)
        run = {"inputs": [record(t, blob) for t in inputs], "outputs": [record(t, blob) for t in results]}
        case = {"pte": file, "args": describe(args), "runs": [run]}
        if tolerance:
            case["tolerance"] = {"atol": tolerance[0], "rtol": tolerance[1]}
        cases.append(case)
    (folder / "cases.bin").write_bytes(bytes(blob))
    whole = {"op": name, "nondeterministic": False, "computed_by": f"torch {torch.__version__}", "cases": cases}
    (folder / "cases.json").write_text(json.dumps(whole, indent=1, allow_nan=False, default=str) + "\n")


def floats(*shape, dtype=torch.float32, special=True):
    """Normally distributed elements. If there are at least ten, the first six are special values (NaN, infinities,
    zeros of both signs, a tiny value)."""
    x = torch.randn(shape, dtype=torch.float64) * 2
    if special and x.numel() >= 10:
        x.view(-1)[:6] = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-20], dtype=torch.float64)
    return x.to(dtype)


def ints(*shape, low=-9, high=9, dtype=torch.int32):
    return torch.randint(low, high, shape).to(dtype)


def bools(*shape):
    return torch.rand(shape) < 0.5


def every_float(*shape, special=True):
    return [floats(*shape, dtype=d, special=special) for d in DTYPES.values()]


def unary(*more, integers=True):
    """Argument lists of a function of one tensor and the arguments `more`."""
    xs = every_float(3, 5) + [floats(0, 3), floats(), floats(2, 3, 2, 2).to(memory_format=torch.channels_last)]
    if integers:
        xs += [ints(3, 4), ints(4, dtype=torch.uint8, low=0), ints(4, dtype=torch.int64), bools(5)]
    return [[x, *more] for x in xs]


def binary(integers=True, scalar=None):
    """Argument lists of a function of two tensors, or of a tensor and a scalar."""
    pairs = [(x, floats(5, dtype=x.dtype)) for x in every_float(3, 5)]
    pairs += [(floats(3, 1, 2), floats(4, 1)), (floats(0), floats(1)), (floats(), floats(3))]
    if integers:
        pairs += [(ints(3, 4), ints(3, 4)), (ints(4, dtype=torch.int8), ints(4)), (bools(4), bools(4))]
    return [[a, b if scalar is None else scalar] for a, b in pairs]


def along(*more, dims=(0, 1, -1), integers=False):
    """Argument lists of a function along a dimension."""
    calls = [[floats(3, 4, 5), d, *more] for d in dims]
    calls += [[x, 0, *more] for x in every_float(6)] + [[floats(), -1, *more], [floats(3, 0, 2), 0, *more]]
    if integers:
        calls += [[ints(3, 4), 1, *more], [bools(6), 0, *more], [ints(5, dtype=torch.uint8, low=0), 0, *more]]
    return calls


def operators():
    a = torch.ops.aten
    yield "aten::sgn.out", torch.sgn, unary()
    yield "aten::signbit.out", torch.signbit, unary()
    yield "aten::sinc.out", torch.sinc, unary()
    yield "aten::erfinv.out", torch.erfinv, unary()
    yield "aten::deg2rad.out", torch.deg2rad, unary()
    yield "aten::rad2deg.out", torch.rad2deg, unary()
    yield "aten::angle.out", torch.angle, unary() + [[torch.randn(4, dtype=torch.complex64)]]
    yield "aten::isposinf.out", torch.isposinf, unary()
    yield "aten::isneginf.out", torch.isneginf, unary()
    yield "aten::nan_to_num.out", torch.nan_to_num, unary(None, None, None) + unary(1.5, 2.0, None, integers=False)
    yield "aten::round.decimals_out", lambda x, d: torch.round(x, decimals=d), (
        unary(1, integers=False) + unary(-1, integers=False) + unary(0, integers=False)
    )
    yield "aten::celu.out", a.celu, unary(1.5, integers=False)
    yield "aten::hardshrink.out", a.hardshrink, unary(0.5, integers=False)
    yield "aten::softshrink.out", a.softshrink, unary(0.5, integers=False)
    yield "aten::copysign.out", torch.copysign, binary()
    yield "aten::copysign.Scalar_out", torch.copysign, binary(scalar=-2.0)
    yield "aten::heaviside.out", torch.heaviside, [c for c in binary() if c[0].dtype == c[1].dtype]
    yield "aten::logaddexp.out", torch.logaddexp, binary(integers=False)
    yield "aten::logaddexp2.out", torch.logaddexp2, binary(integers=False)
    yield "aten::xlogy.OutTensor", torch.xlogy, binary()
    yield "aten::xlogy.OutScalar_Self", torch.xlogy, [[2.0, y] for _, y in binary()] + [[0.0, floats(3, 4)]]
    yield "aten::clamp_min.Tensor_out", torch.clamp_min, binary(integers=False) + [[ints(4), ints(4)]]
    yield "aten::clamp_max.Tensor_out", torch.clamp_max, binary(integers=False) + [[ints(4), ints(4)]]
    yield "aten::bitwise_and.Scalar_Tensor_out", a.bitwise_and.Scalar_Tensor, [
        [12, ints(3, 4)], [5, ints(4, dtype=torch.int8)], [True, bools(4)]
    ]
    yield "aten::bitwise_left_shift.Scalar_Tensor_out", a.bitwise_left_shift.Scalar_Tensor, [
        [3, ints(3, 4, low=0)], [3, ints(4, dtype=torch.int64, low=0)]
    ]
    for shift in ("lshift", "rshift"):
        function = getattr(a, f"__{shift}__")
        yield f"aten::__{shift}__.Scalar_out", function, [[ints(3, 4), 2], [ints(4, dtype=torch.int64), 40], [ints(4, dtype=torch.uint8, low=0), 9], [ints(5, dtype=torch.int8), -1]]
        yield f"aten::__{shift}__.Tensor_out", function, [[ints(3, 4), ints(4, low=-1, high=35)], [ints(2, 1, dtype=torch.int8), ints(3, dtype=torch.int64, low=0)]]
    for name in ("complex", "polar"):
        yield f"aten::{name}.out", getattr(torch, name), [
            [floats(3, 5, dtype=d), floats(5, dtype=d)] for d in (torch.float32, torch.float64)
        ] + [[floats(2, 1, special=False), floats(3, special=False)], [floats(), floats(0)]]
    yield "aten::cummax.out", torch.cummax, along(integers=True)
    yield "aten::cummin.out", torch.cummin, along(integers=True)
    yield "aten::logcumsumexp.out", torch.logcumsumexp, along()
    yield "aten::nansum.out", lambda x, d, k, t: torch.nansum(x, d, k, dtype=t), (
        [[x, [0], False, None] for x in every_float(4, 5)]
        + [[floats(3, 4, 5), [0, -1], True, None], [floats(3, 4), None, False, torch.float64]]
        + [[ints(3, 4), [1], False, None], [floats(0, 3), [0], False, None], [floats(), None, False, None]]
    )
    finite = [x for x in every_float(4, 5, special=False)]
    yield "aten::linalg_vector_norm.out", lambda x, p, d, k, t: torch.linalg.vector_norm(x, p, d, k, dtype=t), (
        [[x, 2, [1], False, None] for x in finite]
        + [[floats(4, 5), p, [0], True, None] for p in (0, 1, 2, 3.5, -1.5, INF, -INF)]
        + [[floats(), 2, None, False, None], [floats(0, 3), 2, [0], False, None]]
        + [[floats(3, 4), 2, None, False, torch.float64], [torch.randn(3, 4, dtype=torch.complex64), 2, [1], False, None]]
    )
    yield "aten::norm.out", lambda x, p, d, k: torch.norm(x, p, d, k), (
        [[x, 2, [1], False] for x in finite] + [[floats(4, 5), 1.0, [0, 1], True]]
    )
    yield "aten::norm.Scalar_out", lambda x, p: torch.norm(x, p), [[x, 2] for x in finite] + [[floats(3), 3.0]]
    yield "aten::diag_embed.out", torch.diag_embed, [
        [floats(3), 0, -2, -1], [floats(2, 3), 1, 0, 2], [ints(2, 3), -2, -1, 0], [bools(2), 0, -2, -1], [floats(0), 1, 0, 1]
    ]
    yield "aten::diagonal_scatter.out", torch.diagonal_scatter, [
        [floats(3, 4), floats(3), 0, 0, 1], [floats(3, 4, 2), floats(4, 2), 0, 2, -3], [ints(3, 4), ints(2), -1, 0, 1]
    ]
    yield "aten::trace.out", torch.trace, [[floats(3, 4, special=False)], [ints(4, 4)], [floats(0, 3)], [floats(2, 2, dtype=torch.float64)]]
    yield "aten::tril_indices.out", torch.tril_indices, [[3, 4, 0], [3, 4, -1], [4, 2, 1], [0, 3, 0]]
    yield "aten::triu_indices.out", torch.triu_indices, [[3, 4, 0], [3, 4, -1], [4, 2, 1], [3, 0, 0]]
    yield "aten::adaptive_avg_pool2d.out", a.adaptive_avg_pool2d, [
        [floats(2, 3, 7, 5, special=False, dtype=d), [3, 2]] for d in DTYPES.values()
    ] + [[floats(3, 4, 4), [1, 1]], [floats(1, 2, 6, 6).to(memory_format=torch.channels_last), [3, 3]]]
    yield "aten::adaptive_avg_pool3d.out", a.adaptive_avg_pool3d, [[floats(1, 2, 4, 5, 6), [2, 3, 2]], [floats(2, 4, 4, 4), [1, 1, 1]]]
    yield "aten::new_full.out", lambda x, z, v: x.new_full(z, v), [[floats(2), [2, 3], 1.5], [ints(2), [0, 2], 7]]
    yield "aten::new_zeros.out", lambda x, z: x.new_zeros(z), [[floats(2), [2, 3]], [bools(2), []]]
    yield "aten::allclose.out", lambda x, y, r, t, e, _: torch.tensor(torch.allclose(x, y, r, t, e)), [
        [floats(12, special=False), floats(12, special=False), 1e-5, 1e-8, False, False],
        *[[x, x.clone(), 1e-5, 1e-8, e, False] for x in (floats(12), ints(4)) for e in (True, False)],
    ]
    repeated = [ints(4, 5, low=0, high=4), ints(6, dtype=torch.uint8, low=0, high=3), bools(5), floats(), floats(0), floats(3, 4, special=False).round()]
    yield "aten::_unique2.out", lambda x, s, i, c: [*torch.unique(x, s, True, True)] if i and c else a._unique2(x, s, i, c), (
        [[x, True, True, True] for x in repeated] + [[repeated[0], True, False, False], [ints(3, 4), False, False, True]]
    )
    rows = ints(5, 2, low=0, high=2)
    yield "aten::unique_dim.out", a.unique_dim, [
        [rows, 0, True, True, True], [rows.t().contiguous(), -1, True, True, True], [ints(3, 2, 4, low=0, high=2), 1, True, False, False], [bools(4, 1), 0, True, True, True]
    ]
    yield "aten::unique_consecutive.out", lambda x, i, c, d: a.unique_consecutive(x, i, c, d), [
        [x, True, True, None] for x in repeated[:-1]
    ] + [[rows, True, True, 0], [ints(9, low=0, high=2), False, False, None]]
    yield "aten::isin.Tensor_Tensor_out", lambda x, y, u, v: torch.isin(x, y, assume_unique=u, invert=v), [
        [ints(4, 5, low=0, high=9), ints(6, low=0, high=9), False, v] for v in (False, True)
    ] + [[floats(6), floats(4), False, False], [ints(5, dtype=torch.uint8), floats(3, special=False).round(), False, False], [floats(0), floats(3), False, False], [ints(3), ints(0), False, False]]
    yield "aten::isin.Tensor_Scalar_out", lambda x, y, u, v: torch.isin(x, y, assume_unique=u, invert=v), [[ints(7, low=0, high=3), 1, False, False], [floats(4), NAN, False, True]]
    yield "aten::isin.Scalar_Tensor_out", lambda x, y, u, v: torch.isin(x, y, assume_unique=u, invert=v), [[2, ints(7, low=0, high=9), False, False]]
    yield "aten::bincount.out", torch.bincount, [
        [ints(9, low=0, high=6, dtype=torch.int64), None, 0], [ints(9, low=0, high=3, dtype=torch.uint8), None, 8], [ints(0), None, 0], [ints(0), None, 3],
        [ints(6, low=0, high=4), floats(6, special=False), 0], [ints(6, low=0, high=4), ints(6), 5], [ints(6, low=0, high=4), floats(6, special=False, dtype=torch.float64), 2],
    ]
    yield "aten::histc.out", torch.histc, [
        [floats(50, special=False, dtype=d), 5, 0, 0] for d in (torch.float32, torch.float64)
    ] + [[floats(4, 10), 7, -1, 1.5], [floats(0), 4, 0, 0], [torch.full((3,), 2.5), 4, 0, 0]]

    def backward(operator):
        def call(grad, x, *rest):
            return [t if m else torch.zeros(1) for t, m in zip(operator(grad, x, *rest), rest[-1])]

        return call

    def layer_grads(shape, last, affine=True, mask=(True, True, True), dtype=torch.float32):
        x, grad = (floats(*shape, special=False, dtype=dtype) for _ in "xg")
        weight, bias = (floats(*last, special=False, dtype=dtype) if affine else None for _ in "wb")
        _, mean, rstd = a.native_layer_norm(x, last, weight, bias, 1e-5)
        return [grad, x, last, mean, rstd, weight, bias, list(mask)]

    yield "aten::native_layer_norm_backward.out", backward(a.native_layer_norm_backward), [
        layer_grads((2, 3, 8), [8]), layer_grads((4, 3, 5), [3, 5]), layer_grads((6, 40), [40], dtype=torch.float64),
        layer_grads((2, 7), [7], affine=False, mask=(True, False, False)), layer_grads((2, 7), [7], mask=(True, True, False)),
    ]

    def group_grads(n, channels, space, groups, affine=True, mask=(True, True, True), dtype=torch.float32):
        x, grad = (floats(n, channels, *space, special=False, dtype=dtype) for _ in "xg")
        weight, bias = (floats(channels, special=False, dtype=dtype) if affine else None for _ in "wb")
        pixels = math.prod(space)
        _, mean, rstd = a.native_group_norm(x, weight, bias, n, channels, pixels, groups, 1e-5)
        return [grad, x, mean, rstd, weight, n, channels, pixels, groups, list(mask)]

    yield "aten::native_group_norm_backward.out", backward(a.native_group_norm_backward), [
        group_grads(2, 6, (4, 5), 3), group_grads(3, 4, (7,), 1), group_grads(2, 4, (3, 3), 4, dtype=torch.float64),
        group_grads(2, 6, (4,), 2, affine=False, mask=(True, False, False)), group_grads(1, 4, (2, 2, 2), 2, mask=(False, True, True)),
    ]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    yield "aten::scaled_dot_product_attention.out", lambda q, k, v, m, p, c, f, g: sdpa(q, k, v, m, p, c, scale=f, enable_gqa=g), (
        [[floats(1, 2, 5, 8, special=False, dtype=d), floats(1, 2, 7, 8, special=False, dtype=d), floats(1, 2, 7, 4, special=False, dtype=d), None, 0.0, False, None, False] for d in DTYPES.values()]
        + [[floats(2, 4, 5, 8, special=False), *[floats(2, 2, 5, 8, special=False) for _ in "kv"], None, 0.0, True, 0.3, True]]
        + [[floats(3, 5, 8, special=False), floats(3, 6, 8, special=False), floats(3, 6, 8, special=False), m, 0.0, False, None, False] for m in (bools(5, 6), floats(3, 5, 6, special=False))]
        + [[floats(4, 8, special=False), floats(4, 8, special=False), floats(4, 8, special=False), None, 0.0, True, None, False]]
    )


def llama_operators():
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401, registers them

    llama = torch.ops.llama
    plain = lambda *shape, d=torch.float32: floats(*shape, special=False, dtype=d)

    def sdpa(kind, start, heads=4, kv=2, length=3, keys=10, width=8, d=torch.float32):
        q = plain(2, length, heads, width, d=d)
        k, v = (plain(2, keys, kv, width, d=d) for _ in "kv")
        mask = plain(length, keys) if kind == "mask" else None
        return [q, k, v, start, mask, 0.0, kind == "causal", None]

    yield "llama::custom_sdpa.out", llama.custom_sdpa, [
        sdpa("causal", 0), sdpa("causal", 5), sdpa("all", 4), sdpa("mask", 0), sdpa("causal", 9, length=1),
        sdpa("causal", 0, length=40, keys=40, heads=2, kv=1), sdpa("causal", 2, heads=3, kv=3),
    ]

    def cached(start, length):
        k, v = (plain(1, length, 2, 4) for _ in "kv")
        caches = [plain(1, 8, 2, 4) for _ in "kv"]
        return [plain(1, length, 4, 4), k, v, *caches, start, length, None, 0.0, True, None]

    def sdpa_with_kv_cache(*args):
        out = llama.sdpa_with_kv_cache(*args)
        return [args[3], args[4], out]

    yield "llama::sdpa_with_kv_cache.out", sdpa_with_kv_cache, [cached(0, 3), cached(4, 1), cached(5, 3)], (3, 4)

    def update(function):
        def call(value, cache, *more):
            # The returned tensor is a placeholder that the operator never writes.
            return [cache, torch.zeros_like(function(value, cache, *more))]
        return call

    yield "llama::update_cache.out", update(llama.update_cache), [
        [plain(2, 3, 2, 4), plain(2, 8, 2, 4), 2], [plain(1, 1, 2, 4, d=torch.float16), plain(1, 4, 2, 4, d=torch.float16), 3],
        [ints(1, 2, 2, 4, dtype=torch.int8), ints(1, 4, 2, 4, dtype=torch.int8), 0],
    ], (1,)
    yield "llama::update_cache_with_indices.out", update(llama.update_cache_with_indices), [
        [plain(2, 3, 2, 4), plain(2, 8, 2, 4), 0, torch.tensor([[7, 0, 3], [1, 2, 6]])]
    ], (1,)

    def quantized(kind, start, at_2, length=3, keys=10, width=8):
        shape = lambda n, h: (1, h, n, width) if at_2 else (1, n, h, width)
        q, k, v = (ints(*shape(n, h), low=-128, high=127, dtype=torch.int8) for n, h in ((length, 4), (keys, 2), (keys, 2)))
        mask = plain(length, keys) if kind == "mask" else None
        parts = []
        for t in (q, k, v):
            parts += [ints(*t.shape[:3], 1, dtype=torch.int8), torch.rand(*t.shape[:3], 1) * 0.02 + 0.001]
        return [q, k, v, start, mask, 0.0, kind == "causal", None, *parts, at_2]

    yield "llama::custom_quantized_sdpa.out", llama.custom_quantized_sdpa, [
        quantized("causal", 0, False), quantized("causal", 4, True), quantized("mask", 0, True), quantized("all", 2, False)
    ]
    def delta(heads, queries, steps, keys, values, decay):
        whole = (2, heads, steps)
        factors = {"scalar": torch.rand(*whole), "channel": torch.rand(*whole, keys), "zero": torch.zeros(*whole)}
        q, k, v = plain(2, heads * queries, steps, keys), plain(*whole, keys) * 0.3, plain(*whole, values)
        return [q, k, v, factors[decay], torch.rand(*whole), plain(2, heads, keys, values)]

    for name in ("gated_delta_rule", "channelwise_gated_delta_rule"):
        yield f"llama::{name}.out", getattr(llama, name), [
            delta(2, 1, 5, 4, 3, "scalar"), delta(1, 3, 1, 8, 8, "channel"), delta(2, 2, 70, 6, 5, "channel"), delta(1, 1, 3, 1, 4, "zero"),
        ]
    yield "llama::fallback.out", lambda x: x.clone(), [[plain(2, 3)], [ints(4, dtype=torch.int8)], [bools(2, 2)], [plain(0, 2)]]

    def tiles(x, size):
        c, h, w = x.shape
        return x.view(c, h // size, size, w // size, size).permute(1, 3, 0, 2, 4).reshape(-1, c, size, size)

    yield "preprocess::tile_crop.out", tiles, [[plain(3, 4, 6), 2], [ints(1, 3, 3, dtype=torch.uint8, low=0), 1], [plain(2, 4, 4), 4]]
    yield "llama::fast_hadamard_transform.out", llama.fast_hadamard_transform, [
        [plain(3, 16)], [plain(2, 56)], [plain(1)], [plain(2, 2, 28)], [plain(0, 8)]
    ]


def torchao_operators(source):
    import torch.nn.functional as F
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401, registers them
    from packed_weights import Packer
    from torchao.quantization.quant_primitives import (
        MappingType,
        choose_qparams_affine,
        dequantize_affine,
        quantize_affine,
    )

    packer = Packer(source)
    plain = lambda *shape: floats(*shape, special=False)

    def weights(bits, n, k, group, zeros):
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        q = torch.randint(low, high + 1, (n, k)).to(torch.int8)
        scales = torch.rand(n, k // group) * 0.1 + 0.01
        zeros = torch.randint(max(low, -9), min(high, 9) + 1, scales.shape).to(torch.int8) if zeros else None
        number = q.float() - (zeros.float().repeat_interleave(group, 1) if zeros is not None else 0)
        return q, scales, zeros, number * scales.repeat_interleave(group, 1)

    def rows_of_8_bits(x):
        """Each row quantized with parameters of its own, and dequantized, as torchao quantizes activations."""
        block, kind = (1, x.shape[1]), torch.int8
        scale, zero = choose_qparams_affine(
            x, MappingType.ASYMMETRIC, block, kind, eps=torch.finfo(torch.float32).eps, zero_point_dtype=kind
        )
        return dequantize_affine(quantize_affine(x, block, scale, zero, kind), block, scale, zero, kind)

    known = {}

    def linear(bits, m, n, k, group, zeros, biased, offset=0.0):
        q, scales, zeros, w = weights(bits, n, k, group, zeros)
        bias = plain(n) if biased else None
        packed = packer.linear(bits, q, scales, zeros, bias)
        known[bytes(packed.numpy())] = w, bias
        return [plain(m, k) + offset, packed, group, n, k]

    def product(x, packed, *_):
        w, bias = known[bytes(packed.numpy())]
        return F.linear(rows_of_8_bits(x) if len(x) else x, w, bias)

    def looked_up(packed, *args):
        return known[bytes(packed.numpy())][0][args[-1].long()]

    for bits in range(1, 9):
        yield f"torchao::_linear_8bit_act_{bits}bit_weight.out", product, [
            linear(bits, 3, 16, 64, 32, True, True), linear(bits, 1, 11, 32, 16, False, False, 3.0),
            linear(bits, 2, 8, 48, 48, False, True), linear(bits, 0, 5, 32, 32, True, False),
        ], (), (1e-4, 1e-5)

        def embedding(rows, width, group, dtype):
            q, scales, zeros, w = weights(bits, rows, width, group, True)
            packed = packer.embedding(bits, q)
            known[bytes(packed.numpy())] = w, None
            return [packed, rows, width, scales, zeros, torch.randint(0, rows, (4,)).to(dtype)]

        yield f"torchao::_embedding_{bits}bit.out", looked_up, [
            embedding(5, 224, 32, torch.int64), embedding(3, 128, 64, torch.int32), embedding(2, 32, 32, torch.int64)
        ]
        yield f"torchao::_shared_embedding_{bits}bit.out", looked_up, [
            [*linear(bits, 1, 11, 64, 32, z, True)[1:], torch.tensor([10, 0, 7, 10])] for z in (False, True)
        ]

    def groupwise(bits, m, n, k, group, scaled, biased):
        table_group = 4 * k
        indices = torch.randint(0, 1 << bits, (n, k)).to(torch.uint8)
        tables = plain(-(-n * k // table_group), 1 << bits)
        w = torch.stack([tables[r * k // table_group][indices[r].long()] for r in range(n)])
        scales = torch.rand(n, k // group) + 0.1 if scaled else None
        bias = plain(n) if biased else None
        packed = packer.groupwise(bits, indices, tables, table_group, scales, bias)
        known[bytes(packed.numpy())] = (w * scales.repeat_interleave(group, 1) if scaled else w), bias
        return [plain(m, k), packed, group, table_group, n, k]

    def plain_product(x, packed, *_):
        return F.linear(x, *known[bytes(packed.numpy())])

    for bits in range(1, 5):
        yield f"torchao::_linear_groupwise_{bits}bit_weight_with_lut.out", plain_product, [
            groupwise(bits, 3, 8, 64, 32, True, True), groupwise(bits, 1, 6, 96, 96, False, False)
        ]

    def mixture(rows, score, biased, bits, dim=64, hidden=32, experts=4, active=2, group=32):
        def packed(n, k):
            q_and_scales = [weights(bits, n, k, group, False)[:2] for _ in range(experts)]
            return torch.stack([packer.linear(bits, q, s * 2.0**-bits) for q, s in q_and_scales]).view(torch.uint8)

        bias = plain(experts) if biased else torch.zeros(0)
        w13, w2 = packed(2 * hidden, dim), packed(dim, hidden)
        return [plain(rows, dim), plain(experts, dim), bias, w13, w2, active, experts, hidden, dim, group, bits, score, 2.5]

    yield "llama::quantized_moe_ffn.out", torch.ops.llama.quantized_moe_ffn, [
        mixture(5, "sigmoid", True, 4), mixture(1, "softmax", False, 4), mixture(3, "sigmoid", False, 8)
    ], (), (1e-3, 1e-5)


def main():
    if sys.argv[1] == "--custom":
        x = torch.zeros(2, 2)
        pathlib.Path(sys.argv[2]).write_bytes(program("my_ops::mul3.out", [x], [x], ())[0])
        return
    folder, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
    tables = (operators, llama_operators)
    if wanted[:1] == ["--torchao"]:
        source, wanted = wanted[1], wanted[2:]
        tables = (lambda: torchao_operators(source),)
    for table in tables:
        torch.manual_seed(0)
        for name, *rest in table():
            if not wanted or any(w in name for w in wanted):
                try:
                    write(folder, name, *rest)
                except Exception as e:
                    raise SystemExit(f"{name}: {type(e).__name__}: {e}") from e


if __name__ == "__main__":
    main()

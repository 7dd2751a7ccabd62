#!/usr/bin/env python3
"""Writes conformance cases of single-node XNNPACK payloads with the reference runtime's outputs, including node kinds,
datatypes and parameters that exporters never write. Quantized inputs and outputs are raw int8 or uint8 values.

    python tools/reference/xnnpack_payloads.py testdata/xnnpack/payloads [--scale N] [NAME...]

`--scale` makes tensors longer, for checks with more elements than are worth storing. Prints the cases that the
reference refuses.
Needs torch and executorch.
"""

import argparse
import hashlib
import json
import math
import os
import pathlib
import sys

import cases
import torch
from executorch.backends.xnnpack.serialization import xnnpack_graph_schema as s
from executorch.backends.xnnpack.serialization.xnnpack_graph_serialize import serialize_xnnpack_binary
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import to_edge
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_api import to_backend
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
from torch import nn
from torch.export import export

NONE = 0xFFFFFFFF
DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "qint8": torch.int8,
    "quint8": torch.uint8,
    "int64": torch.int64,
}


class Payload:
    """Builder of an XNNPACK graph."""

    def __init__(self):
        self.values, self.nodes, self.constants = [], [], [s.ConstantDataOffset(0, 0)]
        self.data = NamedDataStore()
        self.inputs, self.outputs = [], []

    def value(self, datatype, dims, quant=None, constant=None, external=None, flags=0):
        index, number = 0, len(self.values)
        if constant is not None:
            raw = constant.contiguous().view(torch.uint8).numpy().tobytes()
            key = hashlib.sha256(raw).hexdigest()
            self.data.add_named_data(key, raw, 16)
            self.constants.append(s.ConstantDataOffset(2**64 - 1, len(raw), key))
            index = len(self.constants) - 1
        kind = getattr(s.XNNDatatype, f"xnn_datatype_{datatype}")
        external = NONE if external is None else external
        tensor = s.XNNTensorValue(kind, len(dims), list(dims), index, external, flags, number)
        self.values.append(s.XValue(tensor if quant is None else s.XNNQuantizedTensorValue(tensor, quant)))
        return number

    def input(self, datatype, dims, quant=None):
        self.inputs.append((datatype, dims))
        return self.value(datatype, dims, quant, external=len(self.inputs) - 1, flags=1)

    def output(self, datatype, dims, quant=None, dtype=None):
        self.outputs.append((dtype or datatype, dims))
        return self.value(datatype, dims, quant, external=len(self.inputs) + len(self.outputs) - 1, flags=2)

    def node(self, node, bounds=None):
        bounds = None if bounds is None else s.OutputMinMax(*bounds)
        self.nodes.append(s.XNode(node, len(self.nodes) + 1, bounds))

    def bytes(self):
        ids = list(range(len(self.inputs))), list(range(len(self.outputs)))
        externs = len(self.inputs) + len(self.outputs)
        graph = s.XNNGraph("0", self.nodes, self.values, externs, *ids, self.constants)
        return serialize_xnnpack_binary(graph, bytearray())

    def program(self):
        """A program whose only instruction calls this payload."""
        outputs = self.outputs

        class Any(nn.Module):
            def forward(self, *xs):
                number = sum(x.reshape(-1)[:1].to(torch.float32) for x in xs)
                return tuple(number.to(DTYPES[t]).expand(d).clone() for t, d in outputs)

        class Whole(nn.Module):
            def __init__(self, lowered):
                super().__init__()
                self.lowered = lowered

            def forward(self, *xs):
                return self.lowered(*xs)

        example = tuple(torch.zeros(d, dtype=DTYPES[t]) for t, d in self.inputs)
        payload, data = self.bytes(), self.data.get_named_data_store_output()
        usual = XnnpackBackend.preprocess
        XnnpackBackend.preprocess = staticmethod(lambda *_: PreprocessResult(payload, {}, data))
        try:
            lowered = to_backend("XnnpackBackend", to_edge(export(Any(), example)).exported_program(), [])
        finally:
            XnnpackBackend.preprocess = usual
        return to_edge(export(Whole(lowered), example)).to_executorch().buffer


def uniform(generator, low, high):
    return float(torch.rand(1, generator=generator) * (high - low) + low)


def integer(generator, low, high):
    return int(torch.randint(low, high + 1, (1,), generator=generator))


def affine(g, kind, scale=None):
    """Random per-tensor quantization parameters of an 8-bit tensor."""
    low = -128 if kind == "qint8" else 0
    zero = [low + 128, low, integer(g, low, low + 255)][integer(g, 0, 2)]
    return s.PerTensorQuant(scale or float(torch.tensor(2.0 ** uniform(g, -6, 0))), zero)


def random_quantized(g, dims, kind=torch.int8):
    low = -128 if kind == torch.int8 else 0
    return torch.randint(low, low + 256, dims, generator=g).to(kind)


def binary(kind, types=("qint8", "quint8"), bounds=None, sizes=((2, 3, 8, 5), (2, 3, 8, 5))):
    def make(g, n):
        p, t = Payload(), types[integer(g, 0, len(types) - 1)]
        a, b = [(size[:-1] + (size[-1] * n,) if size[-1] > 1 else size) for size in sizes]
        out = torch.broadcast_shapes(a, b)
        quant = lambda: affine(g, t) if t.startswith("q") else None
        node = kind(p.input(t, a, quant()), p.input(t, b, quant()), p.output(t, out, quant()), 0)
        p.node(node, bounds)
        return p

    return make


def unary(kind, types=("qint8", "quint8"), more=(), bounds=None, same=False):
    def make(g, n):
        p, t = Payload(), types[integer(g, 0, len(types) - 1)]
        quant = affine(g, t) if t.startswith("q") else None
        x = p.input(t, (2, 3, 8, 16 * n), quant)
        out = quant if same or quant is None else affine(g, t)
        p.node(kind(*more, x, p.output(t, (2, 3, 8, 16 * n), out), 0), bounds)
        return p

    return make


def weights(p, g, dims, axis, kind):
    """Random weights for inputs of datatype `kind`, and their scales: quint8 weights have one scale and a zero point,
    qint8 weights are per-tensor or per-channel."""
    scale = 2.0 ** uniform(g, -8, -4)
    if kind == "quint8":
        return p.value(kind, dims, s.PerTensorQuant(scale, integer(g, 0, 255)), random_quantized(g, dims, torch.uint8)), [scale]
    data = random_quantized(g, dims)
    if not integer(g, 0, 2):
        return p.value(kind, dims, s.PerTensorQuant(scale, 0), data), [scale]
    scales = (2.0 ** (torch.rand(dims[axis], generator=g) * 4 - 8)).tolist()
    return p.value("qcint8", dims, s.PerChannelQuant(scales, axis, 0, 0), data), scales


def bias_of(p, g, outputs, scale, scales, reach):
    data = torch.randint(-reach, reach, (outputs,), generator=g, dtype=torch.int32)
    if len(scales) == 1:
        return p.value("qint32", (outputs,), s.PerTensorQuant(scale * scales[0], 0), data)
    each = [float(torch.tensor(scale * x)) for x in scales]
    return p.value("qcint32", (outputs,), s.PerChannelQuant(each, 0, 0, 0), data)


def linear(types=("qint8",), transposed=False, bounds=None):
    def make(g, n):
        p, t = Payload(), types[integer(g, 0, len(types) - 1)]
        rows, inputs, outputs = 5 * n, integer(g, 1, 90), integer(g, 1, 40)
        x = affine(g, t)
        a = p.input(t, (rows, inputs), x)
        sizes = (inputs, outputs) if transposed else (outputs, inputs)
        w, scales = weights(p, g, sizes, int(transposed), t)
        b = bias_of(p, g, outputs, x.scale, scales, 40000) if integer(g, 0, 3) else NONE
        out = affine(g, t, x.scale * scales[0] * 128 * inputs**0.5)
        p.node(s.XNNFullyConnected(a, w, b, p.output(t, (rows, outputs), out), int(transposed)), bounds)
        return p

    return make


def convolution(kind, types=("qint8",), kernel=(3, 3), stride=(1, 1), dilation=(1, 1), groups=None, flags=0, bounds=None):
    def make(g, n):
        p, t = Payload(), types[integer(g, 0, len(types) - 1)]
        depthwise, transposed = kind == s.XNNDepthwiseConv2d, kind == s.XNNConvTranspose2d
        count = integer(g, 2, 9) if groups is None and depthwise else groups or 1
        ins = 1 if depthwise else integer(g, 1, 7)
        outs = 1 if depthwise else integer(g, 1, 9)
        size = (9 * n, 7)
        padding = [0 if flags & 4 else integer(g, 0, k // 2) for k in (kernel[0], kernel[1], kernel[0], kernel[1])]
        top, right, bottom, left = padding
        adjustment = [integer(g, 0, st - 1) if transposed else 0 for st in stride]

        def length(d, before, after):
            reach = (kernel[d] - 1) * dilation[d] + 1
            if transposed:
                return (size[d] - 1) * stride[d] + reach + adjustment[d] - before - after
            if flags & 4:
                return -(-size[d] // stride[d])
            return (size[d] + before + after - reach) // stride[d] + 1

        out_size = (length(0, top, bottom), length(1, left, right))
        x = affine(g, t)
        a = p.input(t, (2, *size, count * ins), x)
        dims = (1, *kernel, count) if depthwise else (count * outs, *kernel, ins)
        w, scales = weights(p, g, dims, 3 if depthwise else 0, t)
        b = bias_of(p, g, count * outs, x.scale, scales, 40000) if integer(g, 0, 3) else NONE
        out = affine(g, t, x.scale * scales[0] * 128 * (kernel[0] * kernel[1] * ins) ** 0.5)
        y = p.output(t, (2, *out_size, count * outs), out)
        shape = (*padding, *kernel, *stride, *dilation, ins, outs, count, *adjustment)
        p.node(kind(*shape, a, w, b, y, flags), bounds)
        return p

    return make


def pooling(kind, types, window=(2, 2), stride=(2, 2), dilation=(1, 1), padding=(0, 0, 0, 0), same=False, bounds=None, flags=0):
    def make(g, n):
        p, t = Payload(), types[integer(g, 0, len(types) - 1)]
        size, channels = (8 * n, 9), integer(g, 1, 20)
        top, right, bottom, left = padding
        length = lambda d, around: (size[d] + around - (window[d] - 1) * dilation[d] - 1) // stride[d] + 1
        out_size = (length(0, top + bottom), length(1, left + right))
        if flags & 4:
            out_size = tuple(-(-size[d] // stride[d]) for d in range(2))
        x = affine(g, t) if t.startswith("q") else None
        out = x if same or x is None else affine(g, t)
        a, y = p.input(t, (2, *size, channels), x), p.output(t, (2, *out_size, channels), out)
        p.node(kind(*padding, *window, *stride, *dilation, a, y, flags), bounds)
        return p

    return make


def mean(keep, types=("qint8", "quint8"), halves=False):
    def make(g, n):
        p, t = Payload(), types[integer(g, 0, len(types) - 1)]
        dims = (2, 3, 3, 80 * n) if halves else (2, integer(g, 1, 9), integer(g, 1, 9), integer(g, 1, 40) * n)
        x, out = affine(g, t), affine(g, t)
        if halves:
            # Many results are near a tie between two quantized values: the last bit of each product decides.
            out = s.PerTensorQuant(2 * x.scale, out.zero_point)
        a = p.input(t, dims, x)
        y = p.output(t, (2, 1, 1, dims[3]) if keep else (2, dims[3]), out)
        p.node(s.XNNGlobalAvgPooling2d(a, y, 0x40 if keep else 0))
        return p

    return make


def resize(flags, types=("qint8", "quint8")):
    def make(g, n):
        p, t = Payload(), types[integer(g, 0, len(types) - 1)]
        quant = affine(g, t) if t.startswith("q") else None
        size = (integer(g, 1, 17) * n, integer(g, 1, 17))
        a, y = p.input(t, (2, 6, 5, 7), quant), p.output(t, (2, *size, 7), quant)
        p.node(s.XNNStaticResizeBilinear2D(*size, a, y, flags))
        return p

    return make


def convert(source, target):
    def make(g, n):
        p = Payload()
        quant = lambda t: affine(g, t) if t.startswith("q") else None
        x = p.input(source, (3, 40 * n), quant(source))
        p.node(s.XNNConvert(x, p.output(target, (3, 40 * n), quant(target)), 0))
        return p

    return make


def pad(t):
    def make(g, n):
        p, quant = Payload(), affine(g, t) if t.startswith("q") else None
        a, y = p.input(t, (2, 3, 5 * n), quant), p.output(t, (3, 5, 5 * n + 3), quant)
        value = uniform(g, -1, 1) if t.startswith("q") else uniform(g, -3, 3)
        p.node(s.XNNStaticConstantPad([1, 2, 0], [0, 0, 3], float(torch.tensor(value)), a, y, 0))
        return p

    return make


def concat(t):
    def make(g, n):
        p, quant = Payload(), affine(g, t)
        a, b = p.input(t, (2, 3, 5 * n), quant), p.input(t, (2, 4, 5 * n), quant)
        y = p.output(t, (2, 7, 5 * n), quant)
        p.node(s.XNNConcatenate2(1, a, b, NONE, NONE, y, 0, NONE))
        return p

    return make


def by_row(p, g, x, rows, inputs, source, shared=1):
    """A qdint8 value: `x`, dynamically quantized per row."""
    dims = (rows, inputs)
    token = s.PerTokenDynamicQuant(shared)
    y = p.value("qdint8", dims, token)
    p.node(s.XNNConvert(x, y, 0))
    return y


def dynamic(source, target, kind, group=32):
    """A fully connected node with dynamically quantized rows and constant quantized weights."""

    def make(g, n):
        p = Payload()
        rows, outputs = 5 * n, integer(g, 1, 40)
        inputs = 2 * group if kind == "qbint4" else 2 * integer(g, 1, 45)
        x = by_row(p, g, p.input(source, (rows, inputs)), rows, inputs, source)
        scales = 2.0 ** (torch.rand(outputs, generator=g) * 4 - 8)
        if kind == "qcint8":
            w = p.value(kind, (outputs, inputs), s.PerChannelQuant(scales.tolist(), 0, 0, 0), random_quantized(g, (outputs, inputs)))
        else:
            packed = random_quantized(g, (outputs, inputs // 2), torch.uint8)
            if kind == "qcint4":
                quant = s.PerChannelQuant(scales.tolist(), 0, 0, 0)
            else:
                each = 2.0 ** (torch.rand(outputs, inputs // group, generator=g) * 4 - 8)
                p.value("bf16", tuple(each.shape), None, each.to(torch.bfloat16))
                quant = s.PerChannelGroupQuant([], 0, group, None, len(p.constants) - 1, each.numel())
            w = p.value(kind, (outputs, inputs), quant, packed)
        bias = p.value("fp32", (outputs,), None, torch.randn(outputs, generator=g)) if integer(g, 0, 1) else NONE
        p.node(s.XNNFullyConnected(x, w, bias, p.output(target, (rows, outputs)), 0))
        return p

    return make


def dynamic_convolution(kind=s.XNNConv2d):
    def make(g, n):
        p = Payload()
        ins, outs = integer(g, 1, 7), integer(g, 1, 9)
        dims = (2, 6 * n, 5, ins)
        x = p.value("qdint8", dims, s.PerTokenDynamicQuant(3))
        p.node(s.XNNConvert(p.input("fp32", dims), x, 0))
        scales = 2.0 ** (torch.rand(outs, generator=g) * 4 - 8)
        filters = random_quantized(g, (outs, 3, 3, ins))
        w = p.value("qcint8", (outs, 3, 3, ins), s.PerChannelQuant(scales.tolist(), 0, 0, 0), filters)
        bias = p.value("fp32", (outs,), None, torch.randn(outs, generator=g))
        y = p.output("fp32", (2, 6 * n, 5, outs))
        p.node(kind(1, 1, 1, 1, 3, 3, 1, 1, 1, 1, ins, outs, 1, 0, 0, x, w, bias, y, 0))
        return p

    return make


def dynamic_batches(a=(3,), b=(3,), transposed=False):
    """A batch matrix multiply of dynamically quantized rows by constant int8 matrices with per-column scales."""

    def make(g, n):
        p = Payload()
        rows, inputs, outputs = 4 * n, integer(g, 1, 70), integer(g, 1, 40)
        x = p.value("qdint8", (*a, rows, inputs), s.PerTokenDynamicQuant(1))
        p.node(s.XNNConvert(p.input("fp32", (*a, rows, inputs)), x, 0))
        dims = (*b, outputs, inputs) if transposed else (*b, inputs, outputs)
        scales = (2.0 ** (torch.rand(math.prod(b) * outputs, generator=g) * 4 - 8)).tolist()
        axis = len(dims) - 2 if transposed else len(dims) - 1
        w = p.value("qcint8", dims, s.PerChannelQuant(scales, axis, 0, 0), random_quantized(g, dims))
        y = p.output("fp32", (*torch.broadcast_shapes(a, b), rows, outputs))
        p.node(s.XNNBatchMatrixMultiply(x, w, y, int(transposed)))
        return p

    return make


def matrix(a_type, w_type, out_type, bias_type="fp32"):
    def make(g, n):
        p = Payload()
        a = p.input(a_type, (5, 24))
        w = p.value(w_type, (9, 24), None, torch.randn(9, 24, generator=g).to(DTYPES[w_type]))
        b = p.value(bias_type, (9,), None, torch.randn(9, generator=g).to(DTYPES[bias_type]))
        p.node(s.XNNFullyConnected(a, w, b, p.output(out_type, (5, 9)), 0))
        return p

    return make


def varying_filter():
    def make(g, n):
        p = Payload()
        a, w = p.input("fp32", (1, 6, 5, 3)), p.input("fp32", (4, 3, 3, 3))
        p.node(s.XNNConv2d(1, 1, 1, 1, 3, 3, 1, 1, 1, 1, 3, 4, 1, 0, 0, a, w, NONE, p.output("fp32", (1, 6, 5, 4)), 0))
        return p

    return make


def arg_max(padding=(0, 0, 0, 0)):
    def make(g, n):
        p = Payload()
        a = p.input("fp32", (2, 6, 9, 5))
        top, right, bottom, left = padding
        size = (2, -(-(6 + top + bottom) // 2), -(-(9 + left + right) // 3), 5)
        value, index = p.output("fp32", size), p.output("int32", size, dtype="int64")
        p.node(s.XNNArgMaxPooling2d(*padding, 2, 3, a, value, index, 0))
        return p

    return make


def attention():
    def make(g, n):
        p = Payload()
        q, k, v = (p.input("fp32", (1, 2, 5, 8)) for _ in range(3))
        scale, mask = p.input("fp32", (8,)), p.input("fp32", (5, 5))
        p.node(s.XNNScaledDotProductAttention(q, k, v, scale, mask, p.output("fp32", (1, 2, 5, 8)), 0))
        return p

    return make


QS, BOTH, F32 = ("qint8",), ("qint8", "quint8"), ("fp32",)
BINARY = {
    "add": s.XNNAdd,
    "sub": s.XNNSubtract,
    "mul": s.XNNMultiply,
    "div": s.XNNDiv,
    "minimum": s.XNNMinimum,
    "maximum": s.XNNMaximum,
}
UNARY = {
    "abs": s.XNNAbs,
    "ceiling": s.XNNCeiling,
    "cos": s.XNNCos,
    "exp": s.XNNExp,
    "floor": s.XNNFloor,
    "gelu": s.XNNGelu,
    "hardswish": s.XNNHardswish,
    "log": s.XNNLog,
    "negate": s.XNNNegate,
    "rsqrt": s.XNNReciprocalSquareRoot,
    "sigmoid": s.XNNSigmoid,
    "sin": s.XNNSin,
    "square": s.XNNSquare,
    "sqrt": s.XNNSquareRoot,
    "tanh": s.XNNTanh,
    "copy": s.XNNCopy,
    "softmax": s.XNNSoftmax,
}
C, D, T = s.XNNConv2d, s.XNNDepthwiseConv2d, s.XNNConvTranspose2d

# Name: payload generator and number of cases; each case draws its own scales, zero points and sizes.
PAYLOADS = {
    **{name: (binary(kind), 4) for name, kind in BINARY.items()},
    "add_bounds": (binary(s.XNNAdd, bounds=(-0.7, 0.9)), 2),
    "add_broadcast": (binary(s.XNNAdd, sizes=((2, 3, 8, 5), (1, 8, 1))), 2),
    "sub_broadcast": (binary(s.XNNSubtract, sizes=((1,), (2, 3, 8, 5))), 2),
    "mul_bounds": (binary(s.XNNMultiply, bounds=(0.0, float("inf"))), 2),
    **{name: (unary(kind), 3) for name, kind in UNARY.items()},
    "elu": (unary(s.XNNELU, more=(0.7,)), 3),
    "leaky": (unary(s.XNNLeakyReLU, more=(0.1,)), 4),
    "leaky_negative": (unary(s.XNNLeakyReLU, more=(-1.7,)), 2),
    "clamp": (unary(s.XNNClamp, bounds=(-0.4, 0.6), same=True), 3),
    "clamp_scales": (unary(s.XNNClamp, bounds=(-0.4, 0.6)), 2),
    "linear": (linear(BOTH), 5),
    "linear_transposed": (linear(transposed=True), 3),
    "linear_bounds": (linear(bounds=(-3.0, 5.0)), 2),
    "conv": (convolution(C, BOTH), 5),
    "conv_stride": (convolution(C, stride=(2, 3), kernel=(2, 4)), 3),
    "conv_dilated": (convolution(C, dilation=(2, 1)), 2),
    "conv_grouped": (convolution(C, groups=3), 3),
    "conv_pointwise": (convolution(C, kernel=(1, 1), bounds=(0.0, 9.0)), 3),
    "conv_same": (convolution(C, stride=(2, 2), flags=4), 2),
    "depthwise": (convolution(D, BOTH), 4),
    "depthwise_stride": (convolution(D, kernel=(5, 5), stride=(2, 2)), 3),
    "depthwise_same": (convolution(D, stride=(2, 2), flags=4), 2),
    "transposed": (convolution(T, BOTH, kernel=(2, 2), stride=(2, 2)), 3),
    "transposed_overlap": (convolution(T, kernel=(3, 4), stride=(2, 2)), 3),
    "transposed_grouped": (convolution(T, kernel=(3, 3), stride=(1, 2), groups=2), 2),
    "transposed_dilated": (convolution(T, kernel=(3, 3), stride=(2, 2), dilation=(2, 1)), 2),
    "max_pool": (pooling(s.XNNMaxPooling2d, BOTH, (3, 2), (2, 2), padding=(1, 1, 0, 0), same=True), 3),
    "max_pool_dilated": (pooling(s.XNNMaxPooling2d, BOTH, (2, 2), (1, 1), (2, 3), same=True), 2),
    "max_pool_same": (pooling(s.XNNMaxPooling2d, F32, (3, 3), (2, 2), flags=4), 1),
    "avg_pool": (pooling(s.XNNAvgPooling2d, BOTH, (3, 3), (2, 2), padding=(1, 1, 1, 1)), 4),
    "avg_pool_real": (pooling(s.XNNAvgPooling2d, F32, (3, 3), (2, 2), padding=(1, 0, 2, 1)), 2),
    "avg_pool_same": (pooling(s.XNNAvgPooling2d, F32, (3, 3), (2, 2), flags=4), 1),
    "avg_pool_dilated": (pooling(s.XNNAvgPooling2d, F32, (2, 2), (1, 1), (2, 3)), 1),
    "mean": (mean(True), 5),
    "mean_flat": (mean(False), 3),
    "mean_halves": (mean(True, halves=True), 17),
    "resize": (resize(0), 4),
    "resize_aligned": (resize(8), 3),
    "resize_legacy": (resize(4), 2),
    "resize_legacy_real": (resize(4, F32), 1),
    **{f"convert_{a}_{b}": (convert(a, b), 2) for a in DTYPES if a != "int64" for b in DTYPES if b not in ("int64", a)},
    "convert_qint8_qint8": (convert("qint8", "qint8"), 4),
    "convert_quint8_quint8": (convert("quint8", "quint8"), 3),
    "pad": (pad("qint8"), 2),
    "pad_unsigned": (pad("quint8"), 2),
    "concat": (concat("qint8"), 1),
    "dynamic_c8": (dynamic("fp32", "fp32", "qcint8"), 4),
    "dynamic_c4": (dynamic("fp32", "fp32", "qcint4"), 3),
    "dynamic_b4": (dynamic("fp32", "fp32", "qbint4"), 3),
    "dynamic_c8_half": (dynamic("fp16", "fp16", "qcint8"), 2),
    "dynamic_c4_half": (dynamic("fp16", "fp16", "qcint4"), 2),
    "dynamic_b4_half": (dynamic("fp16", "fp16", "qbint4"), 2),
    "dynamic_conv": (dynamic_convolution(), 3),
    "dynamic_transposed": (dynamic_convolution(T), 2),
    "dynamic_batches": (dynamic_batches(), 2),
    "dynamic_batches_transposed": (dynamic_batches(transposed=True), 2),
    "dynamic_batches_of_batches": (dynamic_batches((2, 1), (2, 3)), 1),
    "dynamic_batches_one": (dynamic_batches((3,), (1,)), 1),
    "dynamic_batches_spread": (dynamic_batches((1,), (3,), True), 1),
    "matrix_bf16": (matrix("bf16", "bf16", "fp32"), 1),
    "matrix_bf16_out": (matrix("bf16", "bf16", "bf16"), 1),
    "matrix_bf16_bias": (matrix("bf16", "bf16", "fp32", "bf16"), 1),
    "matrix_fp16": (matrix("fp16", "fp16", "fp16", "fp16"), 1),
    "matrix_fp16_bias": (matrix("fp16", "fp16", "fp16"), 1),
    "matrix_mixed": (matrix("fp32", "fp16", "fp32"), 1),
    "varying_filter": (varying_filter(), 1),
    "arg_max": (arg_max(), 1),
    "arg_max_padded": (arg_max((1, 0, 1, 0)), 1),
    "attention": (attention(), 1),
}


def random_input(g, datatype, dims):
    if datatype.startswith("q"):
        return random_quantized(g, dims, DTYPES[datatype])
    return (torch.randn(dims, generator=g) * 2.0 ** uniform(g, -3, 3)).to(DTYPES[datatype])


def write(folder, name, generator, scale):
    p = PAYLOADS[name.rpartition("_")[0]][0](generator, scale)
    buffer = p.program()
    call = tuple(random_input(generator, t, d) for t, d in p.inputs)
    loaded = _load_for_executorch_from_buffer(buffer)
    results = tuple(o.clone() for o in loaded.run_method("forward", list(call)))
    real = any(not t.startswith("q") for t, _ in p.outputs)
    note = "a payload of one node, as the reference runtime computes it"
    cases.write(folder / name, "xnnpack", Recorded(results), note, buffer, [call], None if real else 0)


def guarded(folder, name, generator, scale):
    """Calls `write` in a child process, because some payloads crash the reference. Returns the error message, or an
    empty string."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            write(folder, name, generator, scale)
        except BaseException as error:
            os.write(writer, str(error).splitlines()[0][:150].encode())
        os._exit(0)
    os.close(writer)
    said, status = os.read(reader, 1000).decode(), os.waitpid(child, 0)[1]
    os.close(reader)
    return f"it crashes: status {status}" if status else said


class Recorded(nn.Module):
    """A module that replays the reference runtime's recorded outputs."""

    def __init__(self, results):
        super().__init__()
        self.results = results

    def forward(self, *_):
        return self.results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    refused = []
    torch.set_num_threads(1)
    for name in options.names or PAYLOADS:
        for i in range(PAYLOADS[name][1]):
            case = f"{name}_{i}"
            generator = torch.Generator().manual_seed(sum(map(ord, case)))
            said = guarded(options.folder, case, generator, options.scale)
            refused += [f"{case}: {said}"] if said else []
    print(json.dumps({"refused": refused}, indent=1))

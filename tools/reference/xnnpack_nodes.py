#!/usr/bin/env python3
"""Writes conformance cases of single quantized operators lowered to XNNPACK, with the reference runtime's outputs.
Outputs are dequantized values: the tolerance is small enough that the quantized values must be equal.

    python tools/reference/xnnpack_nodes.py testdata/xnnpack/nodes [NAME...]

Needs torch, torchao and executorch.
"""

import json
import pathlib
import sys

import cases
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
from torch import nn
from torch.export import export
from torch.nn import functional as F
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e


class Function(nn.Module):
    """Wraps a function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def conv(*args, **options):
    return lambda: nn.Sequential(nn.Conv2d(*args, **options))


def relu(*args, bound=None, **options):
    return lambda: nn.Sequential(nn.Conv2d(*args, **options), nn.ReLU() if bound is None else nn.Hardtanh(*bound))


def function(f):
    return lambda: Function(f)


IMAGE = [(1, 4, 9, 7)]
PAIR = [(2, 3, 8, 5), (2, 3, 8, 5)]

# Name: module constructor, input shapes, input scale factors, quantization kind.
NODES = {
    "conv": (conv(4, 6, 3), IMAGE, [1.0], "channel"),
    "conv_tensor": (conv(4, 6, 3, padding=1), IMAGE, [3.0], "tensor"),
    "conv_stride": (conv(4, 6, 3, stride=2, padding=1, bias=False), IMAGE, [0.1], "channel"),
    "conv_dilated": (conv(4, 5, 2, dilation=2, padding=1), IMAGE, [1.0], "channel"),
    "conv_grouped": (conv(4, 6, 3, groups=2, padding=1), IMAGE, [1.0], "channel"),
    "conv_pointwise": (conv(4, 33, 1), IMAGE, [1.0], "channel"),
    "conv_relu": (relu(4, 6, 3, padding=1), IMAGE, [1.0], "channel"),
    "conv_relu6": (relu(4, 6, 3, padding=1, bound=(0.0, 6.0)), IMAGE, [20.0], "channel"),
    "depthwise": (conv(4, 4, 3, groups=4, padding=1), IMAGE, [1.0], "channel"),
    "depthwise_stride": (conv(4, 4, 3, groups=4, stride=2, padding=1), IMAGE, [5.0], "channel"),
    "depthwise_multiplier": (conv(4, 8, 3, groups=4, padding=1), IMAGE, [1.0], "channel"),
    "depthwise_tensor": (conv(4, 4, 5, groups=4, padding=2), IMAGE, [1.0], "tensor"),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 2, stride=2)), IMAGE, [1.0], "channel"),
    "transposed_padding": (
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)),
        IMAGE,
        [1.0],
        "channel",
    ),
    "linear": (lambda: nn.Sequential(nn.Linear(20, 13)), [(5, 20)], [1.0], "channel"),
    "linear_tensor": (lambda: nn.Sequential(nn.Linear(64, 40)), [(3, 64)], [4.0], "tensor"),
    "linear_no_bias": (lambda: nn.Sequential(nn.Linear(100, 16, bias=False)), [(2, 3, 100)], [0.3], "channel"),
    "linear_relu": (lambda: nn.Sequential(nn.Linear(20, 13), nn.ReLU()), [(5, 20)], [1.0], "channel"),
    "add": (function(lambda x, y: x + y), PAIR, [1.0, 1.0], "tensor"),
    "add_scales": (function(lambda x, y: x + y), PAIR, [1.0, 0.07], "tensor"),
    "add_offset": (function(lambda x, y: x + y), PAIR, [-3.0, 2.0], "tensor"),
    "add_broadcast": (function(lambda x, y: x + y), [(2, 3, 8, 5), (5,)], [1.0, 2.0], "tensor"),
    "add_relu": (function(lambda x, y: F.relu(x + y)), PAIR, [1.0, 1.0], "tensor"),
    "sub": (function(lambda x, y: x - y), PAIR, [1.0, 0.5], "tensor"),
    "mul": (function(lambda x, y: x * y), PAIR, [1.0, 1.0], "tensor"),
    "mul_scales": (function(lambda x, y: x * y), PAIR, [0.02, 9.0], "tensor"),
    "mul_relu": (function(lambda x, y: F.relu(x * y)), PAIR, [1.0, 1.0], "tensor"),
    "concat": (function(lambda x, y: torch.cat([x, y], 1)), PAIR, [1.0, 1.0], "tensor"),
    "concat_last": (function(lambda x, y: torch.cat([x, y, x], -1)), PAIR, [1.0, 3.0], "tensor"),
    "max_pool": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.MaxPool2d(3, 2, 1)), IMAGE, [1.0], "channel"),
    "avg_pool": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.AvgPool2d(2)), IMAGE, [1.0], "channel"),
    "mean": (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1)), IMAGE, [1.0], "channel"),
    "hardtanh": (function(lambda x, y: F.hardtanh(x + y, -0.5, 0.75)), PAIR, [1.0, 1.0], "tensor"),
    "convert": (function(lambda x: torch.flatten(x.permute(0, 2, 3, 1), 1) + 0.0), IMAGE, [1.0], "tensor"),
    "resize": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)),
        IMAGE,
        [1.0],
        "channel",
    ),
    "linear_dynamic": (lambda: nn.Sequential(nn.Linear(64, 24)), [(5, 64)], [1.0], "dynamic"),
    "linear_dynamic_offset": (lambda: nn.Sequential(nn.Linear(64, 24)), [(2, 3, 64)], [-4.0], "dynamic"),
}


def quantized(module, call, kind):
    config = get_symmetric_quantization_config(is_per_channel=kind != "tensor", is_dynamic=kind == "dynamic")
    program = prepare_pt2e(export(module, call).module(), XNNPACKQuantizer().set_global(config))
    program(*call)
    return convert_pt2e(program)


def scale_of(graph):
    """The smallest per-tensor dequantization scale of the graph: outputs that differ by less are the same quantized
    value."""
    nodes = [n for n in graph.graph.nodes if "dequantize_per_tensor" in str(n.target)]
    scales = [n.args[1] for n in nodes if isinstance(n.args[1], float)]
    return min(scales, default=None)


def write(folder, name):
    make, sizes, factors, kind = NODES[name]
    torch.manual_seed(sum(map(ord, name)))
    module = make().eval()
    call = lambda: tuple(torch.randn(s) * f + 0.3 * f for s, f in zip(sizes, factors))
    converted = quantized(module, call(), kind)
    calls = [call() for _ in range(3)]
    program = to_edge_transform_and_lower(export(converted, calls[0]), partitioner=[XnnpackPartitioner()])
    buffer = program.to_executorch().buffer
    loaded = _load_for_executorch_from_buffer(buffer)
    reference = {tuple(x.data_ptr() for x in c): loaded.run_method("forward", list(c)) for c in calls}
    results = iter([tuple(o.clone() for o in reference[tuple(x.data_ptr() for x in c)]) for c in calls])
    scale = scale_of(converted)
    # With dynamic quantization the outputs are f32 sums, not dequantized values.
    tolerance = 1e-5 if kind == "dynamic" or scale is None else scale / 8
    note = f"{kind} quantization, as the reference runtime computes it"
    cases.write(folder / name, "xnnpack", Recorded(results), note, buffer, calls, tolerance)


class Recorded(nn.Module):
    """A module that replays the reference runtime's recorded outputs, call by call."""

    def __init__(self, results):
        super().__init__()
        self.results = list(results)
        self.at = 0

    def forward(self, *_):
        self.at += 1
        outputs = self.results[self.at - 1]
        return outputs if len(outputs) > 1 else outputs[0]


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    failed = []
    for name in sys.argv[2:] or NODES:
        try:
            write(folder, name)
        except Exception as error:
            failed.append(name)
            print(f"{name}: {str(error)[:200]}", file=sys.stderr)
    print(json.dumps({"failed": failed}))

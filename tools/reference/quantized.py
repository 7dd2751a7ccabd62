#!/usr/bin/env python3
"""Writes torch.export archives of small quantized modules with PyTorch's outputs: conformance cases for the compiler.

    python tools/reference/quantized.py FOLDER [NAME...]
    pteron verify --archives FOLDER
    pteron verify --archives --backend xnnpack FOLDER

Static and dynamic int8 come from PT2E with XNNPACK's quantizer; weight-only int8 and 4-bit weights come from torchao.
Needs torch, torchao and executorch.
"""

import pathlib
import sys

import torch
import torch.nn as nn
from archives import write_case
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch.export import export
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, Int8WeightOnlyConfig, quantize_
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.utils import unwrap_tensor_subclass


class Convolutions(nn.Module):
    """An inverted residual block, a transposed convolution, pooling and a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.expand = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        self.depth = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.project = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(4, 5)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.project(self.depth(self.expand(x)))
        x = self.pool(self.up(x))
        return self.last(x.mean((2, 3), keepdim=True).flatten(1))


class Plane(nn.Module):
    """Two 2-d convolutions: one with bias and ReLU, one grouped without bias."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 6, 3, groups=2, bias=False)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Elementwise(nn.Module):
    def forward(self, a, b):
        x = torch.cat([a + b, a * b], 1)
        return torch.relu(x.reshape(2, 12, 2) + 0.5).permute(0, 2, 1), a.mul(b) + a


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def pt2e(module, inputs, dynamic=False, per_channel=True):
    config = get_symmetric_quantization_config(is_per_channel=per_channel, is_dynamic=dynamic)
    prepared = prepare_pt2e(export(module, inputs).module(), XNNPACKQuantizer().set_global(config))
    for _ in range(4):
        prepared(*[torch.randn_like(x) for x in inputs])
    return convert_pt2e(prepared)


def torchao(module, config):
    quantize_(module, config)
    return unwrap_tensor_subclass(module)


def r(*sizes):
    return torch.randn(*sizes)


EIGHT_BY_FOUR = Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32))
CASES = {
    "convolutions": (Convolutions, (r(1, 3, 12, 12),), pt2e),
    "elementwise": (Elementwise, (r(2, 3, 4), r(2, 3, 4)), pt2e),
    "products": (lambda: mlp(8, 16, 4), (r(3, 8),), pt2e),
    "products_per_tensor": (lambda: mlp(8, 16, 4), (r(3, 8),), lambda m, i: pt2e(m, i, per_channel=False)),
    # XNNPACK quantizes per row where PT2E quantizes per tensor, and stores per-group scales in bfloat16.
    "products_dynamic": (lambda: mlp(8, 16, 4), (r(3, 8),), lambda m, i: pt2e(m, i, dynamic=True)),
    "products_decomposed": (lambda: mlp(8, 16, 4), (r(2, 3, 8),), pt2e),
    "products_dynamic_decomposed": (lambda: mlp(8, 16, 4), (r(2, 3, 8),), lambda m, i: pt2e(m, i, dynamic=True)),
    "convolutions_dynamic": (Plane, (r(1, 3, 12, 12),), lambda m, i: pt2e(m, i, dynamic=True)),
    "products_8da4w": (lambda: mlp(64, 32, 8), (r(3, 64),), lambda m, i: torchao(m, EIGHT_BY_FOUR)),
    "products_weight_only": (lambda: mlp(16, 16, 4), (r(3, 16),), lambda m, i: torchao(m, Int8WeightOnlyConfig())),
}
COARSE = ["convolutions_dynamic", "products_dynamic", "products_dynamic_decomposed", "products_8da4w"]


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        make, inputs, quantize = CASES[name]
        torch.manual_seed(0)
        module = make()
        for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
            nn.init.normal_(norm.running_mean), nn.init.uniform_(norm.running_var, 0.5, 2)
        module = quantize(module.eval(), inputs)
        write_case(folder / f"quantized_{name}", module, inputs, tolerance=5e-3 if name in COARSE else None,
                   decompose=name.endswith("_decomposed"))


if __name__ == "__main__":
    main()

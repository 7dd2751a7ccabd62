#!/usr/bin/env python3
"""Writes conformance cases of half-precision networks lowered to XNNPACK, whose filters exporters keep in float32, with
PyTorch's outputs.

    python tools/reference/half_xnnpack.py testdata/xnnpack/half [NAME...]

Needs torch and executorch.
"""

import pathlib
import sys

import cases
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
from torch import nn
from torch.export import export


class Residual(nn.Module):
    """An inverted residual, as in mobile networks, with batch norms that are folded into float32 filters."""

    def __init__(self):
        super().__init__()
        norm = lambda n: nn.BatchNorm2d(n)
        self.expand = nn.Sequential(nn.Conv2d(4, 12, 1, bias=False), norm(12), nn.ReLU6())
        self.depth = nn.Sequential(nn.Conv2d(12, 12, 3, 1, 1, groups=12, bias=False), norm(12), nn.Hardswish())
        self.project = nn.Sequential(nn.Conv2d(12, 4, 1, bias=False), norm(4))
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = x + self.project(self.depth(self.expand(x)))
        return self.head(x.mean((2, 3)))


NETWORKS = {
    "conv": (nn.Conv2d(3, 5, 3, padding=1), (2, 3, 8, 7)),
    "conv_without_bias": (nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False), (1, 4, 9, 7)),
    "conv_relu": (nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU()), (1, 3, 8, 7)),
    "conv_1d": (nn.Conv1d(3, 5, 3, padding=1), (2, 3, 9)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4, padding=1), (1, 4, 8, 7)),
    "depthwise_1d": (nn.Conv1d(4, 4, 3, groups=4), (1, 4, 9)),
    "transposed": (nn.ConvTranspose2d(4, 6, 2, stride=2), (1, 4, 5, 6)),
    "transposed_groups": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), (1, 4, 5, 6)),
    "linear": (nn.Sequential(nn.Linear(12, 7), nn.ReLU()), (3, 12)),
    "linear_without_bias": (nn.Linear(12, 7, bias=False), (2, 3, 12)),
    "residual": (Residual(), (1, 4, 9, 9)),
}


def main():
    folder, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:]
    for name, (module, shape) in NETWORKS.items():
        if wanted and name not in wanted:
            continue
        torch.manual_seed(0)
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.uniform_(-0.5, 0.5)
                part.running_var.uniform_(0.5, 1.5)
        module = module.half().eval()
        calls = [(torch.randn(shape).half(),) for _ in range(2)]
        lowered = to_edge_transform_and_lower(export(module, calls[0]), partitioner=[XnnpackPartitioner()])
        buffer = lowered.to_executorch().buffer
        program = _load_for_executorch_from_buffer(buffer)
        with torch.no_grad():
            error = max((program.forward(call)[0].float() - module(*call).float()).abs().max().item() for call in calls)
        print(f"{name}: the reference differs from PyTorch by {error:.2e}")
        # Filters that a batch norm was folded into are float32, or rounded once more.
        tolerance = 0.02 if name == "residual" else None
        cases.write(folder / name, "xnnpack", module, "half precision, float32 filters", buffer, calls, tolerance)


if __name__ == "__main__":
    main()

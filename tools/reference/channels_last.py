#!/usr/bin/env python3
"""Writes one small network as four torch.export archives, with PyTorch's outputs: its input and its weights each row-major or
channels-last. Programs compiled from them compute the same, whichever backend and quantization they are compiled with.

    python tools/reference/channels_last.py FOLDER
    pteron verify --archives FOLDER

Needs torch.
"""

import pathlib
import sys

import torch
import torch.nn as nn
from archives import write_case


class Images(nn.Module):
    """Convolutions of every kind, batch norms behind them and alone, a residual, pooling, concatenation, a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.depth = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.BatchNorm2d(16), nn.ReLU6())
        self.project = nn.Conv2d(16, 16, 1)
        self.norm = nn.BatchNorm2d(16)
        self.up = nn.ConvTranspose2d(16, 16, 2, 2)
        self.hidden, self.last = nn.Linear(32, 32), nn.Linear(32, 5)

    def forward(self, x):
        x = self.stem(x)
        x = self.norm(x + self.project(self.depth(x))).relu()
        y = nn.functional.max_pool2d(self.up(x), 2)
        features = torch.cat([x, y], 1)
        pooled = features.mean((2, 3), keepdim=True).flatten(1)
        return self.last(self.hidden(pooled).relu()), features


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.manual_seed(0)
    network = Images().eval()
    for norm in [network.stem[1], network.depth[1], network.norm]:
        norm.running_mean.normal_(0, 0.3)
        norm.running_var.uniform_(0.5, 2)
    images = [torch.randn(1, 3, 16, 12) for _ in range(4)]
    rows, last = torch.contiguous_format, torch.channels_last
    for name, of_input, of_model in [("rows", rows, rows), ("input", last, rows), ("model", rows, last), ("both", last, last)]:
        given = [(image.contiguous(memory_format=of_input),) for image in images]
        module = network.to(memory_format=of_model)
        write_case(folder / f"channels_last_{name}", module, given[0], given[1:])


if __name__ == "__main__":
    main()

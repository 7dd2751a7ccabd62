#!/usr/bin/env python3
"""Writes conformance cases of networks in float16 and bfloat16, with what PyTorch computes.

    python tools/reference/half.py testdata/half [NAME...]

Needs torch and executorch, whose exporter writes the programs.
"""

import copy
import pathlib
import sys

import cases
import torch
from executorch.exir import to_edge
from torch import nn
from torch.export import export
from torch.nn import functional as F


class Encoder(nn.Module):
    """A layer of a transformer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0, batch_first=True)

    def forward(self, x):
        return self.layer(x)


class Convolutions(nn.Module):
    """Convolutions, norms, activations, poolings."""

    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.b, self.head = nn.Conv2d(16, 16, 3, groups=16, padding=1, stride=2), nn.Linear(16, 10)

    def forward(self, x):
        y = F.hardswish(self.b(F.silu(self.norm(self.a(x)))))
        y = F.max_pool2d(y, 2)
        return self.head(y.mean((2, 3))), torch.softmax(y, 1)


class Places(nn.Module):
    """Integers that follow from elements, many of them equal."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.out = nn.Embedding(50, 24), nn.LayerNorm(24), nn.Linear(24, 50, bias=False)

    def forward(self, at):
        x = self.out(self.norm(self.table(at)))
        best, places = torch.topk(torch.softmax(x, -1), 3)
        return x, best, places, x.argmax(-1)


class Conversions(nn.Module):
    """Conversions to f32 and back, comparisons, reductions."""

    def forward(self, x, y):
        a = torch.softmax((x @ y.transpose(1, 2)).float() / 4, -1).to(x.dtype)
        b = a @ y
        c = torch.where(b > 0, b, -b * 0.5).clamp(-0.7, 0.9)
        rounded = (x.float() * 1.001).to(x.dtype).float()
        return b, c, c.sum(-1), c.amax(-1), c.mean((1, 2)), (c * c).sum(1).sqrt(), torch.cat([c, b], 1), rounded


class Moves(nn.Module):
    """Elements that are only moved."""

    def forward(self, x):
        a, b = x.chunk(2, -1)
        moved = torch.cat([b, a], -1).transpose(1, 2).reshape(2, -1)[:, 3:17]
        return moved, x.flip(1), x.unsqueeze(1).expand(-1, 3, -1, -1)


class Elementwise(nn.Module):
    """Norms, sums and functions of elements."""

    def __init__(self):
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.randn(8)), nn.GroupNorm(2, 8)
        self.weights = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale
        z = self.norm(y.transpose(1, 2)).transpose(1, 2)
        u = torch.cumsum(z, 1)
        e = torch.exp(-u.abs())
        g = F.gelu(z) + F.gelu(z, approximate="tanh") + torch.sin(e) + torch.log1p(e) + torch.tanh(u)
        return y, z, u, e, g, z @ self.weights, torch.maximum(y, z), F.elu(z), torch.full_like(z, 0.1) + z


NETWORKS = {
    "encoder": (Encoder, [(2, 6, 32)]),
    "convolutions": (Convolutions, [(2, 3, 16, 16)]),
    "places": (Places, [None]),
    "conversions": (Conversions, [(2, 5, 8), (2, 5, 8)]),
    "moves": (Moves, [(2, 4, 12)]),
    "elementwise": (Elementwise, [(2, 6, 8)]),
}


def tolerance(module, call):
    """Four times PyTorch's own distance from what float64 gives: it rounds after every operator, and sums add the
    roundings up. None where that is within the usual tolerance, and where integers are computed, which are exact."""
    if not call[0].is_floating_point():
        return None
    with torch.no_grad():
        outputs, exact = module(*call), copy.deepcopy(module).double()(*(x.double() for x in call))
    pairs = list(zip(*(x if isinstance(x, tuple) else (x,) for x in (outputs, exact))))
    usual = 2e-3 if call[0].dtype == torch.float16 else 2e-2
    distances = [4 * (a.double() - b).abs().max().item() for a, b in pairs]
    beyond = any(distance > usual * b.abs().max().item() for distance, (_, b) in zip(distances, pairs))
    return max(distances) if beyond else None


def write(folder, name, dtype):
    make, shapes = NETWORKS[name]
    torch.manual_seed(len(name))
    module = make().eval().to(dtype)
    call = tuple(torch.randint(0, 50, (2, 5)) if shape is None else torch.randn(shape).to(dtype) for shape in shapes)
    with torch.no_grad():
        buffer = to_edge(export(module, call, strict=False)).to_executorch().buffer
    cases.write(folder, "half", module, make.__doc__, buffer, [call], tolerance(module, call))


def main():
    folder, *names = sys.argv[1:]
    for name in names or NETWORKS:
        for dtype in (torch.float16, torch.bfloat16):
            write(pathlib.Path(folder) / f"{name}_{cases.DTYPES[dtype]}", name, dtype)


if __name__ == "__main__":
    main()

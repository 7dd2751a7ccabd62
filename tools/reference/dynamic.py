#!/usr/bin/env python3
"""Writes conformance cases of networks whose shapes change, with what PyTorch computes for one sequence of
shapes: alternating ones, growing ones, more than are kept, ones that come back.

    python tools/reference/dynamic.py testdata/dynamic [NAME...]

Needs torch and executorch, whose exporter writes the programs.
"""

import pathlib
import sys

import cases
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from torch import nn
from torch.export import Dim, export


class Mlp(nn.Module):
    """Products whose weights the exporter transposes at each call."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 8), nn.GELU(), nn.Linear(8, 3))

    def forward(self, x):
        return torch.softmax(self.layers(x), -1)


class Attention(nn.Module):
    """Views and products of sizes that are computed."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mask = torch.full((s, s), float("-inf")).triu(1)
        scores = torch.softmax(q @ k.transpose(-1, -2) / 8**0.5 + mask, -1)
        return x + self.out((scores @ v).transpose(1, 2).reshape(b, s, 16)), s * 2


class Convolutions(nn.Module):
    """Norms that go into convolutions, and images of any size."""

    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b, self.head = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Linear(8, 4)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.a(x)))
        x = x + self.b(x)
        return self.head(x.mean((2, 3))), nn.functional.interpolate(x, scale_factor=2.0)


class State(nn.Module):
    """Tensors that outlive an execution."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("sum", torch.zeros(1, 6))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        y = torch.tanh(self.layer(x))
        self.sum.add_(y.sum(0, keepdim=True))
        self.count.add_(x.shape[0])
        return y * 2 + self.sum, self.count.clone(), torch.relu(y - self.sum)


class Chosen(nn.Module):
    """Sizes that follow from elements, between calls whose sizes do not."""

    def forward(self, x):
        y = torch.relu(x * 2 - 1) + 0.5
        chosen = torch.nonzero(y > 0.6)
        return y.exp().sum(1), chosen, y.abs().sqrt()


class Branch(nn.Module):
    """A branch that is chosen by a size: the plan declares an integer where a comparison writes a boolean."""

    def forward(self, x):
        y = torch.cond(x.shape[0] > 4, lambda x: x.sin() + 1.0, lambda x: x.cos() * 2.0, (x,))
        return torch.relu(y * 2 - 1) + 0.5


class Pieces(nn.Module):
    """Sizes that only the results of instructions have: pieces of computed sizes, tensors like others."""

    def forward(self, x):
        count = (x.sum(1) > 0).sum().item()
        torch._check(count >= 0)
        torch._check(count <= x.shape[0])
        first, rest = torch.split(x, [count, x.shape[0] - count])
        like = torch.full_like(x, 2.0) * x + torch.zeros_like(x)
        return like, torch.relu(first), torch.cat([rest.exp(), first]), x.index_select(0, torch.argsort(x[:, 0]))


BATCH = Dim("batch", min=0, max=9)
PLAIN = Dim("batch", min=1, max=9)
SEQUENCE = Dim("sequence", min=2, max=11)
HEIGHT, WIDTH = Dim("height", min=4, max=12), Dim("width", min=4, max=12)

NETWORKS = {
    "mlp": (Mlp, (9, 12), {0: PLAIN}, [(9, 12), (9, 12), (4, 12), (9, 12), (4, 12), (1, 12), (1, 12), (0, 12), (9, 12)]),
    "mlp_many": (Mlp, (9, 12), {0: PLAIN}, [(n, 12) for n in (1, 2, 3, 4, 5, 6, 7, 5, 5, 9, 1, 5)]),
    "attention": (
        Attention,
        (3, 11, 16),
        {0: Dim("batch", min=1, max=3), 1: SEQUENCE},
        [(3, 11, 16)] + [(1, s, 16) for s in (2, 3, 4, 5, 6, 7)] + [(3, 11, 16), (1, 4, 16), (2, 4, 16), (1, 4, 16)],
    ),
    "convolutions": (
        Convolutions,
        (2, 3, 12, 12),
        {0: Dim("batch", min=1, max=2), 2: HEIGHT, 3: WIDTH},
        [(2, 3, 12, 12), (2, 3, 12, 12), (1, 3, 5, 7), (1, 3, 5, 7), (2, 3, 12, 4), (1, 3, 5, 7)],
    ),
    "state": (State, (9, 6), {0: PLAIN}, [(9, 6), (9, 6), (2, 6), (9, 6), (2, 6), (2, 6), (1, 6)]),
    "chosen": (Chosen, (9, 5), {0: PLAIN}, [(9, 5), (9, 5), (3, 5), (3, 5), (9, 5)]),
    "pieces": (Pieces, (9, 5), {0: PLAIN}, [(9, 5), (9, 5), (3, 5), (4, 5), (3, 5)]),
    "branch": (Branch, (9, 5), {0: PLAIN}, [(9, 5), (9, 5), (3, 5), (4, 5), (3, 5), (5, 5), (9, 5), (1, 5)]),
}


def write(folder, name):
    make, example, dynamic, shapes = NETWORKS[name]
    torch.manual_seed(len(name))
    module = make().eval()
    with torch.no_grad():
        program = export(module, (torch.randn(example),), dynamic_shapes=(dynamic,), strict=True)
        edge = to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False))
        buffer = edge.to_executorch(ExecutorchBackendConfig()).buffer
    cases.write(folder, "dynamic", module, make.__doc__, buffer, ((torch.randn(shape),) for shape in shapes))


def main():
    folder, *names = sys.argv[1:]
    for name in names or NETWORKS:
        write(pathlib.Path(folder) / name, name)


if __name__ == "__main__":
    main()

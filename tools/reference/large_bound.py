"""Writes testdata/limits/large_bound.pte: a small program whose memory plan is sized for an input of one gigabyte.

    python tools/reference/large_bound.py testdata/limits/large_bound.pte
"""

import sys

import torch
from executorch.exir import to_edge
from torch.export import Dim


class LargeBound(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 2 + 1).sum()


sizes = ({0: Dim("n", min=2, max=1 << 28)},)
exported = torch.export.export(LargeBound(), (torch.randn(1 << 10),), dynamic_shapes=sizes)
with open(sys.argv[1], "wb") as out:
    out.write(to_edge(exported).to_executorch().buffer)

"""Writes testdata/compare/conv_norm.pte: convolutions with batch norms and no activation.

    python tools/reference/conv_norm.py testdata/compare/conv_norm.pte
"""

import sys

import torch
from executorch.exir import to_edge


class ConvNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.first_norm = torch.nn.BatchNorm2d(4)
        self.second = torch.nn.Conv2d(4, 4, 1)
        self.second_norm = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.first_norm(self.first(x))
        return self.second_norm(self.second(y)) + y


torch.manual_seed(0)
model = ConvNorm().eval()
for norm in (model.first_norm, model.second_norm):
    norm.running_mean.copy_(torch.randn(4))
    norm.running_var.copy_(torch.rand(4) + 0.5)
    norm.weight.data.copy_(torch.randn(4))
    norm.bias.data.copy_(torch.randn(4))
exported = torch.export.export(model, (torch.randn(1, 3, 6, 6),))
with open(sys.argv[1], "wb") as out:
    out.write(to_edge(exported).to_executorch().buffer)

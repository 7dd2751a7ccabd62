#!/usr/bin/env python3
"""Trains the digit classifier of `examples/digits` and exports it.

The data are the 1,797 handwritten 8x8 digits bundled with scikit-learn, so nothing is
downloaded. Needs torch, executorch, scikit-learn and pillow; takes about a minute on one core.

    python tools/models/digits.py [OUTPUT_DIR]     (default: examples/digits)

Writes `digits.pte` (without delegates, including the softmax), `labels.txt`, and one
held-out image per digit. A pixel is a grey value in 0..1, black is 0; the input is [1, 1, 8, 8].
"""

import pathlib
import sys

import numpy as np
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 8
EPOCHS = 60
BATCH = 64


class Digits(nn.Module):
    """Two convolutions, max pooling and a classifier."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(0.25)
        self.classifier = nn.Linear(32 * 4 * 4, 10)

    def logits(self, x):
        x = torch.relu(self.conv1(x))
        x = self.pool(torch.relu(self.conv2(x)))
        return self.classifier(self.dropout(x.flatten(1)))

    def forward(self, x):
        return torch.softmax(self.logits(x), dim=1)


def shifted(images, generator):
    """The images, each shifted by at most one pixel in each direction."""
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    dx, dy = torch.randint(0, 3, (2, len(images)), generator=generator)
    rows = dy[:, None] + torch.arange(8)
    columns = dx[:, None] + torch.arange(8)
    picked = padded[torch.arange(len(images))[:, None, None], 0, rows[:, :, None], columns[:, None, :]]
    return picked[:, None]


def train(model, images, labels):
    generator = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    model.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images), generator=generator).split(BATCH):
            loss = nn.functional.cross_entropy(model.logits(shifted(images[rows], generator)), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    model.eval()


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "examples/digits")
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)

    digits = load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    train_rows, test_rows = train_test_split(
        np.arange(len(grey)), test_size=500, random_state=SEED, stratify=digits.target
    )
    images = torch.from_numpy(grey)[:, None].float() / 255
    labels = torch.from_numpy(digits.target).long()

    model = Digits()
    train(model, images[train_rows], labels[train_rows])
    with torch.no_grad():
        guesses = model(images[test_rows]).argmax(1)
    right = int((guesses == labels[test_rows]).sum())
    print(f"{right} of {len(test_rows)} held-out digits right ({right / len(test_rows):.1%})")

    program = torch.export.export(model, (images[:1],), strict=True)
    edge = to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=True))
    pte = edge.to_executorch(ExecutorchBackendConfig()).buffer
    (out / "digits.pte").write_bytes(pte)
    print(f"digits.pte: {len(pte)} bytes")

    (out / "labels.txt").write_text("".join(f"{name}\n" for name in digits.target_names))
    for digit in range(10):
        row = next(r for r in test_rows if digits.target[r] == digit)
        Image.fromarray(grey[row]).save(out / f"{digit}.png", optimize=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains a program on the reference runtime and records the loss of every step.

Training with each set of optimizer options starts from the original weights. `crates/pteron/tests/training.rs` runs the
same training in Rust and compares step by step.

    pip install executorch torch
    tools/reference/train.py testdata/corpus/wild/train_xor > testdata/training/xor.json
"""

import json
import pathlib
import sys

import torch
from executorch.extension.training import _load_for_executorch_for_training, get_sgd_optimizer

OPTIONS = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
    {"lr": 0.1, "weight_decay": 0.1},
    {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
]
STEPS = 400


def train(model, data, options):
    module = _load_for_executorch_for_training(str(model))
    optimizer = None
    losses = []
    for step in range(STEPS):
        x, y = data[step % len(data)]
        loss = module.forward_backward("forward", (torch.tensor([x]), torch.tensor([y])))[0]
        losses.append(round(float(loss), 7))
        if optimizer is None:
            optimizer = get_sgd_optimizer(
                module.named_parameters(),
                options["lr"],
                options.get("momentum", 0),
                options.get("dampening", 0),
                options.get("weight_decay", 0),
                options.get("nesterov", False),
            )
        optimizer.step(module.named_gradients())
    return losses


def main():
    folder = pathlib.Path(sys.argv[1])
    data = json.loads((folder / "training.json").read_text())["data"]
    runs = [{"options": o, "losses": train(folder / "model.pte", data, o)} for o in OPTIONS]
    print("{")
    print(' "data": ' + json.dumps(data) + ",")
    print(' "runs": [')
    print(",\n".join("  " + json.dumps(run) for run in runs))
    print(" ]\n}")


main()

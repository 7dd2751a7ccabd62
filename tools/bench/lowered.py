#!/usr/bin/env python3
"""Writes the networks of networks.py as programs that XNNPACK takes: in float32, and quantized.

    tools/bench/lowered.py target/release/pteron FOLDER [NAME...]

Each is exported to FOLDER/NAME.pt2 unless that is there, and compiled from it by `pteron compile --backend xnnpack` to
FOLDER/NAME_KIND.pte, for every kind that the network is measured in. Both runtimes take these files:

    tools/bench/beside.py target/release/pteron FOLDER/*.pte --threads 1,2
"""

import argparse
import pathlib
import subprocess
import tempfile

import numpy as np

CONVOLUTIONS = "mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet50", "unet"
TRANSFORMERS = "vit_tiny", "bert", "llama_prefill", "llama_decode"
RECURRENT = "lstm", "gru"
# How the products and convolutions of a network are quantized.
KINDS = {name: ["fp32", "int8"] for name in CONVOLUTIONS}
KINDS |= {name: ["fp32", "dynamic-int8", "8da4w"] for name in TRANSFORMERS + RECURRENT}
KINDS["vit_tiny"].insert(1, "int8")
SAMPLES = 4


def archive(name, folder):
    import networks
    import torch

    path = folder / f"{name}.pt2"
    if not path.exists():
        model, inputs = networks.make(name)
        torch.export.save(torch.export.export(model, inputs, strict=True), path)
    return path


def compile(pteron, model, kind, shape):
    """Compiles an archive; its values are calibrated on images of normally distributed numbers."""
    program = model.with_name(f"{model.stem}_{kind}.pte")
    command = [pteron, "compile", model, "-o", program, "--backend", "xnnpack"]
    if kind != "fp32":
        command += ["--quantize", kind]
    with tempfile.TemporaryDirectory() as samples:
        if kind == "int8":
            numbers = np.random.default_rng(0)
            for i in range(SAMPLES):
                np.save(pathlib.Path(samples) / f"{i}.npy", numbers.standard_normal(shape, dtype=np.float32))
            command += ["--calibrate", samples]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pteron", help="the command")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help="which networks [default: all]")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names or KINDS:
        side = 128 if name == "unet" else 224
        for kind in KINDS[name]:
            compile(args.pteron, archive(name, args.folder), kind, (1, 3, side, side))


if __name__ == "__main__":
    main()

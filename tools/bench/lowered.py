#!/usr/bin/env python3
"""Compiles the networks of networks.py, and five more of torchvision, for XNNPACK, in float32 and quantized.

    tools/bench/lowered.py target/release/pteron FOLDER [NAME...]

Each network is exported to FOLDER/NAME.pt2, unless that exists, and compiled from it by `pteron compile --backend xnnpack` to
FOLDER/NAME_KIND.pte for each kind of quantization that it is measured with. Both runtimes run these files:

    tools/bench/beside.py target/release/pteron FOLDER/*.pte --threads 1,2
"""

import argparse
import pathlib
import subprocess
import tempfile

CONVOLUTIONS = "mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet50", "unet"
TRANSFORMERS = "vit_tiny", "bert", "llama_prefill", "llama_decode"
RECURRENT = "lstm", "gru"
# Networks that only exist in torchvision, measured in float32.
TORCHVISION = "densenet121", "efficientnet_b0", "regnet_y_400mf", "shufflenet_v2_x1_0", "squeezenet1_1"
# The kinds of quantization of each network's matrix products and convolutions.
KINDS = {name: ["fp32", "int8"] for name in CONVOLUTIONS}
KINDS |= {name: ["fp32", "dynamic-int8", "8da4w"] for name in TRANSFORMERS + RECURRENT}
KINDS["vit_tiny"].insert(1, "int8")
KINDS |= {name: ["fp32"] for name in TORCHVISION}
SAMPLES = 4


def archive(name, folder):
    path = folder / f"{name}.pt2"
    if not path.exists():
        import networks
        import torch

        model, inputs = networks.make(name)
        torch.export.save(torch.export.export(model, inputs, strict=True), path)
    return path


def compile(pteron, model, kind, shape):
    """Compiles an archive. Static quantization is calibrated on normally distributed images."""
    program = model.with_name(f"{model.stem}_{kind}.pte")
    command = [pteron, "compile", model, "-o", program, "--backend", "xnnpack"]
    if kind != "fp32":
        command += ["--quantize", kind]
    with tempfile.TemporaryDirectory() as samples:
        if kind == "int8":
            import numpy as np

            generator = np.random.default_rng(0)
            for i in range(SAMPLES):
                np.save(pathlib.Path(samples) / f"{i}.npy", generator.standard_normal(shape, dtype=np.float32))
            command += ["--calibrate", samples]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pteron", help="the command")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help="networks to compile [default: all]")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names or KINDS:
        side = 128 if name == "unet" else 224
        for kind in KINDS[name]:
            compile(args.pteron, archive(name, args.folder), kind, (1, 3, side, side))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures where cost could jump: constants too large to be folded, memory of compiling, and of running archives, and the
work between small operators.

    pip install torch torchvision executorch; pip install --no-deps timm mambapy
    tools/bench/cliffs.py FOLDER target/release/pteron [OTHER_PTERON...]

The networks have random weights and are exported to FOLDER, unless they are there already: vgg11 (also as the reference's exporter
writes it without delegates, with the weights of its classifier transposed at run time), timm's nfnet_f0, torchvision's
r3d_18 and resnet50, and mambapy's Mamba, whose scan updates slices of tensors. Peak memory is the maximum resident size
of the process. Instructions are those of a run, from the difference between two numbers of runs (valgrind). Times are the
least of several rounds in which the commands alternate.
"""

import argparse
import pathlib
import re
import subprocess

MEGABYTE = 1e6


def models():
    import timm
    import torch
    import torchvision
    from mambapy.mamba import Mamba, MambaConfig

    torch.manual_seed(0)
    image = torch.randn(1, 3, 224, 224)
    yield "vgg11", torchvision.models.vgg11, image
    yield "nfnet_f0", lambda: timm.create_model("dm_nfnet_f0"), torch.randn(1, 3, 192, 192)
    yield "r3d_18", torchvision.models.video.r3d_18, torch.randn(1, 3, 8, 112, 112)
    yield "resnet50", torchvision.models.resnet50, image
    yield "mamba", lambda: Mamba(MambaConfig(d_model=32, n_layers=2, d_state=8)), torch.randn(1, 16, 32)


def export(folder):
    """Exports what is missing, and returns the bytes of each network's weights."""
    import torch
    from executorch.exir import to_edge

    for name, make, example in models():
        path = folder / f"{name}.pt2"
        if not path.exists():
            program = torch.export.export(make().eval(), (example,))
            torch.export.save(program, path)
        if name == "vgg11" and not (folder / "vgg11.pte").exists():
            (folder / "vgg11.pte").write_bytes(to_edge(torch.export.load(path)).to_executorch().buffer)


def peak(command):
    """The maximum resident size of a command in bytes."""
    timed = subprocess.run(["/usr/bin/time", "-f", "%M", *command], check=True, capture_output=True, text=True)
    return int(timed.stderr.split()[-1]) * 1024


def fastest(pteron, file):
    """The least time of five runs in milliseconds."""
    command = [pteron, "run", file, "--repeat", "5", "--threads", "1", "--top", "1"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"min ([\d.]+) ms", text)[1])


def instructions(pteron, file, few=20, many=120):
    def count(runs):
        command = [pteron, "run", file, "--repeat", str(runs), "--threads", "1"]
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        return int(re.search(r"Collected : (\d+)", text)[1])

    return (count(many) - count(few)) / (many - few)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("pteron", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = options.folder
    folder.mkdir(exist_ok=True)
    export(folder)
    out = folder / "compiled.pte"
    for name in ["nfnet_f0", "r3d_18", "resnet50", "vgg11"]:
        archive = folder / f"{name}.pt2"
        weights = archive.stat().st_size
        for pteron in options.pteron:
            plain = peak([pteron, "compile", archive, "-o", out])
            xnnpack = peak([pteron, "compile", archive, "-o", out, "--backend", "xnnpack"])
            ran = peak([pteron, "run", archive, "--threads", "1", "--top", "1"])
            sizes = ", ".join(f"{n / MEGABYTE:.0f} MB ({n / weights:.2f})" for n in [plain, xnnpack, ran])
            print(f"{name}, {pteron}: compile, compile for XNNPACK, run: {sizes} of {weights / MEGABYTE:.0f} MB")
    lowered = folder / "vgg11_lowered.pte"
    subprocess.run([options.pteron[0], "compile", folder / "vgg11.pt2", "-o", lowered, "--backend", "xnnpack"], check=True)
    subprocess.run([options.pteron[0], "compile", folder / "mamba.pt2", "-o", folder / "mamba.pte"], check=True)
    for file in [folder / "vgg11.pte", lowered, folder / "mamba.pte"]:
        least = dict.fromkeys(options.pteron, float("inf"))
        for _ in range(options.rounds):
            for pteron in options.pteron:
                least[pteron] = min(least[pteron], fastest(pteron, file))
        print(file.name, {pteron: f"{ms:.3f} ms" for pteron, ms in least.items()})
    for pteron in options.pteron:
        print(f"mamba, {pteron}: {instructions(pteron, folder / 'mamba.pte') / 1e6:.2f} million instructions a run")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measures where cost could jump: constants too large to be folded, memory of compiling, and of running archives, the work
between small operators, and transforms of short frames; the reference runtime beside.

    pip install torch torchvision executorch; pip install --no-deps timm mambapy
    tools/bench/cliffs.py FOLDER target/release/pteron [OTHER_PTERON...] [--threads 1,2] [--isa avx2,avx512]

The networks have random weights and are exported to FOLDER, unless they are there already: vgg11 (also as the reference's exporter
writes it without delegates, with the weights of its classifier transposed at run time), timm's nfnet_f0 and vit_small,
torchvision's r3d_18 and resnet50, mambapy's Mamba, whose scan updates slices of tensors, and mel-frequency cepstral
coefficients as torchaudio computes them, with a small head. Peak memory is the maximum resident size of the process, pages of
files included. Instructions are those of a run, from the difference between two numbers of runs (valgrind). Times are the
least of several rounds in which the commands and the reference alternate.
"""

import argparse
import math
import pathlib
import re
import subprocess
import tempfile

import beside

MEGABYTE = 1e6
ARCHIVES = ["nfnet_f0", "r3d_18", "resnet50", "vgg11", "vit_small"]
# Those whose times are compared with the reference's.
LOWERED = ["vgg11", "mamba", "mfcc"]


def cepstral():
    """Mel-frequency cepstral coefficients of 16,000 samples, as torchaudio's `MFCC(16000, 20, dict(n_fft=256, hop_length=128,
    n_mels=32))` computes them, and a linear layer on their means."""
    import torch

    class Cepstral(torch.nn.Module):
        def __init__(self):
            super().__init__()
            rate, mels, kept = 8000.0, 32, 20
            self.register_buffer("window", torch.hann_window(256))
            most = 2595 * math.log10(1 + rate / 700)
            edges = 700 * (10 ** (torch.linspace(0, most, mels + 2) / 2595) - 1)
            slopes = edges[None] - torch.linspace(0, rate, 129)[:, None]
            width = edges[1:] - edges[:-1]
            up, down = -slopes[:, :-2] / width[:-1], slopes[:, 2:] / width[1:]
            self.register_buffer("bank", torch.minimum(up, down).clamp(min=0))
            cosines = torch.cos(math.pi / mels * (torch.arange(mels)[:, None] + 0.5) * torch.arange(kept)) * math.sqrt(2 / mels)
            cosines[:, 0] /= math.sqrt(2)
            self.register_buffer("cosines", cosines)
            self.head = torch.nn.Linear(kept, 10)

        def forward(self, x):
            spectrum = torch.stft(x, 256, 128, 256, self.window, center=True, pad_mode="reflect", return_complex=True)
            mel = (spectrum.abs().pow(2.0).transpose(-1, -2) @ self.bank).transpose(-1, -2)
            decibels = 10.0 * torch.log10(mel.clamp(min=1e-10))
            decibels = torch.maximum(decibels, decibels.amax((-2, -1), keepdim=True) - 80.0)
            coefficients = (decibels.transpose(-1, -2) @ self.cosines).transpose(-1, -2)
            return self.head(coefficients.mean(-1))

    return Cepstral()


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
    yield "vit_small", lambda: timm.create_model("vit_small_patch16_224"), image
    yield "mamba", lambda: Mamba(MambaConfig(d_model=32, n_layers=2, d_state=8)), torch.randn(1, 16, 32)
    yield "mfcc", cepstral, torch.randn(1, 16000)


def unfold(x, dim, size, step):
    """`aten.unfold`, for which the reference has no kernel, by one that it has."""
    import torch

    dim %= x.dim()
    sizes, strides = list(x.size()), list(x.stride())
    sizes[dim], strides[dim] = (sizes[dim] - size) // step + 1, strides[dim] * step
    return torch.ops.aten.as_strided_copy(x, [*sizes, size], [*strides, x.stride(dim)], x.storage_offset())


def reference_program(path):
    """The archive as the reference's exporter lowers it, without delegates."""
    import torch
    from executorch.exir import EdgeCompileConfig, to_edge

    table = torch.export.default_decompositions()
    table[torch.ops.aten.unfold.default] = unfold
    program = torch.export.load(path).run_decompositions(table)
    return to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False)).to_executorch().buffer


def export(folder):
    """Exports what is missing."""
    import torch

    for name, make, example in models():
        path = folder / f"{name}.pt2"
        if not path.exists():
            torch.export.save(torch.export.export(make().eval(), (example,)), path)
        lowered = folder / f"{name}_reference.pte"
        if name in LOWERED and not lowered.exists():
            lowered.write_bytes(reference_program(path))


def peak(command):
    """The maximum resident size of a command in bytes."""
    timed = subprocess.run(["/usr/bin/time", "-f", "%M", *command], check=True, capture_output=True, text=True)
    return int(timed.stderr.split()[-1]) * 1024


def instructions(pteron, file, few=20, many=120):
    def count(runs):
        command = [pteron, "run", file, "--repeat", str(runs), "--threads", "1"]
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        return int(re.search(r"Collected : (\d+)", text)[1])

    return (count(many) - count(few)) / (many - few)


def measure_memory(folder, commands):
    out = folder / "compiled.pte"
    for name in ARCHIVES:
        archive = folder / f"{name}.pt2"
        weights = archive.stat().st_size
        for pteron in commands:
            plain = peak([pteron, "compile", archive, "-o", out])
            xnnpack = peak([pteron, "compile", archive, "-o", out, "--backend", "xnnpack"])
            ran = peak([pteron, "run", archive, "--threads", "1", "--top", "1"])
            sizes = ", ".join(f"{n / MEGABYTE:.0f} MB ({n / weights:.2f})" for n in [plain, xnnpack, ran])
            print(f"{name}, {pteron}: compile, compile for XNNPACK, run: {sizes} of {weights / MEGABYTE:.0f} MB", flush=True)


def measure_times(folder, options, reference):
    """Each program on each command and level, and on the reference: as its own exporter lowers it, and as compiled here."""
    for name, compiled in [("mamba", True), ("mfcc", True), ("vgg11", False)]:
        exported = folder / f"{name}_reference.pte"
        program = folder / f"{name}.pte" if compiled else exported
        if compiled:
            subprocess.run([options.pteron[0], "compile", folder / f"{name}.pt2", "-o", program], check=True, capture_output=True)
        for threads in map(int, options.threads.split(",")):
            sides = {"reference": beside.Reference(reference, str(exported), threads)}
            if compiled:
                sides["reference, compiled here"] = beside.Reference(reference, str(program), threads)
            for pteron in options.pteron:
                for level in options.isa.split(","):
                    side = beside.Pteron(pteron, str(program), threads)
                    side.command += ["--isa", level]
                    sides[f"{pteron} {level}"] = side
            for _ in range(options.rounds):
                for side in sides.values():
                    side.steady(options.seconds)
            times = ", ".join(f"{title} {min(side.minima):.3f} ms" for title, side in sides.items())
            print(f"{name}, {threads} threads: {times}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("pteron", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn [default: 0.5]")
    parser.add_argument("--threads", default="1,2", help="numbers of threads [default: 1,2]")
    parser.add_argument("--isa", default="avx2,avx512", help="instruction sets [default: avx2,avx512]")
    parser.add_argument("--only", choices=["memory", "times", "instructions"], action="append")
    options = parser.parse_args()
    folder, only = options.folder, options.only or ["memory", "times", "instructions"]
    folder.mkdir(exist_ok=True)
    export(folder)
    if "memory" in only:
        measure_memory(folder, options.pteron)
    if "times" in only:
        with tempfile.TemporaryDirectory() as built:
            measure_times(folder, options, beside.build(beside.installed(), built))
    if "instructions" in only:
        for name in ["mamba", "mfcc"]:
            subprocess.run([options.pteron[0], "compile", folder / f"{name}.pt2", "-o", folder / f"{name}.pte"], check=True)
            for pteron in options.pteron:
                millions = instructions(pteron, folder / f"{name}.pte") / 1e6
                print(f"{name}, {pteron}: {millions:.2f} million instructions a run", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The programs that are measured beside the reference runtime (docs/performance.md), and one command that makes them.

    tools/bench/suite.py                                                  # list them: name, kind, what makes it
    tools/bench/suite.py --pteron target/release/pteron FOLDER [NAME...]  # make FOLDER/NAME.pte
    tools/bench/beside.py target/release/pteron FOLDER/*.pte --threads 1,2

34 programs are compiled by `lowered.py` (which needs torch, torchvision and transformers): networks with random weights, lowered to
XNNPACK and quantized by `pteron compile`. 23 are files that ExecuTorch's own exporter lowered: conformance cases `NAME/model.pte`,
which are not in the repository. `--corpus` names their folder; without it they are left out.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys

import lowered

HERE = pathlib.Path(__file__).resolve().parent
# Written and lowered by ExecuTorch 1.5.1's exporter.
EXPORTED = """
cnn_small_xnn cnn_small_xnn_int8 conv1d_audio_xnn conv1d_audio_xnn_int8 distil_encoder_sdpa_xnn embedding_lookup_xnn
llama_decode_xnn_8da4w llama_et_xnn lstm_xnn mlp_dynbatch_xnn mlp_dynbatch_xnn_dynq8 mlp_xnn mlp_xnn_8da4w mlp_xnn_dynq8 mlp_xnn_int8
mobilenet_v2_xnn mobilenet_v2_xnn_int8 topk_sort_ops_xnn tv_vit_small_xnn tv_vit_small_xnn_dynq8 tv_vit_small_xnn_int8 unet_small_xnn
unet_small_xnn_int8
""".split()
# How a name ends, and the kind of its matrix products and convolutions; the others are in float32.
KINDS = {"_dynamic-int8": "dynamic int8", "_dynq8": "dynamic int8", "_int8": "int8", "_8da4w": "4 bits"}


def kind(name):
    return next((kind for end, kind in KINDS.items() if name.endswith(end)), "f32")


def compiled():
    """The programs that `lowered.py` makes, and the network of each."""
    return {f"{network}_{kind}": network for network, kinds in lowered.KINDS.items() for kind in kinds}


def programs():
    """The name of each program, its kind, and what makes it."""
    sources = dict.fromkeys(compiled(), "lowered.py") | dict.fromkeys(EXPORTED, "ExecuTorch's exporter")
    return [(name, kind(name), sources[name]) for name in sorted(sources)]


def make(args):
    args.folder.mkdir(parents=True, exist_ok=True)
    wanted = set(args.names) or {name for name, _, _ in programs()}
    unknown = wanted - {name for name, _, _ in programs()}
    if unknown:
        raise SystemExit(f"not in the list: {', '.join(sorted(unknown))}")
    missing = [name for name in wanted if not (args.folder / f"{name}.pte").exists()]
    networks = sorted({compiled()[name] for name in missing if name in compiled()})
    if networks:
        # A network is compiled in all its kinds.
        subprocess.run([sys.executable, HERE / "lowered.py", args.pteron, args.folder, *networks], check=True)
    for name in sorted(set(missing) & set(EXPORTED)):
        if args.corpus is None:
            print(f"left out: {name} (a conformance case, --corpus)", file=sys.stderr)
        else:
            shutil.copyfile(args.corpus / name / "model.pte", args.folder / f"{name}.pte")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, help="where to write them; without it they are listed")
    parser.add_argument("names", nargs="*", help="programs to make [default: all]")
    parser.add_argument("--pteron", help="the command that compiles them")
    parser.add_argument("--corpus", type=pathlib.Path, help="the folder of conformance cases with the exporter's programs")
    args = parser.parse_args()
    if args.folder is None:
        for row in programs():
            print("{:28} {:14} {}".format(*row))
        return
    if args.pteron is None:
        parser.error("--pteron names the command that compiles the programs")
    make(args)


if __name__ == "__main__":
    main()

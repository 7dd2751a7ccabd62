#!/usr/bin/env python3
"""Quantizes networks to int8 by `pteron compile --quantize int8` and by the reference's own flow (PT2E with XNNPACK's
quantizer, per-channel), with the same calibration inputs, and compares the errors and speeds.

    python tools/models/quantizer_errors.py PTERON [NAME...] [--folder FOLDER]

Weights are random, inputs normally distributed. Errors are the root mean square of the difference from float32, relative to
the root mean square of float32. The error of a network is measured on its outputs for inputs not used in calibration, on each
runtime. Times are the minimum over many executions on one thread. Needs torch, torchvision, torchao and executorch;
`vit_tiny` needs timm.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

NAMES = "mobilenet_v2", "vit_tiny"
SAMPLES, HELD_OUT = 8, 4


def error(found, expected):
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def layers(prepared, converted):
    """The relative error of the weights of each linear layer and convolution, by node name."""
    import torch

    def weights(module):
        found = {}
        for node in module.graph.nodes:
            if str(node.target) not in ("aten.conv2d.default", "aten.linear.default"):
                continue
            value = node.args[1]
            scales = None
            while value.op != "get_attr":
                if "dequantize_per_channel" in str(value.target):
                    scales = value.args[1:4]
                value = value.args[0]
            get = lambda node: dict(module.named_parameters()).get(node.target, getattr(module, node.target, None))
            w = get(value).detach()
            if scales:
                scale, zero, axis = get(scales[0]), get(scales[1]), scales[2]
                shape = [-1 if d == axis else 1 for d in range(w.dim())]
                w = (w.float() - zero.reshape(shape)) * scale.reshape(shape)
            elif not w.is_floating_point():
                continue
            found[node.name] = w.float().numpy()
        return found

    before, after = weights(prepared), weights(converted)
    return {name: error(w, before[name]) for name, w in after.items() if not np.array_equal(w, before[name])}


def settle(model, inputs):
    """Calibrates batch norms on the inputs, so that activations of a random network do not vanish."""
    import torch
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
    if norms:
        model.train()
        with torch.no_grad():
            model(torch.cat(inputs))
    return model.eval()


def export(name, folder):
    import torch
    import torchvision.models
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    torch.manual_seed(0)
    if name == "vit_tiny":
        import timm
        model = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    else:
        model = torchvision.models.get_model(name, weights=None).eval()
    inputs = [torch.randn(1, 3, 224, 224) for _ in range(SAMPLES + HELD_OUT)]
    settle(model, inputs[:SAMPLES])
    (folder / "samples").mkdir(exist_ok=True)
    for i, x in enumerate(inputs):
        np.save(folder / ("samples" if i < SAMPLES else "") / f"{i}.npy", x.numpy())
    program = torch.export.export(model, (inputs[0],))
    torch.export.save(program, folder / "m.pt2")
    with torch.no_grad():
        np.save(folder / "expected.npy", np.stack([model(x).numpy() for x in inputs[SAMPLES:]]))
        prepared = prepare_pt2e(program.module(), XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True)))
        for x in inputs[:SAMPLES]:
            prepared(x)
        import copy
        unquantized = copy.deepcopy(prepared)
        converted = convert_pt2e(prepared)
        (folder / "layers.json").write_text(json.dumps(layers(unquantized, converted)))
    program = torch.export.export(converted, (inputs[0],))
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    (folder / "theirs.pte").write_bytes(lowered.buffer)


WORKER = """
import sys, json, time, numpy as np, torch
from executorch.extension.pybindings import portable_lib
torch.set_num_threads(1); portable_lib._unsafe_reset_threadpool(1)
module = portable_lib._load_for_executorch(sys.argv[1])
inputs = [torch.from_numpy(np.load(path)) for path in sys.argv[3:]]
np.save(sys.argv[2], np.stack([module.run_method("forward", [x])[0].numpy() for x in inputs]))
times = []
for _ in range(20):
    start = time.perf_counter(); module.run_method("forward", [inputs[0]], False); times.append(time.perf_counter() - start)
print(min(times) * 1e3)
"""


def on_reference(model, inputs, folder):
    """The outputs of the reference runtime, and its time in milliseconds."""
    out = folder / "out.npy"
    done = subprocess.run([sys.executable, "-c", WORKER, model, out, *inputs], check=True, capture_output=True, text=True)
    return np.load(out), float(done.stdout.split()[-1])


def on_pteron(command, model, inputs, folder):
    """The outputs of Pteron, and its time in milliseconds."""
    outputs = []
    for path in inputs:
        done = subprocess.run([command, "run", model, f"@{path}", "--json", "--repeat", "10", "--threads", "1", "--output", folder / "out"], check=True,
                              stdout=subprocess.PIPE)
        outputs.append(np.load(folder / "out" / "output0.npy"))
        best = json.loads(done.stdout)["latency"]["min_ms"]
    return np.stack(outputs), best


def main():
    if "--export" in sys.argv:
        return export(sys.argv[-2], pathlib.Path(sys.argv[-1]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pteron")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=pathlib.Path, help="folder to keep the exported files in, for another run")
    args = parser.parse_args()
    for name in args.names or NAMES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = args.folder / name if args.folder else pathlib.Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "theirs.pte").exists():
                subprocess.run([sys.executable, __file__, "--export", name, folder], check=True, stdout=subprocess.DEVNULL)
            compare(args.pteron, name, folder)


def compare(command, name, folder):
    compile = [command, "compile", folder / "m.pt2", "--json", "--backend", "xnnpack", "-o"]
    subprocess.run([*compile, folder / "float.pte"], check=True, stdout=subprocess.DEVNULL)
    quantize = ["--quantize", "int8", "--calibrate", folder / "samples"]
    done = subprocess.run([*compile, folder / "ours.pte", *quantize], check=True, stdout=subprocess.PIPE)
    ours = {layer["name"]: layer["weight_error"] for layer in json.loads(done.stdout)["methods"][0]["quantized"]}
    theirs = json.loads((folder / "layers.json").read_text())
    expected = np.load(folder / "expected.npy")
    inputs = [folder / f"{SAMPLES + i}.npy" for i in range(HELD_OUT)]
    print(f"\n{name}: {len(ours)} layers are quantized, {len(theirs)} by the reference\n")
    print("| program | file | error, Pteron | time | error, reference runtime | time |")
    print("| --- | --- | --- | --- | --- | --- |")
    for what, file in ("float32", "float.pte"), ("`pteron compile --quantize`", "ours.pte"), ("the reference's flow", "theirs.pte"):
        path = folder / file
        cells = [what, f"{os.path.getsize(path) / 1e6:.2f} MB"]
        for outputs, best in on_pteron(command, path, inputs, folder), on_reference(path, inputs, folder):
            cells += [f"{error(outputs, expected) * 100:.2f} %", f"{best:.1f} ms"]
        print("| " + " | ".join(cells) + " |", flush=True)
    print("\n| layer | error of weights | by the reference |\n| --- | --- | --- |")
    for (layer, mine), (_, other) in zip(ours.items(), theirs.items()):
        print(f"| {layer} | {mine * 100:.3f} % | {other * 100:.3f} % |")


if __name__ == "__main__":
    main()

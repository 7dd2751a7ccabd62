#!/usr/bin/env python3
"""Lowers public architectures with random weights to XNNPACK, and compares Pteron's outputs with the reference runtime's
and both with PyTorch in float64. Prints a table.

    python tools/reference/xnnpack_networks.py target/release/pteron [NAME[:KIND]...] [--isa avx512,avx2,portable]

KIND is fp32, int8 (static, per-channel scales), dynamic (int8 weights, inputs quantized per row) or 8da4w (4-bit weights
in groups of 32, inputs quantized per row). An error is the largest difference relative to the largest element, averaged
over several inputs. Needs torch, torchao, torchvision, timm, transformers and executorch.
"""

import argparse
import copy
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy
import torch
import torchvision
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackPartitioner,
)
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
from torch.export import export
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

# Number of inputs per network.
INPUTS = 4

# Architecture: image size or sequence length, and the kinds.
NETWORKS = {
    "squeezenet1_1": (96, "fp32 int8"),
    "shufflenet_v2_x0_5": (96, "fp32 int8"),
    "shufflenet_v2_x1_5": (96, "fp32"),
    "mnasnet0_5": (96, "fp32 int8"),
    "mnasnet1_0": (96, "fp32"),
    "mobilenet_v3_large": (96, "fp32 int8"),
    "resnet34": (96, "fp32 int8"),
    "regnet_x_400mf": (96, "fp32 int8"),
    "regnet_y_400mf": (96, "fp32"),
    "regnet_y_800mf": (96, "fp32"),
    "regnet_x_800mf": (96, "fp32"),
    "efficientnet_b0": (96, "fp32 int8"),
    "efficientnet_b1": (96, "fp32"),
    "googlenet": (96, "fp32"),
    "densenet121": (96, "fp32"),
    "resnext50_32x4d": (96, "fp32"),
    "convnext_tiny": (64, "fp32 dynamic"),
    "swin_t": (64, "fp32 dynamic"),
    "lraspp_mobilenet_v3_large": (96, "fp32"),
    "alexnet": (96, "fp32 dynamic"),
    "inception_v3": (96, "fp32"),
    "efficientnet_v2_s": (64, "fp32"),
    "timm/deit_tiny_patch16_224": (96, "fp32 dynamic"),
    "timm/ghostnet_100": (96, "fp32 int8"),
    "timm/repvgg_a0": (96, "fp32 int8"),
    "timm/mobilevit_xxs": (96, "fp32"),
    "timm/hardcorenas_a": (96, "fp32 int8"),
    "transformers/bert": (24, "fp32 dynamic 8da4w"),
    "transformers/distilbert": (24, "fp32 dynamic"),
    "transformers/gpt2": (24, "fp32"),
    "transformers/llama": (24, "fp32 8da4w"),
    "transformers/qwen2": (24, "fp32 8da4w"),
    "transformers/t5_encoder": (24, "fp32"),
}

# Small transformers: configuration class, model class and non-default options.
WIDTH, HEADS, LAYERS = 128, 4, 2
TRANSFORMERS = {
    "bert": ("BertConfig", "BertModel", {"intermediate_size": 4 * WIDTH}),
    "distilbert": ("DistilBertConfig", "DistilBertModel", {"dim": WIDTH, "n_heads": HEADS, "n_layers": LAYERS}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"intermediate_size": 3 * WIDTH, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"intermediate_size": 3 * WIDTH, "num_key_value_heads": 2}),
    "t5_encoder": ("T5Config", "T5EncoderModel", {"d_model": WIDTH, "d_kv": 32, "d_ff": 256, "num_heads": HEADS}),
}
VOCABULARY = 500


class First(torch.nn.Module):
    """Wraps a network and returns only its first output."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        y = self.network(x)
        if isinstance(y, dict):
            return y["out"] if "out" in y else next(iter(y.values()))
        return y


def transformer(name):
    import transformers

    config, model, options = TRANSFORMERS[name]
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "num_layers": LAYERS}
    common = {"vocab_size": VOCABULARY, "use_cache": False, "attn_implementation": "eager"}
    if name in ("distilbert", "gpt2", "t5_encoder"):
        sizes = {"num_layers": LAYERS} if name == "t5_encoder" else {}
    else:
        del sizes["num_layers"]
    return getattr(transformers, model)(getattr(transformers, config)(**common, **sizes, **options)).eval()


def example(name, seed):
    """A random input: an image, or token ids for transformers."""
    size = NETWORKS[name][0]
    generator = torch.Generator().manual_seed(seed)
    if name.startswith("transformers/"):
        return torch.randint(0, VOCABULARY, (1, size), generator=generator)
    return torch.randn(1, 3, size, size, generator=generator)


def network(name):
    torch.manual_seed(0)
    library, _, own = name.rpartition("/")
    if library == "transformers":
        return First(transformer(own))
    if library == "timm":
        import timm

        options = {"img_size": NETWORKS[name][0]} if own.startswith("deit") else {}
        return First(with_statistics(name, timm.create_model(own, pretrained=False, **options)))
    options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    if name in ("googlenet", "inception_v3"):
        options["aux_logits"] = False
    make = torchvision.models.segmentation if name.startswith("lraspp") else torchvision.models
    options |= {"weights_backbone": None} if name.startswith("lraspp") else {}
    return First(with_statistics(name, getattr(make, name)(weights=None, **options)))


def with_statistics(name, module):
    module = module.eval()
    # Computes batch norm statistics from random images, so that activations neither vanish nor explode.
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.momentum = None
                layer.train()
        module(torch.randn(4, 3, NETWORKS[name][0], NETWORKS[name][0]))
    return module.eval()


def lowered(module, x, kind):
    partitioner = [XnnpackPartitioner()]
    if kind == "8da4w":
        from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
        from torchao.quantization.granularity import PerGroup

        module = copy.deepcopy(module)
        quantize_(module, Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)))
    elif kind != "fp32":
        config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=kind == "dynamic")
        prepared = prepare_pt2e(export(module, (x,)).module(), XNNPACKQuantizer().set_global(config))
        prepared(x)
        module = convert_pt2e(prepared)
    if kind in ("dynamic", "8da4w"):
        partitioner.insert(0, XnnpackDynamicallyQuantizedPartitioner())
    program = to_edge_transform_and_lower(export(module, (x,)), partitioner=partitioner).to_executorch()
    return program.buffer, module


def pteron(command, folder, model, x, isa):
    numpy.save(folder / "x.npy", x.numpy())
    arguments = [command, "run", model, f"@{folder / 'x.npy'}", "--isa", isa, "--output", folder / "outputs"]
    subprocess.run(arguments, check=True, capture_output=True)
    (output,) = (folder / "outputs").glob("*.npy")
    return torch.from_numpy(numpy.load(output))


def row(command, isas, name, kind, folder):
    module = network(name)
    examples = [example(name, seed) for seed in range(1, INPUTS + 1)]
    buffer, converted = lowered(module, examples[0], kind)
    model = folder / "model.pte"
    model.write_bytes(buffer)
    loaded = _load_for_executorch_from_buffer(buffer)
    with torch.no_grad():
        eager = [(module if kind == "fp32" else converted)(x) for x in examples]
    module = module.double()
    rows = []
    for x, expected in zip(examples, eager):
        ours = [pteron(command, folder, model, x, isa) for isa in isas]
        reference = loaded.run_method("forward", [x])[0].clone()
        with torch.no_grad():
            exact = module(x.double() if x.is_floating_point() else x)
        difference = (ours[0] - reference).abs().max() / reference.abs().max()
        same = (ours[0] == reference).double().mean()
        errors = [(y.double() - exact).abs().max() / exact.abs().max() for y in (*ours, reference, expected)]
        rows.append([float(value) for value in (difference, same, *errors)])
    difference = max(row[0] for row in rows)
    same, *errors = [statistics.mean(column) for column in list(zip(*rows))[1:]]
    *ours, reference, expected = errors
    # One flipped quantized value changes a result more than the order of a float sum does.
    limit = 1e-4 if kind == "fp32" else max(reference, 0.02)
    verdict = "" if difference <= limit and max(ours) <= 1.5 * max(reference, expected) else "  <-- "
    cells = [name, kind, f"{difference:.1e}", f"{same:.0%}", *[f"{e:.1e}" for e in errors], f"{max(ours) / expected:.2f}"]
    print("| " + " | ".join(cells) + f" |{verdict}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pteron")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--isa", default="avx512,avx2,portable", help="instruction sets, separated by commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = [f"{name}:{kind}" for name, (_, kinds) in NETWORKS.items() for kind in kinds.split()]
    isas = options.isa.split(",")
    heads = ["network", "kind", "from the reference", "elements equal", *[f"error: {isa}" for isa in isas]]
    heads += ["reference", "PyTorch", "the largest / PyTorch"]
    print("| " + " | ".join(heads) + " |")
    print("| --- " * len(heads) + "|")
    for entry in options.names or every:
        name, _, kind = entry.partition(":")
        try:
            with tempfile.TemporaryDirectory() as folder:
                row(options.pteron, isas, name, kind or "fp32", pathlib.Path(folder))
        except Exception as error:
            said = getattr(error, "stderr", None) or str(error)
            said = said.decode() if isinstance(said, bytes) else said
            print(f"| {name} | {kind} | {' '.join(said.split())[:200]} |", flush=True)

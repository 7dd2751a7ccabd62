#!/usr/bin/env python3
"""Saves public architectures with `torch.export.save`, undecomposed, compiles and runs them, and compares with PyTorch.

    python tools/models/exported.py PTERON [NAME...] [--family torchvision|timm|transformers] [--markdown FILE]

Weights are random from a fixed seed. A model passes if its largest difference to PyTorch is below 1e-4 of its largest
output. Needs torch, and torchvision, timm or transformers.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch


def torchvision_models():
    import torchvision.models as m
    image = lambda n=224: (torch.randn(1, 3, n, n),)
    small = {"inception_v3": 299}
    names = """alexnet vgg11_bn resnet18 resnet50 resnext50_32x4d wide_resnet50_2 densenet121 squeezenet1_1 googlenet
    inception_v3 mobilenet_v2 mobilenet_v3_small mobilenet_v3_large shufflenet_v2_x1_0 mnasnet0_5 mnasnet1_0
    efficientnet_b0 efficientnet_v2_s regnet_y_400mf regnet_x_400mf convnext_tiny vit_b_16 swin_t swin_v2_t
    maxvit_t""".split()
    for name in names:
        kwargs = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
        yield name, lambda name=name, kwargs=kwargs: (m.get_model(name, weights=None, **kwargs),
                                                      image(small.get(name, 224)))
    yield "fcn_resnet50", lambda: (First(m.segmentation.fcn_resnet50(weights=None, weights_backbone=None)), image(128))
    yield "deeplabv3_mobilenet_v3_large", lambda: (
        First(m.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None)), image(128))
    yield "lraspp_mobilenet_v3_large", lambda: (
        First(m.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)), image(128))
    yield "r2plus1d_18", lambda: (m.video.r2plus1d_18(weights=None), (torch.randn(1, 3, 4, 64, 64),))


def timm_models():
    import timm
    names = """resnet10t mixer_s16_224 deit_tiny_patch16_224 vit_tiny_patch16_224 mobilevit_xxs convmixer_768_32
    gmlp_s16_224 resmlp_12_224 levit_128s poolformer_s12 cait_xxs24_224 coat_lite_tiny crossvit_tiny_240 edgenext_xx_small
    efficientformer_l1 ghostnet_100 hardcorenas_a lcnet_050 mobilenetv4_conv_small nfnet_l0 pit_ti_224 repvgg_a0
    rexnet_100 tinynet_e visformer_tiny xcit_nano_12_p16_224 botnet26t_256 cspresnet50 dla34 dpn48b""".split()
    for name in names:
        def make(name=name):
            model = timm.create_model(name, pretrained=False)
            return model, (torch.randn(1, *model.default_cfg["input_size"]),)
        yield name, make


def transformers_models():
    import transformers as t
    ids = lambda: (torch.randint(0, 100, (1, 16)),)
    small = dict(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    text = {
        "bert": (t.BertConfig, t.BertModel, small), "roberta": (t.RobertaConfig, t.RobertaModel, small),
        "electra": (t.ElectraConfig, t.ElectraModel, small), "albert": (t.AlbertConfig, t.AlbertModel, small),
        "distilbert": (t.DistilBertConfig, t.DistilBertModel,
                       dict(vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=64)),
        "gpt2": (t.GPT2Config, t.GPT2LMHeadModel, dict(vocab_size=100, n_embd=32, n_layer=2, n_head=4)),
        "opt": (t.OPTConfig, t.OPTForCausalLM,
                dict(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64)),
        "llama": (t.LlamaConfig, t.LlamaForCausalLM, small), "mistral": (t.MistralConfig, t.MistralForCausalLM, small),
        "qwen2": (t.Qwen2Config, t.Qwen2ForCausalLM, small), "gemma": (t.GemmaConfig, t.GemmaForCausalLM, small),
        "phi": (t.PhiConfig, t.PhiForCausalLM, small), "t5_encoder": (
            t.T5Config, t.T5EncoderModel, dict(vocab_size=100, d_model=32, num_layers=2, num_heads=4, d_ff=64)),
        "mpnet": (t.MPNetConfig, t.MPNetModel, small), "deberta_v2": (t.DebertaV2Config, t.DebertaV2Model, small),
    }
    for name, (config, model, kwargs) in text.items():
        def make(config=config, model=model, kwargs=kwargs):
            return First(model(config(use_cache=False, **kwargs)), plain=False), ids()
        yield name, make


class First(torch.nn.Module):
    """The first output of a model that gives a dictionary."""

    def __init__(self, model, plain=True):
        super().__init__()
        self.model, self.plain = model, plain

    def forward(self, x):
        out = self.model(x)
        return out["out"] if self.plain else out[0]


FAMILIES = {"torchvision": torchvision_models, "timm": timm_models, "transformers": transformers_models}


def check(pteron, name, make, work):
    torch.manual_seed(0)
    model, inputs = make()
    model = model.eval()
    with torch.no_grad():
        expected = model(*inputs)
        try:
            exported = torch.export.export(model, inputs, strict=False)
        except Exception as e:
            return f"torch.export: {str(e).splitlines()[0][:80]}", {}
    archive, program, out = work / "m.pt2", work / "m.pte", work / "out"
    torch.export.save(exported, archive)
    args = []
    for i, x in enumerate(inputs):
        np.save(work / f"{i}.npy", x.numpy())
        args.append(f"@{work / f'{i}.npy'}")
    start = time.time()
    run = subprocess.run([pteron, "compile", archive, "-o", program], capture_output=True, text=True)
    seconds = time.time() - start
    if run.returncode:
        return run.stderr.strip(), {}
    worst = 0.0
    for file in (program, archive):
        run = subprocess.run([pteron, "run", file, *args, "--output", out], capture_output=True, text=True)
        if run.returncode:
            return run.stderr.strip(), {}
        found = np.load(sorted(out.glob("*.npy"))[0])
        largest = expected.abs().max().item() or 1.0
        worst = max(worst, float(np.abs(found - expected.numpy()).max()) / largest)
    return ("equal" if worst < 1e-4 else "differs"), {
        "nodes": len(list(exported.graph.nodes)), "difference": worst, "seconds": seconds,
        "archive": archive.stat().st_size}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pteron")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--family", choices=FAMILIES, default="torchvision")
    parser.add_argument("--markdown", type=pathlib.Path)
    args = parser.parse_args()
    rows, passed, total = [], 0, 0
    for name, make in FAMILIES[args.family]():
        if args.names and name not in args.names:
            continue
        with tempfile.TemporaryDirectory() as work:
            try:
                what, facts = check(args.pteron, name, make, pathlib.Path(work))
            except Exception as e:
                what, facts = f"{type(e).__name__}: {str(e)[:200]}", {}
        total += 1
        passed += what == "equal"
        print(name, what, facts, flush=True)
        rows.append(f"| {name} | {facts.get('nodes', '')} | {facts.get('difference', float('nan')):.1e} | "
                    f"{facts.get('seconds', float('nan')):.2f} | {what.splitlines()[0] if what else ''} |")
    print(f"{passed} of {total} equal")
    if args.markdown:
        head = ["| model | nodes | largest difference | seconds to compile | |", "| --- | --- | --- | --- | --- |"]
        args.markdown.write_text("\n".join(head + rows) + "\n")
    return int(passed != total)


if __name__ == "__main__":
    sys.exit(main())

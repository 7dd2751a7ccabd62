#!/usr/bin/env python3
"""Exports public architectures without decompositions, compiles and runs them with Pteron, and compares with PyTorch.

    python tools/models/exported.py PTERON [NAME...] [--family torchvision|timm|transformers] [--markdown FILE]

Weights are random with a fixed seed. A model passes if its largest difference from PyTorch is below 1e-4 of its largest
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
    rexnet_100 tinynet_e visformer_tiny xcit_nano_12_p16_224 botnet26t_256 cspresnet50 dla34 dpn48b eca_nfnet_l0
    efficientvit_b0 fastvit_t8 focalnet_tiny_srf gcvit_xxtiny halonet26t hgnetv2_b0 inception_next_tiny maxvit_rmlp_pico_rw_256
    mobileone_s0 nest_tiny pvt_v2_b0 repghostnet_050 res2net50_26w_4s sebotnet33ts_256 selecsls42 skresnet18 tf_efficientnet_lite0
    tiny_vit_5m_224 tresnet_m twins_pcpvt_small vgg11 volo_d1_224 davit_tiny hiera_tiny_224 eva02_tiny_patch14_224 mambaout_femto
    starnet_s1 rdnet_tiny sequencer2d_s beit_base_patch16_224 convit_tiny""".split()
    for name in names:
        def make(name=name):
            model = timm.create_model(name, pretrained=False)
            return model, (torch.randn(1, *model.default_cfg["input_size"]),)
        yield name, make


def transformers_models():
    import transformers as t
    ids = lambda: (torch.randint(0, 100, (1, 16)),)
    image = lambda n=32: (torch.randn(1, 3, n, n),)
    heads = dict(num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    small = dict(vocab_size=100, hidden_size=32, **heads)
    grouped = dict(num_key_value_heads=2, head_dim=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, **small)
    pixels = dict(hidden_size=32, image_size=32, patch_size=8, **heads)
    plain = lambda **more: dict(vocab_size=100, pad_token_id=0, bos_token_id=1, eos_token_id=2, **more)
    gpt = plain(n_embd=32, n_layer=2, n_head=4)
    models = {
        "bert": ("Bert", "Model", small, ids), "roberta": ("Roberta", "Model", small, ids),
        "electra": ("Electra", "Model", small, ids), "albert": ("Albert", "Model", small, ids),
        "distilbert": ("DistilBert", "Model", plain(dim=32, n_layers=2, n_heads=4, hidden_dim=64), ids),
        "mpnet": ("MPNet", "Model", small, ids), "deberta_v2": ("DebertaV2", "Model", small, ids),
        "layoutlm": ("LayoutLM", "Model", small, ids), "fnet": ("FNet", "Model", small, ids),
        "squeezebert": ("SqueezeBert", "Model", dict(embedding_size=32, **small), ids),
        "xlm_roberta": ("XLMRoberta", "Model", small, ids), "convbert": ("ConvBert", "Model", small, ids),
        "gpt2": ("GPT2", "LMHeadModel", gpt, ids), "gptj": ("GPTJ", "ForCausalLM", dict(rotary_dim=4, **gpt), ids),
        "gpt_neo": ("GPTNeo", "ForCausalLM", plain(hidden_size=32, num_layers=2, num_heads=4,
                                                   attention_types=[[["global", "local"], 1]]), ids),
        "gpt_neox": ("GPTNeoX", "ForCausalLM", dict(bos_token_id=1, eos_token_id=2, **small), ids),
        "opt": ("OPT", "ForCausalLM", plain(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
                                            word_embed_proj_dim=32), ids),
        "bloom": ("Bloom", "ForCausalLM", plain(hidden_size=32, n_layer=2, n_head=4), ids),
        "llama": ("Llama", "ForCausalLM", grouped, ids), "mistral": ("Mistral", "ForCausalLM", grouped, ids),
        "mixtral": ("Mixtral", "ForCausalLM", dict(num_local_experts=4, **grouped), ids),
        "qwen2": ("Qwen2", "ForCausalLM", grouped, ids), "qwen3": ("Qwen3", "ForCausalLM", grouped, ids),
        "gemma": ("Gemma", "ForCausalLM", grouped, ids), "gemma2": ("Gemma2", "ForCausalLM", grouped, ids),
        "gemma3": ("Gemma3Text", "ForCausalLM:Gemma3", grouped, ids), "olmo2": ("Olmo2", "ForCausalLM", grouped, ids),
        "smollm3": ("SmolLM3", "ForCausalLM", grouped, ids), "granite": ("Granite", "ForCausalLM", grouped, ids),
        "cohere": ("Cohere", "ForCausalLM", grouped, ids), "starcoder2": ("Starcoder2", "ForCausalLM", grouped, ids),
        "stablelm": ("StableLm", "ForCausalLM", grouped, ids), "phi": ("Phi", "ForCausalLM", grouped, ids),
        "phi3": ("Phi3", "ForCausalLM", grouped, ids), "mamba": ("Mamba", "ForCausalLM", plain(
            hidden_size=32, num_hidden_layers=2, state_size=8), ids),
        "t5_encoder": ("T5", "EncoderModel", plain(d_model=32, num_layers=2, num_heads=4, d_ff=64, d_kv=8), ids),
        "vit": ("ViT", "Model", pixels, image), "deit": ("DeiT", "Model", pixels, image),
        "beit": ("Beit", "Model", pixels, image), "dinov2": ("Dinov2", "Model", pixels, image),
        "siglip": ("SiglipVision", "Model", pixels, image), "clip_vision": ("CLIPVision", "Model", pixels, image),
        "clip_text": ("CLIPText", "Model", plain(**{**heads, "hidden_size": 32}), ids),
        "convnext": ("ConvNext", "Model", dict(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32]), lambda: image(64)),
        "convnextv2": ("ConvNextV2", "Model", dict(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32]), lambda: image(64)),
        "segformer": ("Segformer", "ForSemanticSegmentation", dict(
            depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], decoder_hidden_size=16), lambda: image(64)),
        "swin": ("Swin", "Model", dict(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4],
                                       window_size=4), image),
        "mobilevit": ("MobileViT", "Model", dict(image_size=64, initializer_range=0.2), lambda: image(64)),
        "mobilenet_v2": ("MobileNetV2", "Model", dict(depth_multiplier=0.35), lambda: image(64)),
        "poolformer": ("PoolFormer", "Model", dict(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32]), lambda: image(64)),
        "resnet": ("ResNet", "Model", dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]), image),
        "regnet": ("RegNet", "Model", dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=8), image),
        "dpt": ("DPT", "ForDepthEstimation", dict(
            hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
            backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8), image),
        "wav2vec2": ("Wav2Vec2", "Model", dict(
            vocab_size=32, conv_dim=(8, 8, 8), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4, hidden_size=32, **heads), lambda: (torch.randn(1, 1600),)),
        "whisper_encoder": ("Whisper", "encoder", dict(
            d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=50, vocab_size=100,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1), lambda: (torch.randn(1, 16, 100),)),
    }
    for name, (family, kind, kwargs, inputs) in models.items():
        def make(family=family, kind=kind, kwargs=kwargs, inputs=inputs):
            config = getattr(t, f"{family}Config")(**kwargs)
            config.use_cache = False
            if kind == "encoder":
                return First(getattr(t, f"{family}Model")(config).encoder, plain=False), inputs()
            head, _, other = kind.partition(":")
            return First(getattr(t, (other or family) + head)(config), plain=False), inputs()
        yield name, make


class First(torch.nn.Module):
    """Wraps a model to return its first output (with `plain`, the entry "out")."""

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

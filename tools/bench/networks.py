"""The networks that compare.py measures, with random weights of a fixed seed, exported twice.

`export(name, folder)` writes `folder/name/plain.pte` (without delegates), `lowered.pte` (with all
operators that XNNPACK supports delegated to it), the inputs as `input0.npy`, ..., and PyTorch's
outputs as `expected0.npy`, .... An existing export is reused.
"""

import math

import numpy as np
import torch
from torch import nn

SEED = 20


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x, cos, sin):
    """Rotary embedding of [batch, time, heads, width]: the two halves of `width` are the coordinates."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    def __init__(self, width, hidden, heads, kv_heads, context, cached):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.size, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.size, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.cached = cached
        if cached:
            self.register_buffer("k_cache", torch.zeros(1, context, kv_heads, self.size))
            self.register_buffer("v_cache", torch.zeros(1, context, kv_heads, self.size))

    def forward(self, x, cos, sin, mask, position):
        batch, time, width = x.shape
        h = self.norm1(x)
        q = rotate(self.wq(h).view(batch, time, self.heads, self.size), cos, sin)
        k = rotate(self.wk(h).view(batch, time, self.kv_heads, self.size), cos, sin)
        v = self.wv(h).view(batch, time, self.kv_heads, self.size)
        if self.cached:
            self.k_cache.index_copy_(1, position, k)
            self.v_cache.index_copy_(1, position, v)
            k, v = self.k_cache, self.v_cache
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.kv_heads != self.heads:
            k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
            v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        scores = q @ k.transpose(2, 3) / math.sqrt(self.size) + mask
        y = (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(batch, time, width)
        x = x + self.wo(y)
        h = self.norm2(x)
        return x + self.w2(nn.functional.silu(self.w1(h)) * self.w3(h))


class Llama(nn.Module):
    """A Llama decoder; with `cached`, one step with a KV cache, for the tokens at `position`."""

    def __init__(self, width, hidden, layers, heads, kv_heads, vocabulary, context, cached):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        blocks = [Block(width, hidden, heads, kv_heads, context, cached) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        angles = torch.arange(context)[:, None] * (10000.0 ** (-torch.arange(half) / half))[None]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        mask = torch.full((context, context), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens, position):
        x = self.embed(tokens)
        cos, sin = self.cos[position][None, :, None], self.sin[position][None, :, None]
        mask = self.mask[position]
        for block in self.blocks:
            x = block(x, cos, sin, mask, position)
        return self.output(self.norm(x[:, -1:]))


def image(size=224):
    return (torch.randn(1, 3, size, size),)


def torchvision_model(name):
    def make():
        import torchvision

        return torchvision.models.get_model(name, weights=None), image()

    return make


def vit_tiny():
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(224, 16, 12, 3, 192, 768), image()


def llama(cached):
    def make():
        time = 1 if cached else 64
        context = 256 if cached else time
        model = Llama(512, 1376, 8, 8, 4, 8000, context, cached)
        positions = torch.arange(100, 101) if cached else torch.arange(time)
        return model, (torch.randint(0, 8000, (1, time)), positions)

    return make


class UNet(nn.Module):
    """Three levels of two convolutions with batch norm; bilinear upsampling and skip connections on the way up."""

    def __init__(self, channels=(32, 64, 128)):
        super().__init__()
        pairs = zip((3, *channels), channels)
        self.down = nn.ModuleList(self.convolutions(before, after) for before, after in pairs)
        ups = reversed(list(zip(channels, channels[1:])))
        self.up = nn.ModuleList(self.convolutions(low + high, low) for low, high in ups)
        self.head = nn.Conv2d(channels[0], 2, 1)

    @staticmethod
    def convolutions(before, after):
        layers = []
        for width in (before, after):
            layers += [nn.Conv2d(width, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x):
        levels = []
        for level in self.down:
            x = level(nn.functional.max_pool2d(x, 2) if levels else x)
            levels.append(x)
        for level, skip in zip(self.up, reversed(levels[:-1])):
            x = nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
            x = level(torch.cat([x, skip], dim=1))
        return self.head(x)


class Recurrent(nn.Module):
    """A two-layer recurrent network over a sequence, with a classifier on its last step."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell(64, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 32)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Encoder(nn.Module):
    """The encoder of BERT without its pooler: from tokens to hidden states."""

    def __init__(self):
        super().__init__()
        import transformers

        config = transformers.BertConfig(
            vocab_size=8000, hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536
        )
        self.model = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, tokens):
        return self.model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state


NETWORKS = {
    "mobilenet_v2": torchvision_model("mobilenet_v2"),
    "mobilenet_v3_small": torchvision_model("mobilenet_v3_small"),
    "resnet18": torchvision_model("resnet18"),
    "resnet50": torchvision_model("resnet50"),
    "vit_tiny": vit_tiny,
    "vit_b_16": torchvision_model("vit_b_16"),
    "llama_prefill": llama(False),
    "llama_decode": llama(True),
    "bert": lambda: (Encoder(), (torch.randint(0, 8000, (1, 128)),)),
    "lstm": lambda: (Recurrent(nn.LSTM), (torch.randn(1, 32, 64),)),
    "gru": lambda: (Recurrent(nn.GRU), (torch.randn(1, 32, 64),)),
    "unet": lambda: (UNet(), image(128)),
}


def spread_norms(model):
    """Randomizes the statistics of batch norms as if trained: with fresh ones, all images would give similar outputs."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)


def fill_heads(model):
    """Randomizes linear layers that are initialized to zero, such as classifiers of vision transformers: otherwise all
    outputs would be zero."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.05)


def make(name):
    """The network in evaluation mode, and its inputs. A name that is not in `NETWORKS` is torchvision's."""
    torch.manual_seed(SEED)
    model, inputs = NETWORKS.get(name, torchvision_model(name))()
    model.eval()
    spread_norms(model)
    fill_heads(model)
    return model, inputs


def export(name, folder):
    target = folder / name
    if (target / "done").exists():
        return target
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    target.mkdir(parents=True, exist_ok=True)
    model, inputs = make(name)
    for partitioners, file in [([], "plain.pte"), ([XnnpackPartitioner()], "lowered.pte")]:
        program = torch.export.export(model, inputs, strict=True)
        edge = to_edge_transform_and_lower(program, partitioner=partitioners)
        with open(target / file, "wb") as out:
            edge.to_executorch().write_to_file(out)
    for i, value in enumerate(inputs):
        np.save(target / f"input{i}.npy", value.numpy())
    with torch.no_grad():
        np.save(target / "expected0.npy", model(*inputs).numpy())
    (target / "done").touch()
    return target

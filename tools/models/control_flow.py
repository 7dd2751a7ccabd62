"""Models with control flow, state and dynamic shapes, as in applications: functions that return a module, its inputs,
further inputs to run it on, and the dynamic shapes."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._higher_order_ops import associative_scan, cond, map, scan, while_loop
from torch.export import Dim

PROGRAMS = {}


def program(*inputs, dynamic=None, more=()):
    def note(cls):
        PROGRAMS[cls.__name__] = lambda: (cls(), inputs, more, dynamic)
        return cls
    return note


def r(*sizes):
    return torch.randn(*sizes)


@program(torch.tensor([3]), r(1, 16), more=[(torch.tensor([7]), r(1, 16))])
class GreedyDecoder(nn.Module):
    """Greedy decoding in a loop, until the end token or the maximum length."""

    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(20, 16), nn.GRUCell(16, 16), nn.Linear(16, 20)

    def forward(self, start, state):
        def goes_on(n, token, state, tokens):
            return (n < 8) & (token[0] != 0)

        def step(n, token, state, tokens):
            state = self.cell(self.embed(token), state)
            token = self.head(state).argmax(-1)
            return n + 1, token, state, torch.where(torch.arange(8) == n, token, tokens)

        n, _, state, tokens = while_loop(goes_on, step, (torch.tensor(0), start, state, torch.zeros(8, dtype=torch.long)))
        return n, tokens, state


@program(r(2, 16), more=[(r(2, 16) * 9,), (r(2, 16) * -9,)])
class EarlyExit(nn.Module):
    """Nested branches that capture parameters and outer values."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        h = self.first(x).relu()

        def deeper(h):
            g = self.second(h).tanh()
            return cond(g.sum() > 0, lambda g, h: self.third(g) + h, lambda g, h: g * 2 - h, (g, h))

        return cond(h.mean() > 0.5, lambda h: h * 1.5, deeper, (h,))


@program(r(10, 3, 8), r(3, 12), r(3, 12))
class ScannedLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(8, 12)

    def forward(self, x, h, c):
        def step(state, x):
            h, c = self.cell(x, state)
            return (h.clone(), c.clone()), (h.clone(), h.sum(-1))
        (h, c), (rows, sums) = scan(step, (h, c), x)
        _, (back, _) = scan(step, (h, c), x, reverse=True)
        return h, c, rows, sums, back


@program(r(5, 7, 16), r(16))
class MappedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x, bias):
        return map(lambda row, bias: self.attention(row[None] + bias, row[None], row[None])[0][0], x, bias)


@program(r(6), more=[(r(6) * 5,)])
class Newton(nn.Module):
    def forward(self, x):
        target = x.abs() + 1

        def goes_on(y, n):
            return ((y * y - target).abs().max() > 1e-4) & (n < 50)

        def step(y, n):
            return cond(n % 2 == 0, lambda y: 0.5 * (y + target / y), lambda y: y - (y * y - target) / (2 * y), (y,)), n + 1

        return while_loop(goes_on, step, (target.clone(), torch.tensor(0)))


@program(r(4, 6), torch.tensor(True), more=[(r(9, 6), torch.tensor(False)), (r(1, 6), torch.tensor(True))],
         dynamic=({0: Dim("rows", min=1, max=16)}, None))
class DynamicBranch(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(r(6, 6))

    def forward(self, x, flag):
        return cond(flag, lambda x: x @ self.weight, lambda x: (x - x.mean(0)).relu(), (x,)) + x.shape[0]


@program(r(12, 4), r(12, 4))
class AssociativeScan(nn.Module):
    def forward(self, a, b):
        def combine(x, y):
            return x[0] * y[0], x[1] * y[0] + y[1]
        return associative_scan(combine, (a.sigmoid(), b), dim=0, combine_mode="generic")


@program(r(1, 3, 24, 20), more=[(r(1, 3, 32, 48),), (r(1, 3, 8, 8),)],
         dynamic=({2: 4 * Dim("h", min=2, max=16), 3: 4 * Dim("w", min=2, max=16)},))
class UNet(nn.Module):
    """A U-Net on images of dynamic sizes."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 2, 1)])
        self.norm, self.up, self.head = nn.GroupNorm(4, 16), nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(24, 2, 1)

    def forward(self, x):
        a = self.down[0](x).relu()
        b = self.down[1](a).relu()
        c = self.norm(self.down[2](b)).relu()
        b = b + self.up(c)
        up = F.interpolate(b, size=a.shape[2:], mode="bilinear", align_corners=False)
        y = self.head(torch.cat([a, up], 1))
        return y, F.adaptive_avg_pool2d(y, 1).flatten(1), F.interpolate(y, scale_factor=2, mode="nearest")


@program(r(2, 10, 16), torch.tensor([10, 6]), more=[(r(2, 4, 16), torch.tensor([3, 4]))],
         dynamic=({1: Dim("time", min=2, max=32)}, None))
class PaddedTransformer(nn.Module):
    """An encoder over padded sequences, with positions and masks computed from the dynamic size."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True), 2)
        self.positions = nn.Embedding(32, 16)

    def forward(self, x, lengths):
        t = torch.arange(x.shape[1])
        mask = t[None] >= lengths[:, None]
        y = self.encoder(x + self.positions(t), src_key_padding_mask=mask)
        return (y * ~mask[..., None]).sum(1) / lengths[:, None]


@program(r(2, 7, 16), r(2, 5, 16))
class WholeTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Transformer(16, 4, 2, 2, 32, batch_first=True)

    def forward(self, source, target):
        return self.net(source, target, tgt_mask=nn.Transformer.generate_square_subsequent_mask(5), tgt_is_causal=True)


@program(torch.randint(0, 30, (2, 9)), more=[(torch.randint(0, 30, (2, 4)),)], dynamic=({1: Dim("n", min=2, max=20)},))
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 12, 2, batch_first=True, bidirectional=True, proj_size=6)
        self.gru = nn.GRU(12, 10, batch_first=True)

    def forward(self, x):
        y, (h, c) = self.lstm(self.embed(x))
        return y, h, c, self.gru(y)[1]


@program(r(1, 16, 4), torch.tensor(3), more=[(r(1, 16, 4), torch.tensor(9))])
class Prefix(nn.Module):
    """A data-dependent size."""

    def forward(self, x, n):
        n = n.item()
        torch._check(n >= 1)
        torch._check(n <= 16)
        return x[:, :n].sum(1), F.pad(x[:, :n], (0, 0, 0, 16 - n)), torch.arange(n) * 2


@program(r(3, 8), more=[(r(3, 8),), (r(3, 8),)])
class Running(nn.Module):
    """State that persists between executions: a ring buffer of rows, a counter and a moving average."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ring", torch.zeros(4, 8))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x):
        self.ring[self.count % 4] = x.mean(0)
        self.count += 1
        self.average.mul_(0.9).add_(x[0], alpha=0.1)
        return self.ring.clone(), self.average * 2, self.count + 0


@program(r(2, 4, 12, 12))
class Unusual(nn.Module):
    """Rarely used layers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 8, 3, padding="same", padding_mode="circular"))
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 1))
        self.norm = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        self.bag, self.lrn, self.soft = nn.EmbeddingBag(10, 4, mode="max"), nn.LocalResponseNorm(3), nn.Softmax2d()

    def forward(self, x):
        y = self.norm(self.spectral(self.conv(x)))
        small, places = self.pool(y)
        y = y + self.unpool(small, places)
        patches = F.unfold(y, 3, stride=3)
        folded = F.fold(patches, (12, 12), 3, stride=3)
        return (self.lrn(folded), self.soft(small), self.bag(torch.tensor([[1, 2], [3, 4]])), F.pixel_unshuffle(y, 2),
                F.grid_sample(y, F.affine_grid(torch.eye(2, 3).expand(2, 2, 3), (2, 8, 5, 5), align_corners=False),
                              align_corners=False), F.cosine_similarity(y[:, :4], y[:, 4:]), F.channel_shuffle(y, 2))


@program(r(2, 8, 16), more=[(r(2, 3, 16),)], dynamic=({1: Dim("rows", max=64)},))
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        return x + torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)


@program(r(6, 5), torch.tensor([1, 0, 2]))
class Vectorized(nn.Module):
    """Functions vectorized over rows (vmap), and gradients."""

    def forward(self, x, i):
        distance = torch.vmap(torch.vmap(lambda a, b: (a - b).norm(), (None, 0)), (0, None))
        slope = torch.func.grad(lambda a: a.tanh().square().sum())
        return distance(x, x[i]), torch.vmap(slope)(x)


def programs():
    for name, make in PROGRAMS.items():
        yield name, make


def decoders():
    """Language models with static caches, as users export them: run with a prompt, then one token at a time."""
    for name in ("llama qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 mistral olmo2 smollm3 gpt2 gpt_neox opt granite cohere2 "
                 "exaone4 stablelm starcoder2 glm4 qwen3_moe gpt_oss ernie4_5 lfm2 falcon").split():
        yield f"{name}-decoder", lambda name=name: decoder(name)
    for name in "t5 bart whisper marian mbart".split():
        yield f"{name}-decoder", lambda name=name: translator(name)


def decoder(name):
    from shrunk import shrunk, widen
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, GenerationConfig
    from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM as Exportable
    net = AutoModelForCausalLM.from_config(shrunk(CONFIG_MAPPING[name])).eval()
    widen(net)
    net.generation_config = GenerationConfig(use_cache=True, cache_implementation="static",
                                             cache_config={"batch_size": 1, "max_cache_len": 32})
    module = Exportable(net, batch_size=1, max_cache_len=32).model
    tokens = lambda start, n: (torch.randint(3, 90, (1, n)), torch.arange(start, start + n))
    n = Dim("tokens", min=1, max=31)
    return Keywords(module, ["input_ids", "cache_position"]), tokens(0, 6), [tokens(6, 1), tokens(7, 1)], {"args": ({1: n}, {0: n})}


def translator(name):
    from shrunk import shrunk, widen
    from transformers import CONFIG_MAPPING, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq
    from transformers.integrations.executorch import Seq2SeqLMDecoderExportableModuleWithStaticCache as Exportable
    config = shrunk(CONFIG_MAPPING[name])
    head = AutoModelForSpeechSeq2Seq if name == "whisper" else AutoModelForSeq2SeqLM
    net = head.from_config(config).eval()
    widen(net)
    if name == "whisper":
        net.lm_head = net.proj_out
    module = Exportable(net, max_static_cache_length=32, batch_size=1)
    step = lambda n, rows: (torch.tensor([[5 + n]]), r(1, rows, config.d_model), torch.tensor([n]))
    return Keywords(module), step(0, 10), [step(0, 7)], {"args": (None, {1: Dim("rows", min=2, max=48)}, None)}


class Keywords(nn.Module):
    """Wraps a module to pass its tensors by name."""

    def __init__(self, module, names=None):
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *args):
        return self.module(**dict(zip(self.names, args))) if self.names else self.module(*args)

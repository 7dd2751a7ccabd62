#!/usr/bin/env python3
"""Writes torch.export archives of small modules with what PyTorch computes: conformance cases for the compiler.

    python tools/reference/archives.py FOLDER [NAME...]
    pteron verify --archives FOLDER

Each module is saved as `torch.export.export` gives it, without decompositions. Needs torch.
"""

import json
import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim, export, save

CASES = {}


def case(*inputs, dynamic=None, more=()):
    """A module that is a function of tensors, its inputs, and further inputs to run it on."""
    def note(f):
        class Module(nn.Module):
            def forward(self, *args):
                return f(*args)
        CASES[f.__name__] = (lambda: f() if isinstance(f, type) else Module(), inputs, dynamic, more)
        return f
    return note


def r(*sizes):
    return torch.randn(*sizes)


@case(r(2, 3, 4), r(4, 5))
def products(a, b):
    return a @ b, torch.matmul(a, r(2, 4, 6) * 0 + 1), torch.einsum("bij,jk->bki", a, b), torch.mv(b.T, b[:, 0])


@case(r(2, 3, 4), r(2, 5, 4), r(3, 4))
def einsums(a, b, c):
    return (torch.einsum("bik,bjk->bij", a, b), torch.einsum("bik,bjk->ij", a, b), torch.einsum("...k,ik->...i", a, c),
            torch.einsum("bik->ki", a), F.bilinear(a[0], b[0, :3], torch.ones(2, 4, 4)))


@case(r(2, 8, 6, 6))
def activations(x):
    return (F.silu(x), F.mish(x), F.hardswish(x), F.hardsigmoid(x), F.softplus(x, 2.0, 3.0), F.relu6(x), F.selu(x),
            F.celu(x, 0.7), F.logsigmoid(x), F.softsign(x), F.tanhshrink(x), F.hardshrink(x), F.softshrink(x),
            F.threshold(x, 0.1, -1.0), F.prelu(x, torch.full((8,), 0.3)), F.glu(x, 1), F.gelu(x, approximate="tanh"))


@case(r(2, 3, 8), r(2, 3, 8))
def arithmetic(a, b):
    return (torch.addcmul(a, a, b, value=0.5), torch.addcdiv(a, a, b.abs() + 1), torch.lerp(a, b, 0.3),
            torch.rsub(a, 2.0), a.square(), a.clamp_min(0.1), torch.clamp_max(a, b), torch.exp2(a), torch.erfc(a),
            torch.isfinite(a / (b * 0)), torch.nan_to_num(a / (b * 0)), torch.logaddexp(a, b), torch.frac(a),
            torch.where(a > 0, 1.0, b), a.masked_fill(b > 0, float("-inf")), torch.hypot(a, b), torch.xlogy(a, b.abs()))


@case(torch.arange(6).reshape(2, 3), r(2, 3), torch.tensor([[True, False, True], [False, True, True]]))
def promotion(i, f, b):
    return i + f, i / 2, i * 1.5, b + i, i // 2, i % 4, torch.maximum(i, b), i == f, (f > 0) | b, i.to(torch.float64) + f, \
        f.half() + 1, 2 ** i, torch.where(b, i, f), i - b.to(torch.int32), -i, f.double() * i


@case(r(2, 3, 4, 5))
def reductions(x):
    return (x.var(1), x.std((2, 3), keepdim=True), torch.var_mean(x, 1, correction=0)[0], x.norm(dim=2), x.logsumexp(3),
            torch.linalg.vector_norm(x, 3.0, dim=1), (x > 0).all(), (x > 0).all(1), x.mean(), x.sum((0, 2)), x.amax((1, 2)),
            torch.count_nonzero(x > 0, 1), x.prod(1), x.argmax(2), torch.aminmax(x, dim=1)[1], x.max(3)[1], x.min())


@case(r(2, 6, 4))
def shapes(x):
    a, b, c = x.chunk(3, 1)
    d, e = x.split([1, 3], 2)
    return (torch.stack([a, b, c]), d.squeeze(-1), e.movedim(1, 0), x.unflatten(1, (2, 3)), x.flatten(1), x.repeat(1, 2, 1),
            x.repeat_interleave(2, 1), x.tile(2, 1, 1), x.roll(2, 1), x.roll((1, 2), (0, 1)), torch.hstack([a, b]), x.flip(1),
            x.narrow(1, 1, 3), x.unbind(0)[1], torch.cat([d, e, d], 2), x.expand(3, 2, 6, 4), x.swapaxes(0, 2), x.triu(1),
            x.tril(), x.diagonal(0, 1, 2), x.unfold(1, 3, 2), F.pad(x, (1, 2)), F.pad(x, (1, 2), mode="reflect"),
            F.pad(x, (1, 1), mode="circular"), F.pixel_shuffle(x.reshape(2, 4, 3, 2), 2), x[:, ::2, -1], x.mT)


@case(torch.arange(4), r(5, 3))
def factories(i, x):
    return (torch.zeros(2, 3), torch.ones_like(x), x.new_full((2,), 7.0), torch.arange(1, 9, 2), torch.eye(3),
            torch.linspace(0, 1, 7), F.one_hot(i, 5), torch.full((2, 2), 3), torch.arange(0.0, 1.0, 0.25), x.new_zeros(3),
            torch.scalar_tensor(2.5), torch.meshgrid(i, i, indexing="ij")[1], torch.triu(torch.ones(3, 3), 1))


@case(r(6, 4), torch.tensor([0, 2, 5]), r(3, 4))
def indices(x, i, v):
    return (x[i], x[:, [1, 0]], x.index_select(0, i), x.gather(1, torch.tensor([[0], [1], [2], [3], [0], [1]])),
            x.scatter(0, i.unsqueeze(1), v), x.index_put((i,), v), x.index_add(0, i, v) if False else x, x.sort(0)[0],
            x.argsort(1, descending=True), torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), x.take(i),
            torch.take_along_dim(x, torch.zeros(6, 1, dtype=torch.long), 1), x.index_copy(0, i, v), x.topk(2)[1])


@case(r(2, 4, 6, 8))
def pools(x):
    return (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 4)),
            F.adaptive_avg_pool2d(x, (4, 3)), F.max_pool1d(x[0], 3, 2, 1), F.avg_pool1d(x[0], 2), F.adaptive_max_pool2d(x, 2),
            F.interpolate(x, scale_factor=2), F.interpolate(x, (5, 7), mode="bilinear"), F.interpolate(x[0], 16),
            F.interpolate(x, (11, 9), mode="bilinear", align_corners=True), F.adaptive_avg_pool1d(x[0], 4))


@case(r(2, 4, 8))
class layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(4, 6, 3, padding="same"), nn.ConvTranspose1d(6, 4, 3, 2, 1)
        self.c3 = nn.Conv2d(1, 2, (3, 2), padding="same", groups=1)
        self.n = nn.ModuleList([nn.LayerNorm(8), nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.InstanceNorm1d(4, affine=True),
                                nn.RMSNorm(8)])
        self.d, self.e = nn.Dropout(), nn.Embedding(10, 3)

    def forward(self, x):
        y = self.c2(F.relu(self.c1(x)))
        return y, self.c3(x.unsqueeze(1)), *[n(x) for n in self.n], self.d(x), self.e((x > 0).long()), self.c1(x[0])


@case(r(1, 5, 4))
class recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True)
        self.g, self.r = nn.GRU(4, 3, 2), nn.RNN(4, 3, nonlinearity="relu")
        self.c, self.d = nn.LSTMCell(4, 3), nn.GRUCell(4, 3)

    def forward(self, x):
        y, (h, c) = self.l(x)
        return y, h, c, *self.g(x), *self.r(x[0]), *self.c(x[:, 0]), self.d(x[:, 0])


@case(r(1, 4, 5, 8), r(1, 2, 5, 8), r(1, 2, 5, 8))
def attention(q, k, v):
    a = F.scaled_dot_product_attention
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    return (a(q, k, v, enable_gqa=True), a(q, q, q, is_causal=True), a(q, q, q, attn_mask=mask), a(q, q, q, r(5, 5) * 0 + 0.5),
            a(q[0], q[0], q[0], scale=0.3))


@case(r(3, 8))
class transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.l(x.unsqueeze(0))


@case(r(2, 3))
class state(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.ones(2, 3))
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("count", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        self.total.add_(x)
        self.cache[self.count] = x[:1]
        self.cache[:, 0].mul_(0.5)
        self.count.add_(1)
        return self.total * 2, self.cache.sum(0), self.count + 0


@case(r(4, 6))
def in_place(x):
    y = x.clone()
    y[1] = 5.0
    y[:, 2:4] += 1
    v = y.view(2, 12)
    v.mul_(2)
    t = y.t()
    t[0].zero_()
    z = torch.zeros(3)
    z.add_(y[0, :3]).relu_()
    y[y > 3] = -1
    return y, v, t.sum(), z, x.clone().fill_(2.0), x.clone().clamp_(-1, 1)


@case(torch.tensor(True), r(2, 3), more=[(torch.tensor(False), r(2, 3))])
def branch(p, x):
    return torch.cond(p, lambda x: (x.sin() + 1, x * 2), lambda x: (x.cos(), x - 1), (x,))


@case(torch.tensor(0), r(3), more=[(torch.tensor(4), r(3)), (torch.tensor(9), r(3))])
def loop(i, x):
    from torch._higher_order_ops import while_loop
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 1.5 + i), (i, x))


@case(r(4, 3), r(3))
def mapped(xs, y):
    from functorch.experimental.control_flow import map as rows
    return rows(lambda x, y: (x * y).cumsum(0), xs, y)


BATCH, LENGTH = Dim("batch", min=1, max=6), Dim("length", min=2, max=12)


@case(r(3, 8, 4), dynamic=({0: BATCH, 1: LENGTH},), more=[(r(1, 2, 4),), (r(6, 12, 4),)])
def dynamic(x):
    b, n, c = x.shape
    y = x.reshape(b * n, c) @ torch.ones(c, 3)
    return (y.view(b, n, 3).softmax(1), torch.cat([x, x], 1)[:, 1:], x.flatten(), x.transpose(1, 2).reshape(b, -1),
            x + torch.arange(n, dtype=torch.float32).view(1, n, 1), torch.zeros(b, n) + 1, x.mean(1), n * 2,
            F.scaled_dot_product_attention(x, x, x, is_causal=True), x.repeat_interleave(2, 1), F.layer_norm(x, (4,)))


@case(r(1, 4, 6, 6).to(memory_format=torch.channels_last))
class channels_last(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2))

    def forward(self, x):
        y = self.c(x)
        return y + 1, y.flatten(1), y.permute(0, 2, 3, 1), y.mean((2, 3)), x.contiguous() * 2


def write(folder, name):
    make, inputs, dynamic_shapes, more = CASES[name]
    torch.manual_seed(0)
    module = make().eval()
    if dynamic_shapes is not None:
        dynamic_shapes = {"args": dynamic_shapes} if not isinstance(module, type) else dynamic_shapes
    exported = export(module, tuple(inputs), dynamic_shapes=dynamic_shapes, strict=False)
    target = folder / name
    target.mkdir(parents=True, exist_ok=True)
    save(exported, target / "model.pt2")
    blob, runs = bytearray(), []

    def record(v):
        if not isinstance(v, torch.Tensor):
            return {"kind": {bool: "bool", int: "int", float: "double"}[type(v)], "value": v}
        order = sorted(range(v.dim()), key=lambda d: (-v.stride(d), d))
        raw = v.detach().contiguous().view(torch.uint8).numpy().tobytes() if v.dim() else \
            v.detach().reshape(1).view(torch.uint8).numpy().tobytes()
        while len(blob) % 16:
            blob.append(0)
        out = {"kind": "tensor", "dtype": str(v.dtype).removeprefix("torch."), "shape": list(v.shape),
               "dim_order": order if v.numel() else list(range(v.dim())), "file": "io.bin", "offset": len(blob),
               "nbytes": len(raw)}
        blob.extend(raw)
        return out

    for args in [inputs, *more]:
        given = [record(a) for a in args]
        # A module with state goes on from where the last run has left it.
        with torch.no_grad():
            outputs = module(*args)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        runs.append({"method": "forward", "inputs": given, "outputs": [record(o) for o in outputs]})
    (target / "io.bin").write_bytes(blob)
    (target / "case.json").write_text(json.dumps({"name": name, "model": "model.pte", "runs": runs}) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        try:
            write(folder, name)
        except Exception as e:
            print(f"{name}: {type(e).__name__}: {str(e)[:400]}", file=sys.stderr)


if __name__ == "__main__":
    main()

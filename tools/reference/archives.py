#!/usr/bin/env python3
"""Writes torch.export archives of small modules with PyTorch's outputs: conformance cases for the compiler.

    python tools/reference/archives.py FOLDER [NAME...]
    pteron verify --archives FOLDER

Each module is saved as `torch.export.export` returns it, without decompositions. Needs torch.
"""

import json
import pathlib
import re
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.export import Dim, export, save
from torch.export.pt2_archive._package import package_pt2

CASES = {}


def case(*inputs, dynamic=None, more=()):
    """Registers a case: a function of tensors or a module class, its inputs, and further inputs to run it on."""
    def note(f):
        class Module(nn.Module):
            def forward(self, *args):
                return f(*args)
        is_class = isinstance(f, type)
        shapes = dynamic if is_class or dynamic is None else {"args": dynamic}
        CASES[f.__name__] = (lambda: f() if is_class else Module(), inputs, shapes, more)
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


@case(r(2, 3, 2, 4, 8), r(2, 3, 2, 5, 8), r(2, 3, 2, 5, 8))
def attention_of_windows(q, k, v):
    return F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)


@case(r(2, 3, 16))
class signals(nn.Module):
    """One-dimensional convolutions."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(3, 8, 5, 2, 2), nn.BatchNorm1d(8), nn.ReLU())
        self.depth = nn.Sequential(nn.Conv1d(8, 8, 3, 1, 2, 2, groups=8, bias=False), nn.ReLU6())
        self.norm = nn.BatchNorm1d(8)
        self.up = nn.ConvTranspose1d(8, 4, 4, 2, 1)

    def forward(self, x):
        x = self.stem(x)
        return self.up(self.norm(x + self.depth(x)))


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


@case(r(2, 4, 6, 8))
def greatest(x):
    return x.max(3)[0], x.max(2, keepdim=True)[0], x.amax((2, 3)), x.amax(-1, keepdim=True), x.relu().max(-2)[0] + 1


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


@case(r(2, 4), r(4, 4))
def wrapped(x, w):
    with torch.no_grad():
        a = torch.sin(x) @ w
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = F.layer_norm(F.linear(a + 1.0, w), (4,), torch.ones(4), torch.zeros(4))
            with torch.autocast("cpu", enabled=False):
                c = b.float() @ w
            d = torch.cat([b, a.bfloat16()]) * 2
    return a + x, b.float(), c * a, d.float()


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


@case(r(5, 7), torch.tensor([0, 3, -100, 6, 2]), torch.rand(5, 7) * 0.9 + 0.05, torch.rand(7))
def losses(x, t, p, w):
    signs = torch.sign(x)
    return (F.cross_entropy(x, t), F.cross_entropy(x, t, w, label_smoothing=0.1), F.cross_entropy(x, p, reduction="none"),
            F.nll_loss(x.log_softmax(1), t, w, reduction="sum"), F.mse_loss(x, p), F.l1_loss(x, p, reduction="none"),
            F.smooth_l1_loss(x, p, beta=0.5), F.huber_loss(x, p), F.kl_div(x.log_softmax(1), p, reduction="batchmean"),
            F.binary_cross_entropy(p, (x > 0).float()), F.binary_cross_entropy_with_logits(x, p, pos_weight=w),
            F.soft_margin_loss(x, signs), F.margin_ranking_loss(x, p, signs), F.hinge_embedding_loss(x, signs),
            F.cosine_embedding_loss(x, p, signs[:, 0]), F.triplet_margin_loss(x, p, x + 1, swap=True),
            F.poisson_nll_loss(x, p, full=True), F.multi_margin_loss(x, t.clamp(0, 6), weight=w))


@case(torch.tensor([[3.0, 1.0, float("nan"), 2.0, 5.0], [4.0, 4.0, 1.0, 0.0, 4.0]]), r(2, 3, 6), torch.randint(0, 4, (3, 7)))
def order(n, x, i):
    q = torch.tensor([0.1, 0.5, 0.9])
    return (n.median(1)[0], n.median(), n.nanmedian(1)[0], x.median(2)[0], x.median(), i.median(1)[0], x.kthvalue(2, 2)[0],
            i.mode(1)[0], x.quantile(0.3), x.quantile(q, 1, keepdim=True), n.nanquantile(0.5, dim=1), x.sort(1)[0],
            x.quantile(q, 2, interpolation="nearest"), torch.isin(i, torch.tensor([0, 3])), torch.isin(i, 2, invert=True),
            torch.searchsorted(x.sort(2)[0], x[:, :, :2], right=True), torch.msort(x))


@case(r(3, 7), torch.randint(-3, 4, (4, 5)))
def scans(x, i):
    return (x.cumprod(1), i.cumprod(0), *x.cummax(1), *i.cummin(1), x.logcumsumexp(0), x.diff(n=2), i.diff(dim=0),
            torch.trapezoid(x, dx=0.5), torch.cumulative_trapezoid(x, dim=0), i.cumsum(1, dtype=torch.float32))


@case(r(1, 2, 5, 7), r(1, 2, 3, 4, 5), r(1, 2, 6))
def resampling(x, v, s):
    f = F.interpolate
    return (f(x, (9, 4), mode="bicubic"), f(x, scale_factor=1.7, mode="bicubic"), f(x, (8, 8), mode="nearest-exact"),
            f(x, (3, 3), mode="bilinear", antialias=True), f(x, (9, 3), mode="bicubic", antialias=True),
            f(x, (4, 9), mode="bicubic", align_corners=True), f(v, (5, 3, 8), mode="trilinear"), f(v, scale_factor=2),
            f(s, 11, mode="linear"), f(s, scale_factor=1.5), f(x, scale_factor=1.4, mode="bilinear"), f(v, (2, 2, 2), mode="area"))


@case(r(2, 3, 7, 6), r(1, 2, 5, 6, 7))
def windows(x, v):
    y, places = F.max_pool2d(x, 2, return_indices=True)
    columns = F.unfold(x, (3, 2), dilation=2, padding=1, stride=2)
    return (columns, F.fold(columns, (7, 6), (3, 2), dilation=2, padding=1, stride=2), F.max_unpool2d(y, places, 2),
            *F.adaptive_max_pool2d(x, (3, 4), return_indices=True), F.adaptive_max_pool3d(v, (2, 4, 3)), x.unfold(2, 3, 2),
            F.adaptive_avg_pool3d(v, (2, 3, 5)), F.avg_pool3d(v, 2, 1, 1, count_include_pad=False), F.lp_pool2d(x, 2, 3),
            *F.max_pool3d(v, 3, 2, 1, return_indices=True), F.avg_pool3d(v, (2, 3, 1), ceil_mode=True, divisor_override=3),
            F.pixel_unshuffle(x[:, :, :6], 2), F.local_response_norm(x, 2))


@case(r(1, 4, 5, 6, 7))
class volumes(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv3d(4, 6, (3, 2, 3), stride=(2, 1, 2), padding=1, groups=2)
        self.b = nn.ConvTranspose3d(4, 3, 3, stride=2, padding=1, output_padding=1)
        self.c = nn.Conv3d(4, 2, 3, dilation=2, padding=2)

    def forward(self, x):
        return self.a(x), self.b(x), self.c(x)


@case(r(3, 4), r(2, 3, 3), r(3))
def matrices(x, b, v):
    return (torch.diag(v), torch.diag(x, 1), torch.diag_embed(x, -1), torch.diagflat(x), x.trace(), torch.block_diag(x, v, b[0]),
            torch.tril_indices(4, 3), torch.cross(b, b.flip(0), dim=2), torch.kron(x, v), torch.tensordot(x, b, ([0], [1])),
            torch.addr(x, v, x[0]), torch.addbmm(b[0], b, b), torch.linalg.vecdot(x, x), torch.linalg.multi_dot([x.T, b[0], x]),
            torch.linalg.matrix_power(b, 5), torch.linalg.vander(v, N=4), torch.cartesian_prod(v, x[0]), torch.combinations(v),
            torch.diagonal_scatter(b, v.expand(2, 3), 0, 1, 2), x.rot90(), torch.column_stack([v, b[0]]), torch.dstack([x, x]),
            torch.cdist(b, b), F.pdist(x), F.pairwise_distance(x, x + 1), torch.linalg.matrix_norm(b, 1), torch.einsum("ii->i", b[0]))


@case(r(2, 4, 4) + 3 * torch.eye(4), r(2, 4, 3))
def systems(a, b):
    spd = a @ a.mT + torch.eye(4)
    return (torch.linalg.inv(a), torch.linalg.solve(a, b), torch.linalg.det(a), *torch.linalg.slogdet(a), torch.logdet(spd),
            torch.linalg.cholesky(spd), torch.cholesky_inverse(spd), torch.linalg.solve_triangular(a, b, upper=True))


@case(r(5, 3), torch.tensor([[0, 1, 4], [0, 2, 2]]), r(2, 3), torch.tensor([1, 1, 3]), r(10, 4))
def scatters(x, i, s, j, table):
    return (*[x.scatter_reduce(0, i, s, how) for how in ("sum", "mean", "amax", "amin", "prod")],
            x.scatter_reduce(0, i, s, "amax", include_self=False), x.index_add(0, j, x[:3], alpha=2),
            x.index_reduce(0, j, x[:3], "mean"), x.put(torch.tensor([0, 5]), s[0, :2]), x.masked_scatter(x > 0, s.repeat(3, 1)),
            F.embedding_bag(i, table, mode="mean"), F.embedding_bag(i, table, mode="max"), F.embedding_bag(i.flatten(), table,
            torch.tensor([0, 2, 2]), mode="sum", per_sample_weights=s.flatten()))


@case(torch.linspace(-3.3, 6.1, 23), torch.linspace(-0.99, 0.99, 9))
def special(x, u):
    s = torch.special
    return (s.sinc(x), s.entr(u.abs()), s.xlog1py(x[:9], u), s.ndtr(x), torch.erfinv(u), torch.lgamma(x), torch.digamma(x),
            torch.polygamma(2, x.abs()), torch.mvlgamma(x.abs() + 3, 2), s.i0(x), s.i1e(x), torch.heaviside(u, x[:9]),
            torch.copysign(x, -x), torch.signbit(x), torch.ldexp(u, torch.arange(9)), torch.float_power(u.abs(), 0.3),
            torch.isclose(x, x + 1e-7), x.round(decimals=1), torch.logaddexp2(x, -x), torch.angle(x), torch.isposinf(x / 0))


@case(r(2, 16))
def spectral(x):
    f = torch.fft
    y = f.rfft(x)
    return (torch.view_as_real(y), f.irfft(y, 16), torch.view_as_real(f.rfft2(x, norm="ortho")), f.fft(x).abs(),
            f.fftshift(x, 1), torch.stft(x, 8, 4, window=torch.hann_window(8), center=False, return_complex=True).abs())


@case(r(2, 6, 8), r(3, 4))
def complex_numbers(x, angles):
    """Rotary embeddings and Fourier transforms: complex inside, real inputs and outputs."""
    turns = torch.polar(torch.ones_like(angles), angles)[None, :, :]
    pairs = torch.view_as_complex(x.reshape(4, 3, 4, 2))
    turned = torch.view_as_real(pairs * turns)
    f = torch.fft
    y = f.fftn(x, dim=(1, 2), norm="ortho")
    return (turned.flatten(2), y.real, (y.conj() * y).real, f.ifft2(y * 2).imag, f.irfft2(f.rfft2(x) / 3 - 0.5 * f.rfft2(x), s=(6, 7)),
            torch.view_as_real(torch.cat([y, y.roll(1, 2)], 1).sum(1)), torch.complex(x, x * 2).angle(),
            torch.view_as_real((1 - y) / (y + 2) - y.mean(1, keepdim=True)), (-pairs * 0.5).flip(0).abs())


@case(r(2, 4, 4), r(2, 4, 3), r(3, 5))
def factorizations(a, b, wide):
    """Vectors are determined only up to their signs: what they reproduce is compared."""
    linalg, spd = torch.linalg, a @ a.mT
    values, vectors = linalg.eigh(spd)
    u, s, vh = linalg.svd(wide)
    x, y, z = linalg.svd(a, full_matrices=False)
    factors = linalg.lu_factor(a)
    return (values, (vectors * values[:, None]) @ vectors.mT, linalg.eigvalsh(a, UPLO="U"), s, (u * s) @ vh[:3], vh @ vh.mT,
            (x * y[:, None]) @ z, linalg.svdvals(b), torch.svd(b)[1], *linalg.qr(b), *linalg.qr(wide, mode="complete"),
            *linalg.lu(b), *factors, *linalg.lu_factor_ex(b), *torch.lu_unpack(*factors), linalg.lu_solve(*factors, b),
            linalg.lu_solve(*factors, b.mT, left=False, adjoint=True), torch.lu_solve(b, *factors))


@case(r(2, 4, 4), r(4, 1) @ r(1, 3))
def singular_values(a, low):
    linalg, spd = torch.linalg, a @ a.mT
    return (linalg.pinv(a), linalg.pinv(low, rtol=1e-3), linalg.pinv(spd, hermitian=True), linalg.pinv(a, atol=0.5, rtol=0.1),
            linalg.pinv(a, 0.2), torch.pinverse(a), linalg.matrix_rank(low, rtol=1e-3), linalg.matrix_rank(a, tol=1.0),
            linalg.matrix_rank(spd, atol=0.1, hermitian=True), linalg.cond(a), linalg.cond(a, -2), linalg.cond(a, "fro"),
            linalg.cond(a, 1), linalg.matrix_norm(a, "nuc"), linalg.matrix_norm(a, 2, keepdim=True), linalg.norm(low, -2 + 4),
            linalg.norm(a, -2, dim=(1, 2)), linalg.norm(low, 1), linalg.norm(low, "nuc"), torch.matrix_exp(a),
            linalg.matrix_exp(spd), linalg.svd(low)[0] @ linalg.svd(low)[0].mT)


@case(r(4, 4, 2), r(5, 5))
def complex_factorizations(pairs, general):
    """Complex matrices, which only Pteron's own kernels factorize."""
    linalg, real, a = torch.linalg, torch.view_as_real, torch.view_as_complex(pairs)
    values, vectors = linalg.eigh(a @ a.mH)
    u, s, vh = linalg.svd(a)
    roots, columns = linalg.eig(general)
    return (values, real((vectors * values) @ vectors.mH), s, real((u * s) @ vh), real(linalg.pinv(a)), *map(real, linalg.qr(a)),
            real(linalg.lu(a)[1]), linalg.eigvals(general).abs().sort()[0], columns.abs().square().sum(0),
            real(general.to(columns.dtype) @ columns - columns * roots))


@case(r(3, 6, 5))
def fourier(x):
    """Transforms of even, odd and prime lengths, cropped, padded and normalized."""
    f, real = torch.fft, lambda z: torch.view_as_real(z.resolve_conj())
    y = f.rfft(x)
    return (f.hfft(y, 9), f.hfft(y, norm="ortho"), real(f.ihfft(x)), f.hfft2(y), f.hfftn(y, s=(4, 6, 7), norm="forward"),
            real(f.ihfft2(x)), real(f.ihfftn(x, norm="ortho")), real(f.fft(y, 7)), real(f.fft(x, 13, dim=1)), f.irfft(y, 11),
            real(f.ifftn(y, dim=(0, 2))), real(f.rfft(x, 4, dim=1, norm="forward")), f.irfftn(f.rfftn(x), s=(3, 5, 7)),
            f.fftfreq(7, 0.1) + x[0, 0, 0], f.rfftfreq(8) + x[0, 0, :1], f.fftfreq(4, dtype=torch.float64), f.ifftshift(x))


@case(r(2, 64), dynamic=({1: Dim.AUTO(min=32, max=256)},), more=[(r(2, 91),)])
def short_time(x):
    """Spectra of windows and back, for signals of any length."""
    window, real = torch.hamming_window(12), torch.view_as_real
    plain = torch.stft(x, 16, 4, 12, window, return_complex=True)
    scaled = torch.stft(x, 15, 6, center=False, normalized=True, return_complex=True)
    both = torch.stft(x, 16, 8, window=torch.hann_window(16), pad_mode="constant", onesided=False, return_complex=True)
    return (real(plain), torch.istft(plain, 16, 4, 12, window), real(scaled), real(both),
            torch.istft(both, 16, 8, window=torch.hann_window(16), onesided=False), torch.istft(plain, 16, 4, 12, window, length=40))


@case(r(3, 4, 5))
class batch_statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = nn.BatchNorm1d(4, track_running_stats=False)
        self.d = nn.Dropout(inplace=True)

    def forward(self, x):
        return self.n(x), self.d(x + 1)


@case(r(4, 3, 5, 5), dynamic=({0: Dim("n", min=2, max=8)},), more=[(r(3, 3, 5, 5),), (r(2, 3, 5, 5),)])
class running_statistics(nn.Module):
    """A batch norm in training mode, which updates its running statistics, and one on values of fixed sizes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))
        self.register_buffer("both", torch.stack([torch.zeros(4), torch.ones(4)]))
        self.scale = nn.Parameter(torch.rand(3))

    def forward(self, x):
        y = F.batch_norm(x, self.mean, self.variance, self.scale, training=True, momentum=0.25)
        fixed = self.scale.view(3, 1) * torch.arange(4.0)
        z = F.batch_norm(fixed, self.both[0], self.both[1], training=True)
        return y, self.mean * 1, self.variance + y.mean(), z, self.both * 2


def recorder(blob):
    """A function that appends a value to a blob and returns its description in the form of conformance cases."""
    def record(v):
        if not isinstance(v, torch.Tensor):
            return {"kind": {bool: "bool", int: "int", float: "double"}[type(v)], "value": v}
        order = sorted(range(v.dim()), key=lambda d: (-v.stride(d), d))
        raw = v.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        while len(blob) % 16:
            blob.append(0)
        out = {"kind": "tensor", "dtype": str(v.dtype).removeprefix("torch."), "shape": list(v.shape),
               "dim_order": order if v.numel() else list(range(v.dim())), "file": "io.bin", "offset": len(blob),
               "nbytes": len(raw)}
        blob.extend(raw)
        return out
    return record


def without_folders(exported):
    """Strips the folders of this machine from the file names in the program's stack traces."""
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if trace := node.meta.get("stack_trace"):
                node.meta["stack_trace"] = re.sub(r'File "[^"]*/', 'File "', trace)
    return exported


def write_models(target, models):
    """Writes an archive of several models, each a module and its inputs, with their outputs."""
    exported = {name: without_folders(export(module, inputs)) for name, (module, inputs) in models.items()}
    target.mkdir(parents=True, exist_ok=True)
    package_pt2(target / "model.pt2", exported_programs=exported)
    blob, runs = bytearray(), []
    record = recorder(blob)
    for name, (module, inputs) in models.items():
        with torch.no_grad():
            given, output = [record(a) for a in inputs], record(module(*inputs))
        runs.append({"method": name, "inputs": given, "outputs": [output]})
    (target / "io.bin").write_bytes(blob)
    (target / "case.json").write_text(json.dumps({"name": target.name, "model": "model.pte", "runs": runs}) + "\n")


def write_two_models(target):
    """Writes an archive of two models that share a weight."""
    class Encode(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Linear(3, 4)

        def forward(self, x):
            return torch.tanh(self.table(x))

    class Decode(nn.Module):
        def __init__(self, table):
            super().__init__()
            self.table = table

        def forward(self, y, scale):
            return (y @ self.table.weight) * scale

    torch.manual_seed(0)
    encode = Encode().eval()
    decode = Decode(encode.table).eval()
    write_models(target, {"encode": (encode, (r(2, 3),)), "decode": (decode, (r(2, 4), torch.tensor(2.0)))})


def write_keywords(target):
    """Writes a module with keyword arguments: a tensor, a dictionary of tensors, and a scalar, which is fixed at export."""

    class Module(nn.Module):
        def forward(self, x, *, scale, offset, gain):
            return (x * scale + offset["early"]) * gain + offset["late"]

    torch.manual_seed(0)
    module, x = Module(), r(2, 3)
    by_name = {"scale": r(3), "offset": {"early": r(2, 3), "late": r(3)}, "gain": 2.0}
    target.mkdir(parents=True, exist_ok=True)
    save(without_folders(export(module, (x,), by_name, strict=False)), target / "model.pt2")
    blob = bytearray()
    record = recorder(blob)
    flat = [x, by_name["scale"], *by_name["offset"].values(), by_name["gain"]]
    run = {"method": "forward", "inputs": [record(a) for a in flat], "outputs": [record(module(x, **by_name))]}
    (target / "io.bin").write_bytes(blob)
    (target / "case.json").write_text(json.dumps({"name": target.name, "model": "model.pte", "runs": [run]}) + "\n")


@case(r(4, 6), torch.tensor(True), dynamic=({0: Dim("rows", min=1, max=16)}, None),
      more=[(r(9, 6), torch.tensor(False)), (r(1, 6), torch.tensor(True))])
def branch_of_rows(x, flag):
    """Branches and loops over values of dynamic sizes."""
    from torch._higher_order_ops import while_loop
    chosen = torch.cond(flag, lambda x: x * 2, lambda x: x - x.mean(0), (x,))
    looped = while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 0.5 + x), (torch.tensor(0), x.clone()))[1]
    return chosen, looped


@case(r(5, 4), r(4, 3))
def vectorized(a, b):
    """Functions vectorized over rows and columns (vmap)."""
    scaled = torch.vmap(lambda column, scale: column * scale, in_dims=(1, 0))
    return scaled(a, b.sum(1)), torch.vmap(lambda row: b * 2, out_dims=2)(a), torch.vmap(torch.dot)(a[:3], b.T)


@case(r(2, 3, 6, 5))
def crops(x):
    return (F.pad(x, (-1, 2)), F.pad(x, (1, -2, -1, 0), value=3.0), F.pad(x, (0, -1, -2, -1)),
            torch.randn_like(x) * 0 + torch.rand_like(x).floor())


@case(torch.tensor([-37.0, -20.0, -10.0, -8.0, -5.0, -1.0, 0.0, 1.0, 6.0, float("inf"), float("-inf"), float("nan")]),
      torch.tensor([0.0, 1e-38, 1e-30, 1e-18, 1e-14, 1e-10, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-7, 1.0, -0.1, 1.1]))
def tails(x, p):
    """The normal distribution and its quantiles, far from the mean."""
    return torch.special.ndtr(x), torch.special.ndtri(p)


ROWS = Dim("rows", min=3, max=16)


@case(r(4, 32), r(8, 3), r(5), dynamic=({0: ROWS}, {0: 2 * ROWS}, {0: ROWS + 1}),
      more=[(r(3, 32), r(6, 3), r(4)), (r(16, 32), r(32, 3), r(17))])
class related_sizes(nn.Module):
    """Sizes that are fixed, at least 3, and computed from others."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(32))

    def forward(self, x, y, z):
        x = x * self.scale
        return x.softmax(1).max(1).values + x.mean(1) + y.view(-1, 2, 3).sum((1, 2)) + z[1:]


def mutated(x, cache, count):
    cache[:, 1:5] = x
    count.add_(1)
    return cache.sum(0) + count, count


@case(r(3, 4), torch.zeros(3, 6), torch.tensor(0), dynamic=({0: ROWS}, {0: ROWS}, None),
      more=[(r(5, 4), r(5, 6), torch.tensor(7))])
def mutated_inputs(x, cache, count):
    """Inputs that are written, one of them through a view; what is written is returned before the outputs."""
    return mutated(x, cache, count)


NAN, INF = float("nan"), float("inf")


@case(torch.tensor([[[2.0, 1], [1, 3]], [[0, 1], [1, 0]], [[1, 2], [2, 4]], [[0, 0], [0, 0]], [[NAN, 0], [0, 0]], [[1, 0], [NAN, 1]],
                    [[0, NAN], [0, 1]], [[1, NAN], [0, 1]], [[INF, 1], [1, 1]], [[1, 1], [INF, 0]], [[1e30, 0], [0, 1e30]],
                    [[-1e30, 0], [0, 1e30]], [[1e-30, 0], [0, 1e-30]], [[0, 0], [0, INF]]]), r(14, 2, 3), r(3, 2, 1))
def singular(a, b, c):
    """Determinants and `info` of singular, indefinite and large matrices, and of those with NaN and infinities."""
    one, some = torch.tensor([[0.0, 1], [0, 2]]), a[:3].unsqueeze(1)
    return (torch.linalg.det(a), *torch.linalg.slogdet(a), torch.logdet(a), torch.linalg.inv_ex(a).info,
            torch.linalg.solve_ex(a, b).info, torch.linalg.solve_ex(one, c).info, torch.linalg.solve_ex(some, c).info,
            torch.linalg.solve_ex(a[0], c).info, torch.linalg.cholesky_ex(a[:8]).info, torch.linalg.cholesky_ex(a[:8], upper=True).info,
            torch.linalg.cholesky_ex(one[:0, :0]).info, *torch.slogdet(one[:0, :0]), torch.linalg.det(one[:0, :0]))


@case(torch.tensor([[2, 0, 1, 0, 2, 1, 1, 0], [0, 0, 0, 1, 1, 0, 1, 1]]), r(2, 8).round(), torch.tensor([True, False, True, False]))
def stable_orders(i, x, b):
    """Ties, NaN and booleans."""
    n = torch.where(x > 0.5, float("nan"), x)
    return (*torch.sort(i, dim=1, stable=True), torch.argsort(i, dim=0, stable=True), torch.argsort(i, dim=1, descending=True, stable=True),
            *torch.sort(x, dim=1, descending=True, stable=True),
            torch.argsort(n, dim=1, stable=True), torch.argsort(n, dim=1, descending=True, stable=True),
            *torch.sort(b, dim=0, stable=True), torch.msort(x.half()))


@case(r(2, 3, 5), r(3, 4))
def circular_pads(x, y):
    return (F.pad(x, (-1, -1), mode="circular"), F.pad(x, (0, -2), mode="circular"), F.pad(x, (-1, 2), mode="circular"),
            F.pad(y, (1, -1), mode="circular"), F.pad(x[None], (1, -1, -1, 2), mode="circular"), F.pad(x, (3, 4), mode="circular"))


@case(r(2, 3, 4, 4).half(), r(2, 4).bfloat16())
def half_types(x, y):
    """Statistics and weights in the type of the operand, and in float32."""
    n = torch.tensor([0.5, 1.0, 2.0])
    h = n.half()
    return (F.batch_norm(x, h, h, h, h), F.batch_norm(x, n, n, n, n), F.batch_norm(x, h, h), F.layer_norm(x, (4,)), F.group_norm(x, 3, h, h),
            F.log_softmax(y.double(), 1), F.linear(y, torch.ones(4).bfloat16()), F.linear(x, torch.ones(4).half(), torch.tensor(0.5).half()))


@case(torch.tensor([[-7, 3, 0], [5, -2, 9]]), torch.tensor([[3, -2, 4], [-3, 5, 2]]), r(2, 3))
def portable_integers(a, b, x):
    """Integers where the reference runtime's kernels depart from PyTorch or refuse what it takes."""
    u = a.abs().to(torch.uint8)
    return (a % b, a % 3, a.int() % -4, u.clamp(-1, 200), a.clamp(-2, 300), torch.fmax(x / (x > 0), x), torch.fmin(x, x / (x > 0)),
            torch.xlogy(a > 0, b.abs()), torch.xlogy(x.abs(), 2), torch.xlogy(2, x.abs()), torch.arctan2(x, b),
            torch.select_scatter(a > 0, a[:, 0], 1, 2), a.clone().fill_diagonal_(4), torch.as_strided_scatter(x, x[:, 0], (2,), (2,), 1))


@case(r(2, 3, 2), r(3, 3, 2), r(2, 3))
def complex_arithmetic(a, b, x):
    """Complex numbers between `view_as_complex` and `view_as_real`, with every function that has a form in real numbers."""
    z, w = torch.view_as_complex(a), torch.view_as_complex(b)
    real = torch.view_as_real
    return tuple(real(v) for v in (
        z * 1j, x * 1j + z, 2 - z, z / (1 + 2j), x / z, z * z, z @ w, torch.bmm(z[None], w[None]), F.pad(z, (1, 2)), z.cumsum(1), z.exp(),
        z.log(), z.sqrt(), z.reciprocal(), torch.sgn(z), z.sigmoid(), z.sin(), z.cos(), z.sinh(), z.cosh(), z.tanh(), z.tan(), z.rsqrt(), z.square(),
        z ** 2, z ** 0.5, z ** (1 + 1j), torch.where(x > 0, z, -z), torch.where(x > 0, z, 1 + 2j), z.masked_fill(x > 0, 1), z.flip(1), z.tril(),
        torch.complex(x, x + 1), torch.polar(x.abs(), x), z.sum(1), z.mean(0), torch.cat([z, z]), z.conj() * z)) + (z.abs(), z.angle(), z == z.conj())


@case(r(3, 4), r(3, 4))
def out_arguments(a, b):
    m, s = torch.empty_like(a), torch.empty(3)
    torch.maximum(a, b, out=m)
    torch.sum(m, 1, out=s)
    torch.mul(m, 2, out=m[:, :])
    return m * 2, s, torch.add(a, b, alpha=2, out=torch.empty_like(a))


@case(r(1, 2, 7, 6), r(2, 3, 5, 5))
def ceil_pools(x, y):
    return (F.max_pool2d(x, 2, 2, ceil_mode=True), F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.max_pool2d(x, 2, 3, ceil_mode=True),
            F.max_pool2d(y, 3, 2, ceil_mode=True), F.max_pool2d(y, 2, 2, 1, 2, ceil_mode=True), F.avg_pool2d(y, 3, 2, ceil_mode=True),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False))


@case(r(12, 8), torch.tensor([0, 1, 2, 0, 1, 2, 2, 1, 0, 0, 0, 2]), r(12, 1))
def experts(x, choice, weight):
    """Rows that are grouped by expert, with numbers of rows that depend on the data."""
    order = torch.argsort(choice, stable=True)
    rows = (choice == 0).nonzero()[:, 0]
    return x[order] * weight[order], x[rows] * weight[rows], (x[rows] * 2 + 1).relu() * weight[rows]



def write_case(target, module, inputs, more=(), dynamic_shapes=None, tolerance=None, decompose=False):
    """Exports a module and writes its archive, with its outputs for a sequence of inputs."""
    exported = export(module, tuple(inputs), dynamic_shapes=dynamic_shapes, strict=False)
    if decompose:
        exported = exported.run_decompositions()
    target.mkdir(parents=True, exist_ok=True)
    save(without_folders(exported), target / "model.pt2")
    blob, runs = bytearray(), []
    record = recorder(blob)
    for args in [inputs, *more]:
        given = [record(a) for a in args]
        versions = [a._version if isinstance(a, torch.Tensor) else None for a in args]
        # A module with state continues from the state of the previous run.
        with torch.no_grad():
            outputs = module(*args)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        # The reference returns inputs that are written before the outputs.
        written = [a for a, version in zip(args, versions) if version is not None and a._version != version]
        outputs = [*written, *outputs]
        runs.append({"method": "forward", "inputs": given, "outputs": [record(o) for o in outputs]})
    (target / "io.bin").write_bytes(blob)
    case = {"name": target.name, "model": "model.pte", "runs": runs}
    if tolerance is not None:
        case["tolerance"] = {"rtol": tolerance, "atol": tolerance}
    (target / "case.json").write_text(json.dumps(case) + "\n")


def write_mutated_inputs_decomposed(target):
    """`mutated_inputs`, functionalized by the exporter: the signature says which outputs are written to inputs."""
    make, inputs, shapes, more = CASES["mutated_inputs"]
    write_case(target, make().eval(), inputs, more, shapes, decompose=True)


OTHERS = {"keywords": write_keywords, "two_models": write_two_models,
          "mutated_inputs_decomposed": write_mutated_inputs_decomposed}


def write(folder, name):
    if name in OTHERS:
        return OTHERS[name](folder / name)
    make, inputs, dynamic_shapes, more = CASES[name]
    torch.manual_seed(0)
    write_case(folder / name, make().eval(), inputs, more, dynamic_shapes)


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or [*CASES, *OTHERS]:
        try:
            write(folder, name)
        except Exception as e:
            print(f"{name}: {type(e).__name__}: {str(e)[:400]}", file=sys.stderr)


if __name__ == "__main__":
    main()

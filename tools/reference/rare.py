#!/usr/bin/env python3
"""Writes torch.export archives of operators that are rare in networks, with PyTorch's outputs: conformance cases for the compiler.

    python tools/reference/rare.py FOLDER [NAME...]
    pteron verify --archives FOLDER

Results whose sizes depend on elements, special functions, histograms, segments, bytes viewed as other types, projections of LSTMs and
torchvision's operators on boxes. Like archives.py, each module is saved without decompositions. Needs torch and torchvision.
"""

import json
import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision.ops as tv
from torch.export import Dim

from archives import write_case

CASES = {}
NAN, INF = float("nan"), float("inf")


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


def boxes(count, size=20.0):
    corners = torch.rand(count, 2) * size
    return torch.cat([corners, corners + torch.rand(count, 2) * size / 2 + 0.5], 1)


def regions(count, images, size):
    return torch.cat([torch.randint(0, images, (count, 1)).float(), boxes(count, size)], 1)


@case(r(3, 5), torch.tensor(True), torch.tensor([0.0, NAN, -0.0, 2.0]), more=[(torch.zeros(3, 5), torch.tensor(False), torch.ones(4))])
def true_elements(x, b, v):
    """`where` and `nonzero` of matrices, numbers and NaN."""
    rows, columns = torch.where(x > 0)
    return rows, columns, x[rows, columns], *torch.where(b), *torch.nonzero(v, as_tuple=True), torch.argwhere(x > 1), \
        torch.masked_select(x, x > 0.5), torch.nonzero_static(x > 0, size=4), torch.nonzero_static(x > 0, size=20, fill_value=7)


@case(r(3, 4), torch.tensor([2, 0, 3]), torch.tensor(2), torch.tensor([1, 2, 0, 1], dtype=torch.int32),
      more=[(r(3, 4), torch.tensor([0, 0, 0]), torch.tensor(1), torch.tensor([0, 0, 0, 5], dtype=torch.int32))])
def repeats(x, n, one, columns):
    """`repeat_interleave` by tensors."""
    return (x.repeat_interleave(n, 0), x.repeat_interleave(columns, -1), x.flatten()[:4].repeat_interleave(columns),
            x.repeat_interleave(one), torch.repeat_interleave(n), x.repeat_interleave(torch.tensor([1, 2, 3]), 0, output_size=6))


@case(torch.tensor([3, 1, 3, 0]), r(4), torch.tensor([2, 2, 7], dtype=torch.int32),
      more=[(torch.tensor([9, 9, 2, 9]), r(4), torch.tensor([0, 0, 0], dtype=torch.int32))])
def counts(x, w, i):
    return (torch.bincount(x), torch.bincount(x, w), torch.bincount(i, minlength=5), torch.bincount(x, minlength=12),
            torch.bincount(x, w.double(), minlength=3), torch.bincount(x[:0], minlength=3), torch.bincount(x, i.new_tensor([1, 2, 3, 4])))


@case(torch.tensor([[12, -18, 0], [7, 1 << 40, 35]]), torch.tensor([18, 12, 0]), torch.tensor([[4], [-6]], dtype=torch.int8))
def divisors(a, b, c):
    return torch.gcd(a, b), torch.lcm(a, b), torch.gcd(a.int(), c), torch.lcm(c, c + 3), torch.gcd(b[0], b), torch.gcd(a[:, :0], b[:0])


@case(torch.tensor([8.0, -0.3, 0.0, 1e-40, 3.4e38, -1.0, 0.5]), r(2, 3))
def parts(x, y):
    """Mantissas and exponents, powers, truncation and the numbers next to others."""
    return (*torch.frexp(x), *torch.frexp(y.double() * 1e-300), torch.fix(x), torch.vander(y[0]), torch.vander(y[0], 2),
            torch.vander(y[0], 4, increasing=True), torch.nextafter(y, -y), torch.nextafter(x, x.new_tensor(INF)),
            *torch.gradient(y.flatten()), *torch.gradient(y @ y.T @ y, spacing=2.0, dim=1, edge_order=2))


@case(r(2, 30), r(30).abs(), torch.tensor([-2.0, -0.5, 0.0, 1.0, 2.5]))
def histograms(x, w, edges):
    return (*torch.histogram(x[0], 7), *torch.histogram(x, 4, range=(-1.0, 1.0)), *torch.histogram(x[0], edges),
            *torch.histogram(x[0], edges, weight=w, density=True), torch.histc(x, 5, -1, 1), torch.histc(x, 6),
            *torch.histogram(x[0] * 0, 3), *torch.histogram(x[0].double(), 5, weight=w.double(), density=True))


@case(r(6, 3), torch.tensor([2, 0, 4]), torch.tensor([0, 3, 3, 6]), torch.tensor([[1, 2], [3, 0]]))
def segments(x, lengths, offsets, rows):
    def of(how, **more):
        return torch.segment_reduce(x, how, lengths=lengths, **more)
    return (*[of(how) for how in ("sum", "mean", "max", "min", "prod")], of("mean", initial=1.0), of("max", initial=0.25),
            torch.segment_reduce(x, "sum", offsets=offsets), torch.segment_reduce(x.reshape(2, 3, 3), "max", lengths=rows + 0, axis=1, unsafe=True))


POINTS = torch.tensor([-30.0, -8.5, -3.0, -1.0, -0.4, 0.0, 1e-6, 0.3, 1.0, 2.0, 4.9, 8.0, 15.0, 26.0, 60.0, INF, -INF, NAN])


@case(POINTS)
def bessel(x):
    s = torch.special
    functions = (s.bessel_j0, s.bessel_j1, s.bessel_y0, s.bessel_y1, s.i0, s.i0e, s.i1, s.i1e, s.modified_bessel_i0,
                 s.modified_bessel_i1, s.modified_bessel_k0, s.modified_bessel_k1, s.scaled_modified_bessel_k0,
                 s.scaled_modified_bessel_k1, s.spherical_bessel_j0, torch.i0)
    return *[f(x) for f in functions], *[f(x.double()) for f in functions], s.bessel_j0(x[:15].int()), s.airy_ai(x.clamp(-9, 9)), \
        s.i0e(x.half()), s.bessel_y0(x[:0])


@case(torch.tensor([0.0, 0.5, 1.0, 3.0, 25.0, 400.0, 1.0, INF, -1.0, NAN]), torch.tensor([[0.0], [0.2], [1.0], [5.0], [30.0], [380.0], [INF]]))
def gammas(a, x):
    s = torch.special
    return (s.gammainc(a, x), s.gammaincc(a, x), torch.igamma(a.double(), x.double()), torch.igammac(a, x.double()),
            s.zeta(a.clamp(1.5, 9), x + 0.25), s.zeta(2.0, x + 1), s.zeta(a, 3.0), s.erfcx(x.T - 3), s.log_ndtr(a - x))


@case(r(2, 5).clamp(-1.5, 1.5), torch.tensor([[0], [1], [4], [12], [-2]]))
def polynomials(x, n):
    s = torch.special
    functions = (s.chebyshev_polynomial_t, s.chebyshev_polynomial_u, s.chebyshev_polynomial_v, s.chebyshev_polynomial_w,
                 s.hermite_polynomial_h, s.hermite_polynomial_he, s.laguerre_polynomial_l, s.legendre_polynomial_p,
                 s.shifted_chebyshev_polynomial_t, s.shifted_chebyshev_polynomial_u, s.shifted_chebyshev_polynomial_v,
                 s.shifted_chebyshev_polynomial_w)
    return *[f(x[0], n.float()) for f in functions], *[f(x.double(), 5) for f in functions], s.legendre_polynomial_p(0.5, n.float())


@case(r(2, 4), torch.randint(0, 256, (3, 8), dtype=torch.uint8), torch.tensor(1.5))
def bytes_as(x, b, number):
    """Elements viewed as another type of the same, a smaller and a larger size; written through, too."""
    sign = x.view(torch.int32)
    copy = x.clone()
    copy.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    wide = b.view(torch.int64)
    return (sign, sign >> 31, x.view(torch.int16), x.view(torch.uint8), wide, b.view(torch.int32), number.view(torch.int32), copy,
            x.view(torch.float64).view(torch.float32), x.T.view(torch.int32), b[:, :4].view(torch.int16), x[:, :0].view(torch.uint8))


@case(r(2, 5, 4), r(4, 2, 3), r(4, 2, 6))
class projections(nn.Module):
    """LSTMs whose hidden states are projected: of several layers, in both directions, without biases and of one sequence."""

    def __init__(self):
        super().__init__()
        self.a = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True, proj_size=3, dropout=0.5)
        self.b = nn.LSTM(4, 5, bias=False, proj_size=2)

    def forward(self, x, h, c):
        y, state = self.a(x, (h, c))
        z, (zh, zc) = self.b(x[0])
        return y, *state, z, zh, zc


SCORES = torch.tensor([0.5, 0.9, 0.9, 0.1, 0.7, 0.3, 0.9, 0.2, 0.6, 0.8, 0.4, 0.5])
WORSE = torch.cat([boxes(1)] * 12)


@case(boxes(12), SCORES, more=[(WORSE, SCORES), (boxes(12, 200.0), torch.zeros(12))])
def suppression(b, s):
    """Non-maximum suppression with ties, of all boxes and by classes."""
    kept = tv.nms(b, s, 0.2)
    return kept, b[kept], tv.batched_nms(b, s, torch.arange(12) % 3, 0.1), tv.nms(b.double(), s.double(), 0.5), tv.box_iou(b, b)


@case(r(2, 8, 9, 11), regions(5, 2, 30.0), more=[(r(2, 8, 9, 11), regions(5, 2, 60.0) - torch.tensor([0.0, 9, 9, 9, 9]))])
def pooled_regions(x, b):
    return (tv.roi_align(x, b, (3, 2), 0.25, 2, True), tv.roi_align(x, b, 2, 0.5, -1), tv.roi_pool(x, b, (3, 2), 0.25),
            tv.ps_roi_align(x, b, 2, 0.5, 2), tv.ps_roi_align(x, b, (1, 4), 0.3, -1), tv.ps_roi_pool(x, b, 2, 0.4),
            tv.roi_align(x.double(), b.double(), 2, 1.0, 0, True), tv.roi_align(x, b[:0], 2))


@case(r(2, 4, 6, 7), r(2, 4 * 2 * 3 * 2 // 2, 6, 5) * 2, r(2, 12, 6, 5), r(6, 2, 3, 2), r(6))
def deformed(x, offset, mask, w, bias):
    offset = offset[:, :24] if offset.shape[1] >= 24 else torch.cat([offset, offset], 1)[:, :24]
    return (tv.deform_conv2d(x, offset, w, bias, padding=(1, 0), dilation=(1, 2), mask=mask),
            tv.deform_conv2d(x, offset[:, :12], w, None, padding=(1, 0), dilation=(1, 2)),
            tv.deform_conv2d(x.double(), offset[:, :, :3, :3].double(), w.double(), bias.double(), stride=2, padding=(1, 0)))


@case(r(4, 6), torch.rand(3, 5))
def random_draws(x, p):
    """Values of random distributions, of which only shapes and types are compared."""
    return (F.gumbel_softmax(x), F.gumbel_softmax(x, hard=True), x.clone().exponential_(2.0), x.clone().cauchy_(), x.clone().log_normal_(),
            x.clone().geometric_(0.3), x.clone().uniform_(2, 3), x.clone().normal_(1, 2), x.half().exponential_(), torch.bernoulli(p),
            x.clone().bernoulli_(0.3), torch.poisson(p * 9), torch.binomial((p * 9).floor(), p), torch._sample_dirichlet(p + 0.1),
            torch.distributions.Gamma(p + 0.5, 1.0).sample(), torch.distributions.Categorical(logits=x).sample(), torch.randperm(7))


@case(torch.tensor(2.5), torch.tensor(-3))
def without_dimensions(x, n):
    """Operators that name a dimension of a tensor that has none."""
    return (x.movedim(0, -1) + 1, x.unfold(0, 1, 1), n.unfold(-1, 1, 2) * 2, x.transpose(0, -1) * 2, x.flip(-1) + 1, torch.cumsum(n, 0),
            *torch.sort(x, 0), *torch.topk(x, 1, 0), torch.amax(x, 0), torch.prod(n, 0), x.index_select(0, torch.tensor([0])), *torch.median(x, 0),
            x.roll(1), F.softmax(x, 0), torch.count_nonzero(n, 0), x.squeeze(0) - 1, x.gather(0, torch.tensor(0)), torch.argmax(x, -1), x.unsqueeze(-1))


@case(torch.zeros(2, 5, 2, 0, dtype=torch.bool))
def products_of_masks(x):
    """PyTorch multiplies booleans only where there are none."""
    return x @ x.mT, (x @ x.mT).all()


@case(r(4, 6), dynamic=({0: Dim("rows", min=2, max=9), 1: Dim("columns", min=3, max=8)},), more=[(r(2, 3),), (r(9, 8),)])
def norms_of_dynamic_columns(x):
    return F.rms_norm(x, x.shape[-1:]), F.layer_norm(x, x.shape[-1:]), F.rms_norm(x, x.shape), F.rms_norm(x.T, x.T.shape[-1:])


@case(r(4), dynamic=({0: Dim.AUTO(max=64)},))
class product_of_end(nn.Module):
    """A product whose sizes fit each other only for some of the sizes that the archive declares."""
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)

    def forward(self, x):
        return self.linear(torch.exp(x).chunk(2)[-1])


@case(torch.rand(4, 3) > 0.3, torch.tensor([0, 2, 0]), torch.rand(3, 3) > 0.5)
def reductions_of_masks(x, index, src):
    return tuple(x.index_reduce(0, index, src, how) for how in ("prod", "amax", "amin"))


@case(torch.randint(0, 256, (2, 3, 7, 9), dtype=torch.uint8), torch.randint(0, 256, (1, 5, 6, 4), dtype=torch.uint8))
def interpolated_bytes(x, y):
    """Images of bytes, whose sums are rounded after each dimension."""
    modes = [(mode, wide, corners) for mode in ("bilinear", "bicubic") for wide in (False, True) for corners in (False, True)]
    return tuple(F.interpolate(image, size, mode=mode, antialias=wide, align_corners=corners)
                 for image, size in ((x, (4, 13)), (y, (9, 3))) for mode, wide, corners in modes)


RANDOM = {"random_draws"}


def write(folder, name):
    make, inputs, dynamic_shapes, more = CASES[name]
    torch.manual_seed(0)
    write_case(folder / name, make().eval(), inputs, more, dynamic_shapes)
    if name in RANDOM:
        path = folder / name / "case.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "nondeterministic": True}) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        try:
            write(folder, name)
        except Exception as e:
            print(f"{name}: {type(e).__name__}: {str(e)[:600]}", file=sys.stderr)


if __name__ == "__main__":
    main()

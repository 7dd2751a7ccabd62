//! Resampling of lines, images and volumes: nearest, linear and cubic, with and without antialiasing.
//! Positions are computed in float32, and in float64 for float64 tensors, as in PyTorch.

use crate::support::convert::all_values;
use crate::support::dims::to_positive;
use crate::support::dtype::{Cast, Compute, compute_type, dispatch};
use crate::support::remap::remap;
use crate::support::rows::{expect_type, write_values};
use num_traits::Float;
use pteron_operator::{
    Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, Rounding, ScratchBuffer, ensure,
};
use pteron_tensor::{DimOrder, Element, ScalarType, Shape};

/// float16, bfloat16, float32, float64, and uint8, the type of 8-bit images.
const PICTURES: DtypeSet = DtypeSet::FLOATING.union(DtypeSet::of(&[ScalarType::Byte]));

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::upsample_nearest1d.vec_out(Tensor input, SymInt[]? output_size, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes_or_factors::<1>(a, 2)?, false),
    ),
    Operator::new(
        "aten::upsample_nearest1d.out(Tensor self, SymInt[1] output_size, float? scales=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes::<1>(a, 2)?, false),
    ),
    Operator::new(
        "aten::upsample_nearest2d.vec_out(Tensor input, SymInt[]? output_size, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes_or_factors::<2>(a, 2)?, false),
    )
    .rounding(Rounding::Exact)
    .any_layout(),
    Operator::new(
        "aten::upsample_nearest2d.out(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes::<2>(a, 2)?, false),
    ),
    Operator::new(
        "aten::upsample_nearest3d.vec_out(Tensor input, SymInt[]? output_size, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes_or_factors::<3>(a, 2)?, false),
    ),
    Operator::new(
        "aten::upsample_nearest3d.out(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes::<3>(a, 2)?, false),
    ),
    Operator::new(
        "aten::_upsample_nearest_exact1d.vec_out(Tensor input, SymInt[]? output_size, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes_or_factors::<1>(a, 2)?, true),
    ),
    Operator::new(
        "aten::_upsample_nearest_exact1d.out(Tensor self, SymInt[1] output_size, float? scales=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes::<1>(a, 2)?, true),
    ),
    Operator::new(
        "aten::_upsample_nearest_exact2d.vec_out(Tensor input, SymInt[]? output_size, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes_or_factors::<2>(a, 2)?, true),
    ),
    Operator::new(
        "aten::_upsample_nearest_exact2d.out(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes::<2>(a, 2)?, true),
    ),
    Operator::new(
        "aten::_upsample_nearest_exact3d.vec_out(Tensor input, SymInt[]? output_size, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes_or_factors::<3>(a, 2)?, true),
    ),
    Operator::new(
        "aten::_upsample_nearest_exact3d.out(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| nearest(c, a, o, target_of_sizes::<3>(a, 2)?, true),
    ),
    Operator::new(
        "aten::upsample_linear1d.vec_out(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes_or_factors::<1>(a, 3)?, LINEAR),
    ),
    Operator::new(
        "aten::upsample_linear1d.out(Tensor self, SymInt[1] output_size, bool align_corners, float? scales=None, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes::<1>(a, 3)?, LINEAR),
    ),
    Operator::new(
        "aten::upsample_bilinear2d.vec_out(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes_or_factors::<2>(a, 3)?, LINEAR),
    )
    .rounding(Rounding::Once)
    .any_layout(),
    Operator::new(
        "aten::upsample_bilinear2d.out(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes::<2>(a, 3)?, LINEAR),
    ),
    Operator::new(
        "aten::upsample_trilinear3d.vec_out(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes_or_factors::<3>(a, 3)?, LINEAR),
    ),
    Operator::new(
        "aten::upsample_trilinear3d.out(Tensor self, SymInt[3] output_size, bool align_corners, float? scales_d=None, float? scales_h=None, float? scales_w=None, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes::<3>(a, 3)?, LINEAR),
    ),
    Operator::new(
        "aten::upsample_bicubic2d.vec_out(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes_or_factors::<2>(a, 3)?, CUBIC),
    ),
    Operator::new(
        "aten::upsample_bicubic2d.out(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes::<2>(a, 3)?, CUBIC),
    ),
    Operator::new(
        "aten::_upsample_bilinear2d_aa.vec_out(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes_or_factors::<2>(a, 3)?, LINEAR_AA),
    ),
    Operator::new(
        "aten::_upsample_bilinear2d_aa.out(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes::<2>(a, 3)?, LINEAR_AA),
    ),
    Operator::new(
        "aten::_upsample_bicubic2d_aa.vec_out(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes_or_factors::<2>(a, 3)?, CUBIC_AA),
    ),
    Operator::new(
        "aten::_upsample_bicubic2d_aa.out(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None, *, Tensor(a!) out) -> Tensor(a!)",
        PICTURES,
        |c, a, o| resample_weighted(c, a, o, target_of_sizes::<2>(a, 3)?, CUBIC_AA),
    ),
];

/// The names, in different schemas, of the tensor that is resampled.
const IMAGES: [&str; 2] = ["self", "input"];

/// The target of a call: the output's sizes, and the scale factors of its last `N` dimensions, which need not
/// equal the quotients of the sizes.
struct Target<const N: usize> {
    sizes: Shape,
    scales: [Option<f64>; N],
}

fn checked_target<const N: usize>(
    args: &Args<'_>,
    sizes: [usize; N],
    scales: [Option<f64>; N],
) -> Result<Target<N>> {
    let x = args.meta(IMAGES)?;
    ensure!(x.rank() == N + 2, "{}: expected {} dimensions, found {x}", args.name(IMAGES), N + 2);
    ensure!(!x.sizes()[1..].contains(&0), "{}: {x} has an empty dimension", args.name(IMAGES));
    let mut all = *x.sizes();
    all[2..].copy_from_slice(&sizes);
    Ok(Target { sizes: all, scales })
}

/// The target of an overload with sizes at argument 1 and scales from argument `scales` on.
fn target_of_sizes<const N: usize>(args: &Args<'_>, scales: usize) -> Result<Target<N>> {
    let list = args.ints("output_size")?;
    ensure!(list.len() == N, "output_size: expected {N} numbers, found {list:?}");
    let (mut sizes, mut factors) = ([0; N], [None; N]);
    for d in 0..N {
        sizes[d] = to_positive("output_size", list[d])?;
        factors[d] = args.optional_double(scales + d)?;
    }
    checked_target(args, sizes, factors)
}

/// The target of an overload with either sizes at argument 1 or factors at argument `factors`.
fn target_of_sizes_or_factors<const N: usize>(args: &Args<'_>, factors: usize) -> Result<Target<N>> {
    let mut sizes = [0; N];
    let scales = match (args.optional_ints("output_size")?, args.optional_doubles(factors)?) {
        (Some(list), None) => {
            ensure!(list.len() == N, "output_size: expected {N} numbers, found {list:?}");
            for (size, &s) in sizes.iter_mut().zip(list) {
                *size = to_positive("output_size", s)?;
            }
            [None; N]
        }
        (None, Some(list)) => {
            let x = args.meta("input")?;
            ensure!(
                list.len() == N && x.rank() == N + 2,
                "scale_factors: {list:?} for {x}, whose last {N} of {} dimensions are resized",
                N + 2
            );
            for d in 0..N {
                let size = x.sizes()[2 + d] as f64 * list[d];
                // The comparison also rejects NaN.
                ensure!(
                    size >= 1.0 && size < 2f64.powi(62),
                    "scale_factors: {list:?} for the shape {}",
                    x.sizes()
                );
                sizes[d] = size as usize;
            }
            std::array::from_fn(|d| Some(list[d]))
        }
        _ => return Err(Error::invalid("expected either output_size or scale_factors")),
    };
    checked_target(args, sizes, scales)
}

/// The number of input elements for each output element.
fn input_step<C: Compute + Float>(from: usize, to: usize, scale: Option<f64>) -> C {
    match scale {
        Some(s) if s > 0.0 => C::from_f64(1.0 / s),
        _ => C::from_f64(from as f64) / C::from_f64(to as f64),
    }
}

/// Nearest-neighbour resampling, by the lower edge of each output element or, if `exact`, by its center.
fn nearest<const N: usize>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    target: Target<N>,
    exact: bool,
) -> Result<()> {
    fn source_position<C: Compute + Float>(i: usize, ratio: f64, exact: bool) -> f64 {
        let at = C::from_f64(i as f64) + C::from_f64(if exact { 0.5 } else { 0.0 });
        (at * C::from_f64(ratio)).to_f64()
    }
    let x = args.tensor(IMAGES)?;
    let out = outs.tensor(0)?;
    out.resize(&target.sizes)?;
    let double = x.dtype() == ScalarType::Double;
    let ratios: [f64; N] = std::array::from_fn(|d| {
        let (from, to) = (x.sizes()[2 + d], target.sizes[2 + d]);
        match double {
            true => input_step::<f64>(from, to, target.scales[d]),
            false => input_step::<f32>(from, to, target.scales[d]).to_f64(),
        }
    });
    let map = |d: usize, i: usize| {
        // For images, PyTorch ignores the scales if the sizes are equal or doubled.
        match (N, target.sizes[2 + d] as f64 / x.sizes()[2 + d] as f64) {
            (2, 1.0) if !exact => return i,
            (2, 2.0) if !exact => return i / 2,
            _ => {}
        }
        let at = if double {
            source_position::<f64>(i, ratios[d], exact)
        } else {
            source_position::<f32>(i, ratios[d], exact)
        };
        (at.floor() as usize).min(x.sizes()[2 + d] - 1)
    };
    remap(ctx, &x, out, N, &map, 0..0)
}

/// An interpolation filter.
#[derive(Clone, Copy)]
struct Filter {
    cubic: bool,
    antialias: bool,
}

const LINEAR: Filter = Filter { cubic: false, antialias: false };
const CUBIC: Filter = Filter { cubic: true, antialias: false };
const LINEAR_AA: Filter = Filter { cubic: false, antialias: true };
const CUBIC_AA: Filter = Filter { cubic: true, antialias: true };

/// The taps of each output element along one dimension: up to `count` input elements, with their weights.
struct Taps<'a, C> {
    count: usize,
    /// The number of taps of each output element. No tap past this number is read, even with a weight of zero,
    /// because zero times infinity is NaN.
    len: ScratchBuffer<'a, i64>,
    at: ScratchBuffer<'a, i64>,
    weight: ScratchBuffer<'a, C>,
}

/// Keys' cubic convolution at distance `x`.
pub(crate) fn cubic<C: Compute + Float>(x: C, a: f64) -> C {
    let (x, a, n) = (x.abs(), C::from_f64(a), C::from_f64);
    if x <= n(1.0) {
        ((a + n(2.0)) * x - (a + n(3.0))) * x * x + n(1.0)
    } else if x < n(2.0) {
        ((a * x - n(5.0) * a) * x + n(8.0) * a) * x - n(4.0) * a
    } else {
        n(0.0)
    }
}

impl<'a, C: Compute + Float> Taps<'a, C> {
    fn new(
        ctx: &KernelContext<'a>,
        from: usize,
        to: usize,
        scale: Option<f64>,
        align: bool,
        filter: Filter,
    ) -> Result<Self> {
        let n = C::from_f64;
        let ratio: C = match align {
            true if to > 1 => n((from - 1) as f64) / n((to - 1) as f64),
            true => n(0.0),
            false => input_step(from, to, scale),
        };
        let half = n(0.5);
        let reach = n(if filter.cubic { 2.0 } else { 1.0 });
        let wide = filter.antialias && ratio >= n(1.0);
        let support = if wide { reach * ratio } else { reach };
        let count = match (filter.antialias, filter.cubic) {
            (true, _) => ((support.ceil().to_f64() as usize).saturating_mul(2).saturating_add(1)).min(from),
            (false, true) => 4,
            (false, false) => 2,
        };
        let total = to.saturating_mul(count);
        let mut taps =
            Self { count, len: ctx.scratch(to)?, at: ctx.scratch(total)?, weight: ctx.scratch(total)? };
        taps.len.fill(count as i64);
        let last = from as i64 - 1;
        for i in 0..to {
            let at = &mut taps.at[i * count..][..count];
            let weight = &mut taps.weight[i * count..][..count];
            let position = n(i as f64);
            if filter.antialias {
                let center = ratio * (position + half);
                let narrow = if wide { ratio.recip() } else { n(1.0) };
                let edge = |x: C| (x + half).to_f64().clamp(-1e18, 1e18) as i64;
                let first = edge(center - support).max(0);
                let len = (edge(center + support).min(from as i64) - first).clamp(0, count as i64);
                taps.len[i] = len;
                let mut sum = n(0.0);
                for (j, (at, weight)) in at.iter_mut().zip(weight.iter_mut()).enumerate() {
                    let j = j as i64;
                    *at = (first + j).min(last);
                    let x = (n((j + first) as f64) - center + half) * narrow;
                    *weight = match j < len {
                        false => n(0.0),
                        true if filter.cubic => cubic(x, -0.5),
                        true => (n(1.0) - x.abs()).max(n(0.0)),
                    };
                    sum = sum + *weight;
                }
                if sum != n(0.0) {
                    weight.iter_mut().for_each(|w| *w = *w / sum);
                }
                continue;
            }
            let position = if align { ratio * position } else { ratio * (position + half) - half };
            if filter.cubic {
                let floor = position.floor();
                let (t, first) = (position - floor, floor.to_f64().clamp(-1e18, 1e18) as i64);
                for (j, (at, weight)) in at.iter_mut().zip(weight.iter_mut()).enumerate() {
                    *at = (first - 1 + j as i64).clamp(0, last);
                    *weight = cubic(t + n(1.0 - j as f64), -0.75);
                }
            } else if from == to {
                at.fill(i as i64);
                weight.copy_from_slice(&[n(1.0), n(0.0)]);
            } else {
                let position = position.max(n(0.0));
                let first = (position.to_f64().min(1e18) as i64).min(last);
                at.copy_from_slice(&[first, (first + 1).min(last)]);
                let t = (position - n(first as f64)).max(n(0.0)).min(n(1.0));
                weight.copy_from_slice(&[n(1.0) - t, t]);
            }
        }
        Ok(taps)
    }
}

/// Resizes a dimension from size `n` to size `m`; each of its indices selects `inner` contiguous elements.
fn resize_dim<C: Compute + Float>(
    ctx: &KernelContext<'_>,
    from: &[C],
    to: &mut [C],
    [n, m, inner]: [usize; 3],
    taps: &Taps<'_, C>,
) {
    let (count, len, at, weight): (usize, &[i64], &[i64], &[C]) =
        (taps.count, &taps.len, &taps.at, &taps.weight);
    let taps_of = |i: usize| {
        let len = len[i] as usize;
        (&at[i * count..][..len], &weight[i * count..][..len])
    };
    // A work item is a line of contiguous elements that share their taps or, if the resized dimension is innermost, a
    // line of the result.
    let line = if inner == 1 { m } else { inner };
    let grain = (1 << 14) / (line * count).clamp(1, 1 << 14);
    ctx.pool().parallel_chunks_mut(to, line, grain, &|o, to| {
        if inner == 1 {
            let from = &from[o * n..][..n];
            for (i, to) in to.iter_mut().enumerate() {
                let (at, weight) = taps_of(i);
                pteron_pool::count(at.len());
                let terms = at.iter().zip(weight).map(|(&at, &w)| from[at as usize] * w);
                *to = terms.reduce(|a, b| a + b).unwrap_or_default();
            }
            return;
        }
        let from = &from[o / m * n * inner..][..n * inner];
        let (at, weight) = taps_of(o % m);
        pteron_pool::count(at.len() * inner);
        let row = |at: i64| &from[at as usize * inner..][..inner];
        match (at, weight) {
            ([], _) => to.fill(C::default()),
            // Linear interpolation has two taps: one pass over the line.
            (&[a, b], &[v, w]) => {
                to.iter_mut().zip(row(a)).zip(row(b)).for_each(|((to, &a), &b)| *to = a * v + b * w);
            }
            (&[first, ref at @ ..], &[v, ref weight @ ..]) => {
                to.iter_mut().zip(row(first)).for_each(|(to, &x)| *to = x * v);
                for (&at, &w) in at.iter().zip(weight) {
                    to.iter_mut().zip(row(at)).for_each(|(to, &x)| *to = *to + x * w);
                }
            }
            (_, []) => {}
        }
    });
}

/// Linear or cubic resampling, one dimension at a time: each element is a weighted sum of input elements around its
/// position. Argument 2 (`align_corners`) says whether the centers of the corner elements coincide, rather than their
/// outer edges.
fn resample_weighted<const N: usize>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    target: Target<N>,
    filter: Filter,
) -> Result<()> {
    let (x, align) = (args.tensor(IMAGES)?, args.bool("align_corners")?);
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    ensure!(PICTURES.contains(x.dtype()), "{}: {} cannot be interpolated", args.name(IMAGES), x.dtype());
    out.resize(&target.sizes)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let compute = if x.dtype() == ScalarType::Byte { ScalarType::Float } else { compute_type(x.dtype()) };
    dispatch!(args.name(IMAGES), compute, COMPUTE_FLOAT, C => {
        let resize = Resize { target: &target, align, filter, pictures: x.dtype() == ScalarType::Byte };
        // With equal layouts, the tensors are resized in storage order, without a copy.
        if x.dtype() == C::DTYPE && x.dim_order() == out.dim_order() {
            return resize.run::<C>(ctx, x.storage()?, *x.sizes(), *x.dim_order(), out.storage_mut()?);
        }
        let first = all_values::<C>(ctx, &x)?;
        let order = DimOrder::contiguous(x.rank());
        write_values::<C>(ctx, out, |to| resize.run(ctx, &first, *x.sizes(), order, to))
    })
}

/// The resampling of the last `N` dimensions of a tensor.
struct Resize<'t, const N: usize> {
    target: &'t Target<N>,
    align: bool,
    filter: Filter,
    /// Whether elements are uint8; then results are rounded and clamped.
    pictures: bool,
}

impl<const N: usize> Resize<'_, N> {
    /// Resizes a tensor with elements `first` and sizes `sizes` into `to`; both are stored in the dim order `order`.
    fn run<C: Compute + Float>(
        &self,
        ctx: &KernelContext<'_>,
        first: &[C],
        mut sizes: Shape,
        order: DimOrder,
        to: &mut [C],
    ) -> Result<()> {
        let mut resized: Option<ScratchBuffer<'_, C>> = None;
        // Where PyTorch does so, a dimension whose size stays the same is skipped, whatever its scale.
        let stays = |sizes: &Shape, d: usize| {
            sizes[d] == self.target.sizes[d] && (self.filter.antialias || self.pictures)
        };
        let Some(last) = (2..2 + N).find(|&d| !stays(&sizes, d)) else {
            to.copy_from_slice(first);
            return Ok(());
        };
        for d in (last..2 + N).rev() {
            if stays(&sizes, d) {
                continue;
            }
            let (n, m) = (sizes[d], self.target.sizes[d]);
            let taps = Taps::<C>::new(ctx, n, m, self.target.scales[d - 2], self.align, self.filter)?;
            sizes[d] = m;
            let behind = order.iter().skip_while(|&&e| usize::from(e) != d).skip(1);
            let inner = behind.map(|&e| sizes[usize::from(e)]).product();
            let from = resized.as_deref().unwrap_or(first);
            let finish = |to: &mut [C]| {
                resize_dim(ctx, from, to, [n, m, inner], &taps);
                if self.pictures {
                    let bounded = |x: C| x.round().max(C::from_f64(0.0)).min(C::from_f64(255.0));
                    to.iter_mut().for_each(|x| *x = bounded(*x));
                }
            };
            if d == last {
                finish(to);
            } else {
                let mut next = ctx.scratch::<C>(sizes.numel()?)?;
                finish(&mut next);
                resized = Some(next);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, ints, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Byte, Float};
    use pteron_tensor::{DimOrder, Tensor, TensorMeta};

    #[test]
    fn resampling_by_sizes_and_by_scale_factors() {
        let x = t(&[1, 1, 1, 2], &[1f32, 2.0]);
        let doubled = [2.0, 2.0];
        let args = [a(&x), Arg::None, Arg::Doubles(&doubled)];
        let r = call("aten::upsample_nearest2d.vec_out", &args, out(Float, &[1, 1, 2, 4])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
        let args = [a(&x), ints(&[1, 4]), Arg::Bool(false), Arg::None];
        let r = call("aten::upsample_bilinear2d.vec_out", &args, out(Float, &[1, 1, 1, 4])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0, 1.25, 1.75, 2.0]);
        let args = [a(&x), ints(&[1, 3]), Arg::Bool(true), Arg::None];
        let r = call("aten::upsample_bilinear2d.vec_out", &args, out(Float, &[1, 1, 1, 3])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0, 1.5, 2.0]);
    }

    #[test]
    fn channels_last_images_give_the_same_results() {
        let numbers: Vec<f32> = (0..2 * 3 * 4 * 5).map(|i| (i * 37 % 101) as f32).collect();
        let x = t(&[2, 3, 4, 5], &numbers);
        let last = DimOrder::new(&[0, 2, 3, 1]).unwrap();
        let laid = x.to_dim_order(last).unwrap();
        for (name, sizes) in [
            ("aten::upsample_bilinear2d.vec_out", [8, 10]),
            ("aten::upsample_bilinear2d.vec_out", [7, 5]),
            ("aten::_upsample_bilinear2d_aa.vec_out", [4, 3]),
            ("aten::_upsample_bicubic2d_aa.vec_out", [4, 5]),
            ("aten::upsample_bicubic2d.vec_out", [3, 9]),
        ] {
            let size = ints(&sizes);
            let meta = |order| {
                let [h, w] = sizes.map(|n| n as usize);
                TensorMeta::new(Float, &[2, 3, h, w], order).unwrap()
            };
            let args = |x| [a(x), size.clone(), Arg::Bool(false), Arg::None];
            let plain = Tensor::zeros(meta(DimOrder::contiguous(4))).unwrap();
            let plain = call(name, &args(&x), plain).unwrap();
            let r = call(name, &args(&laid), Tensor::zeros(meta(last)).unwrap()).unwrap();
            let r = r.to_dim_order(DimOrder::contiguous(4)).unwrap();
            assert_eq!(r.storage::<f32>().unwrap(), plain.storage::<f32>().unwrap(), "{name} to {sizes:?}");
        }
    }

    #[test]
    fn uint8_results_are_rounded_and_clamped() {
        let x = t(&[1, 1, 1, 4], &[0u8, 255, 255, 0]);
        for name in ["aten::upsample_bicubic2d.out", "aten::_upsample_bicubic2d_aa.out"] {
            let args = [a(&x), ints(&[1, 8]), Arg::Bool(false), Arg::None, Arg::None];
            let r = call(name, &args, out(Byte, &[1, 1, 1, 8])).unwrap();
            assert_eq!(r.storage::<u8>().unwrap()[3..5], [255, 255]);
        }
        let args = [a(&x), ints(&[1, 2]), Arg::Bool(false), Arg::None, Arg::None];
        let r = call("aten::_upsample_bilinear2d_aa.out", &args, out(Byte, &[1, 1, 1, 2])).unwrap();
        assert_eq!(r.storage::<u8>().unwrap(), &[146, 146]);
    }

    #[test]
    fn infinity_affects_only_outputs_whose_taps_read_it() {
        for inner in [1, 2] {
            let x = [f32::INFINITY, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0].map(|x| vec![x; inner]).concat();
            let (name, size) = ("aten::_upsample_bilinear2d_aa.out", [3, inner as i64]);
            let x = t(&[1, 1, 8, inner], &x);
            let args = [a(&x), ints(&size), Arg::Bool(false), Arg::None, Arg::None];
            let r = call(name, &args, out(Float, &[1, 1, 3, inner])).unwrap();
            let r = r.storage::<f32>().unwrap();
            assert!(r[0] == f32::INFINITY && r[inner..].iter().all(|x| x.is_finite()), "{r:?}");
        }
    }

    #[test]
    fn invalid_sizes_are_errors() {
        let x = t(&[1, 1, 2, 2], &[1f32, 2.0, 3.0, 4.0]);
        for factors in [[0.0, 1.0], [f64::NAN, 1.0], [f64::INFINITY, 1.0], [-1.0, 1.0], [1e300, 1e300]] {
            let args = [a(&x), Arg::None, Arg::Doubles(&factors)];
            assert!(call("aten::upsample_nearest2d.vec_out", &args, out(Float, &[1, 1, 4, 4])).is_err());
        }
        for size in [[0, 1], [-1, 1], [i64::MAX, i64::MAX]] {
            let args = [a(&x), ints(&size), Arg::Bool(true), Arg::None, Arg::None];
            assert!(call("aten::upsample_bicubic2d.out", &args, out(Float, &[1, 1, 4, 4])).is_err());
        }
        // A scale that contradicts the sizes does not read out of bounds.
        for scale in [1e-300, 1e300, f64::NAN, -1.0] {
            for name in ["aten::upsample_bicubic2d.out", "aten::_upsample_bicubic2d_aa.out"] {
                let args = [a(&x), ints(&[3, 3]), Arg::Bool(false), Arg::Double(scale), Arg::Double(scale)];
                call(name, &args, out(Float, &[1, 1, 3, 3])).unwrap();
            }
        }
    }
}

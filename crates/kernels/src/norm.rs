//! Layer, batch and group normalisation.

use crate::support::convert::{Values, all_values, values_as_stored, write, write_row_major, write_stored};
use crate::support::dims::{to_positive, to_shape, to_size};
use crate::support::dtype::{Cast, Compute, compute_type, dispatch, expect_dtype};
use crate::support::layout::Layout;
use crate::support::map::expect_out;
use pteron_operator::facts::GroupNorm;
use pteron_operator::{
    Args, DtypeSet, Error, KernelContext, Meaning, Operator, Outs, Result, Rounding, ScratchBuffer, ensure,
};
use pteron_tensor::{ScalarType, Shape, TensorView};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::native_layer_norm.out(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
        DtypeSet::FLOATING,
        layer_norm,
    )
    .rounding(Rounding::Once)
    .means(layer_norm_meaning),
    Operator::new(
        "aten::native_group_norm.out(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
        DtypeSet::FLOATING,
        group_norm,
    )
    .rounding(Rounding::Once)
    .means(group_norm_meaning),
    Operator::new(
        "aten::_native_batch_norm_legit_no_training.out(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
        DtypeSet::FLOATING,
        batch_norm_no_training,
    )
    .rounding(Rounding::Once)
    .means(batch_norm_meaning),
    Operator::new(
        "aten::_native_batch_norm_legit.no_stats_out(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps, *, Tensor(a!) out, Tensor(b!) save_mean, Tensor(c!) save_invstd) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
        DtypeSet::FLOATING,
        batch_norm_no_stats,
    ),
    Operator::new(
        "aten::_native_batch_norm_legit.out(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, Tensor(b!) running_var, bool training, float momentum, float eps, *, Tensor(d!) out, Tensor(e!) save_mean, Tensor(f!) save_invstd) -> (Tensor(d!), Tensor(e!), Tensor(f!))",
        DtypeSet::FLOATING,
        batch_norm,
    ),
];

fn layer_norm_meaning(args: &Args<'_>) -> Option<Meaning> {
    let shape = to_shape("normalized_shape", args.ints("normalized_shape").ok()?).ok()?;
    let sizes = args.meta("input").ok()?.sizes();
    let outer = sizes.len().checked_sub(shape.rank())?;
    let is_last = shape.rank() > 0 && sizes[outer..] == *shape;
    is_last.then_some(Meaning::LayerNorm { elements: shape.numel().ok()?, eps: args.double("eps").ok()? })
}

fn group_norm_meaning(args: &Args<'_>) -> Option<Meaning> {
    let size = |arg: &'static str| usize::try_from(args.int(arg).ok()?).ok();
    Some(Meaning::GroupNorm(GroupNorm {
        batch: size("N")?,
        channels: size("C")?,
        pixels: size("HxW")?,
        groups: size("group")?,
        eps: args.double("eps").ok()?,
    }))
}

fn batch_norm_meaning(args: &Args<'_>) -> Option<Meaning> {
    Some(Meaning::BatchNorm { eps: args.double("eps").ok()? })
}

/// Grain size: the smallest number of elements worth waking a thread for.
const GRAIN: usize = 1 << 14;

/// The mean and the reciprocal standard deviation of the elements.
fn mean_and_rstd<C: Compute>(x: &[C], eps: f64) -> [f64; 2] {
    let n = x.len() as f64;
    let mean = sum_of(x, |v| v) / n;
    let var = sum_of(x, |v| (v - mean) * (v - mean)) / n;
    [mean, 1.0 / (var + eps).sqrt()]
}

/// A sum with eight independent accumulators, which the compiler can vectorise.
fn sum_of<C: Compute>(x: &[C], f: impl Fn(f64) -> f64) -> f64 {
    let (groups, rest) = x.as_chunks::<8>();
    let mut parts = [0.0; 8];
    for group in groups {
        parts.iter_mut().zip(group).for_each(|(p, v)| *p += f(v.to_f64()));
    }
    parts.iter_mut().zip(rest).for_each(|(p, v)| *p += f(v.to_f64()));
    parts.iter().sum()
}

/// [`mean_and_rstd`] of every row of `n` elements.
fn row_statistics<'a, C: Compute>(
    ctx: &KernelContext<'a>,
    x: &[C],
    rows: usize,
    n: usize,
    eps: f64,
) -> Result<ScratchBuffer<'a, f64>> {
    let mut all = ctx.scratch::<f64>(rows * 2)?;
    ctx.pool().parallel_chunks_mut(&mut all, 2, (GRAIN / n.max(1)).max(1), &|row, pair| {
        pair.copy_from_slice(&mean_and_rstd(&x[row * n..(row + 1) * n], eps));
    });
    Ok(all)
}

/// An optional weight or bias of `len` elements.
fn weight_or_bias<'a, C: Compute>(
    ctx: &KernelContext<'a>,
    name: &str,
    tensor: Option<TensorView<'a>>,
    len: usize,
) -> Result<Option<Values<'a, C>>> {
    let Some(t) = tensor else { return Ok(None) };
    ensure!(t.numel() == len, "{name}: expected {len} elements, found the shape {}", t.sizes());
    Ok(Some(all_values::<C>(ctx, &t)?))
}

/// Sets outs 1 and 2, with the sizes `sizes`, to the mean and the reciprocal standard deviation of every row.
fn set_statistics(ctx: &KernelContext<'_>, outs: &mut Outs<'_>, sizes: &Shape, all: &[f64]) -> Result<()> {
    for k in 0..2 {
        let out = outs.tensor(1 + k)?;
        expect_out(ScalarType::Float, out.dtype())?;
        out.resize(sizes)?;
        write_row_major::<f64>(ctx, out, |out| {
            out.iter_mut().zip(all.chunks_exact(2)).for_each(|(o, pair)| *o = pair[k]);
            Ok(())
        })?;
    }
    Ok(())
}

/// Argument 0, checked to be of a floating-point type that can be stored in out `index`.
fn checked_input<'a>(args: &Args<'a>, outs: &mut Outs<'_>, index: usize) -> Result<TensorView<'a>> {
    let x = args.tensor("input")?;
    expect_dtype("input", x.dtype(), DtypeSet::FLOATING)?;
    expect_out(x.dtype(), outs.tensor(index)?.dtype())?;
    Ok(x)
}

/// Layer normalisation over the last dimensions; weight and bias have the shape of these dimensions.
fn layer_norm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = checked_input(args, outs, 0)?;
    let shape = to_shape("normalized_shape", args.ints("normalized_shape")?)?;
    let outer = x.rank().checked_sub(shape.rank()).filter(|&d| x.sizes()[d..] == *shape);
    ensure!(
        outer.is_some() && shape.rank() > 0,
        "normalized_shape: {shape} are not the last dimensions of {}",
        x.sizes()
    );
    let outer = outer.unwrap_or(0);
    let (rows, n) = (Shape::new(&x.sizes()[..outer])?.numel()?, shape.numel()?);
    let mut statistics_sizes = *x.sizes();
    statistics_sizes[outer..].fill(1);
    let eps = args.double("eps")?;
    dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let all = all_values::<C>(ctx, &x)?;
        let weight = weight_or_bias::<C>(ctx, "weight", args.optional_tensor("weight")?, n)?;
        let bias = weight_or_bias::<C>(ctx, "bias", args.optional_tensor("bias")?, n)?;
        let stats = row_statistics(ctx, &all, rows, n, eps)?;
        let (all, weight, bias, rows) = (&*all, weight.as_deref(), bias.as_deref(), &*stats);
        let out = outs.tensor(0)?;
        out.resize(x.sizes())?;
        write_row_major::<C>(ctx, out, |out| {
            ctx.pool().parallel_chunks_mut(out, n.max(1), (GRAIN / n.max(1)).max(1), &|row, out| {
                let (mean, scale) = (C::from_f64(rows[row * 2]), C::from_f64(rows[row * 2 + 1]));
                let x = &all[row * n..(row + 1) * n];
                out.iter_mut().zip(x).for_each(|(o, &x)| *o = (x - mean) * scale);
                if let Some(w) = weight {
                    out.iter_mut().zip(w).for_each(|(o, &w)| *o *= w);
                }
                if let Some(b) = bias {
                    out.iter_mut().zip(b).for_each(|(o, &b)| *o += b);
                }
            });
            Ok(())
        })?;
        set_statistics(ctx, outs, &statistics_sizes, &stats)
    })
}

/// Group normalisation over the channels of a group and all spatial dimensions; weight and bias have an element for
/// each channel.
fn group_norm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = checked_input(args, outs, 0)?;
    let size = |arg: &'static str| to_size(arg, args.int(arg)?);
    let (n, channels, pixels, groups) =
        (size("N")?, size("C")?, size("HxW")?, to_positive("group", args.int("group")?)?);
    let numel = Shape::new(&[n, channels, pixels])?.numel()?;
    ensure!(
        numel == x.numel(),
        "N, C and HxW: {n}, {channels} and {pixels} do not suit the shape {}",
        x.sizes()
    );
    ensure!(channels % groups == 0, "group: {groups} groups do not divide {channels} channels");
    let rows = n.checked_mul(groups);
    let rows =
        rows.ok_or_else(|| Error::invalid(format!("group: {groups} groups of {n} images overflow")))?;
    let each = channels / groups * pixels;
    let eps = args.double("eps")?;
    dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let all = all_values::<C>(ctx, &x)?;
        let weight = weight_or_bias::<C>(ctx, "weight", args.optional_tensor("weight")?, channels)?;
        let bias = weight_or_bias::<C>(ctx, "bias", args.optional_tensor("bias")?, channels)?;
        let stats = row_statistics(ctx, &all, rows, each, eps)?;
        let (all, weight, bias, rows) = (&*all, weight.as_deref(), bias.as_deref(), &*stats);
        let out = outs.tensor(0)?;
        out.resize(x.sizes())?;
        write_row_major::<C>(ctx, out, |out| {
            ctx.pool().parallel_chunks_mut(out, pixels.max(1), (GRAIN / pixels.max(1)).max(1), &|plane, out| {
                let (row, channel) = (plane / (channels / groups), plane % channels);
                let weight = weight.map_or(1.0, |w| w[channel].to_f64());
                // The shift is computed from the rounded scale, so that a group of equal elements is 0, as in PyTorch.
                let scale = C::from_f64(rows[row * 2 + 1] * weight);
                let shift = bias.map_or(0.0, |b| b[channel].to_f64()) - rows[row * 2] * scale.to_f64();
                let shift = C::from_f64(shift);
                let x = &all[plane * pixels..(plane + 1) * pixels];
                out.iter_mut().zip(x).for_each(|(o, &x)| *o = x * scale + shift);
            });
            Ok(())
        })?;
        set_statistics(ctx, outs, &Shape::new(&[n, groups])?, &stats)
    })
}

/// The number of channels: the size of dimension 1.
fn channel_count(x: &TensorView<'_>) -> Result<usize> {
    ensure!(x.rank() >= 2, "input: expected at least two dimensions, found the shape {}", x.sizes());
    Ok(x.sizes()[1])
}

/// Sets out `index` to `x * scale[c] + shift[c]`, computed from `pairs`, each channel's mean and reciprocal standard
/// deviation, and from weight and bias, arguments 1 and 2.
fn apply_affine(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    index: usize,
    x: &TensorView<'_>,
    pairs: &[f64],
) -> Result<()> {
    let channels = channel_count(x)?;
    let out = outs.tensor(index)?;
    out.resize(x.sizes())?;
    dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let weight = weight_or_bias::<f64>(ctx, "weight", args.optional_tensor("weight")?, channels)?;
        let bias = weight_or_bias::<f64>(ctx, "bias", args.optional_tensor("bias")?, channels)?;
        let mut factors = ctx.scratch::<C>(channels * 2)?;
        for (c, pair) in pairs.chunks_exact(2).enumerate() {
            let scale = C::from_f64(pair[1] * weight.as_ref().map_or(1.0, |w| w[c]));
            let shift = bias.as_ref().map_or(0.0, |b| b[c]) - pair[0] * scale.to_f64();
            (factors[c], factors[channels + c]) = (scale, C::from_f64(shift));
        }
        let (scale, shift) = factors.split_at(channels);
        // In the out's storage order; `inner` is the number of elements stored inside the channel dimension.
        let place = out.dim_order().iter().position(|&d| d == 1).unwrap_or(0);
        let inner: usize = out.dim_order()[place + 1..].iter().map(|&d| x.sizes()[d as usize]).product();
        let all = values_as_stored::<C>(ctx, x, out.meta())?;
        let all = &*all;
        write_stored::<C>(ctx, out, |out| {
            if inner == 1 {
                ctx.pool().parallel_chunks_mut(out, channels.max(1), (GRAIN / channels.max(1)).max(1), &|pixel, out| {
                    let x = &all[pixel * channels..(pixel + 1) * channels];
                    for (((o, &x), &a), &b) in out.iter_mut().zip(x).zip(scale).zip(shift) {
                        *o = x * a + b;
                    }
                });
                return Ok(());
            }
            ctx.pool().parallel_chunks_mut(out, inner.max(1), (GRAIN / inner.max(1)).max(1), &|plane, out| {
                let (a, b) = (scale[plane % channels], shift[plane % channels]);
                let x = &all[plane * inner..(plane + 1) * inner];
                out.iter_mut().zip(x).for_each(|(o, &x)| *o = x * a + b);
            });
            Ok(())
        })
    })
}

/// Each channel's mean and reciprocal standard deviation, from running statistics.
fn running_statistics<'a>(
    ctx: &KernelContext<'a>,
    mean: &TensorView<'_>,
    var: &TensorView<'_>,
    channels: usize,
    eps: f64,
) -> Result<ScratchBuffer<'a, f64>> {
    for (name, t) in [("running_mean", mean), ("running_var", var)] {
        ensure!(t.numel() == channels, "{name}: expected {channels} elements, found the shape {}", t.sizes());
    }
    let mut pairs = ctx.scratch::<f64>(channels * 2)?;
    let mut one = ctx.scratch::<f64>(channels)?;
    for (k, t) in [mean, var].into_iter().enumerate() {
        crate::support::convert::read(t, &Layout::of_tensor(t.meta()), &mut one)?;
        for (pair, &v) in pairs.chunks_exact_mut(2).zip(one.iter()) {
            pair[k] = if k == 0 { v } else { 1.0 / (v + eps).sqrt() };
        }
    }
    Ok(pairs)
}

/// Batch normalisation by running statistics. Outs 1 and 2 are empty.
fn batch_norm_no_training(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = checked_input(args, outs, 0)?;
    let channels = channel_count(&x)?;
    let pairs = running_statistics(
        ctx,
        &args.tensor("running_mean")?,
        &args.tensor("running_var")?,
        channels,
        args.double("eps")?,
    )?;
    apply_affine(ctx, args, outs, 0, &x, &pairs)?;
    outs.tensor(1)?.resize(&[0])?;
    Ok(outs.tensor(2)?.resize(&[0])?)
}

/// Each channel's mean and reciprocal standard deviation in this batch, and the number of elements of a channel.
fn batch_statistics<'a>(
    ctx: &KernelContext<'a>,
    x: &TensorView<'a>,
    eps: f64,
) -> Result<(ScratchBuffer<'a, f64>, usize)> {
    let channels = channel_count(x)?;
    let each = x.numel().checked_div(channels).unwrap_or(0);
    let all = dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let by_channel = Layout::of_tensor(x.meta()).transpose(0, 1);
        let all = crate::support::convert::values::<C>(ctx, x, &by_channel)?;
        row_statistics(ctx, &all, channels, each, eps)?
    });
    Ok((all, each))
}

/// Batch normalisation by the statistics of this batch, which are written to outs 1 and 2.
fn batch_norm_no_stats(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = checked_input(args, outs, 0)?;
    let (pairs, _) = batch_statistics(ctx, &x, args.double("eps")?)?;
    apply_affine(ctx, args, outs, 0, &x, &pairs)?;
    set_statistics(ctx, outs, &Shape::new(&[pairs.len() / 2])?, &pairs)
}

/// Batch normalisation: in training by the statistics of this batch, with which the running statistics (outs 0 and 1)
/// are updated by `momentum`; otherwise by the running statistics. The results are outs 2 to 4.
fn batch_norm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = checked_input(args, outs, 2)?;
    let (channels, training, momentum, eps) =
        (channel_count(&x)?, args.bool("training")?, args.double("momentum")?, args.double("eps")?);
    if !training {
        let pairs = running_statistics(ctx, &outs.read(0)?, &outs.read(1)?, channels, eps)?;
        apply_affine(ctx, args, outs, 2, &x, &pairs)?;
        outs.tensor(3)?.resize(&[0])?;
        return Ok(outs.tensor(4)?.resize(&[0])?);
    }
    let (pairs, n) = batch_statistics(ctx, &x, eps)?;
    apply_affine(ctx, args, outs, 2, &x, &pairs)?;
    for k in 0..2 {
        let saved = outs.tensor(3 + k)?;
        saved.resize(&[channels])?;
        let all = pteron_tensor::memory::collected(pairs.chunks_exact(2).map(|p| p[k]))?;
        let into = Layout::of_tensor(saved.meta());
        write(ctx, &all, saved, &into)?;
        let mut now = ctx.scratch::<f64>(channels)?;
        let stat = outs.tensor(k)?;
        ensure!(
            stat.numel() == channels,
            "running statistics: expected {channels} elements, found {}",
            stat.sizes()
        );
        let at = Layout::of_tensor(stat.meta());
        crate::support::convert::read(&stat.as_view(), &at, &mut now)?;
        for (now, pair) in now.iter_mut().zip(pairs.chunks_exact(2)) {
            // The running variance is updated with the unbiased estimate of the variance.
            let var = (1.0 / (pair[1] * pair[1]) - eps) * n as f64 / (n as f64 - 1.0);
            *now += momentum * (if k == 0 { pair[0] } else { var } - *now);
        }
        write(ctx, &now, stat, &at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call_many, int, ints, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{BFloat16, Double, Float};
    use pteron_tensor::{DimOrder, Tensor};

    fn near(t: &Tensor, want: &[f32]) {
        let got = t.to_dim_order(DimOrder::contiguous(t.rank())).unwrap();
        let got = got.storage::<f32>().unwrap();
        assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-5), "{got:?} {want:?}");
        assert_eq!(got.len(), want.len());
    }

    #[test]
    fn layer_norm_of_the_last_dimensions() {
        let x = t(&[2, 2], &[1f32, 3.0, -2.0, -6.0]);
        let (w, b) = (t(&[2], &[2f32, 1.0]), t(&[2], &[0.5f32, 0.0]));
        let args = [a(&x), ints(&[2]), a(&w), a(&b), Arg::Double(0.0)];
        let outs = [out(Float, &[2, 2]), out(Float, &[2, 1]), out(Float, &[2, 1])];
        let [y, m, r] = call_many("aten::native_layer_norm.out", &args, outs.clone()).unwrap();
        near(&y, &[-1.5, 1.0, 2.5, -1.0]);
        near(&m, &[2.0, -4.0]);
        near(&r, &[1.0, 0.5]);
        let args = [a(&x), ints(&[3]), Arg::None, Arg::None, Arg::Double(0.0)];
        assert!(call_many("aten::native_layer_norm.out", &args, outs.clone()).is_err());
        let one = t(&[1], &[1f32]);
        let args = [a(&x), ints(&[2]), a(&one), Arg::None, Arg::Double(0.0)];
        assert!(call_many("aten::native_layer_norm.out", &args, outs).is_err());
    }

    #[test]
    fn batch_norm_in_any_layout() {
        let x = t(&[1, 2, 1, 2], &[1f32, 3.0, -2.0, -6.0]);
        let (m, v) = (t(&[2], &[1f32, -2.0]), t(&[2], &[4f32, 1.0]));
        let (w, b) = (t(&[2], &[2f32, 1.0]), t(&[2], &[0.5f32, 0.0]));
        let last = DimOrder::channels_last(4);
        for x in [x.clone(), x.to_dim_order(last).unwrap()] {
            for o in [out(Float, &[1, 2, 1, 2]), out(Float, &[1, 2, 1, 2]).to_dim_order(last).unwrap()] {
                let args = [a(&x), a(&w), a(&b), a(&m), a(&v), Arg::Double(0.1), Arg::Double(0.0)];
                let outs = [o, out(Float, &[0]), out(Float, &[0])];
                let [y, ..] =
                    call_many("aten::_native_batch_norm_legit_no_training.out", &args, outs).unwrap();
                near(&y, &[0.5, 2.5, 0.0, -4.0]);
            }
        }
        let args = [a(&x), Arg::None, Arg::None, Arg::Bool(true), Arg::Double(0.1), Arg::Double(0.0)];
        let outs = [out(Float, &[1, 2, 1, 2]), out(Float, &[2]), out(Float, &[2])];
        let [y, mean, inv] = call_many("aten::_native_batch_norm_legit.no_stats_out", &args, outs).unwrap();
        near(&y, &[-1.0, 1.0, 1.0, -1.0]);
        near(&mean, &[2.0, -4.0]);
        near(&inv, &[1.0, 0.5]);
        let args = [a(&x), Arg::None, Arg::None, Arg::Bool(true), Arg::Double(0.5), Arg::Double(0.0)];
        let outs = [m, v, out(Float, &[1, 2, 1, 2]), out(Float, &[2]), out(Float, &[2])];
        let [m, v, y, ..] = call_many("aten::_native_batch_norm_legit.out", &args, outs).unwrap();
        near(&y, &[-1.0, 1.0, 1.0, -1.0]);
        near(&m, &[1.5, -3.0]);
        near(&v, &[3.0, 4.5]);
    }

    #[test]
    fn group_norm_of_channel_groups() {
        let x = t(&[1, 4, 2], &[1f64, 3.0, 1.0, 3.0, 0.0, 0.0, 4.0, 4.0]);
        let w = t(&[4], &[1f64, 2.0, 1.0, 1.0]);
        let args = [a(&x), a(&w), Arg::None, int(1), int(4), int(2), int(2), Arg::Double(0.0)];
        let outs = [out(Float, &[1, 4, 2]), out(Double, &[1, 2]), out(BFloat16, &[1, 2])];
        let [y, m, _] = call_many("aten::native_group_norm.out", &args, outs).unwrap();
        near(&y, &[-1.0, 1.0, -2.0, 2.0, -1.0, -1.0, 1.0, 1.0]);
        assert_eq!(m.storage::<f64>().unwrap(), &[2.0, 2.0]);
        let args = [a(&x), a(&w), Arg::None, int(1), int(4), int(2), int(3), Arg::Double(0.0)];
        assert!(call_many("aten::native_group_norm.out", &args, [y, m]).is_err());
    }

    #[test]
    fn groups_of_one_element_are_zero() {
        let x = t(&[4, 1], &[1.1f32, -2.3, 0.7, 3.9]);
        let args = [a(&x), Arg::None, Arg::None, int(4), int(1), int(1), int(1), Arg::Double(1e-5)];
        let outs = [out(Float, &[4, 1]), out(Float, &[4, 1]), out(Float, &[4, 1])];
        let [y, ..] = call_many("aten::native_group_norm.out", &args, outs).unwrap();
        assert_eq!(y.storage::<f32>().unwrap(), &[0.0; 4]);
    }
}

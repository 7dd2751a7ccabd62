//! Gradients of normalisation, from the statistics that the forward operators save.

use crate::support::convert::{Values, all_values, write_row_major};
use crate::support::dims::{to_positive, to_shape, to_size};
use crate::support::dtype::expect_dtype;
use crate::support::map::expect_out;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::native_layer_norm_backward.out(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
        DtypeSet::FLOATING,
        layer_norm_backward,
    ),
    Operator::new(
        "aten::native_group_norm_backward.out(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
        DtypeSet::FLOATING,
        group_norm_backward,
    ),
];

/// Grain size: the smallest number of elements worth waking a thread for.
const GRAIN: usize = 1 << 14;

/// The structure of the normalised tensor: rows of `n` elements, and the mapping of elements to weights.
struct NormShape {
    rows: usize,
    n: usize,
    /// The number of rows after which the weights repeat.
    groups: usize,
    /// The number of consecutive elements of a row that share a weight.
    each: usize,
}

impl NormShape {
    /// The number of weights.
    fn weight_count(&self) -> usize {
        self.groups * (self.n / self.each.max(1))
    }

    /// The indices of the weights of a row: one weight for each `each` elements.
    fn weights_of_row(&self, row: usize) -> std::ops::Range<usize> {
        let count = self.n / self.each.max(1);
        let first = row % self.groups.max(1) * count;
        first..first + count
    }
}

/// Computes the gradients that `mask` requests; other outs are not written. Arguments 0 and 1 are the gradient and the
/// input; `at` gives the arguments with the mean, the reciprocal standard deviation and the weight.
fn compute_gradients(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    form: &NormShape,
    at: [usize; 3],
    weights_shape: &[usize],
    mask: &[bool],
) -> Result<()> {
    let (grad, x) = (args.tensor("grad_out")?, args.tensor("input")?);
    ensure!(mask.len() == 3, "output_mask: expected three booleans, found {}", mask.len());
    ensure!(
        grad.sizes() == x.sizes(),
        "grad_out: the shape {} differs from the input's, {}",
        grad.sizes(),
        x.sizes()
    );
    for (argument, statistic) in [(0, at[0]), (1, at[1])] {
        expect_dtype(args.name(argument), args.meta(argument)?.dtype(), DtypeSet::FLOATING)?;
        let (name, actual) = (args.name(statistic), args.tensor(statistic)?.numel());
        ensure!(actual == form.rows, "{name}: expected {} elements, found {actual}", form.rows);
    }
    let weight: Option<Values<'_, f64>> = match args.optional_tensor(at[2])? {
        None => None,
        Some(w) => {
            let n = form.weight_count();
            ensure!(w.numel() == n, "weight: expected {n} elements, found the shape {}", w.sizes());
            Some(all_values(ctx, &w)?)
        }
    };
    let (mean, rstd) =
        (all_values::<f64>(ctx, &args.tensor(at[0])?)?, all_values::<f64>(ctx, &args.tensor(at[1])?)?);
    let (grads, all) = (all_values::<f64>(ctx, &grad)?, all_values::<f64>(ctx, &x)?);
    let (mean, rstd, grads, all, weight) = (&*mean, &*rstd, &*grads, &*all, weight.as_deref());
    let (n, each) = (form.n, form.each.max(1));
    if mask[0] {
        let out = outs.tensor(0)?;
        expect_out(x.dtype(), out.dtype())?;
        out.resize(x.sizes())?;
        write_row_major::<f64>(ctx, out, |out| {
            let grain = (GRAIN / n.max(1)).max(1);
            ctx.pool().parallel_chunks_mut(out, n.max(1), grain, &|row, out| {
                let (dy, x) = (&grads[row * n..][..n], &all[row * n..][..n]);
                let factors = weight.map(|w| &w[form.weights_of_row(row)]);
                let scaled = |i: usize| dy[i] * factors.map_or(1.0, |w| w[i / each]);
                let normal = |i: usize| (x[i] - mean[row]) * rstd[row];
                let (mut sum, mut along) = (0.0, 0.0);
                for i in 0..n {
                    sum += scaled(i);
                    along += scaled(i) * normal(i);
                }
                let (sum, along) = (sum / n as f64, along / n as f64);
                for (i, o) in out.iter_mut().enumerate() {
                    *o = rstd[row] * (scaled(i) - sum - normal(i) * along);
                }
            });
            Ok(())
        })?;
    }
    for k in (1..3).filter(|&k| mask[k]) {
        let out = outs.tensor(k)?;
        expect_out(x.dtype(), out.dtype())?;
        out.resize(weights_shape)?;
        write_row_major::<f64>(ctx, out, |out| {
            out.fill(0.0);
            for row in 0..form.rows {
                let (dy, x) = (&grads[row * n..][..n], &all[row * n..][..n]);
                let sums = &mut out[form.weights_of_row(row)];
                for ((sum, dy), x) in sums.iter_mut().zip(dy.chunks(each)).zip(x.chunks(each)) {
                    let normal = |x: f64| if k == 1 { (x - mean[row]) * rstd[row] } else { 1.0 };
                    *sum += dy.iter().zip(x).map(|(dy, &x)| dy * normal(x)).sum::<f64>();
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The gradients of [`native_layer_norm`](crate::norm): weights and biases have the normalised shape.
fn layer_norm_backward(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (sizes, normalized) =
        (args.meta("input")?.sizes(), to_shape("normalized_shape", args.ints("normalized_shape")?)?);
    ensure!(
        !normalized.is_empty() && sizes.ends_with(&normalized),
        "normalized_shape: {normalized} is not the end of the input's shape {sizes}"
    );
    let n: usize = normalized.iter().product();
    let rows = sizes[..sizes.len() - normalized.len()].iter().product();
    let form = NormShape { rows, n, groups: 1, each: 1 };
    compute_gradients(ctx, args, outs, &form, [3, 4, 5], &normalized, args.bools("output_mask")?)
}

/// The gradients of [`native_group_norm`](crate::norm): there is one weight and one bias for each channel.
fn group_norm_backward(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let size = |arg: &'static str| to_size(arg, args.int(arg)?);
    let (batch, channels, pixels) = (size("N")?, size("C")?, size("HxW")?);
    let groups = to_positive("group", args.int("group")?)?;
    let sizes = args.meta("input")?.sizes();
    let fits = sizes.len() >= 2
        && sizes[..2] == [batch, channels]
        && sizes[2..].iter().product::<usize>() == pixels
        && channels.is_multiple_of(groups);
    ensure!(fits, "input: {batch} x {channels} x {pixels} in {groups} groups is not the shape {sizes}");
    let form = NormShape { rows: batch * groups, n: channels / groups * pixels, groups, each: pixels };
    compute_gradients(ctx, args, outs, &form, [2, 3, 4], &[channels], args.bools("output_mask")?)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call_many, ints, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::Float;

    #[test]
    fn only_the_requested_gradients_are_computed() {
        let (x, dy) = (t(&[2, 2], &[1f32, 3.0, 0.0, 2.0]), t(&[2, 2], &[1f32, 0.0, 1.0, 1.0]));
        let (mean, rstd) = (t(&[2, 1], &[2f32, 1.0]), t(&[2, 1], &[1f32, 1.0]));
        let args = [
            a(&dy),
            a(&x),
            ints(&[2]),
            a(&mean),
            a(&rstd),
            Arg::None,
            Arg::None,
            Arg::Bools(&[false, true, true]),
        ];
        let outs = [out(Float, &[1]), out(Float, &[2]), out(Float, &[2])];
        let r = call_many("aten::native_layer_norm_backward.out", &args, outs).unwrap();
        assert_eq!(r[1].storage::<f32>().unwrap(), &[-2.0, 1.0]);
        assert_eq!(r[2].storage::<f32>().unwrap(), &[2.0, 1.0]);
        assert_eq!(&**r[0].sizes(), &[1]);
    }
}

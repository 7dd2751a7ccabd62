//! Histograms over bins between edges.

use crate::support::convert::{Values, all_values};
use crate::support::dims::to_positive;
use crate::support::dtype::{Cast, Compute, compute_type, dispatch};
use crate::support::rows::{expect_type, write_values};
use num_traits::Float;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::ScalarType;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::histogram.bins_tensor_out(Tensor self, Tensor bins, *, Tensor? weight=None, bool density=False, Tensor(a!) hist, Tensor(b!) bin_edges) -> (Tensor(a!) hist, Tensor(b!) bin_edges)",
        DtypeSet::of(&[ScalarType::Float, ScalarType::Double]),
        histogram_of_edges,
    ),
    Operator::new(
        "aten::histogram.bin_ct_out(Tensor self, int bins=100, *, float[]? range=None, Tensor? weight=None, bool density=False, Tensor(a!) hist, Tensor(b!) bin_edges) -> (Tensor(a!) hist, Tensor(b!) bin_edges)",
        DtypeSet::of(&[ScalarType::Float, ScalarType::Double]),
        histogram_of_equal_bins,
    ),
];

/// A histogram over bins with the given ascending edges, as out 0, and a copy of the edges as out 1.
fn histogram_of_edges(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, bins) = (args.tensor("self")?, args.tensor("bins")?);
    ensure!(
        bins.rank() == 1 && bins.numel() > 0,
        "bins: expected a list of edges, found the shape {}",
        bins.sizes()
    );
    expect_type("bins", x.dtype(), bins.dtype())?;
    dispatch!("self", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let edges = all_values::<C>(ctx, &bins)?;
        count_between_edges::<C>(ctx, args, outs, &edges, 2)
    })
}

/// A histogram over equal bins of `range`, or of the range of the elements, as out 0, and the bins' edges as out 1.
fn histogram_of_equal_bins(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, bins) = (args.tensor("self")?, to_positive("bins", args.int("bins")?)?);
    let range = if args.is_none("range") { None } else { Some(args.doubles("range")?) };
    ensure!(range.is_none_or(|r| r.len() == 2), "range: expected two numbers");
    let total = bins.saturating_add(1);
    dispatch!("self", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let (mut low, mut high) = match range {
            Some(range) => (C::from_f64(range[0]), C::from_f64(range[1])),
            None => element_range(&all_values::<C>(ctx, &x)?),
        };
        ensure!(low.is_finite() && high.is_finite(), "range: [{}, {}] is not finite", low.to_f64(), high.to_f64());
        ensure!(low <= high, "range: {} is above {}", low.to_f64(), high.to_f64());
        if low == high {
            (low, high) = (low - C::from_f64(0.5), high + C::from_f64(0.5));
        }
        let mut edges = ctx.scratch::<C>(total)?;
        // From both ends, so that the last edge is exact.
        let step = (high - low) / C::from_f64(bins as f64);
        for (i, edge) in edges.iter_mut().enumerate() {
            let at = |n: usize| C::from_f64(n as f64) * step;
            *edge = if i < total / 2 { low + at(i) } else { high - at(bins - i) };
        }
        count_between_edges::<C>(ctx, args, outs, &edges, 3)
    })
}

/// The smallest and the greatest element; 0 and 1 if there are no elements.
fn element_range<C: Compute + Float>(all: &[C]) -> (C, C) {
    if all.is_empty() {
        return (C::zero(), C::one());
    }
    all.iter().fold((C::infinity(), C::neg_infinity()), |(low, high), &x| {
        (if x < low || x.is_nan() { x } else { low }, if x > high || x.is_nan() { x } else { high })
    })
}

/// Counts the elements between each two edges, or sums their weights; `weight` is the position of the weights' argument.
fn count_between_edges<C: Compute + Float>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    edges: &[C],
    weight: usize,
) -> Result<()> {
    let (x, density) = (args.tensor("self")?, args.bool(weight + 1)?);
    let weights: Option<Values<'_, C>> = match args.optional_tensor(weight)? {
        Some(weights) => {
            ensure!(
                weights.sizes() == x.sizes(),
                "weight: expected the shape {}, found {}",
                x.sizes(),
                weights.sizes()
            );
            expect_type("weight", x.dtype(), weights.dtype())?;
            Some(all_values(ctx, &weights)?)
        }
        None => None,
    };
    let all = all_values::<C>(ctx, &x)?;
    let (first, last) = (edges[0], edges[edges.len() - 1]);
    for i in 0..2 {
        expect_type("out", x.dtype(), outs.tensor(i)?.dtype())?;
    }
    let hist = outs.tensor(0)?;
    hist.resize(&[edges.len() - 1])?;
    write_values::<C>(ctx, hist, |hist| {
        hist.fill(C::zero());
        for (i, &x) in all.iter().enumerate().filter(|(_, x)| **x >= first && **x <= last) {
            pteron_pool::progress(1);
            // The last bin contains its upper edge.
            let bin =
                edges.partition_point(|edge| *edge <= x).saturating_sub(1).min(hist.len().saturating_sub(1));
            if let Some(sum) = hist.get_mut(bin) {
                *sum = *sum + weights.as_ref().map_or(C::one(), |w| w[i]);
            }
        }
        if density {
            let total = hist.iter().fold(C::zero(), |sum, &n| sum + n);
            hist.iter_mut().zip(edges.windows(2)).for_each(|(n, e)| *n = *n / (total * (e[1] - e[0])));
        }
        Ok(())
    })?;
    let out = outs.tensor(1)?;
    out.resize(&[edges.len()])?;
    write_values::<C>(ctx, out, |out| {
        out.copy_from_slice(edges);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call_many, int, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::Float;

    #[test]
    fn bins_contain_their_lower_edge_and_the_last_one_its_upper() {
        let (x, edges) = (t(&[6], &[0f32, 1.0, 2.0, 3.0, 3.5, f32::NAN]), t(&[4], &[0f32, 1.0, 2.0, 3.0]));
        let args = [a(&x), a(&edges), Arg::None, Arg::Bool(false)];
        let [hist, _] =
            call_many("aten::histogram.bins_tensor_out", &args, [out(Float, &[3]), out(Float, &[4])])
                .unwrap();
        assert_eq!(hist.storage::<f32>().unwrap(), &[1.0, 1.0, 2.0]);
    }

    #[test]
    fn equal_bins_and_density() {
        let (x, w) = (t(&[4], &[0f32, 0.5, 1.0, 4.0]), t(&[4], &[1f32, 2.0, 3.0, 2.0]));
        let args = [a(&x), int(2), Arg::None, a(&w), Arg::Bool(true)];
        let outs = [out(Float, &[2]), out(Float, &[3])];
        let [hist, edges] = call_many("aten::histogram.bin_ct_out", &args, outs).unwrap();
        assert_eq!(edges.storage::<f32>().unwrap(), &[0.0, 2.0, 4.0]);
        assert_eq!(hist.storage::<f32>().unwrap(), &[0.375, 0.125]);
        let none = t::<f32>(&[0], &[]);
        let outs = [out(Float, &[2]), out(Float, &[3])];
        let args = [a(&none), int(2), Arg::None, Arg::None, Arg::Bool(false)];
        assert!(call_many("aten::histogram.bin_ct_out", &args, outs).is_ok());
    }
}

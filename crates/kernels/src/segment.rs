//! Reductions of consecutive segments of a dimension, of given lengths.

use crate::support::convert::{all_values, indices};
use crate::support::dims::{to_size, wrap_dim};
use crate::support::dtype::{Compute, compute_type, dispatch};
use crate::support::rows::{expect_type, write_values};
use num_traits::Float;
use pteron_operator::{Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, ensure};

pub(crate) const OPERATORS: &[Operator] = &[Operator::new(
    "aten::segment_reduce.out(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, Tensor? offsets=None, int axis=0, bool unsafe=False, Scalar? initial=None, Tensor(a!) out) -> Tensor(a!)",
    DtypeSet::FLOATING,
    segment_reduce,
)];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduce {
    Sum,
    Mean,
    Max,
    Min,
    Product,
}

impl Reduce {
    /// The result for an empty segment: the identity of the reduction.
    fn initial<C: Float>(self) -> C {
        match self {
            Self::Sum | Self::Mean => C::zero(),
            Self::Product => C::one(),
            Self::Max => C::neg_infinity(),
            Self::Min => C::infinity(),
        }
    }

    fn combine<C: Float>(self, a: C, b: C) -> C {
        match self {
            Self::Sum | Self::Mean => a + b,
            Self::Product => a * b,
            Self::Max if a.is_nan() || a > b => a,
            Self::Min if a.is_nan() || a < b => a,
            Self::Max | Self::Min => b,
        }
    }
}

/// Reduces each segment of dimension `axis`. For each index of the dimensions before `axis`, `lengths` gives the
/// lengths of the segments, or `offsets` their starts and the end of the last. Without `initial`, the mean of an
/// empty segment is NaN.
fn segment_reduce(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("data")?;
    let how = match args.str("reduce")? {
        "sum" => Reduce::Sum,
        "mean" => Reduce::Mean,
        "max" => Reduce::Max,
        "min" => Reduce::Min,
        "prod" => Reduce::Product,
        other => {
            return Err(Error::invalid(format!("reduce: `{other}` is not one of sum, mean, max, min, prod")));
        }
    };
    ensure!(args.is_none("indices"), "indices: not supported, as in PyTorch");
    let axis = wrap_dim("axis", args.int("axis")?, x.rank())?;
    let (bounds, extra) = match (args.optional_tensor("lengths")?, args.optional_tensor("offsets")?) {
        (_, Some(offsets)) => (offsets, 1),
        (Some(lengths), None) => (lengths, 0),
        (None, None) => return Err(Error::invalid("lengths, offsets: one of them is needed")),
    };
    let fits = x.rank() > 0 && bounds.rank() == axis + 1 && bounds.sizes()[..axis] == x.sizes()[..axis];
    ensure!(
        fits && bounds.sizes()[axis] >= extra,
        "lengths, offsets: the shape {} does not go with the data's, {}, and axis {axis}",
        bounds.sizes(),
        x.sizes()
    );
    let initial = if args.is_none("initial") { None } else { Some(args.scalar("initial")?) };
    let (per_row, size) = (bounds.sizes()[axis], x.sizes()[axis]);
    let segments = per_row - extra;
    let bounds = indices(ctx, "lengths", &bounds)?;
    let mut sizes = *x.sizes();
    sizes[axis] = segments;
    let inner: usize = x.sizes()[axis + 1..].iter().product();
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    out.resize(&sizes)?;
    dispatch!("data", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let all = all_values::<C>(ctx, &x)?;
        let start = initial.map(C::from_scalar);
        write_values::<C>(ctx, out, |out| {
            for (row, out) in out.chunks_exact_mut((segments * inner).max(1)).enumerate() {
                let bounds = &bounds[row * per_row..][..per_row];
                let x = &all[row * size * inner..][..size * inner];
                let mut at = 0;
                for (segment, out) in out.chunks_exact_mut(inner.max(1)).enumerate() {
                    let range = match extra {
                        0 => at..to_size("lengths", bounds[segment])?.saturating_add(at),
                        _ => to_size("offsets", bounds[segment])?..to_size("offsets", bounds[segment + 1])?,
                    };
                    ensure!(range.start <= range.end && range.end <= size, "lengths, offsets: the segment {range:?} is not within {size}");
                    at = range.end;
                    reduce_segment(x, out, range, how, start);
                }
            }
            Ok(())
        })
    })
}

fn reduce_segment<C: Compute + Float>(
    x: &[C],
    out: &mut [C],
    rows: std::ops::Range<usize>,
    how: Reduce,
    start: Option<C>,
) {
    let (inner, count) = (out.len(), rows.len());
    pteron_pool::progress(inner * count);
    out.fill(start.unwrap_or(how.initial()));
    for row in rows {
        out.iter_mut().zip(&x[row * inner..][..inner]).for_each(|(o, &x)| *o = how.combine(*o, x));
    }
    if how == Reduce::Mean {
        match (count, start) {
            (0, None) => out.fill(C::nan()),
            (0, Some(_)) => {}
            _ => out.iter_mut().for_each(|o| *o = *o / C::from_f64(count as f64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::Float;
    use pteron_tensor::Tensor;

    #[test]
    fn segments_of_rows() {
        let x = t(&[4, 2], &[1f32, 2.0, 3.0, 4.0, f32::NAN, 6.0, 7.0, 8.0]);
        let (lengths, offsets, bad) =
            (t(&[3], &[2i64, 0, 2]), t(&[4], &[0i64, 2, 2, 4]), t(&[3], &[2i64, 3, 2]));
        let go =
            |how: &'static str, lengths: Option<&Tensor>, offsets: Option<&Tensor>, initial: Option<f64>| {
                // Copied, because all arguments of a call have the same lifetime.
                let (x, lengths, offsets) = (x.clone(), lengths.cloned(), offsets.cloned());
                let args = [
                    a(&x),
                    Arg::Str(how),
                    lengths.as_ref().map_or(Arg::None, a),
                    Arg::None,
                    offsets.as_ref().map_or(Arg::None, a),
                    int(0),
                    Arg::Bool(false),
                    initial.map_or(Arg::None, Arg::Double),
                ];
                let r = call("aten::segment_reduce.out", &args, out(Float, &[3, 2]));
                r.map(|r| r.storage::<f32>().unwrap().to_vec())
            };
        let r = go("mean", Some(&lengths), None, None).unwrap();
        assert!(r[..2] == [2.0, 3.0] && r[2..5].iter().all(|v| v.is_nan()) && r[5] == 7.0, "{r:?}");
        let r = go("max", None, Some(&offsets), Some(2.5)).unwrap();
        assert!(r[..4] == [3.0, 4.0, 2.5, 2.5] && r[4].is_nan() && r[5] == 8.0, "{r:?}");
        assert!(go("sum", Some(&bad), None, None).is_err());
        assert!(go("median", Some(&lengths), None, None).is_err());
    }
}

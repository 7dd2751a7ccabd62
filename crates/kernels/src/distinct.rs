//! Sets and counts: distinct elements, membership, bin counts and histograms. NaN equals
//! nothing, not even itself.

use crate::sort::Order;
use crate::support::convert::{Values, all_values, indices, values, write_row_major};
use crate::support::dims::{to_positive, to_size, wrap_dim};
use crate::support::dtype::{Compute, compute_type, dispatch, expect_dtype};
use crate::support::layout::Layout;
use crate::support::map::{Input, expect_out, promote, round_to_type};
use crate::support::rows::expect_type;
use pteron_operator::{
    Arg, Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, Results, ScratchBuffer, ensure,
};
use pteron_tensor::{Scalar, ScalarType, Shape, TensorView};
use smallvec::SmallVec;
use std::cmp::Ordering;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::isin.Tensor_Tensor_out(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        isin,
    ),
    Operator::new(
        "aten::isin.Tensor_Scalar_out(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        isin,
    ),
    Operator::new(
        "aten::isin.Scalar_Tensor_out(Scalar element, Tensor test_elements, *, bool assume_unique=False, bool invert=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        isin,
    ),
    Operator::new(
        "aten::_unique2.out(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
        DtypeSet::REAL_BOOL,
        unique,
    )
    .results(Results::DataDependentShape),
    Operator::new(
        "aten::unique_dim.out(Tensor self, int dim, bool sorted=True, bool return_inverse=False, bool return_counts=False, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
        DtypeSet::REAL_BOOL,
        unique_dim,
    )
    .results(Results::DataDependentShape),
    Operator::new(
        "aten::unique_consecutive.out(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
        DtypeSet::REAL_BOOL,
        unique_consecutive,
    )
    .results(Results::DataDependentShape),
    Operator::new(
        "aten::bincount.out(Tensor self, Tensor? weights=None, SymInt minlength=0, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        bincount,
    )
    .results(Results::DataDependentShape),
    Operator::new(
        "aten::histc.out(Tensor self, int bins=100, Scalar min=0, Scalar max=0, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        histc,
    ),
];

/// The elements of `tensor` or, without a tensor, the scalar `number`, as `C`.
fn elements_of<'a, C: Compute>(
    ctx: &KernelContext<'a>,
    tensor: Option<TensorView<'a>>,
    number: Input,
) -> Result<Values<'a, C>> {
    match (tensor, number) {
        (Some(t), _) => all_values(ctx, &t),
        (_, Input::Scalar(number)) => {
            let mut one = ctx.scratch::<C>(1)?;
            one[0] = C::from_scalar(number);
            Ok(Values::Copy(one))
        }
        _ => Err(Error::invalid("expected a tensor or a number")),
    }
}

/// Whether each element is among the test elements.
fn isin(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let invert = args.bool("invert")?;
    let tensor = |index: usize| if let Arg::Tensor(t) = args.get(index) { Some(*t) } else { None };
    let sizes = tensor(0).map_or(Shape::SCALAR, |t| *t.sizes());
    let inputs = [Input::of_arg(args, 0)?, Input::of_arg(args, 1)?];
    let promoted = promote(args, &inputs)?;
    let [x, y] = inputs.map(|input| match input {
        Input::Scalar(Scalar::Double(x)) => Input::Scalar(Scalar::Double(round_to_type(x, promoted))),
        input => input,
    });
    expect_dtype(args.name(["elements", "element"]), promoted, DtypeSet::REAL_BOOL)?;
    let out = outs.tensor(0)?;
    expect_type("out", ScalarType::Bool, out.dtype())?;
    out.resize(&sizes)?;
    dispatch!("elements", compute_type(promoted), COMPUTE_REAL, C => {
        let (elements, tests) = (elements_of::<C>(ctx, tensor(0), x)?, elements_of::<C>(ctx, tensor(1), y)?);
        let mut sorted = ctx.scratch::<C>(tests.len())?;
        sorted.copy_from_slice(&tests);
        sorted.sort_unstable_by(|a, b| {
            pteron_pool::progress(1);
            a.compare_to(*b)
        });
        let (elements, sorted) = (&*elements, &*sorted);
        write_row_major::<i64>(ctx, out, |out| {
            for (o, x) in out.iter_mut().zip(elements) {
                let is_member = sorted.binary_search_by(|y| y.compare_to(*x)).is_ok() && !x.is_nan();
                *o = i64::from(is_member != invert);
            }
            Ok(())
        })
    })
}

/// Rows that are compared with each other.
struct Items<'a, C> {
    rows: Values<'a, C>,
    /// The number of rows.
    count: usize,
    /// The number of elements of a row.
    each: usize,
}

impl<C: Order> Items<'_, C> {
    fn row_elements(&self, i: usize) -> &[C] {
        &self.rows[i * self.each..(i + 1) * self.each]
    }

    fn compare_rows(&self, a: usize, b: usize) -> Ordering {
        let pairs = self.row_elements(a).iter().zip(self.row_elements(b));
        pairs.map(|(x, y)| x.compare_to(*y)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    }

    fn rows_equal(&self, a: usize, b: usize) -> bool {
        self.row_elements(a) == self.row_elements(b)
    }
}

/// The distinct rows: the index of the `first` row of each kind, the `kind` of each row, the number of rows of each
/// kind, and the number of kinds.
struct Kinds<'a> {
    first: ScratchBuffer<'a, i64>,
    kind: ScratchBuffer<'a, i64>,
    counts: ScratchBuffer<'a, i64>,
    len: usize,
}

impl<'a> Kinds<'a> {
    fn find<C: Order>(ctx: &KernelContext<'a>, items: &Items<'_, C>, sort: bool) -> Result<Self> {
        let mut order = ctx.scratch::<i64>(items.count)?;
        order.iter_mut().enumerate().for_each(|(i, o)| *o = i as i64);
        if sort {
            order.sort_by(|&a, &b| {
                pteron_pool::progress(1);
                items.compare_rows(a as usize, b as usize)
            });
        }
        let (mut first, mut kind, mut counts) =
            (ctx.scratch(items.count)?, ctx.scratch(items.count)?, ctx.scratch(items.count)?);
        let mut kinds = 0;
        let mut last = None;
        for &i in order.iter() {
            let i = i as usize;
            if last.is_none_or(|last| !items.rows_equal(last, i)) {
                (first[kinds], counts[kinds]) = (i as i64, 0);
                kinds += 1;
            }
            kind[i] = kinds as i64 - 1;
            counts[kinds - 1] += 1;
            last = Some(i);
        }
        Ok(Self { first, kind, counts, len: kinds })
    }
}

/// The unit of comparison and the requested results.
struct Wanted {
    /// The dimension whose slices are compared; `None` if single elements are compared.
    dim: Option<usize>,
    sort: bool,
    inverse: bool,
    counts: bool,
}

/// Computes the distinct rows (out 0), the index of each row among them (out 1), and the number of occurrences of each
/// (out 2). Outs 1 and 2 are empty if they are not requested.
fn distinct(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>, wanted: &Wanted) -> Result<()> {
    let x = args.tensor("self")?;
    expect_dtype("self", x.dtype(), DtypeSet::REAL_BOOL)?;
    expect_out(x.dtype(), outs.tensor(0)?.dtype())?;
    let layout = Layout::of_tensor(x.meta());
    // The dimension of the slices comes first, so that each slice is contiguous.
    let (view, count) = match wanted.dim {
        Some(dim) => (layout.permute(&move_to_front(dim, x.rank())), x.sizes()[dim]),
        None => (layout, x.numel()),
    };
    let each = x.numel().checked_div(count).unwrap_or(0);
    let no_slices = wanted.dim.is_some_and(|dim| x.numel() == 0 && x.sizes()[dim] > 0);
    ensure!(!no_slices, "self: slices of the shape {} have no elements to compare", x.sizes());
    let mut kind_sizes = Shape::new(&[0])?;
    let kinds = dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        let items = Items { rows: values::<C>(ctx, &x, &view)?, count, each };
        let kinds = Kinds::find(ctx, &items, wanted.sort)?;
        let out = outs.tensor(0)?;
        let mut sizes = if wanted.dim.is_some() { *x.sizes() } else { kind_sizes };
        sizes[wanted.dim.unwrap_or(0)] = kinds.len;
        out.resize(&sizes)?;
        kind_sizes[0] = kinds.len;
        let into = Layout::of_tensor(out.meta());
        let into = wanted.dim.map_or(into, |dim| into.permute(&move_to_front(dim, x.rank())));
        let mut rows = ctx.scratch::<C>(kinds.len * each)?;
        for (to, &i) in rows.chunks_exact_mut(each.max(1)).zip(kinds.first.iter()) {
            to.copy_from_slice(items.row_elements(i as usize));
        }
        crate::support::convert::write(ctx, &rows, out, &into)?;
        kinds
    });
    let per_row = if wanted.dim.is_some() { Shape::new(&[count])? } else { *x.sizes() };
    let inverse = wanted.inverse.then_some((per_row, &kinds.kind[..]));
    let counts = wanted.counts.then_some((kind_sizes, &kinds.counts[..kinds.len]));
    for (k, wanted) in [inverse, counts].into_iter().enumerate() {
        let out = outs.tensor(1 + k)?;
        expect_type("out", ScalarType::Long, out.dtype())?;
        // An exporter may plan a result that was not requested with another rank.
        let none = Shape::new(&[0; pteron_tensor::MAX_RANK][..out.sizes().rank().max(1)])?;
        let (sizes, numbers) = wanted.unwrap_or((none, &[]));
        out.resize(&sizes)?;
        write_row_major::<i64>(ctx, out, |out| {
            out.copy_from_slice(numbers);
            Ok(())
        })?;
    }
    Ok(())
}

/// The permutation that moves `dim` to the front and keeps the order of the others, so that the elements of a slice stay
/// in row-major order: slices are compared lexicographically.
fn move_to_front(dim: usize, rank: usize) -> SmallVec<[usize; 8]> {
    [dim].into_iter().chain((0..rank).filter(|&d| d != dim)).collect()
}

/// The distinct elements, sorted.
fn unique(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (inverse, counts) = (args.bool("return_inverse")?, args.bool("return_counts")?);
    distinct(ctx, args, outs, &Wanted { dim: None, sort: true, inverse, counts })
}

/// The distinct slices along a dimension, sorted. Like PyTorch, computes the inverse and the counts even if they are
/// not requested.
fn unique_dim(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dim = Some(sliced_dim(args, args.int("dim")?)?);
    distinct(ctx, args, outs, &Wanted { dim, sort: true, inverse: true, counts: true })
}

/// The elements, or the slices along a dimension, without those that are equal to the one before.
fn unique_consecutive(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dim = if args.is_none("dim") { None } else { Some(sliced_dim(args, args.int("dim")?)?) };
    let (inverse, counts) = (args.bool("return_inverse")?, args.bool("return_counts")?);
    distinct(ctx, args, outs, &Wanted { dim, sort: false, inverse, counts })
}

fn sliced_dim(args: &Args<'_>, dim: i64) -> Result<usize> {
    let rank = args.meta("self")?.rank();
    ensure!(rank > 0, "self: a tensor of no dimensions has no slices");
    wrap_dim("dim", dim, rank)
}

/// The number of occurrences of each integer from 0 on, or the sum of the weights at those occurrences; there are at
/// least `minlength` results.
fn bincount(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, weights, least) = (
        args.tensor("self")?,
        args.optional_tensor("weights")?,
        to_size("minlength", args.int("minlength")?)?,
    );
    ensure!(x.rank() == 1, "self: expected one dimension, found the shape {}", x.sizes());
    let numbers = indices(ctx, "self", &x)?;
    let greatest = numbers.iter().max().copied();
    ensure!(numbers.iter().all(|&n| n >= 0), "self: elements must not be negative");
    let bins = to_size("self", greatest.map_or(0, |n| n.saturating_add(1)))?.max(least);
    let out = outs.tensor(0)?;
    let weights = match weights {
        None => {
            expect_out(ScalarType::Long, out.dtype())?;
            out.resize(&[bins])?;
            return write_row_major::<i64>(ctx, out, |out| {
                out.fill(0);
                numbers.iter().for_each(|&n| out[n as usize] += 1);
                Ok(())
            });
        }
        Some(weights) => weights,
    };
    ensure!(
        weights.sizes() == x.sizes(),
        "weights: expected the shape {}, found {}",
        x.sizes(),
        weights.sizes()
    );
    expect_dtype("weights", weights.dtype(), DtypeSet::REAL_BOOL)?;
    let result = if weights.dtype() == ScalarType::Float { ScalarType::Float } else { ScalarType::Double };
    expect_out(result, out.dtype())?;
    out.resize(&[bins])?;
    dispatch!("weights", result, COMPUTE_FLOAT, C => {
        let weights = all_values::<C>(ctx, &weights)?;
        write_row_major::<C>(ctx, out, |out| {
            out.fill(C::default());
            for (&n, &w) in numbers.iter().zip(weights.iter()) {
                out[n as usize] += w;
            }
            Ok(())
        })
    })
}

/// A histogram of `bins` equal bins of `[min, max]`, or of the range of the elements if `min` equals `max`.
fn histc(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, bins) = (args.tensor("self")?, to_positive("bins", args.int("bins")?)?);
    let (mut min, mut max) = (args.scalar("min")?.to_f64(), args.scalar("max")?.to_f64());
    expect_dtype("self", x.dtype(), DtypeSet::REAL_BOOL)?;
    let out = outs.tensor(0)?;
    expect_out(x.dtype(), out.dtype())?;
    out.resize(&[bins])?;
    let all = all_values::<f64>(ctx, &x)?;
    if min == max && !all.is_empty() {
        (min, max) = all.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), &x| {
            (if x < a || x.is_nan() { x } else { a }, if x > b || x.is_nan() { x } else { b })
        });
    }
    if min == max {
        (min, max) = (min - 1.0, max + 1.0);
    }
    ensure!(min.is_finite() && max.is_finite(), "min, max: the range [{min}, {max}] is not finite");
    ensure!(min < max, "max: {max} is less than min, {min}");
    write_row_major::<f64>(ctx, out, |out| {
        out.fill(0.0);
        for &x in all.iter().filter(|x| (min..=max).contains(x)) {
            let bin = ((x - min) / (max - min) * bins as f64) as usize;
            out[bin.min(bins - 1)] += 1.0;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Bool, Float, Long};

    #[test]
    fn every_nan_is_distinct_and_in_no_set() {
        let x = t(&[4], &[f32::NAN, 1.0, f32::NAN, 1.0]);
        let args = [a(&x), Arg::Bool(true), Arg::Bool(true), Arg::Bool(true)];
        let outs = [out(Float, &[4]), out(Long, &[4]), out(Long, &[4])];
        let [values, inverse, counts] = call_many("aten::_unique2.out", &args, outs).unwrap();
        let values = values.storage::<f32>().unwrap();
        assert!(values.len() == 3 && values[0] == 1.0 && values[1..].iter().all(|x| x.is_nan()));
        assert_eq!(inverse.storage::<i64>().unwrap(), &[1, 0, 2, 0]);
        assert_eq!(counts.storage::<i64>().unwrap(), &[2, 1, 1]);
        let args = [a(&x), a(&x), Arg::Bool(false), Arg::Bool(false)];
        let r = call("aten::isin.Tensor_Tensor_out", &args, out(Bool, &[4])).unwrap();
        let r: Vec<bool> = r.storage::<pteron_tensor::Bool>().unwrap().iter().map(|b| b.get()).collect();
        assert_eq!(r, [false, true, false, true]);
    }

    #[test]
    fn scalars_are_rounded_to_the_type_before_the_search() {
        let x = t(&[1], &[pteron_tensor::bf16::from_f32(0.1)]);
        let args = [a(&x), Arg::Double(0.1), Arg::Bool(false), Arg::Bool(false)];
        let r = call("aten::isin.Tensor_Scalar_out", &args, out(Bool, &[1])).unwrap();
        assert_eq!(r.bytes(), &[1]);
    }

    /// Slices are compared in row-major order of their dimensions, not in the order that a transpose would give.
    #[test]
    fn slices_are_compared_in_row_major_order() {
        // x[i][j][k]: slice 0 is [0, 1, 0, 0], slice 1 is [0, 0, 1, 0].
        let x = t(&[2, 2, 2], &[0i64, 0, 1, 0, 0, 1, 0, 0]);
        let args = [a(&x), int(2), Arg::Bool(true), Arg::Bool(true), Arg::Bool(true)];
        let outs = [out(Long, &[2, 2, 2]), out(Long, &[2]), out(Long, &[2])];
        let [values, inverse, _] = call_many("aten::unique_dim.out", &args, outs).unwrap();
        assert_eq!(values.storage::<i64>().unwrap(), &[0, 0, 0, 1, 1, 0, 0, 0]);
        assert_eq!(inverse.storage::<i64>().unwrap(), &[1, 0]);
    }

    #[test]
    fn bincount_rejects_invalid_elements() {
        let go = |x: &[i64]| {
            let x = t(&[x.len()], x);
            call("aten::bincount.out", &[a(&x), Arg::None, int(0)], out(Long, &[1]))
        };
        assert!(go(&[-1]).is_err());
        assert!(go(&[i64::MAX]).is_err());
        assert!(go(&[0]).is_ok());
    }
}

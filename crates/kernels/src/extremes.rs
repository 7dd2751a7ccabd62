//! Reductions that compare: the greatest and the least elements, where they are, whether any or all are true.

use crate::reduce::{dims_at, row};
use crate::support::dims::DimSet;
use crate::support::dtype::{Compute, compute_type, dispatch, expect_dtype};
use crate::support::map::expect_out;
use crate::support::reduce::{Reducer, reduce};
use operator::facts::wrap;
use operator::{Args, DtypeSet, KernelContext, Meaning, Operator, Outs, Result, Rounding, ensure};
use std::marker::PhantomData;
use tensor::ScalarType;

pub(crate) const OPERATORS: &[Operator] = &[
    row!("amax.out(Tensor self, int[1] dim=[], bool keepdim=False, *, ", REAL_BOOL, amax)
        .rounding(Rounding::Exact)
        .means(amax_meaning),
    row!("amin.out(Tensor self, int[1] dim=[], bool keepdim=False, *, ", REAL_BOOL, amin)
        .rounding(Rounding::Exact),
    row!("max.unary_out(Tensor self, *, ", REAL_BOOL, max_all),
    row!("min.unary_out(Tensor self, *, ", REAL_BOOL, min_all),
    Operator::new(
        "aten::max.dim_max(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) max, Tensor(b!) max_values) \
         -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        max_dim,
    ),
    Operator::new(
        "aten::min.dim_min(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) min, Tensor(b!) min_indices) \
         -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        min_dim,
    ),
    Operator::new(
        "aten::aminmax.out(Tensor self, *, int? dim=None, bool keepdim=False, Tensor(a!) min, Tensor(b!) max) \
         -> (Tensor(a!) min, Tensor(b!) max)",
        DtypeSet::REAL_BOOL,
        aminmax,
    ),
    row!("argmax.out(Tensor self, int? dim=None, bool keepdim=False, *, ", REAL_BOOL, argmax),
    row!("argmin.out(Tensor self, int? dim=None, bool keepdim=False, *, ", REAL_BOOL, argmin),
    row!("any.all_out(Tensor self, *, ", ALL, any_all),
    row!("any.out(Tensor self, int dim, bool keepdim=False, *, ", ALL, any).means(any_meaning),
    row!("any.dims_out(Tensor self, int[]? dim=None, bool keepdim=False, *, ", ALL, any),
    row!("all.all_out(Tensor self, *, ", ALL, all_all),
    row!("all.out(Tensor self, int dim, bool keepdim=False, *, ", ALL, all),
    row!("all.dims_out(Tensor self, int[]? dim=None, bool keepdim=False, *, ", ALL, all),
    row!("count_nonzero.dim_IntList_out(Tensor self, int[] dim, *, ", ALL, count_nonzero),
    row!("count_nonzero.out(Tensor self, int? dim=None, *, ", ALL, count_nonzero),
];

fn any_meaning(args: &Args<'_>) -> Option<Meaning> {
    let dim = wrap(args.int(1).ok()?, args.meta(0).ok()?.rank())?;
    args.bool(2).ok()?.then_some(Meaning::Any(dim))
}

fn amax_meaning(args: &Args<'_>) -> Option<Meaning> {
    let rank = args.meta(0).ok()?.rank();
    let dims = args.ints(1).ok()?.iter().map(|&d| wrap(d, rank)).collect::<Option<_>>()?;
    args.bool(2).ok()?.then_some(Meaning::Largest(dims))
}

/// Types with an order, in which NaN comes before everything.
trait Ordered: Compute {
    /// Whether `self` is a greater (or, if `least`, a lesser) extreme than `other`.
    fn beats(self, other: Self, least: bool) -> bool;
    fn same(self, other: Self) -> bool;
}

macro_rules! ordered {
    ($($type:ty, $is_nan:expr;)*) => { $(
        impl Ordered for $type {
            #[inline]
            fn beats(self, other: Self, least: bool) -> bool {
                let better = if least { self < other } else { self > other };
                better || ($is_nan(self) && !$is_nan(other))
            }
            #[inline]
            fn same(self, other: Self) -> bool {
                self == other || ($is_nan(self) && $is_nan(other))
            }
        }
    )* };
}

ordered! {
    f32, f32::is_nan;
    f64, f64::is_nan;
    i64, |_| false;
}

/// The greatest element or the least, and the first place where it stands.
struct Extreme<O> {
    least: bool,
    /// Whether the place is wanted, or the value.
    place: bool,
    out: PhantomData<fn() -> O>,
}

/// An element and its place; nothing where no element was seen.
type Found<C> = Option<(C, usize)>;

impl<O: Compute, C: Ordered> Reducer<C> for Extreme<O> {
    type Acc = Found<C>;
    type Out = O;
    fn start(&self) -> Found<C> {
        None
    }
    #[inline]
    fn step(&self, acc: Found<C>, x: C, index: usize) -> Found<C> {
        match acc {
            Some((best, _)) if !x.beats(best, self.least) => acc,
            _ => Some((x, index)),
        }
    }
    fn merge(&self, a: Found<C>, b: Found<C>) -> Found<C> {
        match (a, b) {
            (Some((x, i)), Some((y, j))) => {
                if y.beats(x, self.least) || (y.same(x) && j < i) {
                    b
                } else {
                    a
                }
            }
            (a, b) => a.or(b),
        }
    }
    fn finish(&self, acc: Found<C>, _: usize) -> O {
        let (value, index) = acc.unwrap_or_default();
        if self.place { O::from_i64(index as i64) } else { O::of(value) }
    }
}

/// Sets out `index` to the extremes of argument 0, or to where they are.
fn extreme(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    index: usize,
    dims: DimSet,
    keepdim: bool,
    least: bool,
    place: bool,
) -> Result<()> {
    let (x, out) = (args.tensor(0)?, outs.tensor(index)?);
    let empty = (0..x.rank()).any(|d| dims.contains(d) && x.sizes()[d] == 0);
    ensure!(!empty, "self: a reduction over no elements of the shape {} has no extreme", x.sizes());
    if place {
        ensure!(
            out.dtype() == ScalarType::Long,
            "out {index}: expected int64 for indices, found {}",
            out.dtype()
        );
    } else {
        expect_out(x.dtype(), out.dtype())?;
    }
    expect_dtype(args.name(0), x.dtype(), DtypeSet::REAL_BOOL)?;
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => if place {
        reduce::<C, _>(ctx, &x, dims, keepdim, out, &Extreme::<i64> { least, place, out: PhantomData })
    } else {
        reduce::<C, _>(ctx, &x, dims, keepdim, out, &Extreme::<C> { least, place, out: PhantomData })
    })
}

fn amax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    extreme(ctx, args, outs, 0, dims_at(args, 1)?, args.bool(2)?, false, false)
}

fn amin(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    extreme(ctx, args, outs, 0, dims_at(args, 1)?, args.bool(2)?, true, false)
}

fn max_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    extreme(ctx, args, outs, 0, DimSet::all(args.meta(0)?.rank()), false, false, false)
}

fn min_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    extreme(ctx, args, outs, 0, DimSet::all(args.meta(0)?.rank()), false, true, false)
}

/// The greatest elements along a dimension, and where they are.
fn max_dim(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dims, keepdim) = (DimSet::of(args.name(1), args.ints(1)?, args.meta(0)?.rank())?, args.bool(2)?);
    extreme(ctx, args, outs, 0, dims, keepdim, false, false)?;
    extreme(ctx, args, outs, 1, dims, keepdim, false, true)
}

/// The least elements along a dimension, and where they are.
fn min_dim(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dims, keepdim) = (DimSet::of(args.name(1), args.ints(1)?, args.meta(0)?.rank())?, args.bool(2)?);
    extreme(ctx, args, outs, 0, dims, keepdim, true, false)?;
    extreme(ctx, args, outs, 1, dims, keepdim, true, true)
}

fn aminmax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dims, keepdim) = (dims_at(args, 1)?, args.bool(2)?);
    extreme(ctx, args, outs, 0, dims, keepdim, true, false)?;
    extreme(ctx, args, outs, 1, dims, keepdim, false, false)
}

/// Where the greatest element is: along a dimension, or among all in row-major order.
fn argmax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    arg_extreme(ctx, args, outs, false)
}

/// Where the least element is.
fn argmin(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    arg_extreme(ctx, args, outs, true)
}

fn arg_extreme(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>, least: bool) -> Result<()> {
    extreme(ctx, args, outs, 0, dims_at(args, 1)?, args.bool(2)?, least, true)
}

/// Counts of the elements that are other than zero, or what they say.
pub(crate) enum Truth {
    Any,
    All,
    Count,
}

impl<C: Compute> Reducer<C> for Truth {
    type Acc = usize;
    type Out = i64;
    fn start(&self) -> usize {
        0
    }
    #[inline]
    fn step(&self, acc: usize, x: C, _: usize) -> usize {
        acc + x.is_true() as usize
    }
    fn merge(&self, a: usize, b: usize) -> usize {
        a + b
    }
    fn finish(&self, acc: usize, count: usize) -> i64 {
        match self {
            Self::Any => (acc > 0) as i64,
            Self::All => (acc == count) as i64,
            Self::Count => acc as i64,
        }
    }
}

pub(crate) fn truth(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    dims: DimSet,
    keepdim: bool,
    what: Truth,
) -> Result<()> {
    let (x, out) = (args.tensor(0)?, outs.tensor(0)?);
    expect_dtype(args.name(0), x.dtype(), DtypeSet::ALL)?;
    dispatch!("self", compute_type(x.dtype()), COMPUTE, C => reduce::<C, _>(ctx, &x, dims, keepdim, out, &what))
}

fn any_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    truth(ctx, args, outs, DimSet::all(args.meta(0)?.rank()), false, Truth::Any)
}

/// As [`dims_at`], but an empty list means no dimension.
fn listed_dims(args: &Args<'_>, index: usize) -> Result<DimSet> {
    match args.optional_ints(index)? {
        Some([]) => DimSet::of(args.name(index), &[], args.meta(0)?.rank()),
        _ => dims_at(args, index),
    }
}

fn any(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    truth(ctx, args, outs, listed_dims(args, 1)?, args.bool(2)?, Truth::Any)
}

fn all_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    truth(ctx, args, outs, DimSet::all(args.meta(0)?.rank()), false, Truth::All)
}

fn all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    truth(ctx, args, outs, listed_dims(args, 1)?, args.bool(2)?, Truth::All)
}

fn count_nonzero(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    truth(ctx, args, outs, dims_at(args, 1)?, false, Truth::Count)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, ints, out, s, t};
    use operator::Arg;
    use tensor::ScalarType::{Bool, Float, Int, Long};

    #[test]
    fn extremes_and_their_places() {
        let x = t(&[2, 3], &[1f32, f32::NAN, f32::NAN, 4.0, 9.0, 9.0]);
        let outs = [out(Float, &[2]), out(Long, &[2])];
        let [v, i] = call_many("aten::max.dim_max", &[a(&x), int(1)], outs).unwrap();
        assert!(v.storage::<f32>().unwrap()[0].is_nan() && v.storage::<f32>().unwrap()[1] == 9.0);
        assert_eq!(i.storage::<i64>().unwrap(), &[1, 1]);
        let r =
            call("aten::argmin.out", &[a(&t(&[4], &[3i8, -1, 5, -1])), Arg::None], out(Long, &[])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[1]);
        let r = call("aten::amin.out", &[a(&s(7i32))], out(Int, &[])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[7]);
        let inf = t(&[2], &[f32::NEG_INFINITY; 2]);
        let r = call("aten::argmax.out", &[a(&inf), int(0)], out(Long, &[])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[0]);
        let e = call("aten::amax.out", &[a(&t::<f32>(&[0], &[]))], out(Float, &[])).unwrap_err();
        assert!(e.to_string().contains("no elements"), "{e}");
    }

    #[test]
    fn any_and_all() {
        let x = t(&[2, 2], &[0f32, f32::NAN, 0.0, 0.0]);
        let r = call("aten::any.dims_out", &[a(&x), ints(&[1])], out(Bool, &[2])).unwrap();
        assert_eq!(r.bytes(), &[1, 0]);
        let r =
            call("aten::any.dims_out", &[a(&x), ints(&[]), Arg::Bool(false)], out(Bool, x.sizes())).unwrap();
        assert_eq!(r.sizes(), x.sizes(), "no dimension is reduced");
        let r = call("aten::all.all_out", &[a(&t::<i32>(&[0], &[]))], out(Bool, &[])).unwrap();
        assert_eq!(r.bytes(), &[1]);
    }
}

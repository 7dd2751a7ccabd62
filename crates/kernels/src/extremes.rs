//! Reductions by comparison: maxima and minima, their indices, and `any`, `all` and `count_nonzero`.

use crate::compute::{Extremes, Ordered, extremes};
use crate::support::dims::DimSet;
use crate::support::dtype::{Compute, compute_type, dispatch, expect_dtype};
use crate::support::map::expect_out;
use crate::support::meaning;
use crate::support::reduce::{Reducer, dims_at, reduce, reduced_matrix_sizes};
use crate::support::truth::{BoolReduce, reduce_bool};
use pteron_operator::facts::wrap;
use pteron_operator::{Args, DtypeSet, KernelContext, Meaning, Operator, Outs, Result, Rounding, ensure};
use pteron_tensor::{Element, ScalarType, Shape, TensorView};
use std::marker::PhantomData;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::amax.out(Tensor self, int[1] dim=[], bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        amax,
    )
    .rounding(Rounding::Exact)
    .means(amax_meaning),
    Operator::new(
        "aten::amin.out(Tensor self, int[1] dim=[], bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        amin,
    )
    .rounding(Rounding::Exact),
    Operator::new(
        "aten::max.unary_out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        max_all,
    ),
    Operator::new(
        "aten::min.unary_out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        min_all,
    ),
    Operator::new(
        "aten::max.dim_max(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) max, Tensor(b!) max_values) -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        max_dim,
    ),
    Operator::new(
        "aten::min.dim_min(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) min, Tensor(b!) min_indices) -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        min_dim,
    ),
    Operator::new(
        "aten::aminmax.out(Tensor self, *, int? dim=None, bool keepdim=False, Tensor(a!) min, Tensor(b!) max) -> (Tensor(a!) min, Tensor(b!) max)",
        DtypeSet::REAL_BOOL,
        aminmax,
    ),
    Operator::new(
        "aten::argmax.out(Tensor self, int? dim=None, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        argmax,
    ),
    Operator::new(
        "aten::argmin.out(Tensor self, int? dim=None, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        argmin,
    ),
    Operator::new(
        "aten::any.all_out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        any_element,
    ),
    Operator::new(
        "aten::any.out(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        any,
    )
    .means(any_meaning),
    Operator::new(
        "aten::any.dims_out(Tensor self, int[]? dim=None, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        any,
    ),
    Operator::new(
        "aten::all.all_out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        all_elements,
    ),
    Operator::new(
        "aten::all.out(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        all,
    ),
    Operator::new(
        "aten::all.dims_out(Tensor self, int[]? dim=None, bool keepdim=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        all,
    ),
    Operator::new(
        "aten::count_nonzero.dim_IntList_out(Tensor self, int[] dim, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        count_nonzero,
    ),
    Operator::new(
        "aten::count_nonzero.out(Tensor self, int? dim=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        count_nonzero,
    ),
];

fn any_meaning(args: &Args<'_>) -> Option<Meaning> {
    let dim = wrap(args.int("dim").ok()?, args.meta("self").ok()?.rank())?;
    args.bool("keepdim").ok()?.then_some(Meaning::Any(dim))
}

fn amax_meaning(args: &Args<'_>) -> Option<Meaning> {
    let dims = meaning::dims_at(args, "dim")?;
    args.bool("keepdim").ok()?.then_some(Meaning::Amax(dims))
}

/// The reduction to the largest or smallest element, or to the index of its first occurrence.
struct Extreme<O> {
    least: bool,
    /// Whether the result is the index of the element; otherwise it is the element.
    place: bool,
    out: PhantomData<fn() -> O>,
}

/// An element and its index; `None` before the first element.
type Candidate<C> = Option<(C, usize)>;

impl<O: Compute, C: Compute + Ordered> Reducer<C> for Extreme<O> {
    type Acc = Candidate<C>;
    type Out = O;
    fn start(&self) -> Candidate<C> {
        None
    }
    #[inline]
    fn step(&self, acc: Candidate<C>, x: C, index: usize) -> Candidate<C> {
        match acc {
            Some((best, _)) if !x.beats(best, self.least) => acc,
            _ => Some((x, index)),
        }
    }
    fn merge(&self, a: Candidate<C>, b: Candidate<C>) -> Candidate<C> {
        match (a, b) {
            (Some((x, i)), Some((y, j))) => {
                if y.beats(x, self.least) || (y.is_same(x) && j < i) {
                    b
                } else {
                    a
                }
            }
            (a, b) => a.or(b),
        }
    }
    fn finish(&self, acc: Candidate<C>, _: usize) -> O {
        let (value, index) = acc.unwrap_or_default();
        if self.place { O::from_i64(index as i64) } else { O::of(value) }
    }
}

/// Sets the out at index `value` to the extremes of argument 0, and the out at index `place` to their positions.
fn extreme(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    (value, place): (Option<usize>, Option<usize>),
    (dims, keepdim): (DimSet, bool),
    least: bool,
) -> Result<()> {
    let x = args.tensor("self")?;
    ensure!(!dims.has_zero_size(x.sizes()), "self: the shape {} has no elements to reduce over", x.sizes());
    expect_dtype("self", x.dtype(), DtypeSet::REAL_BOOL)?;
    for index in value.into_iter().chain(place) {
        let dtype = outs.tensor(index)?.dtype();
        if Some(index) == value {
            expect_out(x.dtype(), dtype)?;
        } else {
            ensure!(dtype == ScalarType::Long, "out {index}: expected int64 for indices, found {dtype}");
        }
    }
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        if let Some(block) = reduced_matrix_sizes(x.meta(), dims)
            && x.dtype() == C::DTYPE
            && extremes_by_core::<C>(
                ctx,
                &x,
                outs,
                (value, place),
                dims.reduced_sizes(x.sizes(), keepdim),
                block,
                least,
            )?
        {
            return Ok(());
        }
        if let Some(index) = value {
            let of = Extreme::<C> { least, place: false, out: PhantomData };
            reduce::<C, _>(ctx, &x, dims, keepdim, outs.tensor(index)?, &of)?;
        }
        if let Some(index) = place {
            let of = Extreme::<i64> { least, place: true, out: PhantomData };
            reduce::<C, _>(ctx, &x, dims, keepdim, outs.tensor(index)?, &of)?;
        }
        Ok(())
    })
}

/// Computes extremes directly on the tensors' memory, without conversion; returns `false` if types or layouts of the
/// outs do not allow that.
fn extremes_by_core<C: Ordered + Element>(
    ctx: &KernelContext<'_>,
    x: &TensorView<'_>,
    outs: &mut Outs<'_>,
    (value, place): (Option<usize>, Option<usize>),
    sizes: Shape,
    block: (usize, usize),
    least: bool,
) -> Result<bool> {
    let (mut values, mut places) = (None, None);
    let indices = [value, place].into_iter().flatten();
    for index in indices {
        let out = outs.tensor(index)?;
        out.resize(&sizes)?;
        let dtype = if Some(index) == value { C::DTYPE } else { ScalarType::Long };
        if out.dtype() != dtype || !out.meta().dim_order().is_contiguous() {
            return Ok(false);
        }
    }
    match (value, place) {
        (Some(value), Some(place)) => {
            let [v, p] = outs.tensors([value, place])?;
            (values, places) = (Some(v.storage_mut::<C>()?), Some(p.storage_mut::<i64>()?));
        }
        (Some(value), None) => values = Some(outs.tensor(value)?.storage_mut::<C>()?),
        (None, Some(place)) => places = Some(outs.tensor(place)?.storage_mut::<i64>()?),
        (None, None) => {}
    }
    pteron_pool::count(x.numel());
    extremes(
        ctx.pool(),
        crate::support::isa(ctx),
        block,
        x.storage::<C>()?,
        Extremes { least, values, places },
    );
    Ok(true)
}

fn amax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    extreme(ctx, args, outs, (Some(0), None), (dims_at(args, "dim")?, args.bool("keepdim")?), false)
}

fn amin(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    extreme(ctx, args, outs, (Some(0), None), (dims_at(args, "dim")?, args.bool("keepdim")?), true)
}

fn max_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    extreme(ctx, args, outs, (Some(0), None), (DimSet::all(args.meta("self")?.rank()), false), false)
}

fn min_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    extreme(ctx, args, outs, (Some(0), None), (DimSet::all(args.meta("self")?.rank()), false), true)
}

/// The largest elements along a dimension, and their indices.
fn max_dim(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dims, keepdim) =
        (DimSet::from_list("dim", args.ints("dim")?, args.meta("self")?.rank())?, args.bool("keepdim")?);
    extreme(ctx, args, outs, (Some(0), Some(1)), (dims, keepdim), false)
}

/// The smallest elements along a dimension, and their indices.
fn min_dim(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dims, keepdim) =
        (DimSet::from_list("dim", args.ints("dim")?, args.meta("self")?.rank())?, args.bool("keepdim")?);
    extreme(ctx, args, outs, (Some(0), Some(1)), (dims, keepdim), true)
}

fn aminmax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let of = (dims_at(args, "dim")?, args.bool("keepdim")?);
    extreme(ctx, args, outs, (Some(0), None), of, true)?;
    extreme(ctx, args, outs, (Some(1), None), of, false)
}

/// The index of the largest element, along a dimension or in row-major order of all elements.
fn argmax(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    extreme(ctx, args, outs, (None, Some(0)), (dims_at(args, "dim")?, args.bool("keepdim")?), false)
}

/// The index of the smallest element, along a dimension or in row-major order of all elements.
fn argmin(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    extreme(ctx, args, outs, (None, Some(0)), (dims_at(args, "dim")?, args.bool("keepdim")?), true)
}

fn any_element(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    reduce_bool(ctx, args, outs, DimSet::all(args.meta("self")?.rank()), false, BoolReduce::Any)
}

/// The dimensions at an argument, like [`dims_at`], except that an empty list means no dimension.
fn possibly_empty_dims(args: &Args<'_>, arg: &'static str) -> Result<DimSet> {
    match args.optional_ints(arg)? {
        Some([]) => DimSet::from_list(arg, &[], args.meta("self")?.rank()),
        _ => dims_at(args, arg),
    }
}

fn any(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    reduce_bool(ctx, args, outs, possibly_empty_dims(args, "dim")?, args.bool("keepdim")?, BoolReduce::Any)
}

fn all_elements(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    reduce_bool(ctx, args, outs, DimSet::all(args.meta("self")?.rank()), false, BoolReduce::All)
}

fn all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    reduce_bool(ctx, args, outs, possibly_empty_dims(args, "dim")?, args.bool("keepdim")?, BoolReduce::All)
}

fn count_nonzero(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    reduce_bool(ctx, args, outs, dims_at(args, "dim")?, false, BoolReduce::Count)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, ints, out, s, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Bool, Float, Int, Long};

    #[test]
    fn extremes_and_their_indices() {
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

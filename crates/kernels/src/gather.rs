//! Gather, scatter and other reads and writes by an index tensor.

use crate::support::convert::values;
use crate::support::copy::{copy_into, copy_to};
use crate::support::dims::{to_size, wrap_dim, wrap_index};
use crate::support::dtype::{Compute, compute_type, dispatch};
use crate::support::gather_index::{GatherIndex, at_least_1d};
use crate::support::layout::Layout;
use crate::support::rows::{by_size, expect_type, scalar_bytes, update_values, view_bytes, write_bytes};
use pteron_operator::{Arg, Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, Results, ensure};
use pteron_tensor::{Scalar, ScalarType, Shape, TensorViewMut};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::gather.out(Tensor self, int dim, Tensor index, *, bool sparse_grad=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        gather,
    ),
    Operator::new(
        "aten::take.out(Tensor self, Tensor index, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        take,
    ),
    Operator::new(
        "aten::scatter.src_out(Tensor self, int dim, Tensor index, Tensor src, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        scatter_src,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::scatter.value_out(Tensor self, int dim, Tensor index, Scalar value, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        scatter_value,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::scatter.reduce_out(Tensor self, int dim, Tensor index, Tensor src, *, str reduce, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        scatter_reduce_src,
    ),
    Operator::new(
        "aten::scatter.value_reduce_out(Tensor self, int dim, Tensor index, Scalar value, *, str reduce, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        scatter_reduce_value,
    ),
    Operator::new(
        "aten::scatter_add.out(Tensor self, int dim, Tensor index, Tensor src, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        scatter_add,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::scatter_reduce.two_out(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        scatter_reduce,
    ),
    Operator::new(
        "aten::index_add.out(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        index_add,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::index_copy.out(Tensor self, int dim, Tensor index, Tensor source, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        index_copy,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::index_fill.int_Scalar_out(Tensor self, int dim, Tensor index, Scalar value, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        index_fill,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::index_fill.int_Tensor_out(Tensor self, int dim, Tensor index, Tensor value, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        index_fill_tensor,
    ),
    Operator::new(
        "aten::select_scatter.out(Tensor self, Tensor src, int dim, SymInt index, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        select_scatter,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::repeat_interleave.Tensor_out(Tensor repeats, *, SymInt? output_size=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        repeat_interleave,
    )
    .results(Results::DataDependentShape),
];

/// `out[i][j] = self[index[i][j]][j]`, if `dim` is 0; likewise for any other dimension.
fn gather(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    let gather_index = GatherIndex::new(ctx, args, x.meta())?;
    let out = outs.tensor(0)?;
    out.resize(args.meta("index")?.sizes())?;
    expect_type("out", x.dtype(), out.dtype())?;
    write_bytes(ctx, out, |to| {
        by_size!(x.dtype().size(), E => {
            let (from, to): (&[E], &mut [E]) = (bytemuck::cast_slice(x.bytes()), bytemuck::cast_slice_mut(to));
            gather_index.for_each(|i, at| to[i] = from[at]);
        });
        Ok(())
    })
}

/// The elements at the given positions in row-major order; negative positions count from the end.
fn take(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, index) = (args.tensor("self")?, args.tensor("index")?);
    let walk = Layout::of_tensor(x.meta()).walk();
    let at = crate::support::convert::indices(ctx, "index", &index)?;
    let out = outs.tensor(0)?;
    out.resize(index.sizes())?;
    expect_type("out", x.dtype(), out.dtype())?;
    write_bytes(ctx, out, |to| {
        by_size!(x.dtype().size(), E => {
            let (from, to): (&[E], &mut [E]) = (bytemuck::cast_slice(x.bytes()), bytemuck::cast_slice_mut(to));
            for (to, &i) in to.iter_mut().zip(at.iter()) {
                *to = from[walk.offset_at(wrap_index("index", i, x.numel())?)];
                pteron_pool::progress(1);
            }
        });
        Ok(())
    })
}

/// Copies argument 0 to the out, unless the two share their memory, and returns the out.
fn copy_self_to_out<'o, 'a>(args: &Args<'_>, outs: &'o mut Outs<'a>) -> Result<&'o mut TensorViewMut<'a>> {
    let out = outs.tensor(0)?;
    if let Arg::InPlace { meta, .. } = args.get("self")
        && *meta == out.meta()
    {
        return Ok(out);
    }
    let x = args.tensor("self")?;
    copy_to(&x, &Layout::of_tensor(x.meta()), out)?;
    Ok(out)
}

/// Writes the elements of the tensor at argument `src` to the indexed elements.
fn scatter_tensor(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    out: &mut TensorViewMut<'_>,
    gather_index: &GatherIndex<'_>,
    src: &'static str,
) -> Result<()> {
    let from = args.tensor(src)?;
    expect_type(src, out.dtype(), from.dtype())?;
    let from = view_bytes(ctx, &from, &gather_index.part_of(src, from.meta())?)?;
    by_size!(out.dtype().size(), E => {
        let (from, to): (&[E], &mut [E]) = (bytemuck::cast_slice(&from), bytemuck::cast_slice_mut(out.bytes_mut()));
        gather_index.for_each(|i, at| to[at] = from[i]);
    });
    Ok(())
}

/// Writes one value to the indexed elements.
fn scatter_bytes(
    out: &mut TensorViewMut<'_>,
    gather_index: &GatherIndex<'_>,
    value: &[u8; 16],
) -> Result<()> {
    by_size!(out.dtype().size(), E => {
        let to: &mut [E] = bytemuck::cast_slice_mut(out.bytes_mut());
        let value = bytemuck::cast_slice::<u8, E>(value)[0];
        gather_index.for_each(|_, at| to[at] = value);
    });
    Ok(())
}

fn scatter_src(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let out = copy_self_to_out(args, outs)?;
    let gather_index = GatherIndex::new(ctx, args, out.meta())?;
    scatter_tensor(ctx, args, out, &gather_index, "src")
}

fn scatter_value(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let out = copy_self_to_out(args, outs)?;
    let gather_index = GatherIndex::new(ctx, args, out.meta())?;
    scatter_bytes(out, &gather_index, &scalar_bytes(out.dtype(), args.scalar("value")?)?)
}

/// How a scattered element is combined with the element that is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduce {
    Sum,
    Product,
    Mean,
    Max,
    Min,
}

impl Reduce {
    fn parse(args: &Args<'_>, arg: &'static str) -> Result<Self> {
        Ok(match args.str(arg)? {
            "sum" | "add" => Self::Sum,
            "prod" | "multiply" => Self::Product,
            "mean" => Self::Mean,
            "amax" => Self::Max,
            "amin" => Self::Min,
            other => {
                return Err(Error::invalid(format!(
                    "{}: `{other}` is not one of sum, prod, mean, amax, amin, add, multiply",
                    arg
                )));
            }
        })
    }
}

/// Elements that a reduction can combine.
trait Combine: Compute {
    /// The neutral element of the reduction `how`.
    fn identity(how: Reduce) -> Self;
    /// Combines two elements by the reduction `how`; NaN propagates.
    fn combine(self, other: Self, how: Reduce) -> Self;
    /// The product of two elements.
    fn times(self, other: Self) -> Self;
    /// The sum `self` of `n` elements divided by `n`; integers round down.
    fn divide_by_count(self, n: i64) -> Self;
}

macro_rules! combine_floats {
    ($($type:ty),*) => { $(
        impl Combine for $type {
            fn identity(how: Reduce) -> Self {
                match how {
                    Reduce::Sum | Reduce::Mean => 0.0,
                    Reduce::Product => 1.0,
                    Reduce::Max => Self::NEG_INFINITY,
                    Reduce::Min => Self::INFINITY,
                }
            }
            fn combine(self, other: Self, how: Reduce) -> Self {
                match how {
                    Reduce::Sum | Reduce::Mean => self + other,
                    Reduce::Product => self * other,
                    Reduce::Max if self.is_nan() || self >= other => self,
                    Reduce::Min if self.is_nan() || self <= other => self,
                    Reduce::Max | Reduce::Min => other,
                }
            }
            fn times(self, other: Self) -> Self {
                self * other
            }
            fn divide_by_count(self, n: i64) -> Self {
                self / n as $type
            }
        }
    )* };
}

combine_floats!(f32, f64);

impl Combine for i64 {
    fn identity(how: Reduce) -> Self {
        match how {
            Reduce::Sum | Reduce::Mean => 0,
            Reduce::Product => 1,
            Reduce::Max => i64::MIN,
            Reduce::Min => i64::MAX,
        }
    }
    fn combine(self, other: Self, how: Reduce) -> Self {
        match how {
            Reduce::Sum | Reduce::Mean => self.wrapping_add(other),
            Reduce::Product => self.wrapping_mul(other),
            Reduce::Max => self.max(other),
            Reduce::Min => self.min(other),
        }
    }
    fn times(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
    fn divide_by_count(self, n: i64) -> Self {
        self.wrapping_div_euclid(n)
    }
}

impl Combine for crate::support::dtype::C64 {
    fn identity(how: Reduce) -> Self {
        Self::new(f64::identity(how), 0.0)
    }
    fn combine(self, other: Self, how: Reduce) -> Self {
        match how {
            Reduce::Product => self * other,
            _ => self + other,
        }
    }
    fn times(self, other: Self) -> Self {
        self * other
    }
    fn divide_by_count(self, n: i64) -> Self {
        self / n as f64
    }
}

/// Combines the elements of `src` with the indexed elements of `out`, or only with each other if `include_self` is
/// false.
fn reduce_into<C: Combine>(
    ctx: &KernelContext<'_>,
    out: &mut TensorViewMut<'_>,
    gather_index: &GatherIndex<'_>,
    how: Reduce,
    include_self: bool,
    src: impl Fn(usize) -> C,
) -> Result<()> {
    let mut counts = ctx.scratch::<i64>(if how == Reduce::Mean { out.numel() } else { 0 })?;
    counts.fill(include_self as i64);
    update_values::<C>(ctx, out, |to| {
        if !include_self {
            gather_index.for_each(|_, at| to[at] = C::identity(how));
        }
        gather_index.for_each(|i, at| to[at] = to[at].combine(src(i), how));
        if how == Reduce::Mean {
            gather_index.for_each(|_, at| counts[at] += 1);
            to.iter_mut()
                .zip(counts.iter())
                .filter(|(_, n)| **n > 1)
                .for_each(|(x, &n)| *x = x.divide_by_count(n));
        }
        Ok(())
    })
}

fn reduce_tensor(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    how: Reduce,
    include_self: bool,
) -> Result<()> {
    let out = copy_self_to_out(args, outs)?;
    let src = args.tensor("src")?;
    expect_type("src", out.dtype(), src.dtype())?;
    let gather_index = GatherIndex::new(ctx, args, &row_major_meta(out)?)?;
    let part = gather_index.part_of("src", src.meta())?;
    dispatch!("self", compute_type(out.dtype()), COMPUTE, C => {
        let src = values::<C>(ctx, &src, &part)?;
        reduce_into::<C>(ctx, out, &gather_index, how, include_self, |i| src[i])
    })
}

/// The metadata of an out with the same type and sizes, but row-major, as [`update_values`] passes the elements.
fn row_major_meta(out: &TensorViewMut<'_>) -> Result<pteron_tensor::TensorMeta> {
    Ok(pteron_tensor::TensorMeta::contiguous(out.dtype(), out.sizes())?)
}

fn scatter_add(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    reduce_tensor(ctx, args, outs, Reduce::Sum, true)
}

fn scatter_reduce_src(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    reduce_tensor(ctx, args, outs, Reduce::parse(args, "reduce")?, true)
}

fn scatter_reduce(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    reduce_tensor(ctx, args, outs, Reduce::parse(args, "reduce")?, args.bool("include_self")?)
}

fn scatter_reduce_value(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let how = Reduce::parse(args, "reduce")?;
    let out = copy_self_to_out(args, outs)?;
    let gather_index = GatherIndex::new(ctx, args, &row_major_meta(out)?)?;
    let value = args.scalar("value")?;
    dispatch!("self", compute_type(out.dtype()), COMPUTE, C => {
        let value = C::from_scalar(value);
        reduce_into::<C>(ctx, out, &gather_index, how, true, |_| value)
    })
}

/// Adds slices of `source`, times `alpha`, to the slices selected by a list of indices.
fn index_add(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let out = copy_self_to_out(args, outs)?;
    let src = args.tensor("source")?;
    expect_type("source", out.dtype(), src.dtype())?;
    let gather_index = GatherIndex::from_1d_index(ctx, args, &row_major_meta(out)?, false)?;
    let part = source_slices(args, &gather_index)?;
    let alpha = args.scalar("alpha")?;
    dispatch!("self", compute_type(out.dtype()), COMPUTE, C => {
        let (src, alpha) = (values::<C>(ctx, &src, &part)?, C::from_scalar(alpha));
        reduce_into::<C>(ctx, out, &gather_index, Reduce::Sum, true, |i| src[i].times(alpha))
    })
}

/// The layout of `source`, argument 3, which must have one slice for each index.
fn source_slices(args: &Args<'_>, gather_index: &GatherIndex<'_>) -> Result<Layout> {
    let layout = at_least_1d(args.meta("source")?)?;
    ensure!(
        layout.sizes == gather_index.sizes,
        "source: expected the shape {}, found {}",
        gather_index.sizes,
        layout.sizes
    );
    Ok(layout)
}

fn index_copy(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let out = copy_self_to_out(args, outs)?;
    let gather_index = GatherIndex::from_1d_index(ctx, args, out.meta(), false)?;
    source_slices(args, &gather_index)?;
    scatter_tensor(ctx, args, out, &gather_index, "source")
}

fn index_fill(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let out = copy_self_to_out(args, outs)?;
    let gather_index = GatherIndex::from_1d_index(ctx, args, out.meta(), true)?;
    scatter_bytes(out, &gather_index, &scalar_bytes(out.dtype(), args.scalar("value")?)?)
}

fn index_fill_tensor(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let out = copy_self_to_out(args, outs)?;
    let gather_index = GatherIndex::from_1d_index(ctx, args, out.meta(), true)?;
    let value = args.tensor("value")?;
    ensure!(value.rank() == 0, "value: expected a zero-dim tensor, found {}", value.meta());
    let mut number = [0.0];
    let mut integer = [0];
    let value = if value.dtype().is_floating() {
        crate::support::convert::read::<f64>(&value, &Layout::of_tensor(value.meta()), &mut number)?;
        Scalar::Double(number[0])
    } else {
        crate::support::convert::read::<i64>(&value, &Layout::of_tensor(value.meta()), &mut integer)?;
        Scalar::Int(integer[0])
    };
    scatter_bytes(out, &gather_index, &scalar_bytes(out.dtype(), value)?)
}

/// A copy of `self` in which one slice is replaced by `src`.
fn select_scatter(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let src = args.tensor("src")?;
    let out = copy_self_to_out(args, outs)?;
    ensure!(out.rank() > 0, "self: a zero-dim tensor has no slices");
    let dim = wrap_dim("dim", args.int("dim")?, out.rank())?;
    let index = wrap_index("index", args.int("index")?, out.sizes()[dim])?;
    let into = Layout::of_tensor(out.meta()).select(dim, index);
    ensure!(into.sizes == *src.sizes(), "src: expected the shape {}, found {}", into.sizes, src.sizes());
    copy_into(&src, &Layout::of_tensor(src.meta()), out, &into)
}

/// The indices of `repeats` in order, each repeated as often as the element of `repeats` says.
fn repeat_interleave(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let repeats = args.tensor("repeats")?;
    ensure!(repeats.rank() == 1, "repeats: expected one dimension, found {}", repeats.rank());
    ensure!(
        matches!(repeats.dtype(), ScalarType::Int | ScalarType::Long),
        "repeats: expected int32 or int64, found {}",
        repeats.dtype()
    );
    let counts = crate::support::convert::indices(ctx, "repeats", &repeats)?;
    let total = counts.iter().try_fold(0usize, |sum, &n| {
        let n = to_size("repeats", n)?;
        sum.checked_add(n).ok_or_else(|| Error::invalid("repeats: their sum overflows"))
    })?;
    if let Some(size) = args.optional_int("output_size")? {
        ensure!(
            to_size("output_size", size)? == total,
            "output_size: {size}, but the repeats sum to {total}"
        );
    }
    let out = outs.tensor(0)?;
    out.resize(&Shape::new(&[total])?)?;
    crate::support::rows::write_values::<i64>(ctx, out, |to| {
        let mut at = 0;
        for (i, &n) in counts.iter().enumerate() {
            to[at..at + n as usize].fill(i as i64);
            at += n as usize;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, perform, s, t};
    use pteron_operator::{Arg, Out, Outs};
    use pteron_tensor::DimOrder;
    use pteron_tensor::ScalarType::{Float, Int, Long};

    #[test]
    fn the_index_may_be_smaller_than_the_tensor() {
        let x = t(&[3, 2], &[0i32, 1, 2, 3, 4, 5]);
        let index = t(&[2, 1], &[2i64, 0]);
        let args = [a(&x), Arg::Int(0), a(&index)];
        let r = call("aten::gather.out", &args, out(Int, &[2, 1])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[4, 0]);
        let by_column = x.to_dim_order(DimOrder::new(&[1, 0]).unwrap()).unwrap();
        let args = [a(&by_column), Arg::Int(-2), a(&index), Arg::Int(9)];
        let r = call("aten::scatter.value_out", &args, out(Int, &[3, 2])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[9, 1, 2, 3, 9, 5]);
        for bad in [-1, 3, i64::MIN] {
            let index = t(&[2, 1], &[0, bad]);
            let args = [a(&x), Arg::Int(0), a(&index)];
            assert!(call("aten::gather.out", &args, out(Int, &[2, 1])).is_err());
        }
        let none = t::<i64>(&[0], &[]);
        let args = [a(&x), Arg::Int(0), a(&none), Arg::Int(9)];
        assert_eq!(call("aten::scatter.value_out", &args, out(Int, &[3, 2])).unwrap().bytes(), x.bytes());
    }

    #[test]
    fn updates_may_be_in_place() {
        let x = t(&[3, 2], &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let (index, row) = (t(&[2], &[2i64, 0]), t(&[2], &[8f32, 9.0]));
        let (indices, rows) = (t(&[2, 1], &[2i64, 0]), t(&[2, 2], &[6f32, 7.0, 8.0, 9.0]));
        let one = Arg::Int(1);
        let calls: [(&str, Vec<Arg<'_>>); 8] = [
            ("aten::scatter.src_out", vec![Arg::Int(0), a(&indices), a(&rows)]),
            ("aten::scatter.value_out", vec![Arg::Int(0), a(&indices), one.clone()]),
            ("aten::scatter_add.out", vec![Arg::Int(0), a(&indices), a(&rows)]),
            ("aten::index_add.out", vec![Arg::Int(0), a(&index), a(&rows), one.clone()]),
            ("aten::index_copy.out", vec![Arg::Int(0), a(&index), a(&rows)]),
            ("aten::index_fill.int_Scalar_out", vec![Arg::Int(0), a(&index), one.clone()]),
            ("aten::select_scatter.out", vec![a(&row), Arg::Int(0), Arg::Int(-1)]),
            ("aten::slice_scatter.out", vec![a(&rows), Arg::Int(0), one.clone(), Arg::Int(3), one]),
        ];
        for (name, rest) in calls {
            let with_first = |first| std::iter::once(first).chain(rest.iter().cloned());
            let args: Vec<Arg<'_>> = with_first(a(&x)).collect();
            let separate = call(name, &args, out(Float, &[3, 2])).unwrap();
            let mut shared = x.clone();
            let mut outs = Outs::new(smallvec::smallvec![Out::Tensor(shared.view_mut())]);
            let list = with_first(Arg::InPlace { out: 0, meta: x.meta() }).chain([Arg::Out(0)]).collect();
            perform(name, list, &mut outs).unwrap();
            drop(outs);
            assert_eq!(shared.bytes(), separate.bytes(), "{name}");
        }
    }

    #[test]
    fn reductions_with_and_without_include_self() {
        let x = t(&[3], &[10f32, 20.0, f32::NAN]);
        let (index, src) = (t(&[4], &[0i64, 0, 2, 0]), t(&[4], &[1f32, 5.0, 7.0, 3.0]));
        let go = |how: &str, include: bool| {
            let args = [a(&x), Arg::Int(0), a(&index), a(&src), Arg::Str(how), Arg::Bool(include)];
            let r = call("aten::scatter_reduce.two_out", &args, out(Float, &[3]));
            r.map(|r| r.storage::<f32>().unwrap().to_vec())
        };
        assert_eq!(go("sum", false).unwrap(), [9.0, 20.0, 7.0]);
        assert_eq!(go("mean", true).unwrap()[..2], [4.75, 20.0]);
        assert_eq!(go("prod", true).unwrap()[..2], [150.0, 20.0]);
        assert_eq!(go("amax", false).unwrap(), [5.0, 20.0, 7.0]);
        assert!(go("amin", true).unwrap()[2].is_nan());
        assert!(go("median", true).is_err());
    }

    #[test]
    fn repeat_interleave_repeats_the_indices() {
        let repeats = t(&[3], &[2i32, 0, 1]);
        let r = call("aten::repeat_interleave.Tensor_out", &[a(&repeats)], out(Int, &[5])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[0, 0, 2]);
        for bad in [[i64::MAX, i64::MAX], [-1, 2]] {
            assert!(
                call("aten::repeat_interleave.Tensor_out", &[a(&t(&[2], &bad))], out(Long, &[5])).is_err()
            );
        }
        let (x, index, three) = (t(&[2], &[1f32, 2.0]), t(&[2], &[-1i64, -2]), s(3i64));
        let args = [a(&x), Arg::Int(0), a(&index), a(&three)];
        let r = call("aten::index_fill.int_Tensor_out", &args, out(Float, &[2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[3.0, 3.0]);
    }
}

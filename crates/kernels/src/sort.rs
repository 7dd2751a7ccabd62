//! Sorting, top-k, medians, and binary search in sorted sequences. NaN counts as the largest
//! value; among equal elements the one with the lower index comes first, except in `topk`.

use crate::support::convert::{fill, values, write};
use crate::support::dims::{DimSet, to_size, wrap_dim};
use crate::support::dtype::{Compute, compute_type, conversion, dispatch};
use crate::support::layout::Layout;
use crate::support::map::{Input, promote};
use crate::support::rows::{expect_type, write_values};
use crate::support::select::{self, nth_element, partial_sort};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ScratchBuffer, ensure};
use pteron_tensor::{ScalarType, Shape, TensorView};
use smallvec::SmallVec;
use std::cmp::Ordering;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::sort.values(Tensor self, int dim=-1, bool descending=False, *, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        sort,
    ),
    Operator::new(
        "aten::sort.values_stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        sort_stable,
    ),
    Operator::new(
        "aten::argsort.stable_out(Tensor self, *, bool stable, int dim=-1, bool descending=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        argsort,
    ),
    Operator::new(
        "aten::msort.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        msort,
    ),
    Operator::new(
        "aten::topk.values(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True, *, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        topk,
    ),
    Operator::new(
        "aten::kthvalue.values(Tensor self, SymInt k, int dim=-1, bool keepdim=False, *, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        kthvalue,
    ),
    Operator::new(
        "aten::median.dim_values(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) values, Tensor(b!) indices) -> (Tensor(a!) values, Tensor(b!) indices)",
        DtypeSet::REAL_BOOL,
        median,
    ),
    Operator::new(
        "aten::median.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        median_of_all,
    ),
    Operator::new(
        "aten::searchsorted.Tensor_out(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        searchsorted,
    ),
    Operator::new(
        "aten::searchsorted.Scalar_out(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        searchsorted,
    ),
    Operator::new(
        "aten::bucketize.Tensor_out(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        bucketize,
    ),
    Operator::new(
        "aten::bucketize.Scalar_out(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        bucketize,
    ),
];

/// Element types with PyTorch's total order: NaN is the greatest value, and equal to itself.
pub(crate) trait Order: Compute {
    fn compare_to(self, other: Self) -> Ordering;
    fn is_nan(self) -> bool;
}

macro_rules! order_floats {
    ($($type:ident),*) => { $(
        impl Order for $type {
            fn compare_to(self, other: Self) -> Ordering {
                self.partial_cmp(&other).unwrap_or_else(|| self.is_nan().cmp(&other.is_nan()))
            }
            fn is_nan(self) -> bool {
                $type::is_nan(self)
            }
        }
    )* };
}

order_floats!(f32, f64);

impl Order for i64 {
    fn compare_to(self, other: Self) -> Ordering {
        self.cmp(&other)
    }
    fn is_nan(self) -> bool {
        false
    }
}

/// The layout with dimension `dim` moved to the end; a zero-dim layout gets one dimension.
fn move_dim_last(x: &Layout, dim: usize) -> Result<Layout> {
    if x.rank() == 0 {
        return x.insert(0, 1, 1);
    }
    let dims: SmallVec<[usize; 8]> = (0..x.rank()).filter(|&d| d != dim).chain([dim]).collect();
    Ok(x.permute(&dims))
}

/// The elements chosen from each lane along a dimension, and their indices, lane by lane.
struct Chosen<'a, C> {
    values: ScratchBuffer<'a, C>,
    indices: ScratchBuffer<'a, i64>,
}

/// Chooses elements of each lane of `x` along `dim`: `arrange` permutes the indices `0..n` of a lane by its
/// elements; the indices at positions `keep` are chosen.
fn choose_from_lanes<'a, C: Order>(
    ctx: &KernelContext<'a>,
    x: &TensorView<'a>,
    dim: usize,
    keep: std::ops::Range<usize>,
    arrange: &(dyn Fn(&[C], &mut [i64]) + Sync),
) -> Result<Chosen<'a, C>> {
    let lanes = move_dim_last(&Layout::of_tensor(x.meta()), dim)?;
    let n = lanes.sizes.last().copied().unwrap_or(1);
    let keys = values::<C>(ctx, x, &lanes)?;
    let keys: &[C] = &keys;
    let mut order = ctx.scratch::<i64>(keys.len())?;
    if n > 0 {
        ctx.pool().parallel_chunks_mut(&mut order, n, (1 << 12) / n.min(1 << 12), &|lane, order| {
            order.iter_mut().zip(0..).for_each(|(o, i)| *o = i);
            arrange(&keys[lane * n..][..n], order);
        });
    }
    let (count, m) = (keys.len().checked_div(n).unwrap_or(0), keep.len());
    let mut indices = ctx.scratch::<i64>(count * m)?;
    let mut chosen = ctx.scratch::<C>(count * m)?;
    for lane in 0..if m > 0 { count } else { 0 } {
        let chosen_indices = &order[lane * n..][keep.clone()];
        indices[lane * m..][..m].copy_from_slice(chosen_indices);
        let keys = &keys[lane * n..][..n];
        chosen[lane * m..][..m].iter_mut().zip(chosen_indices).for_each(|(c, &i)| *c = keys[i as usize]);
    }
    Ok(Chosen { values: chosen, indices })
}

/// Sorts the indices in `order` by the keys at these indices.
fn sort_indices<C: Order>(keys: &[C], order: &mut [i64], descending: bool) {
    // The sort of a long lane can be interrupted.
    const LONG: usize = 1 << 16;
    if order.len() < LONG {
        return order.sort_unstable_by(|&a, &b| compare(keys, a, b, descending));
    }
    order.sort_unstable_by(|&a, &b| {
        pteron_pool::progress(1);
        compare(keys, a, b, descending)
    });
}

fn compare<C: Order>(keys: &[C], a: i64, b: i64, descending: bool) -> Ordering {
    let by_key = keys[a as usize].compare_to(keys[b as usize]);
    if descending { by_key.reverse() } else { by_key }.then(a.cmp(&b))
}

/// Resizes the outs to `sizes` and writes the chosen elements and indices. `dim` is the dimension of the lanes; `None`
/// if each lane has one element.
fn write_chosen<C: Order>(
    ctx: &KernelContext<'_>,
    outs: &mut Outs<'_>,
    sizes: &Shape,
    dim: Option<usize>,
    chosen: &Chosen<'_, C>,
) -> Result<()> {
    let [v, i] = outs.tensors([0, 1])?;
    for out in [&mut *v, &mut *i] {
        out.resize(sizes)?;
    }
    let lanes = |layout: Layout| dim.map_or(Ok(layout), |d| move_dim_last(&layout, d));
    write(ctx, &chosen.values, v, &lanes(Layout::of_tensor(v.meta()))?)?;
    write(ctx, &chosen.indices, i, &lanes(Layout::of_tensor(i.meta()))?)
}

fn sort_along(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    [dim, descending]: [usize; 2],
) -> Result<()> {
    let (x, descending) = (args.tensor("self")?, args.bool(descending)?);
    let dim = wrap_dim(args.name(dim), args.int(dim)?, x.rank())?;
    let n = x.sizes().get(dim).map_or(1, |&n| n);
    expect_type("values", x.dtype(), outs.tensor(0)?.dtype())?;
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        let chosen = choose_from_lanes::<C>(ctx, &x, dim, 0..n, &|keys, order| sort_indices(keys, order, descending))?;
        write_chosen(ctx, outs, x.sizes(), Some(dim), &chosen)
    })
}

fn sort(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    sort_along(ctx, args, outs, [1, 2])
}

fn sort_stable(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    sort_along(ctx, args, outs, [2, 3])
}

fn argsort(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, descending) = (args.tensor("self")?, args.bool("descending")?);
    let dim = wrap_dim("dim", args.int("dim")?, x.rank())?;
    let n = x.sizes().get(dim).map_or(1, |&n| n);
    let out = outs.tensor(0)?;
    out.resize(x.sizes())?;
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        let chosen = choose_from_lanes::<C>(ctx, &x, dim, 0..n, &|keys, order| sort_indices(keys, order, descending))?;
        write(ctx, &chosen.indices, out, &move_dim_last(&Layout::of_tensor(out.meta()), dim)?)
    })
}

/// Sorts along the first dimension.
fn msort(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    let n = x.sizes().first().map_or(1, |&n| n);
    let out = outs.tensor(0)?;
    out.resize(x.sizes())?;
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        let chosen = choose_from_lanes::<C>(ctx, &x, 0, 0..n, &|keys, order| sort_indices(keys, order, false))?;
        write(ctx, &chosen.values, out, &move_dim_last(&Layout::of_tensor(out.meta()), 0)?)
    })
}

/// The `k` largest or smallest elements of each lane, sorted.
fn topk(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, k, largest) = (args.tensor("self")?, to_size("k", args.int("k")?)?, args.bool("largest")?);
    let dim = wrap_dim("dim", args.int("dim")?, x.rank())?;
    let n = x.sizes().get(dim).map_or(1, |&n| n);
    ensure!(k <= n, "k: {k} of a dimension of size {n}");
    // The element of a zero-dim tensor is chosen even if k is 0.
    let k = if x.rank() == 0 { 1 } else { k };
    expect_type("values", x.dtype(), outs.tensor(0)?.dtype())?;
    let mut sizes = *x.sizes();
    if let Some(size) = sizes.get_mut(dim) {
        *size = k;
    }
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        let chosen = choose_from_lanes::<C>(ctx, &x, dim, 0..k, &|keys, order| {
            let before = if largest { Ordering::Greater } else { Ordering::Less };
            let less = |a: i64, b: i64| keys[a as usize].compare_to(keys[b as usize]) == before;
            // The algorithm determines which of several equal elements are chosen, so it must be PyTorch's.
            if k.saturating_mul(64) <= n {
                partial_sort(order, k, &less);
            } else if k > 0 {
                nth_element(order, k - 1, &less);
                select::sort(&mut order[..k - 1], &less);
            }
        })?;
        write_chosen(ctx, outs, &sizes, Some(dim), &chosen)
    })
}

/// The element of each lane at a position of the sorted lane; with `nan_first`, NaN if the lane has one.
/// The dimension is removed from the outs unless `keepdim`.
fn nth_of_lanes(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    [dim, keepdim]: [usize; 2],
    nan_first: bool,
    position: impl Fn(usize) -> Result<usize>,
) -> Result<()> {
    let (x, keepdim) = (args.tensor("self")?, args.bool(keepdim)?);
    let dim = wrap_dim(args.name(dim), args.int(dim)?, x.rank())?;
    let n = x.sizes().get(dim).map_or(1, |&n| n);
    ensure!(n > 0, "self: dimension {dim} is empty");
    let k = position(n)?;
    expect_type("values", x.dtype(), outs.tensor(0)?.dtype())?;
    let sizes =
        if x.rank() == 0 { *x.sizes() } else { DimSet::single(dim).reduced_sizes(x.sizes(), keepdim) };
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        let chosen = choose_from_lanes::<C>(ctx, &x, dim, k..k + 1, &|keys, order| {
            order.select_nth_unstable_by(k, |&a, &b| compare(keys, a, b, false));
            if nan_first && let Some(nan) = keys.iter().position(|x| x.is_nan()) {
                order[k] = nan as i64;
            }
        })?;
        write_chosen(ctx, outs, &sizes, None, &chosen)
    })
}

/// The `k`th smallest element of each lane, and its index; `k` counts from one.
fn kthvalue(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let k = args.int("k")?;
    nth_of_lanes(ctx, args, outs, [2, 3], false, |n| {
        ensure!((1..=n as i64).contains(&k), "k: {k} is out of range for a dimension of size {n}");
        Ok(k as usize - 1)
    })
}

/// The lower median of each lane, and its index; NaN if the lane contains NaN.
fn median(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    nth_of_lanes(ctx, args, outs, [1, 2], true, |n| Ok((n - 1) / 2))
}

/// The lower median of all elements; for an empty tensor NaN, converted to the out's type.
fn median_of_all(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    let out = outs.tensor(0)?;
    out.resize(&[])?;
    expect_type("out", x.dtype(), out.dtype())?;
    if x.numel() == 0 {
        return fill(out, f64::NAN);
    }
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        let keys = values::<C>(ctx, &x, &Layout::of_tensor(x.meta()))?;
        let mut order = ctx.scratch::<i64>(keys.len())?;
        order.iter_mut().zip(0..).for_each(|(o, i)| *o = i);
        let middle = (keys.len() - 1) / 2;
        let at = *order.select_nth_unstable_by(middle, |&a, &b| compare(&keys, a, b, false)).1;
        let median = keys.iter().find(|x| x.is_nan()).copied().unwrap_or(keys[at as usize]);
        write(ctx, &[median], out, &Layout::of_tensor(out.meta()))
    })
}

/// The argument positions of an operator that searches sorted sequences, and whether (`right`) it looks for the place
/// after equal elements.
struct Search {
    sequence: usize,
    wanted: usize,
    right: bool,
}

fn bucketize(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let boundaries = args.meta("boundaries")?;
    ensure!(boundaries.rank() == 1, "boundaries: expected one dimension, found {boundaries}");
    search_sorted(ctx, args, outs, Search { sequence: 1, wanted: 0, right: args.bool("right")? }, None)
}

fn searchsorted(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let right = match args.optional_str("side")? {
        Some("right") => true,
        Some("left") => {
            ensure!(!args.bool("right")?, "side: `left` contradicts right=True");
            false
        }
        None => args.bool("right")?,
        Some(other) => {
            return Err(pteron_operator::Error::invalid(format!(
                "side: `{other}` is neither left nor right"
            )));
        }
    };
    let sorter = args.optional_tensor("sorter")?;
    search_sorted(ctx, args, outs, Search { sequence: 0, wanted: 1, right }, sorter)
}

/// The insertion point of each value in the sorted sequence of the value's row.
fn search_sorted(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    how: Search,
    sorter: Option<TensorView<'_>>,
) -> Result<()> {
    let sequence = args.tensor(how.sequence)?;
    let wanted = match args.get(how.wanted) {
        pteron_operator::Arg::Tensor(t) => Some(*t),
        _ => None,
    };
    let sizes = wanted.map_or(Shape::SCALAR, |w| *w.sizes());
    let floating = sequence.dtype().is_floating()
        || match wanted {
            Some(w) => w.dtype().is_floating(),
            None => args.scalar(how.wanted)?.is_floating(),
        };
    let last = sequence.sizes().last().copied();
    let Some(n) = last else {
        return Err(pteron_operator::Error::invalid(format!(
            "{}: expected a sequence, found a zero-dim tensor",
            args.name(how.sequence)
        )));
    };
    let rank = sequence.rank();
    ensure!(
        rank == 1 || rank == sizes.rank() && sequence.sizes()[..rank - 1] == sizes[..rank - 1],
        "{}: the shape {} does not go with that of the numbers, {sizes}",
        args.name(how.sequence),
        sequence.sizes()
    );
    let sorter = match &sorter {
        None => None,
        Some(s) => {
            ensure!(
                s.sizes() == sequence.sizes(),
                "sorter: expected the shape {}, found {}",
                sequence.sizes(),
                s.sizes()
            );
            let order = crate::support::convert::indices(ctx, "sorter", s)?;
            let bad = order.iter().find(|&&i| i < 0 || i as u64 >= n as u64);
            ensure!(bad.is_none(), "sorter: index {} is out of range for {n} elements", bad.unwrap_or(&0));
            Some(order)
        }
    };
    let out = outs.tensor(0)?;
    let expected = if args.bool("out_int32")? { ScalarType::Int } else { ScalarType::Long };
    expect_type("out", expected, out.dtype())?;
    out.resize(&sizes)?;
    // The number of values that share a sequence.
    let per_row = if rank == 1 { usize::MAX } else { sizes[rank - 1] };
    // Values are rounded to the promoted type of values and sequence before the search.
    let promoted = promote(args, &[Input::Arg(how.sequence), Input::of_arg(args, how.wanted)?])?;
    let from = wanted.map_or(ScalarType::Double, |w| w.dtype());
    dispatch!("self", if floating { ScalarType::Double } else { ScalarType::Long }, COMPUTE_REAL, C => {
        let all = values::<C>(ctx, &sequence, &Layout::of_tensor(sequence.meta()))?;
        let one;
        let wanted: &[C] = match &wanted {
            Some(w) => &values::<C>(ctx, w, &Layout::of_tensor(w.meta()))?,
            None => {
                one = [C::from_scalar(args.scalar(how.wanted)?)];
                &one
            }
        };
        let convert = conversion::<C>(from, promoted).unwrap_or(|x| x);
        write_values::<i64>(ctx, out, |to| {
            for (i, (to, &x)) in to.iter_mut().zip(wanted).enumerate() {
                let (start, x) = (i / per_row.max(1) * n, convert(x));
                let row = &all[start..start + n];
                *to = insertion_point(row, sorter.as_ref().map(|s| &s[start..start + n]), x, how.right) as i64;
            }
            Ok(())
        })
    })
}

fn insertion_point<C: Compute + PartialOrd>(row: &[C], sorter: Option<&[i64]>, x: C, right: bool) -> usize {
    let (mut low, mut high) = (0, row.len());
    while low < high {
        let middle = low.midpoint(high);
        let at = row[sorter.map_or(middle, |s| s[middle] as usize)];
        if if right { at > x } else { at >= x } { high = middle } else { low = middle + 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, out, s, t};
    use pteron_operator::Arg;
    use pteron_tensor::DimOrder;
    use pteron_tensor::ScalarType::{Float, Int, Long};

    /// A sequence contains 0.1 as the value of its type that is nearest to 0.1.
    #[test]
    fn values_are_rounded_to_the_type_before_the_search() {
        let go = |sequence: &pteron_tensor::Tensor| {
            let args =
                [a(sequence), Arg::Double(0.1), Arg::Bool(false), Arg::Bool(true), Arg::None, Arg::None];
            call("aten::searchsorted.Scalar_out", &args, out(Long, &[])).unwrap().storage::<i64>().unwrap()[0]
        };
        assert_eq!(go(&t(&[1], &[0.1f32])), 1);
        assert_eq!(go(&t(&[1], &[pteron_tensor::bf16::from_f32(0.1)])), 1);
    }

    #[test]
    fn nan_sorts_last_and_equal_elements_keep_their_order() {
        let x = t(&[5], &[2.0, f32::NAN, -1.0, 2.0, f32::INFINITY]);
        let sort = |descending| {
            let args = [a(&x), Arg::Bool(true), int(0), Arg::Bool(descending)];
            let [_, i] =
                call_many("aten::sort.values_stable", &args, [out(Float, &[5]), out(Long, &[5])]).unwrap();
            i.storage::<i64>().unwrap().to_vec()
        };
        assert_eq!(sort(false), [2, 0, 3, 4, 1]);
        assert_eq!(sort(true), [1, 4, 0, 3, 2]);
        let top = |k, largest| {
            let args = [a(&x), int(k), int(-1), Arg::Bool(largest)];
            call_many("aten::topk.values", &args, [out(Float, &[5]), out(Long, &[5])])
        };
        assert_eq!(top(3, true).unwrap()[1].storage::<i64>().unwrap(), &[1, 4, 3]);
        assert_eq!(top(2, false).unwrap()[0].storage::<f32>().unwrap(), &[-1.0, 2.0]);
        assert!(top(6, true).is_err() && top(-1, true).is_err());
    }

    #[test]
    fn sorting_along_any_dimension_of_any_layout() {
        let x = t(&[2, 3], &[5i32, 1, 4, 2, 6, 3]).to_dim_order(DimOrder::new(&[1, 0]).unwrap()).unwrap();
        let outs = [out(Int, &[2, 3]), out(Long, &[2, 3])];
        let [v, i] = call_many("aten::sort.values", &[a(&x), int(0)], outs).unwrap();
        assert_eq!(v.storage::<i32>().unwrap(), &[2, 1, 3, 5, 6, 4]);
        assert_eq!(i.storage::<i64>().unwrap(), &[1, 0, 1, 0, 1, 0]);
        let outs = [out(Int, &[2, 1]), out(Long, &[2, 1])];
        let [v, _] =
            call_many("aten::kthvalue.values", &[a(&x), int(2), int(1), Arg::Bool(true)], outs).unwrap();
        assert_eq!(v.storage::<i32>().unwrap(), &[4, 3]);
        let [v, _] =
            call_many("aten::median.dim_values", &[a(&x), int(0)], [out(Int, &[3]), out(Long, &[3])])
                .unwrap();
        assert_eq!(v.storage::<i32>().unwrap(), &[2, 1, 3]);
        let outs = [out(Float, &[]), out(Long, &[])];
        let [v, _] = call_many("aten::topk.values", &[a(&s(7f32)), int(1)], outs).unwrap();
        assert_eq!(v.storage::<f32>().unwrap(), &[7.0]);
    }

    #[test]
    fn insertion_points_in_sorted_sequences() {
        let (b, x) = (t(&[3], &[1i64, 3, 5]), t(&[4], &[3f32, 0.0, 6.0, f32::NAN]));
        let go = |right| {
            let args = [a(&x), a(&b), Arg::Bool(false), Arg::Bool(right)];
            call("aten::bucketize.Tensor_out", &args, out(Long, &[4]))
                .unwrap()
                .storage::<i64>()
                .unwrap()
                .to_vec()
        };
        assert_eq!(go(false), [1, 0, 3, 3]);
        assert_eq!(go(true), [2, 0, 3, 3]);
        let (seq, sorter) = (t(&[3], &[5i64, 1, 3]), t(&[3], &[1i64, 2, 0]));
        let args = |s| [a(&seq), a(&x), Arg::Bool(true), Arg::Bool(false), Arg::None, a(s)];
        let r = call("aten::searchsorted.Tensor_out", &args(&sorter), out(Int, &[4])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[1, 0, 3, 3]);
        let bad = t(&[3], &[1i64, 2, 3]);
        assert!(call("aten::searchsorted.Tensor_out", &args(&bad), out(Int, &[4])).is_err());
    }
}

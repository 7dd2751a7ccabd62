//! Copies of whole tensors: clones, casts, dim order conversions.

use crate::support::convert::convert;
use crate::support::meaning::{reshape_meaning, sizes_of_first};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{DimOrder, Shape};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::clone.out(Tensor self, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        clone,
    )
    .moves_elements()
    .means(reshape_meaning)
    .sized(sizes_of_first),
    Operator::new("aten::alias_copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, clone)
        .moves_elements()
        .means(reshape_meaning)
        .sized(sizes_of_first),
    Operator::new("aten::detach_copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, clone)
        .moves_elements()
        .means(reshape_meaning)
        .sized(sizes_of_first),
    Operator::new(
        "aten::lift_fresh_copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        clone,
    )
    .moves_elements()
    .means(reshape_meaning)
    .sized(sizes_of_first),
    Operator::new(
        "aten::contiguous.out(Tensor self, *, MemoryFormat memory_format=0, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        clone,
    ),
    Operator::new(
        "aten::_to_copy.out(Tensor self, *, bool non_blocking=False, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        to_copy,
    )
    .means(reshape_meaning)
    .sized(sizes_of_first),
    Operator::new(
        "aten::copy.out(Tensor self, Tensor src, bool non_blocking=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        copy,
    ),
    Operator::new(
        "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)",
        DtypeSet::ALL,
        copy_in_place,
    )
    .overwrites(),
    Operator::new(
        "dim_order_ops::_to_dim_order_copy.out(Tensor self, *, bool non_blocking=False, int[]? dim_order=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        to_dim_order,
    )
    .means(reshape_meaning)
    .sized(sizes_of_first),
    Operator::new(
        "dim_order_ops::_clone_dim_order.out(Tensor self, *, bool non_blocking=False, int[]? dim_order=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        to_dim_order,
    )
    .moves_elements()
    .means(reshape_meaning)
    .sized(sizes_of_first),
    Operator::new(
        "et_copy::_h2d_copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        clone,
    ),
    Operator::new(
        "et_copy::_d2h_copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        clone,
    ),
    Operator::new(
        "llama::fallback.out(Tensor input, *, Tensor(a!) output) -> Tensor(a!)",
        DtypeSet::ALL,
        clone,
    )
    .moves_elements()
    .means(reshape_meaning),
];

/// A copy of `self`, with the same type and the out's layout.
fn clone(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let meta = args.meta(["self", "input"])?;
    let out = outs.tensor(0)?.dtype();
    ensure!(meta.dtype() == out, "out: expected a tensor of {}, as self is, found {out}", meta.dtype());
    convert(ctx, args, outs, ["self", "input"], meta.sizes())
}

/// A copy in the out's type and layout.
fn to_copy(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    convert(ctx, args, outs, "self", args.meta("self")?.sizes())
}

/// `src` broadcast to the sizes of `self`, as the elements of the out.
fn copy(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    convert(ctx, args, outs, "src", args.meta("self")?.sizes())
}

/// Copies `src`, broadcast and converted, over `self`.
fn copy_in_place(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let sizes = *outs.tensor(0)?.sizes();
    convert(ctx, args, outs, "src", &sizes)
}

/// A copy in the out's type and dim order. The program's metadata of the out decides the order (the one requested or,
/// without a request, that of `self`); the argument is only checked to be a valid order.
fn to_dim_order(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let sizes: &Shape = args.meta("self")?.sizes();
    if let Some(order) = args.optional_ints("dim_order")?
        && !order.is_empty()
    {
        let order: Vec<u8> = order.iter().map(|&d| u8::try_from(d).unwrap_or(u8::MAX)).collect();
        let order = DimOrder::new(&order)?;
        ensure!(order.len() == sizes.rank(), "dim_order: {order} is no order of {} dimensions", sizes.rank());
    }
    convert(ctx, args, outs, "self", sizes)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, s, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Bool, Byte, Float, Half, Int, Long};
    use pteron_tensor::{Complex, DimOrder};

    #[test]
    fn casts_follow_pytorch() {
        let x = t(&[4], &[1.9f32, -1.9, 300.0, f32::NAN]);
        let r = call("aten::_to_copy.out", &[a(&x)], out(Int, &[4])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[1, -1, 300, i32::MIN]);
        let r = call("aten::_to_copy.out", &[a(&x)], out(Bool, &[4])).unwrap();
        assert_eq!(r.bytes(), &[1; 4]);
        let big = t(&[1], &[i64::MAX - 1]);
        let r = call("aten::_to_copy.out", &[a(&big)], out(Long, &[1])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[i64::MAX - 1]);
        let z = t(&[1], &[Complex::new(2.5f32, 1.0)]);
        let r = call("aten::_to_copy.out", &[a(&z)], out(Half, &[1])).unwrap();
        assert_eq!(r.storage::<pteron_tensor::f16>().unwrap()[0].to_f32(), 2.5);
        assert!(call("aten::clone.out", &[a(&x)], out(Int, &[4])).is_err());
    }

    #[test]
    fn copies_convert_dim_orders_and_broadcast() {
        let x: Vec<u8> = (0..24).collect();
        let rows = t(&[1, 2, 3, 4], &x);
        let last = rows.to_dim_order(DimOrder::channels_last(4)).unwrap();
        let name = "dim_order_ops::_to_dim_order_copy.out";
        let into = out(Float, &[1, 2, 3, 4]).to_dim_order(DimOrder::channels_last(4)).unwrap();
        let order = Arg::Ints(smallvec::smallvec![0, 2, 3, 1]);
        let r = call(name, &[a(&rows), Arg::Bool(false), order], into).unwrap();
        assert_eq!(r.storage::<f32>().unwrap()[..4], [0.0, 12.0, 1.0, 13.0]);
        let r = call(name, &[a(&last)], out(Byte, &[1, 2, 3, 4])).unwrap();
        assert_eq!(r.bytes(), x);
        let bad = Arg::Ints(smallvec::smallvec![0, 2, 2, 1]);
        assert!(call(name, &[a(&rows), Arg::Bool(false), bad], out(Byte, &[1, 2, 3, 4])).is_err());
        let r = call("aten::copy_", &[a(&s(7i64))], t(&[2], &[0f32, 0.0])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[7.0, 7.0]);
        assert!(call("aten::copy_", &[a(&rows)], t(&[2], &[0f32, 0.0])).is_err());
    }
}

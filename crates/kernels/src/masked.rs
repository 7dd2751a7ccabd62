//! Operators with a mask.

use crate::support::convert::{Values, values};
use crate::support::copy::copy_to;
use crate::support::dims::broadcast;
use crate::support::dtype::Compute;
use crate::support::layout::Layout;
use crate::support::map::{Input, elementwise, map_as};
use crate::support::rows::{by_size, expect_type, tensor_bytes, view_bytes, write_bytes};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, Results, Rounding, ensure};
use pteron_tensor::{Scalar, ScalarType, Shape};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::masked_fill.Scalar_out(Tensor self, Tensor mask, Scalar value, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        masked_fill,
    )
    .rounding(Rounding::ExactWithNumbers)
    .in_place(&["self"]),
    Operator::new(
        "aten::masked_fill.Tensor_out(Tensor self, Tensor mask, Tensor value, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        masked_fill,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::masked_scatter.out(Tensor self, Tensor mask, Tensor source, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        masked_scatter,
    ),
    Operator::new(
        "aten::masked_select.out(Tensor self, Tensor mask, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        masked_select,
    )
    .results(Results::DataDependentShape),
];

/// Checks that argument 1, the mask, is of type bool or, for compatibility, uint8.
fn expect_mask(args: &Args<'_>) -> Result<()> {
    let dtype = args.meta("mask")?.dtype();
    ensure!(
        matches!(dtype, ScalarType::Bool | ScalarType::Byte),
        "{}: expected a tensor of bool, found one of {dtype}",
        "mask"
    );
    Ok(())
}

/// `mask ? value : self`.
fn masked_fill(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    expect_mask(args)?;
    let dtype = args.meta("self")?.dtype();
    let mut value = Input::of_arg(args, 2)?;
    if let Input::Arg(2) = value {
        let meta = args.meta("value")?;
        ensure!(meta.rank() == 0, "value: expected a zero-dim tensor, found {meta}");
        if dtype == ScalarType::Bool {
            value = Input::Scalar(Scalar::Bool(
                values::<f64>(ctx, &args.tensor("value")?, &Layout::of_tensor(meta))?[0] != 0.0,
            ));
        }
    }
    let fns = elementwise! {
        real(x, m, v) => if m.is_true() { v } else { x };
        complex(x, m, v) => if m.is_true() { v } else { x };
    };
    map_as(ctx, args, outs, [Input::Arg(0), Input::Arg(1), value], dtype, dtype, &fns)
}

/// The mask broadcast to `sizes`, one byte for each element, in row-major order.
fn broadcast_mask<'a, 'b: 'a>(
    ctx: &KernelContext<'a>,
    args: &Args<'b>,
    sizes: &Shape,
) -> Result<Values<'a, u8>> {
    expect_mask(args)?;
    let mask = args.tensor("mask")?;
    view_bytes(ctx, &mask, &Layout::of_tensor(mask.meta()).expand(sizes)?)
}

/// A copy of `self` in which the elements that the mask selects are replaced by consecutive elements of
/// `source`.
fn masked_scatter(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, source) = (args.tensor("self")?, args.tensor("source")?);
    expect_type("source", x.dtype(), source.dtype())?;
    let sizes = broadcast(x.sizes(), args.meta("mask")?.sizes())?;
    let out = outs.tensor(0)?;
    copy_to(&x, &Layout::of_tensor(x.meta()).expand(&sizes)?, out)?;
    let mask = broadcast_mask(ctx, args, &sizes)?;
    let wanted = mask.iter().filter(|m| **m != 0).count();
    ensure!(wanted <= source.numel(), "source: {} elements, but the mask selects {wanted}", source.numel());
    let walk = Layout::of_tensor(out.meta()).walk();
    let source = tensor_bytes(ctx, &source)?;
    by_size!(x.dtype().size(), E => {
        let (from, to): (&[E], &mut [E]) = (bytemuck::cast_slice(&source), bytemuck::cast_slice_mut(out.bytes_mut()));
        let chosen = (0..mask.len()).filter(|&i| mask[i] != 0);
        for (i, &x) in chosen.zip(from) {
            to[walk.offset_at(i)] = x;
            pteron_pool::progress(1);
        }
    });
    Ok(())
}

/// The elements that the mask selects, in row-major order.
fn masked_select(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    let sizes = broadcast(x.sizes(), args.meta("mask")?.sizes())?;
    let mask = broadcast_mask(ctx, args, &sizes)?;
    let from = Layout::of_tensor(x.meta()).expand(&sizes)?.walk();
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    out.resize(&[mask.iter().filter(|m| **m != 0).count()])?;
    write_bytes(ctx, out, |to| {
        by_size!(x.dtype().size(), E => {
            let (all, to): (&[E], &mut [E]) = (bytemuck::cast_slice(x.bytes()), bytemuck::cast_slice_mut(to));
            let chosen = (0..mask.len()).filter(|&i| mask[i] != 0);
            for (to, i) in to.iter_mut().zip(chosen) {
                *to = all[from.offset_at(i)];
                pteron_pool::progress(1);
            }
        });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::Bool;
    use pteron_tensor::ScalarType::{self, Float, Int};

    fn mask(sizes: &[usize], of: &[bool]) -> pteron_tensor::Tensor {
        t(sizes, &of.iter().map(|&b| Bool::from(b)).collect::<Vec<_>>())
    }

    #[test]
    fn masks_are_broadcast() {
        let x = t(&[2, 2], &[1i32, 2, 3, 4]);
        let m = mask(&[2], &[false, true]);
        let r = call("aten::masked_fill.Scalar_out", &[a(&x), a(&m), Arg::Double(9.7)], out(Int, &[2, 2]))
            .unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[1, 9, 3, 9]);
        let r = call("aten::masked_select.out", &[a(&x), a(&m)], out(Int, &[4])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[2, 4]);
        let r =
            call("aten::masked_scatter.out", &[a(&x), a(&m), a(&t(&[3], &[7i32, 8, 9]))], out(Int, &[2, 2]));
        assert_eq!(r.unwrap().storage::<i32>().unwrap(), &[1, 7, 3, 8]);
    }

    #[test]
    fn numbers_that_fill_bools_are_compared_with_zero() {
        let (x, m) = (mask(&[2], &[false, true]), mask(&[2], &[true, false]));
        for value in [Arg::Double(0.5), a(&t(&[], &[-0.25f32])), a(&t(&[], &[256i64]))] {
            let name = if let Arg::Double(_) = value { "Scalar" } else { "Tensor" };
            let r = call(
                &format!("aten::masked_fill.{name}_out"),
                &[a(&x), a(&m), value],
                out(ScalarType::Bool, &[2]),
            );
            assert_eq!(r.unwrap().bytes(), [1, 1]);
        }
    }

    #[test]
    fn invalid_masks_and_sources_are_errors() {
        let x = t(&[2], &[1f32, 2.0]);
        let (m, f) = (mask(&[2], &[true, true]), t(&[2], &[1f32, 1.0]));
        assert!(call("aten::masked_select.out", &[a(&x), a(&f)], out(Float, &[2])).is_err());
        assert!(call("aten::masked_select.out", &[a(&x), a(&m)], out(Float, &[1])).is_err());
        let short = t(&[1], &[7f32]);
        assert!(call("aten::masked_scatter.out", &[a(&x), a(&m), a(&short)], out(Float, &[2])).is_err());
    }
}

//! Gates: elements let through by others, or by chance.

use crate::support::convert::{all_values, fill, values};
use crate::support::copy::copy_to;
use crate::support::dims::wrap_dim;
use crate::support::dtype::{compute_type, dispatch};
use crate::support::layout::Layout;
use crate::support::rows::{expect_type, write_values};
use operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use tensor::ScalarType;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::glu.out(Tensor self, int dim=-1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        glu,
    ),
    Operator::new(
        "aten::native_dropout.out(Tensor input, float p, bool? train, *, Tensor(a!) out0, Tensor(b!) out1) \
         -> (Tensor(a!), Tensor(b!))",
        DtypeSet::FLOATING,
        dropout,
    ),
];

/// The first half of a dimension times the sigmoid of the second.
fn glu(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor(0)?;
    ensure!(x.rank() > 0, "self: a zero-dim tensor has no halves");
    let dim = wrap_dim(args.name(1), args.int(1)?, x.rank())?;
    let size = x.sizes()[dim];
    ensure!(size.is_multiple_of(2), "self: dimension {dim} of size {size} has no halves");
    let half = |start: usize| Layout::of(x.meta()).slice(dim, start, size / 2, 1);
    let (first, second) = (half(0), half(if size == 0 { 0 } else { size / 2 }));
    let out = outs.tensor(0)?;
    ensure!(out.dtype().is_floating(), "out: expected floating-point numbers, found {}", out.dtype());
    out.resize(&first.sizes)?;
    dispatch!(args.name(0), compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let (a, b) = (values::<C>(ctx, &x, &first)?, values::<C>(ctx, &x, &second)?);
        write_values::<C>(ctx, out, |out| {
            let inputs = a.iter().zip(b.iter());
            out.iter_mut().zip(inputs).for_each(|(out, (&a, &b))| *out = a / (1.0 + (-b).exp()));
            Ok(())
        })
    })
}

/// Zeros with probability `p`, what remains being scaled up so that the expected sum stays; and the
/// mask of what remains. Without training everything remains as it is.
fn dropout(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, p, train) = (args.tensor(0)?, args.double(1)?, args.optional_bool(2)?.unwrap_or(true));
    ensure!((0.0..=1.0).contains(&p), "p: {p} is no probability");
    let [out, mask] = outs.tensors([0, 1])?;
    expect_type("out0", x.dtype(), out.dtype())?;
    expect_type("out1", ScalarType::Bool, mask.dtype())?;
    out.resize(x.sizes())?;
    mask.resize(x.sizes())?;
    if !train || p == 0.0 {
        copy_to(&x, &Layout::of(x.meta()), out)?;
        return fill(mask, 1i64);
    }
    let mut kept = ctx.scratch::<i64>(x.numel())?;
    // Drawn in row-major order, so that the layout does not matter.
    kept.iter_mut().for_each(|k| *k = (ctx.generator().uniform() >= p) as i64);
    let scale = if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) };
    dispatch!(args.name(0), compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let x = all_values::<C>(ctx, &x)?;
        write_values::<C>(ctx, out, |out| {
            for ((out, &x), &k) in out.iter_mut().zip(x.iter()).zip(kept.iter()) {
                *out = x * (k as f64 * scale) as C;
            }
            Ok(())
        })?;
    });
    write_values::<i64>(ctx, mask, |to| {
        to.copy_from_slice(&kept);
        Ok(())
    })
}

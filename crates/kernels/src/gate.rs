//! Gates: elements let through by others, or by chance.

use crate::support::convert::{all_values, fill, values};
use crate::support::copy::copy_to;
use crate::support::dims::wrap_dim;
use crate::support::dtype::{compute_type, dispatch};
use crate::support::layout::Layout;
use crate::support::rows::{expect_type, write_values};
use operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, Results, ensure};
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
    )
    .results(Results::Random),
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

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, out, t};
    use operator::Arg;
    use tensor::ScalarType::{Bool, Float};

    #[test]
    fn halves_gate_each_other() {
        let x = t(&[1, 4], &[2f32, 3.0, 0.0, f32::NEG_INFINITY]);
        let r = call("aten::glu.out", &[a(&x)], out(Float, &[1, 2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0, 0.0]);
        assert!(call("aten::glu.out", &[a(&x), int(0)], out(Float, &[1, 2])).is_err());
    }

    #[test]
    fn what_drops_out_is_made_up_for() {
        let x = t(&[1000], &[1f32; 1000]);
        let drop = |p: f64, train| {
            let outs = [out(Float, &[1000]), out(Bool, &[1000])];
            call_many("aten::native_dropout.out", &[a(&x), Arg::Double(p), train], outs)
        };
        for train in [Arg::Bool(true), Arg::None] {
            let [v, mask] = drop(0.25, train).unwrap();
            let (v, mask) = (v.storage::<f32>().unwrap(), mask.storage::<tensor::Bool>().unwrap());
            assert!(v.iter().zip(mask).all(|(&v, m)| v == if m.get() { 4.0 / 3.0 } else { 0.0 }));
            assert!((700..800).contains(&mask.iter().filter(|m| m.get()).count()));
        }
        assert_eq!(drop(0.25, Arg::Bool(false)).unwrap()[0].bytes(), x.bytes());
        assert!(drop(1.0, Arg::Bool(true)).unwrap()[0].storage::<f32>().unwrap().iter().all(|&v| v == 0.0));
        assert!(drop(f64::NAN, Arg::None).is_err() && drop(1.5, Arg::Bool(false)).is_err());
    }
}

//! Gated linear units.

use crate::support::convert::values;
use crate::support::dims::wrap_dim;
use crate::support::dtype::{compute_type, dispatch};
use crate::support::layout::Layout;
use crate::support::rows::write_values;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};

pub(crate) const OPERATORS: &[Operator] = &[Operator::new(
    "aten::glu.out(Tensor self, int dim=-1, *, Tensor(a!) out) -> Tensor(a!)",
    DtypeSet::FLOATING,
    glu,
)];

/// The first half of a dimension times the sigmoid of the second.
fn glu(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    ensure!(x.rank() > 0, "self: a zero-dim tensor cannot be halved");
    let dim = wrap_dim("dim", args.int("dim")?, x.rank())?;
    let size = x.sizes()[dim];
    ensure!(size.is_multiple_of(2), "self: dimension {dim} has the odd size {size} and cannot be halved");
    let half = |start: usize| Layout::of_tensor(x.meta()).slice(dim, start, size / 2, 1);
    let (first, second) = (half(0), half(if size == 0 { 0 } else { size / 2 }));
    let out = outs.tensor(0)?;
    ensure!(out.dtype().is_floating(), "out: expected floating-point numbers, found {}", out.dtype());
    out.resize(&first.sizes)?;
    dispatch!("self", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let (a, b) = (values::<C>(ctx, &x, &first)?, values::<C>(ctx, &x, &second)?);
        write_values::<C>(ctx, out, |out| {
            let inputs = a.iter().zip(b.iter());
            out.iter_mut().zip(inputs).for_each(|(out, (&a, &b))| *out = a / (1.0 + (-b).exp()));
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, out, t};
    use pteron_tensor::ScalarType::Float;

    #[test]
    fn the_second_half_gates_the_first() {
        let x = t(&[1, 4], &[2f32, 3.0, 0.0, f32::NEG_INFINITY]);
        let r = call("aten::glu.out", &[a(&x)], out(Float, &[1, 2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0, 0.0]);
        assert!(call("aten::glu.out", &[a(&x), int(0)], out(Float, &[1, 2])).is_err());
    }
}

//! Dropout.

use crate::support::convert::{all_values, fill};
use crate::support::copy::copy_to;
use crate::support::dtype::{compute_type, dispatch};
use crate::support::layout::Layout;
use crate::support::rows::{expect_type, write_values};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, Results, ensure};
use pteron_tensor::ScalarType;

pub(crate) const OPERATORS: &[Operator] = &[Operator::new(
    "aten::native_dropout.out(Tensor input, float p, bool? train, *, Tensor(a!) out0, Tensor(b!) out1) -> (Tensor(a!), Tensor(b!))",
    DtypeSet::FLOATING,
    dropout,
)
.results(Results::Random)];

/// Sets elements to zero with probability `p` and scales the others up, so that the expected sum stays the same; the
/// second out is the mask of the elements kept. Without training, the elements are copied.
fn dropout(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, p, train) =
        (args.tensor("input")?, args.double("p")?, args.optional_bool("train")?.unwrap_or(true));
    ensure!((0.0..=1.0).contains(&p), "p: {p} is not a probability");
    let [out, mask] = outs.tensors([0, 1])?;
    expect_type("out0", x.dtype(), out.dtype())?;
    expect_type("out1", ScalarType::Bool, mask.dtype())?;
    out.resize(x.sizes())?;
    mask.resize(x.sizes())?;
    if !train || p == 0.0 {
        copy_to(&x, &Layout::of_tensor(x.meta()), out)?;
        return fill(mask, 1i64);
    }
    let mut is_kept = ctx.scratch::<i64>(x.numel())?;
    // Drawn in row-major order, so that the result does not depend on the layout.
    is_kept.iter_mut().for_each(|k| *k = (ctx.generator().uniform() >= p) as i64);
    let scale = if p == 1.0 { 0.0 } else { 1.0 / (1.0 - p) };
    dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let x = all_values::<C>(ctx, &x)?;
        write_values::<C>(ctx, out, |out| {
            for ((out, &x), &k) in out.iter_mut().zip(x.iter()).zip(is_kept.iter()) {
                *out = x * (k as f64 * scale) as C;
            }
            Ok(())
        })?;
    });
    write_values::<i64>(ctx, mask, |to| {
        to.copy_from_slice(&is_kept);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call_many, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Bool, Float};

    #[test]
    fn kept_elements_are_scaled_up() {
        let x = t(&[1000], &[1f32; 1000]);
        let drop = |p: f64, train| {
            let outs = [out(Float, &[1000]), out(Bool, &[1000])];
            call_many("aten::native_dropout.out", &[a(&x), Arg::Double(p), train], outs)
        };
        for train in [Arg::Bool(true), Arg::None] {
            let [v, mask] = drop(0.25, train).unwrap();
            let (v, mask) = (v.storage::<f32>().unwrap(), mask.storage::<pteron_tensor::Bool>().unwrap());
            assert!(v.iter().zip(mask).all(|(&v, m)| v == if m.get() { 4.0 / 3.0 } else { 0.0 }));
            assert!((700..800).contains(&mask.iter().filter(|m| m.get()).count()));
        }
        assert_eq!(drop(0.25, Arg::Bool(false)).unwrap()[0].bytes(), x.bytes());
        assert!(drop(1.0, Arg::Bool(true)).unwrap()[0].storage::<f32>().unwrap().iter().all(|&v| v == 0.0));
        assert!(drop(f64::NAN, Arg::None).is_err() && drop(1.5, Arg::Bool(false)).is_err());
    }
}

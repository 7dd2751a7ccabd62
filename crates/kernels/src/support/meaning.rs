//! Meanings that operators of several families share.

use pteron_operator::facts::{Dims, wrap};
use pteron_operator::{Arg, ArgKey, Args, Binary, Expression, Meaning, Unary};
use pteron_tensor::Shape;

/// The meaning of a reshape: the elements of the first tensor, in order, with the sizes of the result.
pub(crate) fn reshape_meaning(_: &Args<'_>) -> Option<Meaning> {
    Some(Meaning::Reshape)
}

/// The sizes of the argument `self`.
pub(crate) fn sizes_of_first(args: &Args<'_>) -> Option<Shape> {
    Some(*args.meta("self").ok()?.sizes())
}

/// The meaning of an operator that applies `f` to each element.
pub(crate) fn unary_meaning(f: Unary) -> Option<Meaning> {
    Some(Meaning::Elementwise(Expression::unary(f)))
}

/// The meaning of an operator that applies `f` to each pair of elements.
pub(crate) fn binary_meaning(f: Binary) -> Option<Meaning> {
    Some(Meaning::Elementwise(Expression::binary(f)))
}

/// The meaning of an operator that clamps each element; `None` unless `low <= high`.
pub(crate) fn clamp_between_meaning(low: f64, high: f64) -> Option<Meaning> {
    let (low, high) = (low as f32, high as f32);
    (low <= high).then(|| Meaning::Elementwise(Expression::clamp(low, high)))
}

/// The dimensions of `self` that an argument lists.
pub(crate) fn dims_at(args: &Args<'_>, arg: &'static str) -> Option<Dims> {
    let rank = args.meta("self").ok()?.rank();
    args.ints(arg).ok()?.iter().map(|&d| wrap(d, rank)).collect()
}

/// The position of an optional tensor argument: `Some(None)` if it is absent, `None` if it is not a tensor.
pub(crate) fn optional_tensor_position(args: &Args<'_>, arg: &'static str) -> Option<Option<usize>> {
    match args.get(arg) {
        Arg::None => Some(None),
        Arg::Tensor(_) | Arg::Spec(_) => Some(Some(arg.position(args.schema()))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::{Isa, binary, clamp, unary};
    use pteron_operator::{Generator, Instr, Kernel, KernelContext, Out, Outs, Scratch};
    use pteron_pool::Pool;
    use pteron_tensor::Tensor;
    use std::sync::Arc;

    /// Evaluates an expression on slices.
    fn evaluate(expression: &Expression, inputs: &[&[f32]]) -> Vec<f32> {
        let (pool, isa, len) = (Pool::serial(), Isa::default(), inputs[0].len());
        let mut registers: Vec<Vec<f32>> = Vec::new();
        for instr in &expression.instrs {
            let mut out = vec![0.0; len];
            match *instr {
                Instr::Input(i) => out.copy_from_slice(inputs[i]),
                Instr::Const(c) => out.fill(c),
                Instr::Unary(f, a) => unary(&pool, isa, f, &registers[a], &mut out),
                Instr::Clamp { of, low, high } => clamp(isa, (low, high), &registers[of], &mut out),
                Instr::Binary(f, a, b) => binary(&pool, isa, f, &registers[a], &registers[b], &mut out),
            }
            registers.push(out);
        }
        registers.pop().unwrap_or_default()
    }

    /// Calls a kernel with tensors for tensor arguments and `number` for scalar arguments without a numeric
    /// default. Returns the elementwise meaning of the call, the inputs and the result; `None` if there is no such
    /// meaning.
    fn call(kernel: &Arc<dyn Kernel>, number: i64) -> Option<(Expression, Vec<Tensor>, Tensor)> {
        let tensors: Vec<Tensor> = [[0.5f32, -1.25, 2.0, 0.75], [1.5, 0.25, -3.0, 2.5]]
            .map(|x| Tensor::from_slice(&[4], &x).unwrap())
            .into();
        let mut remaining_tensors = tensors.iter();
        let schema = kernel.schema();
        let args = schema.args.iter().map(|arg| match (arg.written, arg.ty, arg.default.as_deref()) {
            (true, ..) => Some(Arg::Out(0)),
            (_, pteron_operator::ArgType::Tensor, None) if !arg.list => {
                Some(Arg::Tensor(remaining_tensors.next()?.view()))
            }
            (_, pteron_operator::ArgType::Scalar, default) if default != Some("None") => {
                Some(Arg::Int(default.and_then(|d| d.parse().ok()).unwrap_or(number)))
            }
            (_, _, Some("None")) => Some(Arg::None),
            (_, pteron_operator::ArgType::Str, Some(_)) => Some(Arg::Str("none")),
            _ => None,
        });
        let args = Args::new(schema, args.collect::<Option<_>>()?);
        let Some(Meaning::Elementwise(expression)) = kernel.meaning(&args) else { return None };
        let mut result = Tensor::zeros(tensors[0].meta().clone()).unwrap();
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::default());
        let ctx = KernelContext::new(&pool, &scratch, &generator);
        let mut outs = Outs::new([Out::Tensor(result.view_mut())].into_iter().collect());
        kernel.execute(&ctx, &args, &mut outs).unwrap();
        drop((args, outs));
        Some((expression, tensors, result))
    }

    #[test]
    fn elementwise_meanings_agree_with_the_kernels() {
        let registry = crate::registry();
        let mut checked = 0;
        for operator in crate::operators() {
            let kernel = registry.get(operator.name()).unwrap();
            for number in [1, 2, 3] {
                let Some((expression, inputs, result)) = call(&kernel, number) else { continue };
                let inputs: Vec<&[f32]> = inputs.iter().map(|t| t.as_slice().unwrap()).collect();
                let actual = evaluate(&expression, &inputs);
                for (f, k) in actual.iter().zip(result.as_slice::<f32>().unwrap()) {
                    let close = (f - k).abs() <= 1e-6 * k.abs().max(1.0) || f.is_nan() && k.is_nan();
                    assert!(close, "{}: {expression:?} gives {f}, the kernel {k}", operator.name());
                }
                checked += 1;
            }
        }
        assert!(checked >= 40, "{checked} calls have elementwise meanings");
    }
}

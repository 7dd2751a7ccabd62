//! Conversions between f32 and half precision.

use super::{Step, Writes, only};
use crate::graph::{Graph, ValueId};
use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::{Lowered, Lowering, Operation};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pteron_operator::{CountedTensor, Error, KernelContext, Result};
use pteron_tensor::{ScalarType, TensorMeta, TensorView, TensorViewMut};

/// The number of elements that a task converts.
const GRAIN: usize = 1 << 15;

/// Whether a type is float16 or bfloat16, for which graphs compute in f32.
pub(crate) fn is_half(dtype: ScalarType) -> bool {
    matches!(dtype, ScalarType::Half | ScalarType::BFloat16)
}

/// The meta with f32 elements.
pub(crate) fn widened(meta: &TensorMeta) -> Option<TensorMeta> {
    TensorMeta::new(ScalarType::Float, meta.sizes(), *meta.dim_order()).ok()
}

/// A half-precision constant of a graph, converted to f32.
pub(crate) fn widen(graph: &Graph, constant: ValueId) -> Option<CountedTensor> {
    let x = graph.view(constant)?;
    let mut wide = graph.zeros(widened(x.meta())?).ok()?;
    let mut view = wide.view_mut();
    let out = view.storage_mut::<f32>().ok()?;
    match x.dtype() {
        ScalarType::Half => x.storage::<f16>().ok()?.convert_to_f32_slice(out),
        ScalarType::BFloat16 => x.storage::<bf16>().ok()?.convert_to_f32_slice(out),
        _ => return None,
    }
    Some(wide)
}

/// Converts between f32 and half precision, rounding to nearest, ties to even.
pub(crate) fn run(ctx: &KernelContext<'_>, x: &TensorView<'_>, out: &mut TensorViewMut<'_>) -> Result<()> {
    macro_rules! convert {
        ($from:ty, $to:ty, $each:expr) => {{
            let (x, out) = (x.storage::<$from>()?, out.storage_mut::<$to>()?);
            if x.len() != out.len() {
                return Err(Error::invalid("a cast between tensors of different sizes"));
            }
            ctx.pool().parallel_chunks_mut(out, GRAIN, 2, &|i, out| {
                let each: fn(&[$from], &mut [$to]) = $each;
                each(&x[i * GRAIN..][..out.len()], out);
            });
        }};
    }
    match (x.dtype(), out.dtype()) {
        (ScalarType::Half, ScalarType::Float) => convert!(f16, f32, |x, out| x.convert_to_f32_slice(out)),
        (ScalarType::BFloat16, ScalarType::Float) => {
            convert!(bf16, f32, |x, out| x.convert_to_f32_slice(out))
        }
        (ScalarType::Float, ScalarType::Half) => {
            convert!(f32, f16, |x, out| out.convert_from_f32_slice(x))
        }
        (ScalarType::Float, ScalarType::BFloat16) => {
            convert!(f32, bf16, |x, out| out.convert_from_f32_slice(x))
        }
        (from, to) => return Err(Error::invalid(format!("a cast from {from} to {to}"))),
    }
    Ok(())
}

/// Converts half precision to f32, or f32 to half precision with rounding to nearest, ties to even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cast;

impl Operation for Cast {
    fn name(&self) -> &str {
        "cast"
    }

    fn operand_layout(&self, i: usize, inputs: usize) -> LayoutReq {
        if i < inputs { LayoutReq::Any } else { LayoutReq::SameAsInput0 }
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.same_sizes()?;
        let is_real = |meta: &TensorMeta| {
            matches!(meta.dtype(), ScalarType::Float | ScalarType::Half | ScalarType::BFloat16)
        };
        match is_real(operands.input(0)?) && is_real(operands.output(0)?) {
            true => Ok(()),
            false => refuse("a cast supports only float32, float16 and bfloat16"),
        }
    }

    fn lower(&self, _: &mut Lowering<'_>) -> Result<Lowered> {
        Ok(Lowered::step(CastStep, [0]))
    }
}

struct CastStep;

impl Step for CastStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        run(ctx, &reads[0], only(&mut writes)?)
    }
}

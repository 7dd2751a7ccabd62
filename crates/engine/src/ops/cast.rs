//! Conversions between f32 and half precision.

use crate::graph::{Graph, ValueId};
use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::Operation;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pteron_operator::{CountedTensor, Result};
use pteron_tensor::{ScalarType, TensorMeta};

/// Whether a type is float16 or bfloat16, the half-precision types; graphs compute in f32 for them.
pub(crate) fn is_half(dtype: ScalarType) -> bool {
    matches!(dtype, ScalarType::Half | ScalarType::BFloat16)
}

/// A meta with f32 elements and the sizes and layout of `meta`.
pub(crate) fn widened_meta(meta: &TensorMeta) -> Option<TensorMeta> {
    TensorMeta::new(ScalarType::Float, meta.sizes(), *meta.dim_order()).ok()
}

/// A half-precision constant of a graph, converted to f32.
pub(crate) fn widen_constant(graph: &Graph, constant: ValueId) -> Option<CountedTensor> {
    let x = graph.view(constant)?;
    let mut wide = graph.zeros(widened_meta(x.meta())?).ok()?;
    let mut view = wide.view_mut();
    let out = view.storage_mut::<f32>().ok()?;
    match x.dtype() {
        ScalarType::Half => x.storage::<f16>().ok()?.convert_to_f32_slice(out),
        ScalarType::BFloat16 => x.storage::<bf16>().ok()?.convert_to_f32_slice(out),
        _ => return None,
    }
    Some(wide)
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

    fn keeps_rows_apart(&self, _: &Operands<'_>) -> bool {
        true
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_same_sizes()?;
        let is_real = |meta: &TensorMeta| {
            matches!(meta.dtype(), ScalarType::Float | ScalarType::Half | ScalarType::BFloat16)
        };
        match is_real(operands.input(0)?) && is_real(operands.output(0)?) {
            true => Ok(()),
            false => refuse("a cast supports only float32, float16 and bfloat16"),
        }
    }
}

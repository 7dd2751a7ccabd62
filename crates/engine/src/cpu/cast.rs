//! Conversions between f32 and half precision.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::ops::cast::Cast;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{ScalarType, TensorView, TensorViewMut};

/// The number of elements of a chunk; a thread converts at least two chunks at a time.
const GRAIN: usize = 1 << 15;

/// Converts between f32 and half precision, rounding to nearest, ties to even.
pub(crate) fn convert_halves(
    ctx: &KernelContext<'_>,
    x: &TensorView<'_>,
    out: &mut TensorViewMut<'_>,
) -> Result<()> {
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

impl Lower for Cast {
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
        convert_halves(ctx, &reads[0], only_output(&mut writes)?)
    }
}

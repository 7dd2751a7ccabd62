//! Quantized matrix multiplication.

use super::lowering::{Lower, Lowered, Lowering};
use super::pack_store::{MatrixPack, QuantizedPack};
use super::packs::Packed;
use super::step::{Step, Writes, only_output};
use super::weights::view_of;
use crate::ops::quantized_linear::{QuantizedInput, QuantizedLinear};
use pteron_kernels::compute::qgemm;
use pteron_kernels::compute::{
    Activation, Affine, Isa, MatMut, MatRef, Quantization, min_max, quantize, quantize_row,
};
use pteron_kernels::compute::{PackedWeights, QuantizedEpilogue, QuantizedOut, QuantizedRows, Weights};
use pteron_operator::{Error, KernelContext, Result};
use pteron_pool::Pool;
use pteron_tensor::memory::{collected, copied, filled};
use pteron_tensor::{ScalarType, TensorView};
use std::sync::Arc;

impl Lower for QuantizedLinear {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let &[rows, columns] = &**node.input(1)?.sizes() else {
            return Err(Error::invalid("the weights of a quantized matrix multiplication are not a matrix"));
        };
        let (isa, meta, owner, scales) =
            (node.isa(), node.input(1)?, node.constant_input(1)?, node.constant_view(2)?);
        let form = MatrixPack { rows, columns, transposed: self.out_major };
        let form = QuantizedPack::Matrix { form, bits: self.bits, group: self.group };
        let weights = node.packs.packed_quantized_matrix(isa, owner, form, scales.bytes(), || {
            let quantized = MatRef::new(view_of(owner, meta)?.storage::<i8>()?, rows, columns);
            let quantized = if self.out_major { quantized.t() } else { quantized };
            let scales = scales.storage()?;
            Ok(PackedWeights::new(isa, &Weights { quantized, bits: self.bits, scales, group: self.group })?)
        })?;
        let bias = SumBias::of(node, self.bias, 3)?;
        Ok(Lowered::step(QuantizedLinearStep { spec: *self, weights, bias, isa }, [0]))
    }
}

/// The bias of a quantized matrix multiplication or convolution.
pub(super) enum SumBias {
    None,
    /// An f32 bias, added to the scaled (dequantized) accumulators.
    Dequantized(Vec<f32>),
    /// A 32-bit integer bias, added to the accumulators before they are scaled.
    Quantized(Vec<i32>),
}

impl SumBias {
    /// The bias at input `i` of a node; no bias unless `present`.
    pub(super) fn of(node: &Lowering<'_>, present: bool, i: usize) -> Result<Self> {
        if !present {
            return Ok(Self::None);
        }
        let bias = node.constant_view(i)?;
        match bias.dtype() {
            ScalarType::Int => Ok(Self::Quantized(copied(bias.storage::<i32>()?)?)),
            _ => Ok(Self::Dequantized(copied(bias.storage::<f32>()?)?)),
        }
    }

    /// The epilogue with this bias and activation.
    pub(super) fn epilogue(&self, activation: Activation) -> QuantizedEpilogue<'_> {
        let (offset, bias) = match self {
            Self::None => (None, None),
            Self::Dequantized(bias) => (None, Some(&bias[..])),
            Self::Quantized(offset) => (Some(&offset[..]), None),
        };
        QuantizedEpilogue { offset, bias, activation }
    }
}

/// The minimum number of elements that a thread quantizes.
const ELEMENTS_PER_THREAD: usize = 1 << 13;

struct QuantizedLinearStep {
    spec: QuantizedLinear,
    weights: Arc<Packed<PackedWeights>>,
    bias: SumBias,
    isa: Isa,
}

impl Step for QuantizedLinearStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let (x, out) = (&reads[0], only_output(&mut writes)?);
        let (weights, isa, pool) = (&**self.weights, self.isa, ctx.pool());
        let (k, n) = (weights.rows(), weights.cols());
        let m = out.as_view().numel() / n.max(1);
        let epilogue = self.bias.epilogue(self.spec.activation);
        let to = match self.spec.output {
            Some(q) => QuantizedOut::Quantized(MatMut::new(out.bytes_mut(), m, n), q),
            None => QuantizedOut::Real(MatMut::new(out.storage_mut()?, m, n)),
        };
        if let QuantizedInput::Quantized(affine) = self.spec.input {
            let x = QuantizedRows::new(x.bytes(), x.dtype() == ScalarType::Char, m, k, affine);
            qgemm(pool, isa, x, weights, to, &epilogue);
            return Ok(());
        }
        let dequantized = x.storage::<f32>()?;
        let mut quantized = ctx.scratch::<u8>(dequantized.len())?;
        if let QuantizedInput::ByTensor { .. } = self.spec.input {
            let affine = quantize_row_for(&self.spec.input, (pool, isa), dequantized, &mut quantized);
            qgemm(pool, isa, QuantizedRows::new(&quantized, true, m, k, affine), weights, to, &epilogue);
            return Ok(());
        }
        let params = quantize_rows(&self.spec.input, (pool, isa), (m, k), dequantized, &mut quantized)?;
        qgemm(
            pool,
            isa,
            QuantizedRows::with_row_params(&quantized, true, m, k, &params),
            weights,
            to,
            &epilogue,
        );
        Ok(())
    }
}

/// Quantizes `m` rows of `k` elements, each by parameters chosen from the row. `input` is quantized row by row.
pub(super) fn quantize_rows(
    input: &QuantizedInput,
    (pool, isa): (&Pool, Isa),
    (m, k): (usize, usize),
    dequantized: &[f32],
    quantized: &mut [u8],
) -> Result<Vec<Affine>> {
    if k == 0 {
        return Ok(filled(m, Affine { scale: 1.0, zero: 0 })?);
    }
    let quantize_row = |x: &[f32], out: &mut [u8]| quantize_row_for(input, (Pool::alone(), isa), x, out);
    let rows = dequantized.chunks_exact(k).zip(quantized.chunks_exact_mut(k));
    if pool.threads() == 1 || dequantized.len() < 2 * ELEMENTS_PER_THREAD {
        return Ok(collected(rows.map(|(x, out)| quantize_row(x, out)))?);
    }
    let mut rows: Vec<_> = collected(rows.map(|(x, out)| (x, out, Affine { scale: 1.0, zero: 0 })))?;
    pool.parallel_chunks_mut(&mut rows, 1, (ELEMENTS_PER_THREAD / k).max(1), &|_, rows| {
        rows.iter_mut().for_each(|(x, out, affine)| *affine = quantize_row(x, out));
    });
    Ok(collected(rows.into_iter().map(|(.., affine)| affine))?)
}

/// Quantizes a row to `i8`, with parameters chosen from it, and returns its scale and zero point. `input` is not of quantized values.
pub(super) fn quantize_row_for(
    input: &QuantizedInput,
    (pool, isa): (&Pool, Isa),
    x: &[f32],
    out: &mut [u8],
) -> Affine {
    let q = match *input {
        QuantizedInput::ByFactorOfRow => return quantize_row(isa, x, out),
        QuantizedInput::ByTensor { low, high, eps } => {
            Quantization::choose(min_max(isa, x), (low, high), eps)
        }
        _ => Quantization::choose_for_token(min_max(isa, x)),
    };
    quantize(pool, isa, &q, x, out);
    q.affine
}

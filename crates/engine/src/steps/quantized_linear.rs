//! Quantized matrix multiplication.

use super::conv::epilogue;
use super::{Step, Writes, only};
use crate::graph::Kind;
use crate::operands::{Operands, is_float, refuse};
use crate::operation::{Lowered, Lowering, OpKind, Operation, view_of};
use crate::pack_store::{MatrixPack, QuantizedPack};
use crate::packs::Packed;
use pteron_kernels::compute::qgemm;
use pteron_kernels::compute::{
    Activation, Affine, Isa, MatMut, MatRef, Quantization, quantize, quantize_row, range,
};
use pteron_kernels::compute::{
    PackedWeights, QuantizedEpilogue, QuantizedOut, QuantizedRows, WeightBits, Weights,
};
use pteron_operator::{Error, KernelContext, Result};
use pteron_pool::Pool;
use pteron_tensor::memory::{collected, copied, filled};
use pteron_tensor::{ScalarType, TensorMeta, TensorView};
use std::fmt;
use std::sync::Arc;

/// As [`Linear`](crate::Linear) on quantized values, with exact integer accumulation. Inputs: `x`, weights (`Char`,
/// constant), their scales (constant), and optionally the bias (constant): f32, or `Int` values that are added to the
/// accumulators before these are scaled. There is one scale for all weights, one for each output, or one for each
/// output and group of inner elements, `[groups, out]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedLinear {
    /// The form of `x`, and how it is quantized.
    pub input: QuantizedInput,
    /// Whether the weights are `[out, in]`; otherwise they are `[in, out]`.
    pub out_major: bool,
    /// The bit width of the packed weights; 4-bit weights are in -8..=7.
    pub bits: WeightBits,
    /// The number of inner elements that share a scale; if there are several groups, a multiple of 32.
    pub group: usize,
    /// Whether there is a bias, with one value for each output.
    pub bias: bool,
    /// The activation that is applied before the result is stored or quantized; a quantized result allows clamps only.
    pub activation: Activation,
    /// The quantization of the result; `None` if the result is f32.
    pub output: Option<Quantization>,
}

/// The input of a [`QuantizedLinear`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QuantizedInput {
    /// Quantized values, `Char` or `Byte`, with this scale and zero point.
    Quantized(Affine),
    /// f32 values, quantized dynamically per tensor to `low..=high` within `i8`.
    ByTensor {
        /// The minimum quantized value.
        low: i32,
        /// The maximum quantized value.
        high: i32,
        /// The minimum scale.
        eps: f32,
    },
    /// f32 values, quantized dynamically per row (per token) to `i8`, as by
    /// `quantized_decomposed::choose_qparams_per_token_asymmetric`.
    ByRow,
    /// As [`Self::ByRow`], but the inverse scale is computed first and the scale is its reciprocal: [`quantize_row`].
    ByFactorOfRow,
}

impl Operation for QuantizedLinear {
    fn name(&self) -> &str {
        "quantized_linear"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weights: {}, ", if self.out_major { "[out, in]" } else { "[in, out]" })?;
        write!(f, "{:?} bits in groups of {}, input: {:?}", self.bits, self.group, self.input)?;
        epilogue(f, false, self.activation)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(3 + usize::from(self.bias), 1)?;
        let x = operands.input(0)?;
        let (inner, outer) = operands.product(self.out_major, PackedWeights::MAX_ROWS)?;
        let is_one = self.group >= inner;
        if self.group == 0 || !is_one && !self.group.is_multiple_of(PackedWeights::GROUP_UNIT) {
            return refuse(format!("{inner} weights cannot be divided into groups of {}", self.group));
        }
        let groups = inner.div_ceil(self.group);
        check_weights(operands, groups.saturating_mul(outer), is_one)?;
        check_bias(operands, self.bias, outer)?;
        let is_float = x.dtype() == ScalarType::Float;
        match self.input {
            QuantizedInput::Quantized(affine) => {
                signed(x)?;
                check_affine(&affine)?;
            }
            QuantizedInput::ByTensor { low, high, eps } => {
                let is_sound = -128 <= low && low < high && high <= 127 && eps > 0.0 && eps.is_finite();
                if !is_sound || !is_float {
                    return refuse(format!(
                        "{x} cannot be quantized to {low}..={high} with the minimum scale {eps}"
                    ));
                }
            }
            QuantizedInput::ByRow | QuantizedInput::ByFactorOfRow if !is_float => {
                return refuse(format!("the input is {x}, expected float32 to quantize by row"));
            }
            QuantizedInput::ByRow | QuantizedInput::ByFactorOfRow => {}
        }
        check_output(operands, self.output.as_ref(), self.activation)
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let &[rows, columns] = &**node.input(1)?.sizes() else {
            return Err(Error::invalid("the weights of a quantized matrix multiplication are not a matrix"));
        };
        let (isa, meta, owner, scales) = (node.isa(), node.input(1)?, node.owner(1)?, node.constant(2)?);
        let form = MatrixPack { rows, columns, transposed: self.out_major };
        let form = QuantizedPack::Matrix { form, bits: self.bits, group: self.group };
        let weights = node.packs.quantized_matrix(isa, owner, form, scales.bytes(), || {
            let quantized = MatRef::new(view_of(owner, meta)?.storage::<i8>()?, rows, columns);
            let quantized = if self.out_major { quantized.t() } else { quantized };
            let scales = scales.storage()?;
            Ok(PackedWeights::new(&Weights { quantized, bits: self.bits, scales, group: self.group })?)
        })?;
        let bias = SumBias::of(node, self.bias, 3)?;
        Ok(Lowered::step(QuantizedLinearStep { spec: *self, weights, bias, isa }, [0]))
    }

    fn with_activation(&self, activation: Activation) -> Option<Arc<dyn Kind>> {
        let activation = self.activation.then(activation)?;
        Some(OpKind::arc(Self { activation, ..*self }))
    }
}

/// Whether a tensor of quantized values is signed.
pub(crate) fn signed(meta: &TensorMeta) -> Result<bool> {
    match meta.dtype() {
        ScalarType::Char => Ok(true),
        ScalarType::Byte => Ok(false),
        _ => refuse(format!("a tensor is {meta}, expected int8 or uint8")),
    }
}

/// Checks that the scale is finite and the zero point is small enough for accumulators of 32 bits.
pub(crate) fn check_affine(affine: &Affine) -> Result<()> {
    match affine.scale.is_finite() && affine.zero.unsigned_abs() < 1 << 16 {
        true => Ok(()),
        false => refuse(format!("the scale or zero point of {affine:?} is out of range")),
    }
}

/// Checks that the weights are `i8`, and that there are `scales` scales, or a single one if `one`.
pub(crate) fn check_weights<'g>(operands: &Operands<'g>, scales: usize, one: bool) -> Result<&'g TensorMeta> {
    let (weights, found) = (operands.constant(1)?, operands.constant(2)?);
    if weights.dtype() != ScalarType::Char {
        return refuse(format!("the weights are {weights}, expected int8"));
    }
    let fits = found.numel() == scales || one && found.numel() == 1;
    match fits && found.dtype() == ScalarType::Float {
        true => Ok(weights),
        false => refuse(format!("the scales are {found}, expected {scales} of float32")),
    }
}

/// Checks the bias, operand 3, if `present`: it is f32, or int32 in the scale of the accumulators.
pub(crate) fn check_bias(operands: &Operands<'_>, present: bool, len: usize) -> Result<()> {
    if !present {
        return Ok(());
    }
    let bias = operands.constant(3)?;
    match bias.numel() == len && matches!(bias.dtype(), ScalarType::Float | ScalarType::Int) {
        true => Ok(()),
        false => refuse(format!("the bias is {bias}, expected {len} constants of float32 or int32")),
    }
}

/// Checks that the result is f32, or quantized with valid parameters and a simple activation.
pub(crate) fn check_output(
    operands: &Operands<'_>,
    output: Option<&Quantization>,
    activation: Activation,
) -> Result<()> {
    let out = operands.output(0)?;
    let is_sound = match output {
        None => is_float(out),
        Some(q) => q.is_sound(signed(out)?) && activation.is_simple(),
    };
    match is_sound {
        true => Ok(()),
        false => refuse(format!("the result {out} does not support {output:?} with {activation:?}")),
    }
}

/// The bias of a quantized matrix multiplication or convolution.
pub(super) enum SumBias {
    None,
    /// Added to the scaled (dequantized) accumulators.
    Dequantized(Vec<f32>),
    /// Added to the integer accumulators.
    Quantized(Vec<i32>),
}

impl SumBias {
    /// The bias at input `i` of a node, if `present`.
    pub(super) fn of(node: &Lowering<'_>, present: bool, i: usize) -> Result<Self> {
        if !present {
            return Ok(Self::None);
        }
        let bias = node.constant(i)?;
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
        let (x, out) = (&reads[0], only(&mut writes)?);
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
        if let QuantizedInput::ByTensor { low, high, eps } = self.spec.input {
            let q = Quantization::choose(range(isa, dequantized), (low, high), eps);
            quantize(pool, isa, &q, dequantized, &mut quantized);
            qgemm(pool, isa, QuantizedRows::new(&quantized, true, m, k, q.affine), weights, to, &epilogue);
            return Ok(());
        }
        let params = self.quantize_rows(pool, (m, k), dequantized, &mut quantized)?;
        qgemm(pool, isa, QuantizedRows::by_row(&quantized, true, m, k, &params), weights, to, &epilogue);
        Ok(())
    }
}

impl QuantizedLinearStep {
    /// Quantizes `m` rows of `k` elements, each by parameters chosen from the row.
    fn quantize_rows(
        &self,
        pool: &Pool,
        (m, k): (usize, usize),
        dequantized: &[f32],
        quantized: &mut [u8],
    ) -> Result<Vec<Affine>> {
        if k == 0 {
            return Ok(filled(m, Affine { scale: 1.0, zero: 0 })?);
        }
        let rows = dequantized.chunks_exact(k).zip(quantized.chunks_exact_mut(k));
        if pool.threads() == 1 || dequantized.len() < 2 * ELEMENTS_PER_THREAD {
            return Ok(collected(rows.map(|(x, out)| self.quantize_row(x, out)))?);
        }
        let mut rows: Vec<_> = collected(rows.map(|(x, out)| (x, out, Affine { scale: 1.0, zero: 0 })))?;
        pool.parallel_chunks_mut(&mut rows, 1, (ELEMENTS_PER_THREAD / k).max(1), &|_, rows| {
            rows.iter_mut().for_each(|(x, out, affine)| *affine = self.quantize_row(x, out));
        });
        Ok(collected(rows.into_iter().map(|(.., affine)| affine))?)
    }

    /// Quantizes a row and returns its scale and zero point.
    fn quantize_row(&self, x: &[f32], out: &mut [u8]) -> Affine {
        match self.spec.input {
            QuantizedInput::ByFactorOfRow => quantize_row(self.isa, x, out),
            _ => {
                let q = Quantization::choose_for_token(range(self.isa, x));
                quantize(Pool::alone(), self.isa, &q, x, out);
                q.affine
            }
        }
    }
}

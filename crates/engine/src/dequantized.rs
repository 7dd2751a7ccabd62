//! Constant weights that a program dequantizes.

use crate::fold::before_transpose;
use crate::graph::Constant;
use pteron_operator::Meaning;
use pteron_operator::facts::QParams;
use pteron_tensor::memory::{collected, copied};
use pteron_tensor::{ScalarType, TensorMeta, TensorView};

/// Constant quantized weights that a program dequantizes.
pub(crate) struct Weights {
    /// The quantized values.
    pub(crate) values: (TensorMeta, Constant),
    /// Whether the weights are the transpose of `values`.
    pub(crate) transposed: bool,
    pub(crate) scales: Vec<f32>,
    /// The dimension of `values` whose indices have one scale each (per-channel); `None` if there is one scale for all.
    pub(crate) axis: Option<usize>,
}

/// The quantized weights from which a constant with this meta was derived; `None` unless all zero points are 0.
pub(crate) fn quantized_weights(meta: &TensorMeta, constant: &Constant) -> Option<Weights> {
    if let Some((meta, matrix)) = before_transpose(meta, constant) {
        let weights = quantized_weights(&meta, &matrix)?;
        return Some(Weights { transposed: !weights.transposed, ..weights });
    }
    let derivation = constant.derivation()?;
    let Meaning::Dequantize(affinity) = derivation.meaning()? else { return None };
    let values = derivation.argument(0)?;
    let plain = |m: &TensorMeta| m.dim_order().is_contiguous();
    let is_int8 = values.0.dtype() == ScalarType::Char;
    let floats = meta.dtype() == ScalarType::Float && meta.sizes() == values.0.sizes();
    if !(is_int8 && floats && plain(&values.0) && plain(meta)) {
        return None;
    }
    let transposed = false;
    match affinity {
        QParams::PerTensor { scale, zero: 0, .. } => {
            Some(Weights { values, transposed, scales: vec![scale as f32], axis: None })
        }
        QParams::PerChannel { scales, zeros, axis } => {
            let channels = *values.0.sizes().get(axis)?;
            let vector =
                |position: usize| derivation.argument(position).filter(|(meta, _)| meta.numel() == channels);
            let zero = match zeros.map(vector) {
                Some(zeros) => {
                    let (meta, zeros) = zeros?;
                    zeros.view(&meta)?.bytes().iter().all(|&b| b == 0)
                }
                None => true,
            };
            let (meta, scales) = vector(scales)?;
            let scales = to_f32(&scales.view(&meta)?)?;
            zero.then_some(Weights { values, transposed, scales, axis: Some(axis) })
        }
        _ => None,
    }
}

/// The elements of an f32 or f64 tensor, as f32.
fn to_f32(x: &TensorView<'_>) -> Option<Vec<f32>> {
    match x.dtype() {
        ScalarType::Float => copied(x.storage::<f32>().ok()?).ok(),
        ScalarType::Double => collected(x.storage::<f64>().ok()?.iter().map(|&s| s as f32)).ok(),
        _ => None,
    }
}

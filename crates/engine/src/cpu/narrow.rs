//! Weights that a program stores in fewer bits than f32 and widens before a product or a convolution. They are packed in
//! the type in which they are stored, and widened while they are multiplied: the results are the same, bit for bit.

use super::pack_store::{MatrixPack, PackedAs};
use super::packs::{Packed, Packs, pack_matrix, process_wide_hash};
use super::weights::view_of;
use crate::dequantized::quantized_weights;
use crate::graph::Constant;
use crate::operation::OpKind;
use crate::ops::cast::{Cast, is_half};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use pteron_kernels::compute::{Isa, PackedB, WeightStorage};
use pteron_operator::{Meaning, Result};
use pteron_tensor::memory::filled;
use pteron_tensor::{ScalarType, TensorMeta};
use std::any::Any;
use std::sync::Arc;

/// Constant weights from which f32 weights of the same sizes were computed, both in row-major order.
pub(super) struct NarrowWeights {
    meta: TensorMeta,
    /// The weights as they are stored.
    pub(super) constant: Constant,
    /// The scale of each output, if the weights are int8.
    scales: Vec<f32>,
}

impl NarrowWeights {
    /// The weights from which a constant with this meta was computed, if they are narrower; `outputs` is the dimension
    /// whose indices are outputs.
    pub(super) fn of(meta: &TensorMeta, constant: &Constant, outputs: usize) -> Option<Self> {
        if meta.dtype() != ScalarType::Float || !meta.dim_order().is_contiguous() || meta.numel() == 0 {
            return None;
        }
        if let Some((meta, constant)) = before_widening(meta, constant) {
            return Some(Self { meta, constant, scales: Vec::new() });
        }
        let weights = quantized_weights(meta, constant).filter(|weights| !weights.transposed)?;
        let count = *meta.sizes().get(outputs)?;
        let scales = match weights.axis {
            Some(axis) => (axis == outputs && weights.scales.len() == count).then_some(weights.scales)?,
            None => filled(count, *weights.scales.first()?).ok()?,
        };
        let (meta, constant) = weights.values;
        Some(Self { meta, constant, scales })
    }

    /// How the packed weights are stored.
    pub(super) fn storage(&self) -> WeightStorage<'_> {
        match self.meta.dtype() {
            ScalarType::Half => WeightStorage::F16,
            ScalarType::BFloat16 => WeightStorage::Bf16,
            _ => WeightStorage::Int8 { scales: &self.scales },
        }
    }

    /// The part of the key of packed weights that depends on how they are stored.
    pub(super) fn packed_as(&self) -> PackedAs {
        let bytes = || self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<u8>>();
        let scales = if self.scales.is_empty() { 0 } else { process_wide_hash(&bytes()) };
        PackedAs { ty: self.storage().weight_type(), scales }
    }

    /// Packs the weights as a matrix, piece by piece: they are never in memory as a whole in f32.
    fn pack_matrix(&self, isa: Isa, form: MatrixPack) -> Result<PackedB> {
        /// The number of elements that are widened at a time.
        const PIECE: usize = 1 << 20;
        let MatrixPack { rows: k, columns: n, transposed } = form;
        let columns = if transposed { k } else { n };
        let line = columns * self.meta.dtype().size();
        let is_loaded = self.constant.part(0..line).is_none();
        let mut wide = Vec::new();
        PackedB::from_pieces(isa, self.storage(), (k, n), transposed, PIECE, |part, pack| {
            let loaded =
                if is_loaded { None } else { self.constant.part(part.start * line..part.end * line) };
            let meta = TensorMeta::contiguous(self.meta.dtype(), &[part.len(), columns])?;
            wide.resize(part.len() * columns, 0.0);
            match loaded {
                Some(bytes) => {
                    self.widen(&Constant::Shared(bytes), &meta, 0, part.start, transposed, &mut wide)?
                }
                // Another user may have loaded the whole matrix meanwhile.
                None => {
                    let first = part.start * columns;
                    self.widen(&self.constant, &self.meta, first, part.start, transposed, &mut wide)?;
                }
            }
            pack(&wide);
            Ok(())
        })
    }

    /// Widens the elements of `stored` from the `first` on, which begin row `row` of the matrix, to `out`.
    fn widen(
        &self,
        stored: &Constant,
        meta: &TensorMeta,
        first: usize,
        row: usize,
        by_row: bool,
        out: &mut [f32],
    ) -> Result<()> {
        let (stored, range) = (view_of(stored, meta)?, first..first + out.len());
        match self.storage() {
            WeightStorage::F16 => stored.storage::<f16>()?[range].convert_to_f32_slice(out),
            WeightStorage::Bf16 => stored.storage::<bf16>()?[range].convert_to_f32_slice(out),
            _ => {
                let columns = *self.meta.sizes().last().unwrap_or(&1);
                let values = stored.storage::<i8>()?[range].chunks(columns);
                for ((i, values), out) in values.enumerate().zip(out.chunks_mut(columns)) {
                    let of = |j: usize| self.scales[if by_row { row + i } else { j }];
                    let pairs = values.iter().zip(out).enumerate();
                    pairs.for_each(|(j, (&value, out))| *out = f32::from(value) * of(j));
                }
            }
        }
        Ok(())
    }
}

/// The half-precision constant from which f32 values with this meta were converted.
fn before_widening(meta: &TensorMeta, constant: &Constant) -> Option<(TensorMeta, Constant)> {
    let derivation = constant.derivation()?;
    let operation = derivation.kind().downcast_ref::<OpKind>().map(OpKind::operation);
    let is_conversion = match operation {
        Some(operation) => (operation as &dyn Any).is::<Cast>(),
        None => matches!(derivation.meaning()?, Meaning::Reshape),
    };
    let (from, values) = derivation.inputs().first().filter(|_| is_conversion)?;
    let fits = is_half(from.dtype()) && from.sizes() == meta.sizes() && from.dim_order().is_contiguous();
    fits.then(|| (from.clone(), values.reopen()))
}

/// The packed weights of a product, of a constant matrix that is `[out, in]` if `out_major`: found, or packed now.
///
/// # Errors
/// The bytes cannot be loaded, or there is not enough memory.
pub(super) fn packed_weights(
    packs: &Packs,
    isa: Isa,
    meta: &TensorMeta,
    constant: &Constant,
    form: MatrixPack,
) -> Result<Arc<Packed<PackedB>>> {
    match NarrowWeights::of(meta, constant, usize::from(!form.transposed)) {
        Some(narrow) => {
            let (storage, packed_as) = (narrow.storage(), narrow.packed_as());
            packs.packed_matrix(isa, &narrow.constant, form, (storage, packed_as), || {
                narrow.pack_matrix(isa, form)
            })
        }
        None => {
            let as_f32 = (WeightStorage::F32, PackedAs::default());
            packs.packed_matrix(isa, constant, form, as_f32, || pack_matrix(isa, constant, form))
        }
    }
}

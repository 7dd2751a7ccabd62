//! The elements of constant tensors, whatever their layout.

use super::{ExportedProgram, TensorSpec, VarId};
use pteron_ir::SharedBytes;
use pteron_tensor::{DimOrder, Tensor, TensorMeta};
use std::sync::Arc;

impl TensorSpec {
    /// Converts a tensor's bytes to another layout; `None` if a size is not known, `bytes` has another length than the
    /// tensor needs, or there is no memory.
    pub fn convert_layout(&self, bytes: &[u8], order: DimOrder) -> Option<Vec<u8>> {
        let sizes =
            self.known_sizes()?.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>().ok()?;
        let meta = TensorMeta::new(self.dtype, &sizes, self.dim_order).ok()?;
        let tensor = Tensor::from_bytes(meta, bytes).ok()?.to_dim_order(order).ok()?;
        Some(tensor.bytes().to_vec())
    }
}

impl ExportedProgram {
    /// The bytes of a constant with its elements in row-major order: use this, not [`ConstantTensor::data`], wherever
    /// an element's position matters. They are copied only if the constant has another layout. `None` if the value is
    /// no constant tensor, or has another layout and unknown sizes.
    ///
    /// [`ConstantTensor::data`]: super::ConstantTensor::data
    pub fn row_major_bytes(&self, var: VarId) -> Option<SharedBytes> {
        let (data, spec) = (self.constants.get(&var)?.reopened(), self.spec(var)?);
        match spec.dim_order.is_contiguous() {
            true => Some(Arc::new(data)),
            false => Some(Arc::new(spec.convert_layout(data.data(), DimOrder::contiguous(spec.rank()))?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConstantTensor, Size};
    use pteron_tensor::ScalarType;

    #[test]
    fn elements_of_channels_last_constants_are_read_in_row_major_order() {
        let mut program = ExportedProgram::new("forward");
        let sizes = [1, 2, 1, 3].map(Size::Int).to_vec();
        let spec = TensorSpec { dtype: ScalarType::Char, sizes, dim_order: DimOrder::channels_last(4) };
        let bytes: Vec<u8> = vec![0, 3, 1, 4, 2, 5];
        let constant = ConstantTensor { name: None, range: 0..6, bytes: Arc::new(bytes.clone()) };
        let weight = program.add_constant("w", spec.clone(), constant);
        assert_eq!(program.row_major_bytes(weight).unwrap().bytes(), [0, 1, 2, 3, 4, 5]);
        let rows = TensorSpec { dim_order: DimOrder::contiguous(4), ..spec.clone() };
        assert_eq!(rows.convert_layout(&[0, 1, 2, 3, 4, 5], spec.dim_order).unwrap(), bytes);
        assert!(spec.convert_layout(&bytes[1..], rows.dim_order).is_none());
    }
}

//! The example inputs with which a program was exported.

use crate::Payload;
use crate::error::Result;
use pteron_tensor::TensorMeta;

/// The metas of values for the example inputs with which the program was exported.
pub(crate) fn metas(payload: &Payload, values: &[usize]) -> Result<Vec<TensorMeta>> {
    let meta = |&v: &usize| {
        let value = &payload.values[v];
        Ok(TensorMeta::contiguous(value.datatype.scalar_type(), &value.dims)?)
    };
    values.iter().map(meta).collect()
}

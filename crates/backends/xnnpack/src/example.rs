//! The example inputs with which a program was exported.

use crate::Payload;
use crate::error::Result;
use pteron_tensor::TensorMeta;

/// The metas of the inputs and outputs for the example inputs with which the program was exported.
pub(crate) fn example_metas(payload: &Payload) -> Result<[Vec<TensorMeta>; 2]> {
    let meta = |&v: &usize| {
        let value = &payload.values[v];
        Ok(TensorMeta::contiguous(value.datatype.scalar_type(), &value.dims)?)
    };
    let metas = |values: &[usize]| values.iter().map(meta).collect::<Result<Vec<_>>>();
    Ok([metas(&payload.inputs)?, metas(&payload.outputs)?])
}

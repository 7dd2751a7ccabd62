//! Metadata of methods as JSON, from which Python creates dataclasses.

use crate::errors::Result;
use pteron::{EValue, MethodMeta, ValueMeta, tensor::ShapeDynamism};
use serde_json::{Value, json};

/// The metadata of a method as JSON.
pub(crate) fn method_json(meta: &MethodMeta<'_>) -> Result<Value> {
    let names = meta.value_names()?;
    let values = |values: Vec<ValueMeta>, names: Vec<Option<String>>| -> Vec<Value> {
        values.iter().zip(names).map(|(meta, name)| value_json(meta, name)).collect()
    };
    Ok(json!({
        "name": meta.name(),
        "inputs": values(meta.inputs(), names.inputs),
        "outputs": values(meta.outputs(), names.outputs),
        "attributes": meta.attributes().iter().map(tensor_json).collect::<Vec<_>>(),
        "memory_arenas": meta.memory_arenas().collect::<Vec<_>>(),
        "operators": meta.operators().into_iter().map(|op| (op.name, op.calls)).collect::<std::collections::BTreeMap<_, _>>(),
        "backends": meta.backends().iter().map(|backend| json!({
            "id": backend.id, "delegates": backend.delegates, "payload_bytes": backend.payload_bytes,
        })).collect::<Vec<_>>(),
        "instructions": meta.num_instructions(),
    }))
}

fn value_json(meta: &ValueMeta, name: Option<String>) -> Value {
    json!({
        "kind": meta.tag.to_string(),
        "name": name,
        "tensor": meta.tensor.as_ref().map(tensor_json),
        "fixed": meta.traced.as_ref().map(fixed_json),
    })
}

fn tensor_json(info: &pteron::TensorInfo) -> Value {
    json!({
        "dtype": info.meta.dtype().name(),
        "scalar_type": info.meta.dtype() as i8,
        "shape": info.meta.sizes().iter().collect::<Vec<_>>(),
        "dim_order": info.meta.dim_order().iter().collect::<Vec<_>>(),
        "is_dynamic": info.meta.dynamism() != ShapeDynamism::Static,
        "nbytes": info.meta.nbytes(),
        "is_memory_planned": info.planned,
        "name": info.name,
    })
}

/// A fixed input value as JSON. A number that JSON lacks, such as NaN, becomes a string, but null in a list. Tensors
/// and lists of them become null.
fn fixed_json(value: &EValue) -> Value {
    match value {
        EValue::Int(v) => json!(v),
        EValue::Bool(v) => json!(v),
        EValue::Double(v) if v.is_finite() => json!(v),
        EValue::Double(v) => json!(v.to_string()),
        EValue::String(v) => json!(v),
        EValue::ListDouble(v) => json!(v),
        EValue::ListBool(v) => json!(v),
        EValue::ListInt(v) => json!(v),
        _ => Value::Null,
    }
}

//! Conversion between values of programs and those of requests and responses.

use crate::buffers::Buffers;
use crate::failure::{Failure, Result};
use crate::request::Input;
use pteron::tensor::{DimOrder, TensorMeta, TensorView};
use pteron::{EValue, Method, ScalarType, Tensor, ValueMeta};
use serde_json::{Value, json};

/// An input of a method. The elements of tensors are borrowed from a buffer.
pub(crate) enum InputValue<'b> {
    Tensor(TensorMeta, &'b [u8]),
    Value(EValue),
}

impl InputValue<'_> {
    /// Sets the input `index` of a method to this value.
    pub(crate) fn set(&self, method: &mut Method, index: usize) -> Result<()> {
        match self {
            Self::Tensor(meta, bytes) => method.set_input_tensor(index, TensorView::new(meta, bytes)?)?,
            Self::Value(value) => method.set_input(index, value)?,
        }
        Ok(())
    }

    /// Copies borrowed elements to an owned value.
    fn into_value(self) -> Result<EValue> {
        Ok(match self {
            Self::Tensor(meta, bytes) => EValue::Tensor(Tensor::from_bytes(meta, bytes)?),
            Self::Value(value) => value,
        })
    }
}

/// Converts the inputs of a request to those of a method. Of the inputs that the exporter fixed, either all are given,
/// or none.
pub(crate) fn borrowed_inputs<'b>(
    declared: &[ValueMeta],
    inputs: Vec<Input>,
    buffers: &'b Buffers,
) -> Result<Vec<InputValue<'b>>> {
    let open = declared.iter().filter(|declared| declared.traced.is_none()).count();
    let all = inputs.len() == declared.len();
    if !all && inputs.len() != open {
        let wanted = match open == declared.len() {
            true => format!("{open} inputs"),
            false => format!("{} inputs, or {open} without those that the exporter fixed", declared.len()),
        };
        return Err(Failure::invalid_input(format!(
            "the method takes {wanted}; it was given {}",
            inputs.len()
        )));
    }
    let mut inputs = inputs.into_iter();
    let mut converted = Vec::with_capacity(declared.len());
    for (index, declared) in declared.iter().enumerate() {
        let input = match (&declared.traced, all) {
            (Some(_), false) => Input::Fixed,
            _ => inputs.next().unwrap_or(Input::None),
        };
        converted.push(
            convert_input(input, declared, buffers).map_err(|failure| failure.with_input_index(index))?,
        );
    }
    Ok(converted)
}

/// As [`borrowed_inputs`], but copies the elements of tensors.
pub(crate) fn owned_inputs(
    declared: &[ValueMeta],
    inputs: Vec<Input>,
    buffers: &Buffers,
) -> Result<Vec<EValue>> {
    borrowed_inputs(declared, inputs, buffers)?.into_iter().map(InputValue::into_value).collect()
}

fn convert_input<'b>(input: Input, declared: &ValueMeta, buffers: &'b Buffers) -> Result<InputValue<'b>> {
    Ok(InputValue::Value(match input {
        Input::Tensor { dtype, sizes, buffer } => {
            let (meta, bytes) = borrow_tensor(&dtype, &sizes, buffer, buffers)?;
            return Ok(InputValue::Tensor(meta, bytes));
        }
        Input::Number { value } => parse_number(&value, declared)?,
        Input::Bool { value } => EValue::Bool(value),
        Input::String { value } => EValue::String(value),
        Input::None => EValue::None,
        Input::Fixed => declared.traced.clone().unwrap_or(EValue::None),
    }))
}

/// Parses a number as the type that the method expects.
fn parse_number(text: &str, declared: &ValueMeta) -> Result<EValue> {
    let value = match declared.tag {
        pteron::Tag::Double => text.parse().map(EValue::Double).ok(),
        _ => text.parse().map(EValue::Int).ok(),
    };
    value.ok_or_else(|| Failure::invalid_input(format!("`{text}` is not {}", declared.tag)))
}

/// A tensor whose elements are in a buffer.
pub(crate) fn borrow_tensor<'b>(
    dtype: &str,
    sizes: &[usize],
    buffer: u32,
    buffers: &'b Buffers,
) -> Result<(TensorMeta, &'b [u8])> {
    let dtype = ScalarType::parse(dtype)
        .ok_or_else(|| Failure::invalid_input(format!("there is no type of elements `{dtype}`")))?;
    let (meta, bytes) = (TensorMeta::contiguous(dtype, sizes)?, buffers.bytes_of(buffer)?);
    match bytes.len() == meta.nbytes() {
        true => Ok((meta, bytes)),
        false => Err(Failure::invalid_input(format!(
            "{meta} has {} elements, which are {} bytes; {} bytes were given",
            meta.numel(),
            meta.nbytes(),
            bytes.len()
        ))),
    }
}

/// Converts a value for a response, with the elements of tensors in new buffers.
pub(crate) fn to_response(value: EValue, buffers: &mut Buffers) -> Result<Value> {
    let list = |values: Vec<Value>| json!({ "kind": "list", "values": values });
    Ok(match value {
        EValue::None => json!({ "kind": "none" }),
        EValue::Int(v) => json!({ "kind": "int", "value": v.to_string() }),
        EValue::Double(v) => json!({ "kind": "double", "value": format_number(v) }),
        EValue::Bool(v) => json!({ "kind": "bool", "value": v }),
        EValue::String(v) => json!({ "kind": "string", "value": v }),
        EValue::Tensor(tensor) => tensor_to_response(tensor, buffers)?,
        EValue::ListInt(all) => {
            list(all.into_iter().map(|v| json!({ "kind": "int", "value": v.to_string() })).collect())
        }
        EValue::ListDouble(all) => {
            list(all.into_iter().map(|v| json!({ "kind": "double", "value": format_number(v) })).collect())
        }
        EValue::ListBool(all) => {
            list(all.into_iter().map(|v| json!({ "kind": "bool", "value": v })).collect())
        }
        EValue::ListTensor(all) => {
            list(all.into_iter().map(|tensor| tensor_to_response(tensor, buffers)).collect::<Result<_>>()?)
        }
        EValue::ListOptionalTensor(all) => list(
            all.into_iter()
                .map(|tensor| {
                    tensor.map_or_else(|| Ok(json!({ "kind": "none" })), |t| tensor_to_response(t, buffers))
                })
                .collect::<Result<_>>()?,
        ),
    })
}

/// Formats a number so that JavaScript's `Number` parses it.
fn format_number(value: f64) -> String {
    match value {
        v if v.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        v => v.to_string(),
    }
}

fn tensor_to_response(tensor: Tensor, buffers: &mut Buffers) -> Result<Value> {
    let tensor = match tensor.meta().is_row_major() {
        true => tensor,
        false => tensor.to_dim_order(DimOrder::contiguous(tensor.rank()))?,
    };
    let (meta, buffer) = tensor.into_parts();
    Ok(json!({
        "kind": "tensor",
        "dtype": meta.dtype().name(),
        "sizes": meta.sizes().iter().collect::<Vec<_>>(),
        "buffer": buffers.add_buffer(buffer)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_javascript() {
        for (value, text) in [
            (0.5, "0.5"),
            (1e21, "1000000000000000000000"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(format_number(value), text);
        }
    }

    #[test]
    fn tensors_are_returned_in_row_major_order() {
        let mut buffers = Buffers::default();
        let rows = Tensor::from_slice(&[1, 2, 1, 2], &[1u8, 2, 3, 4]).unwrap();
        let last = rows.to_dim_order(DimOrder::new(&[0, 2, 3, 1]).unwrap()).unwrap();
        assert_eq!(last.bytes(), [1, 3, 2, 4]);
        let response = to_response(EValue::Tensor(last), &mut buffers).unwrap();
        let expected = json!({ "kind": "tensor", "dtype": "uint8", "sizes": [1, 2, 1, 2], "buffer": 1 });
        assert_eq!((response, buffers.bytes_of(1).unwrap()), (expected, &[1u8, 2, 3, 4][..]));
        let lists = to_response(EValue::ListOptionalTensor(vec![None]), &mut buffers).unwrap();
        assert_eq!(lists, json!({ "kind": "list", "values": [{ "kind": "none" }] }));
    }
}

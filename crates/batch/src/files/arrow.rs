//! Arrays of the crates `arrow-*` as those of this crate, and back.

use crate::{Array, Bitmap, BuiltArray};
use arrow_array::{ArrayRef, make_array};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};
use pteron_tensor::AlignedBuffer;
use pteron_toolbox::{Error, Result};
use std::borrow::Cow;
use std::sync::Arc;

/// The types without parameters whose format strings have a meaning here.
const FORMATS: [(DataType, &str); 20] = [
    (DataType::Boolean, "b"),
    (DataType::Int8, "c"),
    (DataType::UInt8, "C"),
    (DataType::Int16, "s"),
    (DataType::UInt16, "S"),
    (DataType::Int32, "i"),
    (DataType::UInt32, "I"),
    (DataType::Int64, "l"),
    (DataType::UInt64, "L"),
    (DataType::Float16, "e"),
    (DataType::Float32, "f"),
    (DataType::Float64, "g"),
    (DataType::Binary, "z"),
    (DataType::LargeBinary, "Z"),
    (DataType::BinaryView, "vz"),
    (DataType::Utf8, "u"),
    (DataType::LargeUtf8, "U"),
    (DataType::Utf8View, "vu"),
    (DataType::Null, "n"),
    (DataType::Date32, "tdD"),
];

/// The format string of a type; of types that columns are not made of, a text for messages.
fn format_of(data_type: &DataType) -> Cow<'static, str> {
    match data_type {
        DataType::Decimal32(precision, scale) => format!("d:{precision},{scale},32").into(),
        DataType::Decimal64(precision, scale) => format!("d:{precision},{scale},64").into(),
        DataType::Decimal128(precision, scale) => format!("d:{precision},{scale}").into(),
        DataType::Decimal256(precision, scale) => format!("d:{precision},{scale},256").into(),
        DataType::FixedSizeBinary(size) => format!("w:{size}").into(),
        DataType::List(_) => "+l".into(),
        DataType::LargeList(_) => "+L".into(),
        DataType::FixedSizeList(_, size) => format!("+w:{size}").into(),
        DataType::Dictionary(indices, _) => format_of(indices),
        other => match FORMATS.iter().find(|(known, _)| known == other) {
            Some((_, format)) => (*format).into(),
            None => other.to_string().into(),
        },
    }
}

/// The array whose memory `data` holds.
pub(super) fn lend(data: &ArrayData) -> Array<'_> {
    let is_dictionary = matches!(data.data_type(), DataType::Dictionary(..));
    let mut children: Vec<Array<'_>> = data.child_data().iter().map(lend).collect();
    let dictionary = if is_dictionary { children.pop().map(Box::new) } else { None };
    Array {
        format: format_of(data.data_type()),
        length: data.len(),
        offset: data.offset(),
        validity: data.nulls().map(|nulls| Bitmap { bits: nulls.validity(), offset: nulls.offset() }),
        buffers: data.buffers().iter().map(Buffer::as_slice).collect(),
        children,
        dictionary,
    }
}

/// The field and the array of a built column.
pub(super) fn take_over(built: BuiltArray) -> Result<(Field, ArrayRef)> {
    let (name, data) = data_of(built)?;
    Ok((Field::new(name, data.data_type().clone(), true), make_array(data)))
}

fn data_of(built: BuiltArray) -> Result<(String, ArrayData)> {
    let items = built.items.map(|items| data_of(*items)).transpose()?;
    let unknown = || Error::Input(format!("column `{}` has the format `{}`", built.name, built.format));
    let data_type = match &items {
        None => {
            let known = FORMATS.iter().find(|(_, format)| *format == built.format);
            known.map(|(data_type, _)| data_type.clone()).ok_or_else(unknown)?
        }
        Some((name, items)) => {
            let field = Arc::new(Field::new(name, items.data_type().clone(), true));
            match built.format.strip_prefix("+w:") {
                None => DataType::List(field),
                Some(size) => DataType::FixedSizeList(field, size.parse().map_err(|_| unknown())?),
            }
        }
    };
    let buffer = |bytes: &AlignedBuffer| Buffer::from(&bytes[..]);
    let data = ArrayData::builder(data_type)
        .len(built.length)
        .null_bit_buffer(built.validity.as_ref().map(buffer))
        .buffers(built.buffers.iter().map(buffer).collect())
        .child_data(items.into_iter().map(|(_, items)| items).collect())
        .build();
    match data {
        Ok(data) => Ok((built.name, data)),
        Err(error) => Err(Error::Input(format!("column `{}`: {error}", built.name))),
    }
}

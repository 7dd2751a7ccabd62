use super::{FlatTensor, NamedData, TensorLayout};
use crate::container::read_segment;
use crate::flatbuffer::{In, Reader};
use crate::{Limits, Result};

/// Decodes the tables of a `.ptd` file under the default limits; see [`read_flat_tensor_with`].
pub fn read_flat_tensor(tables: &[u8]) -> Result<FlatTensor> {
    read_flat_tensor_with(tables, &Limits::DEFAULT)
}

/// Decodes the tables of a `.ptd` file: its first [`Header::tables_size`](super::Header::tables_size) bytes. Only the
/// structure of the flatbuffer is checked; [`verify`](super::verify) checks the values.
pub fn read_flat_tensor_with(tables: &[u8], limits: &Limits) -> Result<FlatTensor> {
    Ok(decode(tables, limits)?.0)
}

/// The tables, and the paths of fields that this reader does not know.
pub(super) fn decode(tables: &[u8], limits: &Limits) -> Result<(FlatTensor, Vec<String>)> {
    let reader = Reader::new(tables, 0, limits);
    let decoded = reader.root(read_flat_tensor_table)?;
    Ok((decoded, reader.unknown_fields()))
}

/// The file offset of the field at `path`, as errors print it, found by decoding again.
pub(super) fn locate(tables: &[u8], limits: &Limits, path: &str) -> Option<u64> {
    let reader = Reader::new(tables, 0, limits).with_watched_path(path);
    reader.root(read_flat_tensor_table).ok()?;
    reader.watched_offset()
}

fn read_flat_tensor_table(t: In<'_, '_, '_>) -> Result<FlatTensor> {
    if is_release_0_6(t)? {
        return read_flat_tensor_0_6(t);
    }
    Ok(FlatTensor {
        version: t.get(0, "version", 0)?,
        segments: t.tables(1, "segments", read_segment)?,
        named_data: t.tables(2, "named_data", |t| {
            Ok(NamedData {
                key: t.required_string(0, "key")?,
                segment_index: t.get(1, "segment_index", 0)?,
                segment_offset: 0,
                tensor_layout: t.table(2, "tensor_layout", |t| {
                    Ok(TensorLayout {
                        scalar_type: t.get(0, "scalar_type", 0)?,
                        sizes: t.scalars(1, "sizes")?,
                        dim_order: t.scalars(2, "dim_order")?,
                    })
                })?,
            })
        })?,
    })
}

/// Whether the root has the fields `version, tensor_alignment, tensors, segments, named_data` of release 0.6, whose
/// second field is a power of two, and not `version, segments, named_data`.
fn is_release_0_6(t: In<'_, '_, '_>) -> Result<bool> {
    Ok(matches!(t.field_slots(), 4 | 5) && t.get(1, "tensor_alignment", 0u32)?.is_power_of_two())
}

/// Whether the tables have the schema of release 0.6.
pub(super) fn is_of_release_0_6(tables: &[u8]) -> bool {
    Reader::new(tables, 0, &Limits::DEFAULT).root(is_release_0_6).unwrap_or(false)
}

fn read_flat_tensor_0_6(t: In<'_, '_, '_>) -> Result<FlatTensor> {
    let mut named_data = t.tables(2, "tensors", |t| {
        Ok(NamedData {
            key: t.required_string(0, "fully_qualified_name")?,
            segment_index: t.get(4, "segment_index", 0)?,
            segment_offset: t.get(5, "offset", 0)?,
            tensor_layout: Some(TensorLayout {
                scalar_type: t.get(1, "scalar_type", 0)?,
                sizes: t.scalars(2, "sizes")?,
                dim_order: t.scalars(3, "dim_order")?,
            }),
        })
    })?;
    named_data.extend(t.tables(4, "named_data", |t| {
        Ok(NamedData {
            key: t.required_string(0, "key")?,
            segment_index: t.get(1, "segment_index", 0)?,
            segment_offset: 0,
            tensor_layout: None,
        })
    })?);
    Ok(FlatTensor {
        version: t.get(0, "version", 0)?,
        segments: t.tables(3, "segments", read_segment)?,
        named_data,
    })
}

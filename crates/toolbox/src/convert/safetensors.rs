use super::{Contents, is_row_major, meta_of, permuted_blob, row_major_layout};
use crate::edit::Output;
use crate::file::{Progress, blob_source};
use crate::{Error, Result, one_line, show};
use pteron_format::ptd::{Builder, Entry};
use pteron_runtime::{DataLoader, Purpose};
use pteron_tensor::{DimOrder, ScalarType};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Size in bytes of the header-length field at the start of a file.
const LENGTH_BYTES: u64 = 8;
/// The maximum header size that the format allows, in bytes.
const MAX_HEADER: u64 = 100_000_000;
/// The metadata key of [`Notes`].
const NOTES: &str = "pteron";

/// The element types that both `.ptd` and `.safetensors` support, in the notations of both.
const TYPES: &[(ScalarType, Dtype)] = &[
    (ScalarType::Bool, Dtype::BOOL),
    (ScalarType::Byte, Dtype::U8),
    (ScalarType::Char, Dtype::I8),
    (ScalarType::Short, Dtype::I16),
    (ScalarType::Int, Dtype::I32),
    (ScalarType::Long, Dtype::I64),
    (ScalarType::UInt16, Dtype::U16),
    (ScalarType::UInt32, Dtype::U32),
    (ScalarType::UInt64, Dtype::U64),
    (ScalarType::Half, Dtype::F16),
    (ScalarType::BFloat16, Dtype::BF16),
    (ScalarType::Float, Dtype::F32),
    (ScalarType::Double, Dtype::F64),
    (ScalarType::ComplexFloat, Dtype::C64),
    (ScalarType::Float8E5M2, Dtype::F8_E5M2),
    (ScalarType::Float8E4M3FN, Dtype::F8_E4M3),
    (ScalarType::Float8E5M2FNUZ, Dtype::F8_E5M2FNUZ),
    (ScalarType::Float8E4M3FNUZ, Dtype::F8_E4M3FNUZ),
];

/// The properties of a `.ptd` that `.safetensors` cannot represent, stored as JSON in the metadata.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    /// Keys of entries that are no tensors.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    blobs: BTreeSet<String>,
    /// The dim order of tensors that are not row-major.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    dim_orders: BTreeMap<String, Vec<u8>>,
}

impl Notes {
    fn is_empty(&self) -> bool {
        self.blobs.is_empty() && self.dim_orders.is_empty()
    }
}

/// The header of a file; its serialization is deterministic.
#[derive(Serialize)]
struct Header {
    #[serde(rename = "__metadata__", skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    #[serde(flatten)]
    tensors: Metadata,
}

/// Writes entries as a `.safetensors` file. Tensors are sorted by type, widest first, then by name, which keeps them
/// aligned. `file` is the name of the source file, for errors.
pub(super) fn write(contents: Contents, file: &str, progress: &Progress) -> Result<Output> {
    let mut notes = Notes::default();
    let mut tensors = Vec::new();
    for entry in contents.builder.entries {
        let (dtype, shape, blob) = match &entry.layout {
            None => {
                notes.blobs.insert(entry.key.clone());
                let len = usize::try_from(entry.blob.len()).unwrap_or(usize::MAX);
                (Dtype::U8, vec![len], entry.blob)
            }
            Some(layout) => {
                let known = TYPES.iter().find(|(t, _)| *t as i8 == layout.scalar_type);
                let Some(&(_, dtype)) = known else {
                    let problem = format!(
                        "`{}` is {}, a type that safetensors files do not have",
                        entry.key,
                        show::layout(layout)
                    );
                    return Err(Error::bad_file(file, problem));
                };
                let shape: Vec<usize> =
                    layout.sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
                match is_row_major(&layout.dim_order) {
                    true => (dtype, shape, entry.blob),
                    false => {
                        notes.dim_orders.insert(entry.key.clone(), layout.dim_order.clone());
                        let order = DimOrder::contiguous(shape.len());
                        (dtype, shape, permuted_blob(entry.blob, meta_of(layout)?, order))
                    }
                }
            }
        };
        tensors.push((entry.key, dtype, shape, blob));
    }
    tensors.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));

    let mut at = 0usize;
    let mut infos = Vec::new();
    for (key, dtype, shape, blob) in &tensors {
        let end = usize::try_from(blob.len()).ok().and_then(|len| at.checked_add(len));
        let end = end.ok_or_else(|| Error::bad_file(file, "larger than this machine can address"))?;
        let info = TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (at, end) };
        infos.push((key.clone(), info));
        at = end;
    }
    let wrong = |e: &dyn std::error::Error| Error::bad_file(file, one_line(e));
    let mut metadata = contents.metadata;
    if !notes.is_empty() {
        metadata.insert(NOTES.to_owned(), serde_json::to_string(&notes).map_err(|e| wrong(&e))?);
    }
    let header = Header { metadata, tensors: Metadata::new(None, infos).map_err(|e| wrong(&e))? };
    let mut header = serde_json::to_vec(&header).map_err(|e| wrong(&e))?;
    header.resize(header.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
    if header.len() as u64 > MAX_HEADER {
        let problem = "it has more names than the header of a safetensors file has room for";
        return Err(Error::bad_file(file, problem));
    }
    let bytes = LENGTH_BYTES + header.len() as u64 + at as u64;
    Ok(Output::stream(bytes, progress, move |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        tensors.iter().try_for_each(|(_, _, _, blob)| blob.copy_to(out))
    }))
}

/// Reads a `.safetensors` file.
pub(super) fn read(loader: &Arc<dyn DataLoader>, progress: &Progress) -> Result<Contents> {
    let file = loader.name().to_owned();
    let wrong = |problem: String| Error::bad_file(&file, problem);
    let mut length = [0; LENGTH_BYTES as usize];
    loader.load_into(0, &mut length, Purpose::Program)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > loader.size() - LENGTH_BYTES {
        return Err(wrong(format!("a header of {length} bytes does not fit in the file")));
    }
    let header = loader.load(LENGTH_BYTES, length, Purpose::Program)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|e| wrong(format!("its header: {e}")))?;
    let base = LENGTH_BYTES + length;
    if base.checked_add(metadata.data_len() as u64) != Some(loader.size()) {
        let problem = format!(
            "its header speaks of {} bytes of data, {} follow",
            metadata.data_len(),
            loader.size() - base
        );
        return Err(wrong(problem));
    }
    let notes: Notes = match metadata.metadata().as_ref().and_then(|all| all.get(NOTES)) {
        Some(text) => {
            serde_json::from_str(text).map_err(|e| wrong(format!("its metadata `{NOTES}`: {e}")))?
        }
        None => Notes::default(),
    };

    let bytes_of = blob_source(loader, progress);
    let mut builder = Builder::new();
    for key in metadata.offset_keys() {
        let Some(info) = metadata.info(&key) else { continue };
        let range = base + info.data_offsets.0 as u64..base + info.data_offsets.1 as u64;
        if info.dtype == Dtype::U8 && info.shape.len() == 1 && notes.blobs.contains(&key) {
            builder.blob(key, bytes_of(range));
            continue;
        }
        let Some(&(dtype, _)) = TYPES.iter().find(|(_, known)| *known == info.dtype) else {
            return Err(wrong(format!("`{key}` is of type {}, which a .ptd cannot hold", info.dtype)));
        };
        let sizes: Vec<u64> = info.shape.iter().map(|&size| size as u64).collect();
        let mut layout = row_major_layout(dtype, &sizes).map_err(|e| wrong(format!("`{key}`: {e}")))?;
        let mut blob = bytes_of(range);
        if let Some(order) = notes.dim_orders.get(&key)
            && order.len() == sizes.len()
            && !is_row_major(order)
        {
            blob = permuted_blob(blob, meta_of(&layout)?, DimOrder::new(order)?);
            layout.dim_order = order.clone();
        }
        builder.entries.push(Entry { key, layout: Some(layout), blob, alignment: 1 });
    }
    let metadata = metadata.metadata().iter().flatten().filter(|(key, _)| *key != NOTES);
    let metadata = metadata.map(|(key, text)| (key.clone(), text.clone())).collect();
    Ok(Contents { builder, metadata })
}

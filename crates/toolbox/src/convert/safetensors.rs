use crate::edit::Output;
use crate::file::{Progress, source};
use crate::{Error, Result, show};
use format::container::Blob;
use format::ptd::{Builder, Entry, TensorLayout};
use runtime::{DataLoader, Limits, PtdDataMap, Purpose};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tensor::{DimOrder, ScalarType, Tensor, TensorMeta};

/// Bytes of the header's length, at the start of a file.
const LENGTH_BYTES: u64 = 8;
/// The longest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;
/// The metadata that holds what the format cannot say.
const NOTES: &str = "pteron";

/// The types that both formats have.
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

/// What a `.ptd` says and a `.safetensors` cannot.
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

fn row_major(order: &[u8]) -> bool {
    order.iter().enumerate().all(|(i, &dim)| i == usize::from(dim))
}

/// A `.safetensors` file of what a `.ptd` holds. Its tensors are ordered by type, the widest first, and by
/// name, which keeps them aligned.
pub(super) fn from_data(data: &PtdDataMap, progress: &Progress) -> Result<Output> {
    let file = data.loader().name();
    let bytes_of = source(data.loader(), progress);
    let mut notes = Notes::default();
    let mut tensors = Vec::new();
    for entry in &data.tables().named_data {
        let range = data.tables().data_range(entry);
        let (dtype, shape, blob) = match &entry.tensor_layout {
            None => {
                notes.blobs.insert(entry.key.clone());
                let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                (Dtype::U8, vec![len], bytes_of(range))
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
                if row_major(&layout.dim_order) {
                    (dtype, shape, bytes_of(range))
                } else {
                    notes.dim_orders.insert(entry.key.clone(), layout.dim_order.clone());
                    let from = DimOrder::new(&layout.dim_order)?;
                    let to = DimOrder::contiguous(shape.len());
                    let meta = reorderable(layout.scalar_type, &shape)?;
                    let blob = reordered(data, &entry.key, meta, from, to);
                    (dtype, shape, blob)
                }
            }
        };
        tensors.push((entry.key.clone(), dtype, shape, blob));
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
    let wrong = |e: &dyn std::fmt::Display| Error::bad_file(file, e.to_string());
    let metadata = match notes.is_empty() {
        true => None,
        false => {
            let text = serde_json::to_string(&notes).map_err(|e| wrong(&e))?;
            Some(HashMap::from([(NOTES.to_owned(), text)]))
        }
    };
    let metadata = Metadata::new(metadata, infos).map_err(|e| wrong(&e))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| wrong(&e))?;
    header.resize(header.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
    if header.len() as u64 > MAX_HEADER {
        return Err(wrong(&"it has more names than the header of a safetensors file has room for"));
    }
    let bytes = LENGTH_BYTES + header.len() as u64 + at as u64;
    Ok(Output::stream(bytes, progress, move |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        tensors.iter().try_for_each(|(_, _, _, blob)| blob.copy_to(out))
    }))
}

/// A row-major tensor's type and sizes, checked.
fn reorderable(scalar_type: i8, shape: &[usize]) -> Result<TensorMeta> {
    Ok(TensorMeta::contiguous(ScalarType::from_i8(scalar_type)?, shape)?)
}

/// The bytes of an entry with its elements in another order, made when they are written. Elements move
/// whole, so that their byte order does not matter.
fn reordered(data: &PtdDataMap, key: &str, meta: TensorMeta, from: DimOrder, to: DimOrder) -> Blob<'static> {
    let loader = Arc::clone(data.loader());
    let range = data.tables().data(key).unwrap_or_default();
    reordered_range(loader, range, meta, from, to)
}

fn reordered_range(
    loader: Arc<dyn DataLoader>,
    range: std::ops::Range<u64>,
    meta: TensorMeta,
    from: DimOrder,
    to: DimOrder,
) -> Blob<'static> {
    Blob::stream(range.end - range.start, move |out| {
        let bytes = loader
            .load(range.start, range.end - range.start, Purpose::Named)
            .map_err(std::io::Error::other)?;
        let moved = TensorMeta::new(meta.dtype(), meta.sizes(), from)
            .and_then(|meta| Tensor::from_bytes(meta, &bytes))
            .and_then(|tensor| tensor.to_dim_order(to))
            .map_err(std::io::Error::other)?;
        out.write_all(moved.bytes())
    })
}

/// A `.ptd` of what a `.safetensors` file holds.
pub(super) fn to_data(loader: Arc<dyn DataLoader>, limits: &Limits, progress: &Progress) -> Result<Output> {
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

    let bytes_of = source(&loader, progress);
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
        let sizes = info.shape.iter().map(|&size| i32::try_from(size));
        let sizes = sizes.collect::<Result<Vec<i32>, _>>();
        let sizes = sizes.map_err(|_| wrong(format!("`{key}`: sizes {:?} are too large", info.shape)))?;
        let rank =
            u8::try_from(sizes.len()).map_err(|_| wrong(format!("`{key}` has too many dimensions")))?;
        let (dim_order, blob) = match notes.dim_orders.get(&key) {
            Some(order) if !row_major(order) && order.len() == sizes.len() => {
                let meta = reorderable(dtype as i8, &info.shape)?;
                let (from, to) = (DimOrder::contiguous(sizes.len()), DimOrder::new(order)?);
                (order.clone(), reordered_range(Arc::clone(&loader), range, meta, from, to))
            }
            _ => ((0..rank).collect(), bytes_of(range)),
        };
        let layout = TensorLayout { scalar_type: dtype as i8, sizes, dim_order };
        builder.entries.push(Entry { key, layout: Some(layout), blob, alignment: 1 });
    }
    progress.begin("comparing", loader.size());
    Output::data_within(builder, limits, progress)
}

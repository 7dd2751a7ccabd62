//! Converts named data between formats: `.ptd`, `.safetensors` and `.npz` in both directions, `.gguf` into any of them.

mod gguf;
mod npz;
#[cfg(feature = "safetensors")]
mod safetensors;
#[cfg(not(feature = "safetensors"))]
#[path = "no_safetensors.rs"]
mod safetensors;

pub(crate) use gguf::read_header as gguf_head;

use crate::edit::{Output, undeclared_fields};
use crate::file::{File, Progress, blob_source};
use crate::{Error, Result, kind};
use pteron_format::FileKind;
use pteron_format::container::Blob;
use pteron_format::ptd::{Builder, Entry, TensorLayout};
use pteron_runtime::{DataLoader, Limits};
use pteron_tensor::{DimOrder, ScalarType, Tensor, TensorMeta};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of lost metadata entries that are listed.
const MAX_LISTED: usize = 5;

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Named data, `.ptd`.
    Ptd,
    Safetensors,
    /// An archive of NumPy arrays, `.npz`.
    Npz,
}

impl Format {
    /// All output formats.
    pub const ALL: [Self; 3] = [Self::Ptd, Self::Safetensors, Self::Npz];

    /// The usual file extension, without the dot.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Ptd => "ptd",
            Self::Safetensors => "safetensors",
            Self::Npz => "npz",
        }
    }

    /// The format of a file, by its extension; `None` for other extensions.
    pub fn from_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Self::ALL.into_iter().find(|format| format.extension() == extension)
    }
}

/// Options of a conversion.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Keeps block-quantized tensors as the bytes of their blocks instead of dequantizing them to float32.
    pub keep_quantized: bool,
}

/// The result of a conversion.
#[derive(Debug, Serialize)]
pub struct Converted {
    /// The number of entries of the new file.
    pub entries: usize,
    /// Descriptions of what the new format could not keep.
    pub lost: Vec<String>,
    /// Bytes of the source file.
    pub bytes_before: u64,
    /// Bytes of the new file.
    pub bytes_after: u64,
    /// The new file.
    #[serde(skip)]
    pub file: Output,
}

impl Converted {
    fn new(loader: &dyn DataLoader, entries: usize, lost: Vec<String>, file: Output) -> Self {
        Self { entries, lost, bytes_before: loader.size(), bytes_after: file.bytes(), file }
    }
}

/// The contents of a source file, independent of its format.
struct Contents {
    builder: Builder<'static>,
    /// The file's metadata.
    metadata: BTreeMap<String, String>,
}

/// Converts a `.ptd`, `.safetensors`, `.npz` or `.gguf` file; the source format is recognised by its bytes. Data is
/// streamed: at most one tensor is in memory, where its elements are permuted or an `.npz` is written, or one `.npz`
/// entry, which may be compressed.
///
/// `.safetensors` has neither blobs nor dim orders: blobs become uint8 vectors, tensors become row-major, and the
/// file's metadata records both, so that the round trip restores them. `.npz` has no metadata; types that NumPy lacks
/// are stored as [`npy::File`](crate::npy::File) stores them. `.ptd` has no metadata. A `.ptd` that stays one is copied.
pub fn convert(
    loader: &Arc<dyn DataLoader>,
    to: Format,
    options: Options,
    limits: &Limits,
    progress: &Progress,
) -> Result<Converted> {
    let mut lost = Vec::new();
    let kind = kind::file_kind(&**loader)?;
    if options.keep_quantized && kind != Some(FileKind::Gguf) {
        let problem = "keep-quantized is for .gguf files: this file has no quantized blocks";
        return Err(Error::bad_file(loader.name(), problem));
    }
    let contents = match kind {
        Some(FileKind::Ptd) => {
            let data = File::open_data(Arc::clone(loader), "convert", limits)?;
            if to == Format::Ptd {
                progress.begin("copying", loader.size());
                let entries = data.tables().named_data.len();
                let file = Output::copy_of(loader, progress);
                return Ok(Converted::new(&**loader, entries, Vec::new(), file));
            }
            lost = undeclared_fields(&data)?;
            let alignments = data.tables().segment_alignments();
            let most = alignments.iter().copied().max().unwrap_or(1);
            if most > pteron_format::ptd::DEFAULT_SEGMENT_ALIGNMENT {
                lost.push(format!("the alignment of entries to {most} bytes"));
            }
            let builder = Builder::from_flat_tensor(data.tables(), blob_source(loader, progress));
            Contents { builder, metadata: BTreeMap::new() }
        }
        Some(FileKind::Safetensors) => safetensors::read(loader, progress)?,
        Some(FileKind::Zip) => npz::read(loader, npz::open(loader)?, limits, progress)?,
        Some(FileKind::Gguf) => gguf::read(loader, options, limits, progress)?,
        other => {
            return Err(kind::wrong_format(
                &**loader,
                other,
                "convert",
                "named data (.ptd), safetensors files, archives of NumPy arrays (.npz) and .gguf files",
            ));
        }
    };
    if !contents.metadata.is_empty() && to != Format::Safetensors {
        let keys: Vec<&str> = contents.metadata.keys().map(String::as_str).take(MAX_LISTED).collect();
        let more = if contents.metadata.len() > MAX_LISTED { ", ..." } else { "" };
        lost.push(format!("the metadata {}{more}", keys.join(", ")));
    }
    let entries = contents.builder.entries.len();
    let file = match to {
        Format::Ptd => {
            progress.begin("comparing", loader.size());
            Output::named_data_within(contents.builder, limits, progress)?
        }
        Format::Safetensors => safetensors::write(contents, loader.name(), progress)?,
        Format::Npz => npz::write(contents.builder, progress)?,
    };
    Ok(Converted::new(&**loader, entries, lost, file))
}

/// The tensors of a `.safetensors` file, and its metadata. Only the header is read.
pub(crate) fn safetensors_entries(
    loader: &Arc<dyn DataLoader>,
) -> Result<(Vec<Entry<'static>>, BTreeMap<String, String>)> {
    let contents = safetensors::read(loader, &Progress::default())?;
    Ok((contents.builder.entries, contents.metadata))
}

/// The arrays of an `.npz`; `None` for a zip archive of other files. Only headers are read.
pub(crate) fn npz_entries(
    loader: &Arc<dyn DataLoader>,
    limits: &Limits,
) -> Result<Option<Vec<Entry<'static>>>> {
    let zip = npz::open(loader)?;
    if !npz::is_npz(&zip) {
        return Ok(None);
    }
    Ok(Some(npz::read(loader, zip, limits, &Progress::default())?.builder.entries))
}

/// The layout of a row-major tensor.
fn row_major_layout(scalar_type: ScalarType, sizes: &[u64]) -> Result<TensorLayout, String> {
    let sizes: Result<Vec<i32>, _> = sizes.iter().map(|&size| i32::try_from(size)).collect();
    let sizes = sizes.map_err(|_| "its sizes are too large for a .ptd".to_owned())?;
    let rank = u8::try_from(sizes.len()).map_err(|_| "it has too many dimensions".to_owned())?;
    Ok(TensorLayout { scalar_type: scalar_type as i8, sizes, dim_order: (0..rank).collect() })
}

fn is_row_major(order: &[u8]) -> bool {
    order.iter().enumerate().all(|(i, &dim)| i == usize::from(dim))
}

/// The checked tensor meta of a layout, in the layout's dim order.
pub(crate) fn meta_of(layout: &TensorLayout) -> Result<TensorMeta> {
    let sizes: Vec<usize> = layout.sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
    let dtype = ScalarType::from_i8(layout.scalar_type)?;
    Ok(TensorMeta::new(dtype, &sizes, DimOrder::new(&layout.dim_order)?)?)
}

/// The bytes of a tensor permuted to another dim order, computed while the blob is written. Only whole elements move,
/// so that byte order does not matter.
fn permuted_blob(blob: Blob<'static>, meta: TensorMeta, to: DimOrder) -> Blob<'static> {
    Blob::stream(blob.len(), move |out| {
        let bytes = blob.to_vec().map_err(io::Error::other)?;
        let moved = Tensor::from_bytes(meta.clone(), &bytes)
            .and_then(|tensor| tensor.to_dim_order(to))
            .map_err(io::Error::other)?;
        out.write_all(moved.bytes())
    })
}

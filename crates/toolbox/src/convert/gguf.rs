use super::{Contents, Options, row_major_layout};
use crate::file::{InFile, Progress, blob_source};
use crate::{Error, Result};
use pteron_format::container::Blob;
use pteron_format::gguf::{self, Gguf, Tensor, TensorKind, Value};
use pteron_format::ptd::{Builder, TensorLayout};
use pteron_runtime::{DataLoader, Limits, LoaderReader, Purpose};
use pteron_tensor::ScalarType;
use std::io::{self, BufReader};
use std::sync::Arc;

/// Maximum number of bytes that are read at a time, before rounding down to whole blocks.
const CHUNK: u64 = 1 << 18;

/// Reads the header of a `.gguf` file: metadata and tensor table.
pub(crate) fn read_header(loader: &Arc<dyn DataLoader>, limits: &Limits) -> Result<Gguf> {
    let reader = BufReader::with_capacity(1 << 16, LoaderReader::new(loader));
    gguf::read(reader, loader.size(), &limits.format).in_file(loader.name())
}

/// Reads a `.gguf` file. Block-quantized tensors are dequantized to float32 or, with `keep_quantized`, keep the bytes of
/// their rows. Metadata arrays are left out.
pub(super) fn read(
    loader: &Arc<dyn DataLoader>,
    options: Options,
    limits: &Limits,
    progress: &Progress,
) -> Result<Contents> {
    let file = read_header(loader, limits)?;
    let wrong = |name: &str, problem: &str| Error::bad_file(loader.name(), format!("`{name}`: {problem}"));
    let bytes_of = blob_source(loader, progress);
    let mut builder = Builder::new();
    for tensor in file.tensors {
        let kind = tensor.kind;
        let (layout, blob) = match kind.scalar_type() {
            Some(dtype) => (row_major_layout(dtype, &tensor.sizes), bytes_of(tensor.data.clone())),
            None if options.keep_quantized => (layout_of_rows(&tensor), bytes_of(tensor.data.clone())),
            None if kind.is_dequantized() => {
                let layout = row_major_layout(ScalarType::Float, &tensor.sizes);
                let bytes = (tensor.data.end - tensor.data.start) / kind.block_bytes();
                let bytes = bytes.saturating_mul(kind.block_elements()).saturating_mul(4);
                if bytes > limits.format.tensor_bytes {
                    let most = limits.format.tensor_bytes;
                    let problem = format!("{bytes} bytes of float32, more than the {most} that are allowed");
                    return Err(wrong(&tensor.name, &problem));
                }
                (layout, dequantized_blob(loader, &tensor, bytes, progress))
            }
            None => {
                let problem = format!(
                    "it is quantized as {kind}, which cannot be turned into float32 here; --keep-quantized \
                     keeps its bytes"
                );
                return Err(wrong(&tensor.name, &problem));
            }
        };
        let layout = layout.map_err(|problem| wrong(&tensor.name, &problem))?;
        builder.tensor(tensor.name, layout, blob);
    }
    let scalars = file.metadata.into_iter().filter(|(_, value)| !matches!(value, Value::Array { .. }));
    let metadata = scalars.map(|(key, value)| (key, value.to_string())).collect();
    Ok(Contents { builder, metadata })
}

/// The layout of a tensor that keeps its quantized blocks: uint8, the last dimension in bytes.
fn layout_of_rows(tensor: &Tensor) -> Result<TensorLayout, String> {
    let mut sizes = tensor.sizes.clone();
    match sizes.last_mut() {
        Some(row) => *row = *row / tensor.kind.block_elements() * tensor.kind.block_bytes(),
        None => sizes.push(tensor.data.end - tensor.data.start),
    }
    row_major_layout(ScalarType::Byte, &sizes)
}

/// The dequantized float32 values, computed while the blob is written. `bytes` is their size.
fn dequantized_blob(
    loader: &Arc<dyn DataLoader>,
    tensor: &Tensor,
    bytes: u64,
    progress: &Progress,
) -> Blob<'static> {
    let (loader, progress) = (Arc::clone(loader), progress.clone());
    let (kind, range): (TensorKind, _) = (tensor.kind, tensor.data.clone());
    let piece = CHUNK / kind.block_bytes() * kind.block_bytes();
    Blob::stream(bytes, move |out| {
        let (mut blocks, mut values, mut text) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = range.start;
        while at < range.end {
            blocks.resize((range.end - at).min(piece) as usize, 0);
            loader.load_into(at, &mut blocks, Purpose::Named).map_err(io::Error::other)?;
            values.clear();
            kind.dequantize(&blocks, &mut values);
            text.clear();
            text.extend(values.iter().flat_map(|value: &f32| value.to_le_bytes()));
            out.write_all(&text)?;
            at += blocks.len() as u64;
            progress.advance(blocks.len() as u64);
        }
        Ok(())
    })
}

use super::{Contents, Options, row_major};
use crate::file::{InFile, Progress, source};
use crate::{Error, Result};
use format::container::Blob;
use format::gguf::{self, Gguf, Tensor, TensorKind, Value};
use format::ptd::{Builder, TensorLayout};
use runtime::{DataLoader, Limits, LoaderReader, Purpose};
use std::io::{self, BufReader};
use std::sync::Arc;
use tensor::ScalarType;

/// Bytes that are read at a time.
const PIECE: u64 = 1 << 18;

/// The head of a `.gguf` file.
pub(crate) fn head(loader: &Arc<dyn DataLoader>, limits: &Limits) -> Result<Gguf> {
    let reader = BufReader::with_capacity(1 << 16, LoaderReader::new(loader));
    gguf::read(reader, loader.size(), &limits.format).in_file(loader.name())
}

/// What a `.gguf` file holds. Tensors that are quantized in blocks become the float32 numbers that the blocks
/// stand for or, if they are kept, the bytes of each row. Of the metadata, arrays are left out.
pub(super) fn read(
    loader: &Arc<dyn DataLoader>,
    options: Options,
    limits: &Limits,
    progress: &Progress,
) -> Result<Contents> {
    let file = head(loader, limits)?;
    let wrong = |name: &str, problem: &str| Error::bad_file(loader.name(), format!("`{name}`: {problem}"));
    let bytes_of = source(loader, progress);
    let mut builder = Builder::new();
    for tensor in file.tensors {
        let kind = tensor.kind;
        let (layout, blob) = match kind.scalar_type() {
            Some(dtype) => (row_major(dtype, &tensor.sizes), bytes_of(tensor.data.clone())),
            None if options.keep_quantized => (layout_of_rows(&tensor), bytes_of(tensor.data.clone())),
            None if kind.is_dequantized() => {
                let layout = row_major(ScalarType::Float, &tensor.sizes);
                let bytes = (tensor.data.end - tensor.data.start) / kind.block_bytes();
                let bytes = bytes.saturating_mul(kind.block_elements()).saturating_mul(4);
                if bytes > limits.format.tensor_bytes {
                    let most = limits.format.tensor_bytes;
                    let problem = format!("{bytes} bytes of float32, more than the {most} that are allowed");
                    return Err(wrong(&tensor.name, &problem));
                }
                (layout, dequantized(loader, &tensor, bytes, progress))
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

/// The layout of the bytes of quantized rows.
fn layout_of_rows(tensor: &Tensor) -> Result<TensorLayout, String> {
    let mut sizes = tensor.sizes.clone();
    match sizes.last_mut() {
        Some(row) => *row = *row / tensor.kind.block_elements() * tensor.kind.block_bytes(),
        None => sizes.push(tensor.data.end - tensor.data.start),
    }
    row_major(ScalarType::Byte, &sizes)
}

/// The numbers that blocks stand for, made when they are written.
fn dequantized(
    loader: &Arc<dyn DataLoader>,
    tensor: &Tensor,
    bytes: u64,
    progress: &Progress,
) -> Blob<'static> {
    let (loader, progress) = (Arc::clone(loader), progress.clone());
    let (kind, range): (TensorKind, _) = (tensor.kind, tensor.data.clone());
    let piece = PIECE / kind.block_bytes() * kind.block_bytes();
    Blob::stream(bytes, move |out| {
        let (mut blocks, mut numbers, mut text) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = range.start;
        while at < range.end {
            blocks.resize((range.end - at).min(piece) as usize, 0);
            loader.load_into(at, &mut blocks, Purpose::Named).map_err(io::Error::other)?;
            numbers.clear();
            kind.dequantize(&blocks, &mut numbers);
            text.clear();
            text.extend(numbers.iter().flat_map(|number: &f32| number.to_le_bytes()));
            out.write_all(&text)?;
            at += blocks.len() as u64;
            progress.advance(blocks.len() as u64);
        }
        Ok(())
    })
}

//! Named data in the formats of others: `.safetensors` both ways, `.npz` into `.ptd`.

mod npz;
mod safetensors;

use crate::edit::Output;
use crate::file::{File, Progress};
use crate::{Result, kind};
use format::FileKind;
use runtime::{DataLoader, Limits};
use std::sync::Arc;

/// Converts a `.ptd` to `.safetensors`, or a `.safetensors` or `.npz` to `.ptd`: which way is said by the
/// file. Memory does not grow with the file, but with its largest tensor where elements have to be put into
/// another order, and with a whole `.npz` entry, which may be compressed.
///
/// `.safetensors` has neither blobs nor dim orders. Blobs become vectors of bytes, tensors row-major, and
/// the file's metadata remembers which they were, for the way back.
pub fn convert(loader: Arc<dyn DataLoader>, limits: &Limits, progress: &Progress) -> Result<Output> {
    match kind::of(&*loader)? {
        Some(FileKind::Ptd) => safetensors::from_data(&File::open_data(loader, "convert", limits)?, progress),
        Some(FileKind::Safetensors) => safetensors::to_data(loader, limits, progress),
        Some(FileKind::Zip) => npz::to_data(&loader, limits, progress),
        other => Err(kind::wrong(
            &*loader,
            other,
            "convert",
            "named data (.ptd), safetensors files and archives of NumPy arrays (.npz)",
        )),
    }
}

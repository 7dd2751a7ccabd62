//! Sources of bytes: a [`DataLoader`] serves the bytes of a program, a [`NamedDataMap`] the tensors that are stored
//! outside of it.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::data::{DataLoader, FreeableBuffer, Purpose};
//! use pteron::{Error, Module, Tensor};
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! /// A program whose bytes are stored inverted.
//! struct Inverted {
//!     bytes: Vec<u8>,
//!     loaded: AtomicU64,
//! }
//!
//! impl DataLoader for Inverted {
//!     fn size(&self) -> u64 {
//!         self.bytes.len() as u64
//!     }
//!
//!     fn load(&self, offset: u64, len: u64, _: Purpose<'_>) -> Result<FreeableBuffer, Error> {
//!         let range = offset as usize..offset.saturating_add(len) as usize;
//!         let bytes = self.bytes.get(range).ok_or_else(|| Error::OutOfFile {
//!             file: self.name().to_owned(),
//!             offset,
//!             len,
//!             size: self.size(),
//!         })?;
//!         self.loaded.fetch_add(len, Ordering::Relaxed);
//!         FreeableBuffer::from_bytes(&bytes.iter().map(|b| !b).collect::<Vec<u8>>())
//!     }
//!
//!     fn bytes_loaded(&self) -> u64 {
//!         self.loaded.load(Ordering::Relaxed)
//!     }
//!
//!     fn name(&self) -> &str {
//!         "an inverted program"
//!     }
//! }
//!
//! # let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.pte");
//! let bytes = std::fs::read(digits)?.iter().map(|b| !b).collect();
//! let loader = Arc::new(Inverted { bytes, loaded: AtomicU64::new(0) });
//! let mut module = Module::load(loader, pteron::load_options())?;
//! module.forward(&[Tensor::from_slice(&[1, 1, 8, 8], &[0.0f32; 64])?.into()])?;
//! # Ok(()) }
//! ```

pub use pteron_runtime::{
    BytesLoader, DataLoader, FileLoader, FreeableBuffer, LoaderReader, MergedDataMap, MmapLoader,
    NamedDataMap, PackStore, PtdDataMap, Purpose, SourceId,
};
pub use pteron_tensor::AlignedBuffer;

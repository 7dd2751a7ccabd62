//! Data by name: the entries of `.ptd` files and of a program's own named data.

mod counted;
mod merged;
mod ptd;
mod pte;
mod source;

pub(crate) use counted::CountedDataMap;
pub use merged::MergedDataMap;
pub use ptd::PtdDataMap;
pub use pte::PteDataMap;
pub(crate) use source::InMap;

use crate::open::ConstantBytes;
use crate::{Error, FreeableBuffer, Result};
use pteron_engine::SourceId;
use pteron_tensor::TensorMeta;
use std::ops::Range;

/// Named blobs and tensors.
pub trait NamedDataMap: Send + Sync {
    /// Type, sizes and layout of an entry. `Ok(None)` if the entry is a blob without them.
    fn tensor_layout(&self, key: &str) -> Result<Option<TensorMeta>>;

    /// The number of bytes of an entry. A map that knows the size should override this default, which reads the entry.
    fn nbytes(&self, key: &str) -> Result<u64> {
        Ok(self.data(key)?.len() as u64)
    }

    /// The bytes of an entry.
    fn data(&self, key: &str) -> Result<FreeableBuffer>;

    /// The bytes of an entry, as a constant for a backend. The map that the runtime passes to backends reads them on
    /// first access, once for all delegates and aligned to 16 bytes, so that unpacked weights need not stay in memory
    /// beside their packed form.
    fn constant(&self, key: &str) -> Result<ConstantBytes> {
        Ok(ConstantBytes::in_memory(self.data(key)?))
    }

    /// The source of an entry's bytes and their offset in it, if other maps may serve the same source. Data derived
    /// from the bytes, such as packed weights, is shared among all users of the same range of a source. The bytes of a
    /// range must never change.
    fn source(&self, key: &str) -> Option<(SourceId, u64)> {
        let _ = key;
        None
    }

    /// A range of an entry's bytes, so that large weights can be packed without being in memory as a whole. `None` if the
    /// map can only serve whole entries.
    fn data_part(&self, key: &str, part: Range<u64>) -> Option<Result<FreeableBuffer>> {
        let _ = (key, part);
        None
    }

    /// Copies the bytes of an entry into `target`, whose length must match exactly.
    fn load_data_into(&self, key: &str, target: &mut [u8]) -> Result<()> {
        let data = self.data(key)?;
        if data.len() != target.len() {
            return Err(
                pteron_tensor::Error::WrongByteCount { expected: target.len(), found: data.len() }.into()
            );
        }
        target.copy_from_slice(&data);
        Ok(())
    }

    /// Whether the map has an entry with this key.
    fn contains(&self, key: &str) -> bool;

    /// The keys.
    fn keys(&self) -> Box<dyn Iterator<Item = &str> + '_>;

    /// The name of the map in error messages.
    fn name(&self) -> &str;
}

fn no_such_key(key: &str, map: &dyn NamedDataMap) -> Error {
    Error::NoSuchKey { key: key.to_owned(), source_name: map.name().to_owned() }
}

/// The file range of `part`, which is relative to the start of `all`; `None` if `part` is not within `all`.
fn subrange(all: Range<u64>, part: Range<u64>) -> Option<Range<u64>> {
    let part = all.start.checked_add(part.start)?..all.start.checked_add(part.end)?;
    (part.start <= part.end && part.end <= all.end).then_some(part)
}

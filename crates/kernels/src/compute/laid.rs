//! The memory of weights that are laid out for a level: own, or bytes that somebody else keeps.

use super::gemm::tile;
use super::isa::Isa;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tensor::AlignedBuffer;

/// To what each part of weights that are stored is aligned, in bytes.
const ALIGNMENT: usize = 64;

/// Rises when weights are laid out in another way.
const VERSION: u32 = 1;

/// Bytes that somebody else keeps: a map of a file, say.
pub type KeptBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The name of the way in which f32 weights are laid out for an instruction set. Weights that are stored under this name
/// can be [taken](LaidOut) on every machine where the name is the same.
pub fn weight_layout(isa: Isa) -> String {
    let level = isa.level();
    let (columns, rows) = (tile::panel_cols(level), tile::max_rows(level));
    format!("f32 {level} {columns} {rows} v{VERSION}")
}

/// The elements of weights.
#[derive(Clone)]
pub(crate) enum Laid {
    Own(AlignedBuffer),
    Kept { bytes: KeptBytes, range: Range<usize> },
}

impl Laid {
    pub(crate) fn elements(&self) -> &[f32] {
        match self {
            Self::Own(buffer) => bytemuck::cast_slice(buffer),
            // What was taken was aligned; bytes that have moved since are none.
            Self::Kept { bytes, range } => {
                let bytes = (**bytes).as_ref().get(range.clone()).unwrap_or_default();
                bytemuck::try_cast_slice(bytes).unwrap_or_default()
            }
        }
    }

    /// Bytes of memory of its own.
    pub(crate) fn own_bytes(&self) -> usize {
        if let Self::Own(buffer) = self { buffer.len() } else { 0 }
    }

    /// Appends its bytes, from the next multiple of the alignment on.
    pub(crate) fn store(&self, out: &mut Vec<u8>) {
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend_from_slice(bytemuck::cast_slice(self.elements()));
    }
}

impl fmt::Debug for Laid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Laid({} elements)", self.elements().len())
    }
}

/// Weights that were laid out and stored, of which parts are taken in the order in which they were stored. Little-endian,
/// as every machine is that has more than the portable level.
pub struct LaidOut {
    bytes: KeptBytes,
    at: usize,
}

impl LaidOut {
    /// The parts of these bytes.
    pub fn new(bytes: KeptBytes) -> Self {
        Self { bytes, at: 0 }
    }

    /// So many elements, if they are there and aligned. They are not looked at.
    pub(crate) fn take(&mut self, elements: usize) -> Option<Laid> {
        let start = self.at.checked_next_multiple_of(ALIGNMENT)?;
        let end = start.checked_add(elements.checked_mul(size_of::<f32>())?)?;
        let part = (*self.bytes).as_ref().get(start..end)?;
        let is_aligned = bytemuck::try_cast_slice::<u8, f32>(part).is_ok() && cfg!(target_endian = "little");
        is_aligned.then(|| {
            self.at = end;
            Laid::Kept { bytes: Arc::clone(&self.bytes), range: start..end }
        })
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        (*self.bytes).as_ref().len() == self.at
    }
}

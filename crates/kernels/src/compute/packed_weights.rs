//! Storage of packed weights: an owned buffer, or a range of bytes that somebody else keeps.

use super::gemm::{WeightType, tile};
use super::isa::Isa;
use super::simd::VectorIsa;
use pteron_tensor::AlignedBuffer;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The alignment of each part of stored weights, in bytes.
const ALIGNMENT: usize = 64;

/// Incremented whenever the packed layout of weights changes.
const VERSION: u32 = 2;

/// Bytes owned elsewhere: a memory map of a file, say.
pub type WeightBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The name of the layout in which weights are packed for an instruction set, as elements of a type. Stored weights can
/// be [loaded](PackedWeightsReader) on every machine for which this name equals the one they were stored under.
pub fn weight_layout(isa: Isa, ty: WeightType) -> String {
    let vectors = VectorIsa::from(isa);
    let (columns, rows) = (tile::panel_cols(vectors), tile::max_rows(vectors));
    format!("{} {} {columns} {rows} v{VERSION}", ty.name(), vectors.name)
}

/// The elements of packed weights.
#[derive(Clone)]
pub(crate) enum WeightBuffer {
    Owned(AlignedBuffer),
    Shared { bytes: WeightBytes, range: Range<usize> },
}

impl WeightBuffer {
    /// The f32 elements; none if the bytes are not whole elements.
    pub(crate) fn elements(&self) -> &[f32] {
        // `PackedWeightsReader::take` checked bounds and alignment. Bytes that have moved since give an empty slice.
        bytemuck::try_cast_slice(self.bytes()).unwrap_or_default()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Shared { bytes, range } => (**bytes).as_ref().get(range.clone()).unwrap_or_default(),
        }
    }

    /// A buffer without elements.
    pub(crate) fn empty() -> Self {
        Self::Shared { bytes: Arc::new([0u8; 0]), range: 0..0 }
    }

    /// The bytes of memory that this buffer owns; none if they are owned elsewhere.
    pub(crate) fn nbytes(&self) -> usize {
        if let Self::Owned(buffer) = self { buffer.len() } else { 0 }
    }

    /// Appends the buffer's bytes to `out`, padded so that they start at a multiple of [`ALIGNMENT`].
    pub(crate) fn store(&self, out: &mut Vec<u8>) {
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend_from_slice(self.bytes());
    }
}

impl fmt::Debug for WeightBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightBuffer({} bytes)", self.bytes().len())
    }
}

/// Stored packed weights, read part by part in the order in which they were stored. Little-endian, as is every
/// machine with a feature that an `Isa` can have.
pub struct PackedWeightsReader {
    bytes: WeightBytes,
    at: usize,
}

impl PackedWeightsReader {
    /// A reader of `bytes`, from the first byte on.
    pub fn new(bytes: WeightBytes) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next `elements` f32 elements, or `None` if they are out of bounds or misaligned. Their values are not
    /// checked.
    pub(crate) fn take(&mut self, elements: usize) -> Option<WeightBuffer> {
        self.take_as(WeightType::F32, elements)
    }

    /// As [`Self::take`], for elements of a type.
    pub(crate) fn take_as(&mut self, ty: WeightType, elements: usize) -> Option<WeightBuffer> {
        let start = self.at.checked_next_multiple_of(ALIGNMENT)?;
        let end = start.checked_add(elements.checked_mul(ty.size())?)?;
        let part = (*self.bytes).as_ref().get(start..end)?;
        let is_aligned = part.as_ptr().addr().is_multiple_of(ty.size()) && cfg!(target_endian = "little");
        is_aligned.then(|| {
            self.at = end;
            WeightBuffer::Shared { bytes: Arc::clone(&self.bytes), range: start..end }
        })
    }

    /// Whether all bytes have been taken.
    pub fn is_empty(&self) -> bool {
        (*self.bytes).as_ref().len() == self.at
    }
}

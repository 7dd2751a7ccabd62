//! `.ptd`: named tensors and blobs outside a program (FlatTensor).
//!
//! ```text
//! 0    u32 offset of the flatbuffer's root
//! 4    `FT01`
//! 8    header, always: `FH01`, its length, flatbuffer offset, flatbuffer size,
//!      segment base offset, segment data size
//! ..   the tables
//! ..   segments, each at the segment base plus its offset
//! ```

//!
//! Files of release 0.6 have another root table under the same magic: shapes are in a list of their own, and several
//! tensors share a segment. They are recognized by the fields of the root's vtable, and decode to the same structs.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron_format::{Limits, ptd};
//! let file = std::fs::read("weights.ptd")?;
//! let header = ptd::Header::parse(&file, file.len() as u64)?;
//! let tables = &file[..header.tables_size as usize];
//! let tables = ptd::VerifiedFlatTensor::read(tables, &header, &Limits::default())?;
//! let range = tables.data("linear.weight").ok_or("no such tensor")?;
//! println!("linear.weight takes {} bytes", range.end - range.start);
//! # Ok(()) }
//! ```

mod header;
mod layouts;
mod read;
mod revision;
mod verify;
mod write;

pub use crate::container::DataSegment;
pub use header::{HEADER_LENGTH, Header, IDENTIFIER};
pub use read::{read_flat_tensor, read_flat_tensor_with};
pub use revision::{Revised, Revision, undeclared_parts};
pub use verify::{VerifiedFlatTensor, verify, verify_all};
pub use write::{Builder, DEFAULT_SEGMENT_ALIGNMENT, Entry, Prepared};

use crate::shape;
use pteron_tensor::ScalarType;

/// The tables of a `.ptd` file (`FlatTensor`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlatTensor {
    /// Version of the schema: 0 so far.
    pub version: u32,
    /// Raw bytes stored after the flatbuffer.
    pub segments: Vec<DataSegment>,
    /// The named entries, in the file's order.
    pub named_data: Vec<NamedData>,
}

/// A name for the bytes of a segment (`NamedData`). Several names may share a segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NamedData {
    /// The name.
    pub key: String,
    /// Index into [`FlatTensor::segments`].
    pub segment_index: u32,
    /// Offset of the entry in its segment: 0 except in files of release 0.6.
    pub segment_offset: u64,
    /// Type and shape, if the entry is a tensor and not an opaque blob.
    pub tensor_layout: Option<TensorLayout>,
}

/// A tensor's type and shape (`TensorLayout`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TensorLayout {
    /// The element type, as its number in ExecuTorch's `ScalarType`.
    pub scalar_type: i8,
    /// Sizes, outermost dimension first.
    pub sizes: Vec<i32>,
    /// Dimensions from the outermost in memory to the innermost.
    pub dim_order: Vec<u8>,
}

impl TensorLayout {
    /// The element type; `None` if its number is unknown.
    pub fn dtype(&self) -> Option<ScalarType> {
        ScalarType::from_i8(self.scalar_type).ok()
    }

    /// Number of elements; `None` if a size is negative or the product overflows.
    pub fn numel(&self) -> Option<u64> {
        shape::numel(&self.sizes)
    }

    /// Number of bytes; `None` if it overflows, a size is negative or the element type is unknown.
    pub fn nbytes(&self) -> Option<u64> {
        shape::nbytes(self.scalar_type, &self.sizes)
    }
}

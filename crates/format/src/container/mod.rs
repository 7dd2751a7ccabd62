//! What the file formats have in common around their flatbuffer: a header inserted after its first eight bytes, and
//! segments of raw bytes after it.

mod alignment;
mod assemble;
mod blob;
mod head;
mod revise;
mod segments;
mod tables;

pub(crate) use alignment::infer_alignments;
pub(crate) use assemble::{Layout, insert_header_space};
pub use assemble::{Place, Prepared, Segment};
pub use blob::{Blob, Digest};
pub(crate) use blob::{Sharing, cache_blobs, pack, too_long_error};
pub use head::{HEAD_BYTES, align_up};
pub(crate) use head::{HEADER_AT, Head, HeaderField, Magic, write_header};
pub(crate) use revise::{Content, OldSegments, is_unchanged};
pub use segments::DataSegment;
pub(crate) use segments::{
    DATA_SEGMENT, SegmentSpace, check_segments, read_segment, segment_range, write_data_segments,
};
pub(crate) use tables::{add_offsets_to_errors, check_tables};

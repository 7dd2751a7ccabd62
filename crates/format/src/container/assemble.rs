use super::blob::{too_long_error, write_zeros};
use super::{Blob, DataSegment, HEADER_AT, align_up};
use crate::flatbuffer::Finished;
use crate::{Error, ErrorKind, Result};
use std::io::Write;

/// A segment to be written.
#[derive(Debug, Clone, Default)]
pub struct Segment<'d> {
    /// The segment's bytes.
    pub blob: Blob<'d>,
    /// Where the segment starts.
    pub place: Place,
}

/// Where a segment starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At the next multiple of both the file's segment alignment and this alignment.
    Aligned(u64),
    /// At this offset from the segment base, in bytes.
    At(u64),
}

impl Default for Place {
    fn default() -> Self {
        Self::Aligned(1)
    }
}

impl<'d> Segment<'d> {
    /// A segment with the file's segment alignment.
    pub fn new(blob: Blob<'d>) -> Self {
        Self { blob, place: Place::default() }
    }

    /// A segment whose start is also a multiple of `alignment`.
    pub fn aligned(blob: Blob<'d>, alignment: u64) -> Self {
        Self { blob, place: Place::Aligned(alignment) }
    }
}

/// The layout of a file's segments.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Each segment, with its offset from the segment base.
    pub(crate) placed: Vec<DataSegment>,
    /// Bytes of all segments together, padding included.
    pub(crate) data_size: u64,
    /// The alignment in bytes that the segment base needs for every segment to be aligned.
    base_alignment: u64,
}

impl Layout {
    /// Lays out segments one after the other, without padding after the last.
    pub(crate) fn new(segments: &[Segment<'_>], alignment: u64) -> Result<Self> {
        let mut layout = Self { placed: Vec::new(), data_size: 0, base_alignment: alignment };
        for segment in segments {
            let size = segment.blob.len();
            let offset = match segment.place {
                Place::At(offset) => offset,
                // An empty segment is placed at the end of the bytes before it, and so within the file: readers check that of empty
                // segments, too.
                Place::Aligned(_) if size == 0 => layout.data_size,
                Place::Aligned(own) => {
                    layout.base_alignment = lcm(layout.base_alignment, own).ok_or_else(too_long_error)?;
                    let both = lcm(alignment, own).ok_or_else(too_long_error)?;
                    align_up(layout.data_size, both).ok_or_else(too_long_error)?
                }
            };
            // An empty segment takes no space, wherever it is.
            if size > 0 {
                let end = offset.checked_add(size).ok_or_else(too_long_error)?;
                layout.data_size = layout.data_size.max(end);
            }
            layout.placed.push(DataSegment { offset, size });
        }
        Ok(layout)
    }

    /// The segment base after `tables_size` bytes of tables, and the length of the file.
    pub(crate) fn base_and_file_len(&self, tables_size: u64) -> Result<(u64, u64)> {
        // Where no segment has bytes, the file ends with the tables.
        let alignment = if self.data_size == 0 && !self.placed.is_empty() { 1 } else { self.base_alignment };
        let base = align_up(tables_size, alignment).ok_or_else(too_long_error)?;
        Ok((base, base.checked_add(self.data_size).ok_or_else(too_long_error)?))
    }
}

/// Least common multiple; `None` if it overflows or a number is zero.
fn lcm(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).checked_mul(b).filter(|&lcm| lcm != 0)
}

/// Inserts `len` zero bytes for a header, rounded up to the alignment of the tables (at least 16), at [`HEADER_AT`] of
/// a flatbuffer, and adjusts the root offset. Returns the number of bytes inserted.
pub(crate) fn insert_header_space(tables: &mut Finished, len: usize) -> usize {
    let len = len.next_multiple_of(tables.alignment.max(16));
    let mut root = [0; 4];
    root.copy_from_slice(&tables.bytes[..4]);
    let root = u32::from_le_bytes(root) + len as u32;
    tables.bytes[..4].copy_from_slice(&root.to_le_bytes());
    tables.bytes.splice(HEADER_AT..HEADER_AT, std::iter::repeat_n(0, len));
    len
}

/// A file whose tables are built and verified, ready to be written. `H` is its header.
#[derive(Debug)]
pub struct Prepared<'d, H> {
    pub(crate) tables: Vec<u8>,
    pub(crate) header: H,
    pub(crate) base: u64,
    pub(crate) segments: Vec<Segment<'d>>,
    pub(crate) placed: Vec<DataSegment>,
}

impl<'d, H> Prepared<'d, H> {
    /// The blobs of the file and their offsets, in ascending order. Gaps between them are zeros.
    pub fn parts(&self) -> Vec<(u64, Blob<'d>)> {
        let mut parts = Vec::new();
        for (segment, placed) in self.segments.iter().zip(&self.placed).filter(|(_, placed)| placed.size > 0)
        {
            let start = self.base.saturating_add(placed.offset);
            segment.blob.for_each_part(start, &mut |at, blob| parts.push((at, blob.clone())));
        }
        parts.retain(|(_, blob)| !blob.is_empty());
        parts.sort_by_key(|(at, _)| *at);
        parts.dedup_by_key(|(at, _)| *at);
        parts.insert(0, (0, Blob::bytes(self.tables.clone())));
        parts
    }

    /// The header of the file.
    pub fn header(&self) -> &H {
        &self.header
    }

    /// Writes the file from front to back: the tables, then each segment after zero padding.
    ///
    /// Segments with identical ranges are written once, and must have identical bytes.
    pub fn write_to(&self, out: &mut dyn Write) -> Result<()> {
        out.write_all(&self.tables)?;
        let (segments, placed) = (&self.segments, &self.placed);
        let mut order: Vec<usize> = (0..segments.len()).filter(|&i| placed[i].size > 0).collect();
        order.sort_by_key(|&i| (placed[i].offset, i));
        for pair in order.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            if placed[first] == placed[second]
                && segments[first].blob.digest()? != segments[second].blob.digest()?
            {
                let path = format!("segments[{second}]");
                let expected = format!("the bytes of segments[{first}], whose place it has");
                return Err(Error::new(ErrorKind::Invalid, path, expected, "other bytes"));
            }
        }
        order.dedup_by_key(|i| placed[*i]);
        let mut at = self.tables.len() as u64;
        for index in order {
            let start = self.base.checked_add(placed[index].offset).ok_or_else(too_long_error)?;
            let Some(gap) = start.checked_sub(at) else {
                let path = format!("segments[{index}]");
                let expected = format!("a start at byte {at} or later");
                return Err(Error::new(ErrorKind::Invalid, path, expected, start));
            };
            write_zeros(out, gap)?;
            segments[index].blob.copy_to(out).map_err(|error| error.within(&format!("segments[{index}]")))?;
            at = start + placed[index].size;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(len: usize, place: Place) -> Segment<'static> {
        Segment { blob: Blob::bytes(vec![7; len]), place }
    }

    #[test]
    fn segments_start_aligned_and_are_not_padded_at_the_end() {
        let segments =
            [segment(0, Place::default()), segment(5, Place::default()), segment(3, Place::Aligned(96))];
        let layout = Layout::new(&segments, 128).unwrap();
        let places: Vec<_> = layout.placed.iter().map(|s| (s.offset, s.size)).collect();
        assert_eq!((places, layout.data_size), (vec![(0, 0), (0, 5), (384, 3)], 387));
        let (base, end) = layout.base_and_file_len(100).unwrap();
        assert_eq!((base, end), (384, 384 + 387));
        let prepared = Prepared {
            tables: vec![1; 100],
            header: (),
            base,
            segments: segments.to_vec(),
            placed: layout.placed,
        };
        let mut out = Vec::new();
        prepared.write_to(&mut out).unwrap();
        assert_eq!(out.len() as u64, end);
        assert_eq!((&out[..100], &out[384..389], &out[768..]), (&[1; 100][..], &[7; 5][..], &[7; 3][..]));
        let parts: Vec<_> = prepared.parts().into_iter().map(|(at, blob)| (at, blob.len())).collect();
        assert_eq!(parts, [(0, 100), (384, 5), (768, 3)]);
    }

    #[test]
    fn invalid_alignments_are_rejected() {
        assert!(Layout::new(&[segment(1, Place::default())], 0).is_err());
        assert!(Layout::new(&[segment(1, Place::Aligned(0))], 128).is_err());
        assert!(Layout::new(&[segment(1, Place::Aligned(u64::MAX))], 128).is_err());
        assert!(Layout::new(&[segment(1, Place::At(u64::MAX))], 128).is_err());
    }
}

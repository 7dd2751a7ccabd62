use super::{BackendDelegateDataReference, DataLocation, Header, Program, SubsegmentOffsets};
use crate::container::segment_range;
use std::ops::Range;

/// Why a byte range is invalid: what was expected, and what was found.
pub(crate) type Misplaced = (String, String);

impl Program {
    /// Whether constants are stored inline, as in old files, and not in a segment.
    pub fn has_inline_constants(&self) -> bool {
        self.constant_segment.as_ref().is_none_or(|segment| segment.offsets.is_empty())
    }

    /// Number of constants, including the reserved entry 0.
    pub fn constant_count(&self) -> usize {
        match &self.constant_segment {
            Some(segment) if !segment.offsets.is_empty() => segment.offsets.len(),
            _ => self.constant_buffer.len(),
        }
    }

    /// The byte range of a segment in the file; `None` if there is no such segment, or the range overflows.
    pub(crate) fn segment_range(&self, header: &Header, index: u32) -> Option<Range<u64>> {
        segment_range(self.segments.get(index as usize)?, header.segment_base_offset)
    }

    /// The byte range in the file of constant `index`, which takes `nbytes`.
    pub(crate) fn constant_range(
        &self,
        header: &Header,
        index: u32,
        nbytes: u64,
    ) -> Result<Range<u64>, Misplaced> {
        match &self.constant_segment {
            Some(segment) if !segment.offsets.is_empty() => self.subrange(header, segment, index, nbytes),
            _ => {
                let storage = self.constant_buffer.get(index as usize).map(|buffer| &buffer.storage);
                let storage =
                    storage.ok_or_else(|| no_entry(index, self.constant_buffer.len(), "inline constants"))?;
                let stored = storage.end - storage.start;
                if nbytes > stored {
                    let expected = format!("an inline constant of at least {nbytes} bytes");
                    return Err((expected, format!("constant_buffer[{index}] of {stored}")));
                }
                Ok(storage.start..storage.start + nbytes)
            }
        }
    }

    /// The byte range in the file of entry `index` of mutable data segment `which`, which takes `nbytes`.
    pub(crate) fn initial_data_range(
        &self,
        header: &Header,
        which: u64,
        index: u32,
        nbytes: u64,
    ) -> Result<Range<u64>, Misplaced> {
        let count = self.mutable_data_segments.len();
        let segment = usize::try_from(which).ok().and_then(|which| self.mutable_data_segments.get(which));
        let segment = segment.ok_or_else(|| {
            let expected = format!("initial data in one of the {count} mutable data segments");
            (expected, format!("mutable data segment {which}"))
        })?;
        self.subrange(header, segment, index, nbytes)
    }

    fn subrange(
        &self,
        header: &Header,
        segment: &SubsegmentOffsets,
        index: u32,
        nbytes: u64,
    ) -> Result<Range<u64>, Misplaced> {
        let offset = segment.offsets.get(index as usize).copied();
        let offset =
            offset.ok_or_else(|| no_entry(index, segment.offsets.len(), "entries of its segment"))?;
        let segment_bytes = self.segment_range(header, segment.segment_index);
        let segment_bytes =
            segment_bytes.ok_or_else(|| no_entry(segment.segment_index, self.segments.len(), "segments"))?;
        let size = segment_bytes.end - segment_bytes.start;
        if nbytes == 0 && offset <= size {
            return Ok(0..0);
        }
        match offset.checked_add(nbytes) {
            Some(end) if end <= size => Ok(segment_bytes.start + offset..segment_bytes.start + end),
            _ => Err((
                format!("room for {nbytes} bytes in the {size} of segments[{}]", segment.segment_index),
                format!("entry {index}, which starts at its byte {offset}"),
            )),
        }
    }

    /// The byte range in the file of a delegate's payload.
    pub(crate) fn delegate_range(
        &self,
        header: &Header,
        processed: &BackendDelegateDataReference,
    ) -> Option<Range<u64>> {
        match processed.location {
            DataLocation::Inline => {
                self.backend_delegate_data.get(processed.index as usize).map(|inline| inline.data.clone())
            }
            DataLocation::Segment => self.segment_range(header, processed.index),
        }
    }
}

fn no_entry(index: u32, len: usize, what: &str) -> Misplaced {
    (format!("an index into the {len} {what}"), index.to_string())
}

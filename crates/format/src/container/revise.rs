use super::alignment::infer_alignments;
use super::blob::{is_zero, too_long_error};
use super::{Blob, DataSegment, Place, Segment};
use crate::Result;
use std::ops::Range;

/// A segment of a file after an edit.
#[derive(Debug, Clone)]
pub(crate) enum Content<'d> {
    /// The old segment with this index.
    Old(usize),
    /// Dropped: an empty segment remains, so that the others keep their indices.
    Gone,
    /// New bytes, which replace the old segment `replaces` or are a new segment. The segment is aligned to `alignment` bytes as well as to
    /// the file's segment alignment.
    New { blob: Blob<'d>, alignment: u64, replaces: Option<usize> },
}

impl<'d> Content<'d> {
    /// Contents that keep every segment of a file.
    pub(crate) fn keep_all(segments: &[DataSegment]) -> Vec<Self> {
        (0..segments.len()).map(Content::Old).collect()
    }

    /// A new segment, which replaces no old one.
    pub(crate) fn new_segment(blob: Blob<'d>, alignment: u64) -> Self {
        Content::New { blob, alignment: alignment.max(1), replaces: None }
    }

    /// The index of the old segment that the content keeps or replaces.
    fn old_index(&self) -> Option<usize> {
        match *self {
            Content::Old(index) => Some(index),
            Content::New { replaces, .. } => replaces,
            Content::Gone => None,
        }
    }
}

/// Whether the contents are exactly the `old` segments of the old file, each with the index that it had.
pub(crate) fn is_unchanged(contents: &[Content<'_>], old: usize) -> bool {
    let same =
        |(index, content): (usize, &Content<'_>)| matches!(content, Content::Old(old) if *old == index);
    contents.len() == old && contents.iter().enumerate().all(same)
}

/// The segments of the file before the edit, and the bytes that follow them.
pub(crate) struct OldSegments<'s> {
    pub(crate) segments: &'s [DataSegment],
    /// The segment base, a byte offset in the file; 0 if there are no segments.
    pub(crate) base: u64,
    /// Number of bytes of segment data, if the header states it.
    pub(crate) data_size: Option<u64>,
    /// The byte offset at which the tables end.
    pub(crate) tables_end: u64,
    pub(crate) file_len: u64,
    /// The default segment alignment of the format's writers, in bytes.
    pub(crate) default_alignment: u64,
}

/// The layout of an edited file's segments.
pub(crate) struct Revised<'d> {
    /// Offset and size of each segment, by index.
    pub(crate) placed: Vec<DataSegment>,
    /// All data after the tables: the segments, and the bytes that followed the last one.
    pub(crate) pieces: Vec<(DataSegment, Segment<'d>)>,
    /// Bytes of all segments together, for the header.
    pub(crate) data_size: u64,
    /// The new segment base is congruent to this offset modulo `modulus`.
    base: u64,
    modulus: u64,
    /// Whether any bytes follow the tables.
    pub(crate) has_data: bool,
    /// The byte ranges, in the old file, of gaps between segments that are not kept.
    gaps: Vec<Range<u64>>,
}

impl OldSegments<'_> {
    /// The byte range in the file of segment `index`; `None` if it is empty or does not exist.
    pub(crate) fn range(&self, index: usize) -> Option<Range<u64>> {
        let segment = self.segments.get(index).filter(|segment| segment.size > 0)?;
        super::segment_range(segment, self.base)
    }

    /// The indices of segments that are not empty, in the order of the file.
    fn file_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.segments.len()).filter(|&i| self.range(i).is_some()).collect();
        order.sort_by_key(|&i| (self.segments[i].offset, self.segments[i].size, i));
        order
    }

    /// The byte offset at which the last segment ends, or the tables if there are no segments.
    pub(crate) fn data_end(&self) -> u64 {
        let ends = (0..self.segments.len()).filter_map(|i| self.range(i)).map(|range| range.end);
        ends.max().unwrap_or(0).max(self.tables_end)
    }

    /// The alignment that the base and all segments have in common, and that of each segment by index, in bytes.
    pub(crate) fn alignments(&self) -> (u64, Vec<u64>) {
        let order = self.file_order();
        let mut places = Vec::new();
        if self.base > 0 && self.base >= self.tables_end {
            places.push((self.base - self.tables_end, self.base));
        }
        let first = places.len();
        let mut end = self.base;
        for &index in &order {
            let Some(range) = self.range(index) else { continue };
            places.push((range.start.saturating_sub(end), range.start));
            end = range.end.max(end);
        }
        let inferred = infer_alignments(&places, self.default_alignment);
        let mut each = vec![inferred.common; self.segments.len()];
        let base = inferred.each.first().copied().filter(|_| first == 1).unwrap_or(inferred.common);
        for (&index, &alignment) in order.iter().zip(&inferred.each[first..]) {
            // A segment that starts at the segment base may need all of the base's alignment.
            each[index] = if self.segments[index].offset == 0 { alignment.max(base) } else { alignment };
        }
        (inferred.common, each)
    }

    /// The byte ranges that neither the tables nor a segment occupies, up to the end of the last segment.
    fn gaps(&self) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut end = self.tables_end;
        for range in self.file_order().into_iter().filter_map(|index| self.range(index)) {
            if range.start > end {
                gaps.push(end..range.start);
            }
            end = end.max(range.end);
        }
        gaps
    }

    /// Lays out the segments after an edit. `contents` has one entry for each segment, old or new.
    ///
    /// Segments keep their order and their alignments. If none of them changed, everything behind the base is copied as
    /// it is; otherwise what was between segments is left out, and what was behind the last one is put behind the new
    /// last one.
    pub(crate) fn revise<'d>(
        &self,
        contents: &[Content<'d>],
        source: &dyn Fn(Range<u64>) -> Blob<'d>,
    ) -> Result<Revised<'d>> {
        let (common, each) = self.alignments();
        let modulus = each.iter().copied().max().unwrap_or(common).max(common);
        let mut revised = Revised {
            placed: self.segments.to_vec(),
            pieces: Vec::new(),
            data_size: self.data_size.unwrap_or_else(|| self.data_end().saturating_sub(self.base)),
            base: self.base,
            modulus,
            has_data: self.base > 0,
            gaps: Vec::new(),
        };
        let has_room = self.tables_end <= self.base && self.base <= self.file_len;
        match is_unchanged(contents, self.segments.len()) {
            true if has_room => {
                revised.gaps.push(self.tables_end..self.base);
                revised.push(0, source(self.base..self.file_len));
            }
            true => {
                revised.has_data = false;
                revised.push(0, source(self.tables_end..self.file_len));
            }
            false => self.lay_out(contents, (common, &each), source, &mut revised)?,
        }
        Ok(revised)
    }

    fn lay_out<'d>(
        &self,
        contents: &[Content<'d>],
        (common, each): (u64, &[u64]),
        source: &dyn Fn(Range<u64>) -> Blob<'d>,
        revised: &mut Revised<'d>,
    ) -> Result<()> {
        revised.placed = vec![DataSegment::default(); contents.len()];
        let position = |index: &usize| {
            let old = contents[*index].old_index().filter(|&old| self.range(old).is_some());
            old.map_or((u64::MAX, u64::MAX), |old| (self.segments[old].offset, self.segments[old].size))
        };
        let mut order: Vec<usize> = (0..contents.len()).collect();
        order.sort_by_key(|index| (position(index), *index));
        let mut end = 0u64;
        let mut last: Option<(Range<u64>, u64)> = None;
        for index in order {
            let alignment =
                contents[index].old_index().and_then(|old| each.get(old).copied()).unwrap_or(common);
            let (blob, alignment) = match &contents[index] {
                Content::Gone => continue,
                Content::New { blob, alignment: own, .. } => (blob.clone(), alignment.max(*own)),
                Content::Old(old) => {
                    let Some(range) = self.range(*old) else { continue };
                    // Several segments may be the same byte range, which is written once.
                    if let Some((_, offset)) = last.as_ref().filter(|(known, _)| *known == range) {
                        revised.placed[index] =
                            DataSegment { offset: *offset, size: range.end - range.start };
                        continue;
                    }
                    (source(range), alignment)
                }
            };
            let size = blob.len();
            if size == 0 {
                continue;
            }
            let offset = super::align_up(end, alignment).ok_or_else(too_long_error)?;
            revised.modulus = revised.modulus.max(alignment);
            revised.placed[index] = DataSegment { offset, size };
            if let Content::Old(old) = contents[index] {
                last = self.range(old).map(|range| (range, offset));
            }
            end = offset.checked_add(size).ok_or_else(too_long_error)?;
            revised.push(offset, blob);
        }
        revised.gaps = self.gaps();
        revised.base = 0;
        let data_end = self.data_size.map_or(0, |size| self.base.saturating_add(size));
        let was_behind = data_end.saturating_sub(self.data_end());
        let tail = self.data_end().min(self.file_len)..self.file_len;
        revised.has_data = end > 0;
        revised.data_size = end + if end > 0 { was_behind } else { 0 };
        if !tail.is_empty() {
            revised.push(end, source(tail));
        }
        Ok(())
    }
}

impl<'d> Revised<'d> {
    fn push(&mut self, offset: u64, blob: Blob<'d>) {
        let placed = DataSegment { offset, size: blob.len() };
        self.pieces.push((placed, Segment { blob, place: Place::At(offset) }));
    }

    /// A phrase for each gap between segments that has nonzero bytes, which the edit loses.
    pub(crate) fn lost_gap_phrases(&self, source: &dyn Fn(Range<u64>) -> Blob<'d>) -> Result<Vec<String>> {
        let mut lost = Vec::new();
        for gap in self.gaps.iter().filter(|gap| !gap.is_empty()) {
            if !is_zero(&source(gap.clone()))? {
                lost.push(format!("bytes {}..{} of the file, between segments", gap.start, gap.end));
            }
        }
        Ok(lost)
    }

    /// The segment base after `tables_size` bytes of tables, and the length of the file. Without segment data (`has_data`), the base is the
    /// end of the tables, and any bytes that follow start there.
    pub(crate) fn base_and_file_len(&self, tables_size: u64) -> Result<(u64, u64)> {
        let phase = self.base % self.modulus;
        let least = tables_size.saturating_sub(phase);
        let aligned = || super::align_up(least, self.modulus)?.checked_add(phase);
        let base = if self.has_data { aligned().ok_or_else(too_long_error)? } else { tables_size };
        let end = self.pieces.iter().map(|(placed, _)| placed.offset.saturating_add(placed.size)).max();
        Ok((base, base.checked_add(end.unwrap_or(0)).ok_or_else(too_long_error)?))
    }
}

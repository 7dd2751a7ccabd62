//! Edits of named data that keep what they do not change.

use super::header::HEADER_MAGIC;
use super::layouts::{FLAT_TENSOR, FLAT_TENSOR_0_6};
use super::read::{is_of_release_0_6, read_flat_tensor_with};
use super::write::flatbuffer;
use super::{
    DEFAULT_SEGMENT_ALIGNMENT, FlatTensor, HEADER_LENGTH, Header, NamedData, Prepared, TensorLayout,
    VerifiedFlatTensor,
};
use crate::container::{
    Blob, Content, DataSegment, HEADER_AT, OldSegments, Segment, insert_header_space, write_header,
};
use crate::flatbuffer::{Finished, Survey, merge};
use crate::{Limits, Result};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Named data that is being edited.
///
/// [`finish`](Self::finish) writes what was edited and copies the rest: segments keep their alignments and indices, and
/// so do a longer header, segments that nothing refers to, fields of newer schemas, and what is behind the end. Files
/// of release 0.6 that are changed are written in the current edition.
pub struct Revision<'d> {
    tables: FlatTensor,
    old: VerifiedFlatTensor,
    /// The bytes of the old tables.
    bytes: Vec<u8>,
    source: Box<dyn Fn(Range<u64>) -> Blob<'d> + 'd>,
    contents: Vec<Content<'d>>,
    /// The segment index of each blob that was added, by the blob's identity.
    added: HashMap<usize, u32>,
    is_changed: bool,
}

/// Named data after an edit.
#[derive(Debug)]
pub struct Revised<'d> {
    /// The file, ready to be written.
    pub prepared: Prepared<'d>,
    /// What the edit could not keep, as phrases such as `unknown field 4 of named_data[0]`.
    pub lost: Vec<String>,
    /// Whether the file is the old one, byte for byte.
    pub is_unchanged: bool,
}

/// What writing named data again from its decoded tables would lose, as phrases such as
/// `unknown field 4 of named_data[0]`. `bytes` are the bytes of its tables.
pub fn undeclared_parts(file: &VerifiedFlatTensor, bytes: &[u8]) -> Vec<String> {
    let header = file.header();
    let mut lost = survey(bytes, header).phrases();
    if header.length > HEADER_LENGTH {
        lost.push(format!("{} bytes of a longer header", header.length - HEADER_LENGTH));
    }
    let used = used_segments(&file.named_data);
    let unused = file
        .segments
        .iter()
        .enumerate()
        .filter(|(i, segment)| segment.size > 0 && !used.contains(&(*i as u32)));
    lost.extend(unused.map(|(i, s)| format!("segments[{i}] of {} bytes, to which nothing refers", s.size)));
    let behind = header.file_len.saturating_sub(old_segments(file).data_end());
    if behind > 0 {
        lost.push(format!("{behind} bytes behind the end of the data"));
    }
    lost
}

fn survey(bytes: &[u8], header: &Header) -> Survey {
    let layout = if is_of_release_0_6(bytes) { &FLAT_TENSOR_0_6 } else { &FLAT_TENSOR };
    Survey::new(bytes, layout, header_range(header))
}

fn header_range(header: &Header) -> Range<usize> {
    HEADER_AT..HEADER_AT + (header.flatbuffer_offset.min(header.tables_size.saturating_sub(8)) as usize)
}

fn used_segments(entries: &[NamedData]) -> HashSet<u32> {
    entries.iter().map(|entry| entry.segment_index).collect()
}

fn old_segments(file: &VerifiedFlatTensor) -> OldSegments<'_> {
    let header = file.header();
    OldSegments {
        segments: &file.segments,
        base: header.segment_base_offset,
        data_size: Some(header.segment_data_size),
        tables_end: header.tables_size,
        file_len: header.file_len,
        default_alignment: DEFAULT_SEGMENT_ALIGNMENT,
    }
}

impl VerifiedFlatTensor {
    /// The alignment of each segment, by index, inferred from the segments' offsets.
    pub fn segment_alignments(&self) -> Vec<u64> {
        old_segments(self).alignments().1
    }
}

impl<'d> Revision<'d> {
    /// Starts an edit. `bytes` are the bytes of the file's tables; `source` returns the bytes of a range of the file.
    pub fn new(
        file: &VerifiedFlatTensor,
        bytes: Vec<u8>,
        source: impl Fn(Range<u64>) -> Blob<'d> + 'd,
    ) -> Self {
        Self {
            tables: file.tables().clone(),
            contents: Content::keep_all(&file.segments),
            old: file.clone(),
            bytes,
            source: Box::new(source),
            added: HashMap::new(),
            is_changed: false,
        }
    }

    /// The entries, as edited so far.
    pub fn entries(&self) -> &[NamedData] {
        &self.tables.named_data
    }

    /// The bytes of an entry of the old file.
    pub fn blob(&self, entry: &NamedData) -> Blob<'d> {
        (self.source)(self.old.data_range(entry))
    }

    /// Replaces the bytes of the entry `index`. Other entries that shared the old bytes keep them.
    pub fn set(&mut self, index: usize, blob: Blob<'d>) {
        let alignments = self.old.segment_alignments();
        let alignment =
            alignments.get(self.tables.named_data[index].segment_index as usize).copied().unwrap_or(1);
        let segment_index = self.add_segment(blob, alignment);
        let entry = &mut self.tables.named_data[index];
        (entry.segment_index, entry.segment_offset) = (segment_index, 0);
    }

    /// Gives the entry `index` another key.
    pub fn rename(&mut self, index: usize, key: String) {
        self.is_changed |= self.tables.named_data[index].key != key;
        self.tables.named_data[index].key = key;
    }

    /// Removes the entries for which `keep` is false.
    pub fn retain(&mut self, keep: impl FnMut(&NamedData) -> bool) {
        let before = self.tables.named_data.len();
        self.tables.named_data.retain(keep);
        self.is_changed |= self.tables.named_data.len() != before;
    }

    /// Adds an entry. Clones of one blob share a segment.
    pub fn add(&mut self, key: String, layout: Option<TensorLayout>, blob: &Blob<'d>, alignment: u64) {
        let known = self.added.get(&blob.identity()).copied();
        let segment_index = known.unwrap_or_else(|| self.add_segment(blob.clone(), alignment));
        self.added.insert(blob.identity(), segment_index);
        self.tables.named_data.push(NamedData {
            key,
            segment_index,
            segment_offset: 0,
            tensor_layout: layout,
        });
        self.is_changed = true;
    }

    /// Adds a segment, to which no entry refers yet, and returns its index.
    pub fn add_segment(&mut self, blob: Blob<'d>, alignment: u64) -> u32 {
        self.is_changed = true;
        self.contents.push(Content::new_segment(blob, alignment));
        (self.contents.len() - 1) as u32
    }

    /// Makes entries whose segments have equal bytes and alignments share one. Segments whose size occurs several times
    /// are read.
    pub fn share_equal_bytes(&mut self) -> Result<()> {
        let alignments = self.old.segment_alignments();
        let used = used_segments(&self.tables.named_data);
        let mut by_size: HashMap<(u64, u64), Vec<(u32, Blob<'d>)>> = HashMap::new();
        for index in 0..self.contents.len() {
            if !used.contains(&(index as u32)) {
                continue;
            }
            let (blob, alignment) = match &self.contents[index] {
                Content::New { blob, alignment, .. } => (blob.clone(), *alignment),
                _ => {
                    let range = old_segments(&self.old).range(index);
                    ((self.source)(range.unwrap_or_default()), alignments.get(index).copied().unwrap_or(1))
                }
            };
            by_size.entry((blob.len(), alignment)).or_default().push((index as u32, blob));
        }
        let mut same: HashMap<u32, u32> = HashMap::new();
        for group in by_size.into_values().filter(|group| group.len() > 1) {
            let mut first = HashMap::new();
            for (index, blob) in group {
                let original = *first.entry(blob.digest()?).or_insert(index);
                if original != index && !self.is_same_old_segment(original, index) {
                    same.insert(index, original);
                }
            }
        }
        for entry in &mut self.tables.named_data {
            if let Some(&original) = same.get(&entry.segment_index) {
                entry.segment_index = original;
                self.is_changed = true;
            }
        }
        Ok(())
    }

    /// Whether both segments are the same byte range of the old file, so that sharing saves nothing.
    fn is_same_old_segment(&self, one: u32, other: u32) -> bool {
        let is_old = |index: u32| matches!(self.contents[index as usize], Content::Old(_));
        is_old(one)
            && is_old(other)
            && self.old.segments.get(one as usize) == self.old.segments.get(other as usize)
    }

    /// Lays out and verifies the edited file.
    pub fn finish(mut self, limits: &Limits) -> Result<Revised<'d>> {
        if !self.is_changed {
            return Ok(self.into_unchanged());
        }
        let survey = survey(&self.bytes, self.old.header());
        let before = used_segments(&self.old.named_data);
        let is_old_edition = is_of_release_0_6(&self.bytes);
        if is_old_edition {
            self.split_shared_segments();
        }
        let after = used_segments(&self.tables.named_data);
        for &index in before.difference(&after) {
            self.contents[index as usize] = Content::Gone;
        }
        if survey.is_complete() && (0..self.old.segments.len() as u32).all(|index| before.contains(&index)) {
            self.renumber(&after);
        }
        let revised = old_segments(&self.old).revise(&self.contents, &*self.source)?;
        self.tables.segments = revised.placed.clone();
        let intended = flatbuffer(&self.tables)?;
        let (mut tables, mut lost, offset) = self.new_tables(intended, &survey, is_old_edition);
        lost.extend(revised.lost_gap_phrases(&*self.source)?);
        let size = tables.bytes.len() as u64;
        let (base, file_len) = revised.base_and_file_len(size)?;
        let data_size = if revised.has_data { revised.data_size } else { 0 };
        let fields = [offset, size - offset, base, data_size];
        write_header(&mut tables.bytes, HEADER_MAGIC.identifier, self.old.header().length, &fields)?;
        let header = Header::parse(&tables.bytes, file_len)?;
        VerifiedFlatTensor::read(&tables.bytes, &header, limits)?;
        let (placed, segments) = revised.pieces.into_iter().unzip();
        let prepared = Prepared { tables: tables.bytes, header, base, segments, placed };
        Ok(Revised { prepared, lost, is_unchanged: false })
    }

    /// Returns the old file, unchanged, as the result of the edit.
    fn into_unchanged(self) -> Revised<'d> {
        let header = self.old.header().clone();
        let base = self.bytes.len() as u64;
        let rest = (self.source)(base..header.file_len.max(base));
        let placed = vec![DataSegment { offset: 0, size: rest.len() }];
        let prepared =
            Prepared { tables: self.bytes, header, base, segments: vec![Segment::new(rest)], placed };
        Revised { prepared, lost: Vec::new(), is_unchanged: true }
    }

    /// Moves every entry that is a part of a segment to its own segment, as the current schema requires.
    fn split_shared_segments(&mut self) {
        let mut known: HashMap<Range<u64>, u32> = HashMap::new();
        for index in 0..self.tables.named_data.len() {
            let entry = self.tables.named_data[index].clone();
            let segment = old_segments(&self.old).range(entry.segment_index as usize);
            let is_old = (entry.segment_index as usize) < self.old.segments.len();
            let range = if is_old { self.old.data_range(&entry) } else { continue };
            if segment == Some(range.clone()) || range.is_empty() {
                continue;
            }
            let alignment = 1 << range.start.trailing_zeros().min(7);
            let known_index = known.get(&range).copied();
            let segment_index =
                known_index.unwrap_or_else(|| self.add_segment((self.source)(range.clone()), alignment));
            known.insert(range, segment_index);
            let entry = &mut self.tables.named_data[index];
            (entry.segment_index, entry.segment_offset) = (segment_index, 0);
        }
    }

    /// Removes the segments that were dropped, and renumbers the others.
    fn renumber(&mut self, used: &HashSet<u32>) {
        let (mut numbers, mut remaining) = (Vec::new(), Vec::new());
        for (index, content) in std::mem::take(&mut self.contents).into_iter().enumerate() {
            numbers.push(remaining.len() as u32);
            if used.contains(&(index as u32)) || !matches!(content, Content::Gone) {
                remaining.push(content);
            }
        }
        self.contents = remaining;
        for entry in &mut self.tables.named_data {
            entry.segment_index = numbers[entry.segment_index as usize];
        }
    }

    /// The tables of the new file, with room for the header; what was lost; and the flatbuffer's offset.
    fn new_tables(
        &self,
        intended: Finished,
        survey: &Survey,
        is_old_edition: bool,
    ) -> (Finished, Vec<String>, u64) {
        let header = self.old.header();
        if !survey.is_complete() && !is_old_edition {
            let merged = merge(&self.bytes, &intended, &FLAT_TENSOR, ("", &[]), header_range(header));
            let says = |bytes: &[u8]| {
                let decoded = read_flat_tensor_with(bytes, &Limits::DEFAULT);
                decoded.is_ok_and(|decoded| decoded == self.tables)
            };
            if let Some(merged) = merged.filter(|merged| says(&merged.bytes)) {
                let tables = Finished { bytes: merged.bytes, alignment: intended.alignment };
                return (tables, merged.lost, header.flatbuffer_offset);
            }
        }
        let mut tables = intended;
        let offset = insert_header_space(&mut tables, header.length as usize) as u64;
        let more = HEADER_AT + HEADER_LENGTH as usize..HEADER_AT + header.length as usize;
        if let Some(bytes) = self.bytes.get(more.clone()) {
            tables.bytes[more].copy_from_slice(bytes);
        }
        let lost = if survey.is_complete() { Vec::new() } else { survey.phrases() };
        (tables, lost, offset)
    }
}

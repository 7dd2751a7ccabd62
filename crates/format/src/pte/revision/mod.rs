//! Edits of programs that keep what they do not change.

mod assemble;
mod entries;

use super::layouts::PROGRAM;
use super::write::{DEFAULT_CONSTANT_ALIGNMENT, DEFAULT_SEGMENT_ALIGNMENT, Prepared};
use super::{
    DataLocation, EXTENDED_HEADER_LENGTH, Header, NamedBlob, NamedData, Program, Tensor, VerifiedProgram,
};
use crate::container::{Blob, Content, HEADER_AT, OldSegments};
use crate::flatbuffer::Survey;
use crate::{Limits, Result};
use entries::{Entries, part_alignment, segment_parts, used_entries};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A program that is being edited.
///
/// Values, instructions and names are edited in [`program`](Self::program), whose methods are the valid ones of the
/// file. Bytes are edited through the functions here. [`finish`](Self::finish) writes what was edited and copies the
/// rest: segments keep their alignments, indices stay, and so do a longer header, segments that nothing refers to,
/// methods that are not valid, fields of newer schemas, and what is behind the end of the program.
pub struct Revision<'d> {
    /// The tables, to be edited. They may refer only to bytes that the file already has, and to those that
    /// [`add_constant`](Self::add_constant) and the other `add_` methods added.
    pub program: Program,
    old: VerifiedProgram,
    /// The bytes of the old tables.
    bytes: Vec<u8>,
    source: Box<dyn Fn(Range<u64>) -> Blob<'d> + 'd>,
    /// The added constants. Their indices continue those of the old constants.
    constants: Vec<Blob<'d>>,
    /// The initial data added to mutable data segment 0. Its indices continue those of the old entries.
    initial: Vec<Blob<'d>>,
    /// Named data that was added: key, bytes, and alignment.
    named: Vec<NamedBlob<'d>>,
    /// Whether inline constants stay inline.
    inline: bool,
    /// The alignment of each old segment, in bytes.
    alignments: Vec<u64>,
}

/// A program after an edit.
#[derive(Debug)]
pub struct Revised<'d> {
    /// The file, ready to be written.
    pub prepared: Prepared<'d>,
    /// What the edit could not keep, as phrases such as `unknown field 11 of execution_plan[0]`.
    pub lost: Vec<String>,
    /// Whether the file is the old one, byte for byte.
    pub is_unchanged: bool,
}

/// What writing a program again from its decoded tables would lose, as phrases such as `unknown field 11 of
/// execution_plan[0]`. `bytes` are the bytes of its tables.
pub fn undeclared_parts(program: &VerifiedProgram, bytes: &[u8]) -> Vec<String> {
    let header = program.header();
    let mut lost = Survey::new(bytes, &PROGRAM, header_range(header)).phrases();
    if let Some(more) = extra_header_bytes(header) {
        lost.push(format!("{more} bytes of a longer header"));
    }
    let used = used_segments(program);
    let segments = program.segments.iter().enumerate().filter(|(_, segment)| segment.size > 0);
    lost.extend(segments.filter(|(index, _)| !used.contains(&(*index as u32))).map(|(index, segment)| {
        format!("segments[{index}] of {} bytes, to which nothing refers", segment.size)
    }));
    let old = old_segments(program);
    let behind = header.file_len.saturating_sub(old.data_end());
    if behind > 0 {
        lost.push(format!("{behind} bytes behind the end of the program"));
    }
    lost
}

fn header_range(header: &Header) -> Range<usize> {
    HEADER_AT
        ..HEADER_AT
            + header.extended.map_or(0, |extended| extended.length as usize).min(header.program_size as usize)
}

/// By how many bytes the header exceeds the longest that this crate knows; `None` if it does not.
fn extra_header_bytes(header: &Header) -> Option<u32> {
    header.extended?.length.checked_sub(EXTENDED_HEADER_LENGTH).filter(|&more| more > 0)
}

/// The number of references to each segment, by segment index.
fn reference_counts(program: &Program) -> HashMap<u32, usize> {
    let delegates = program.execution_plan.iter().flat_map(|plan| &plan.delegates).map(|d| d.processed);
    let delegates = delegates.filter(|p| p.location == DataLocation::Segment).map(|p| p.index);
    let entries = program.constant_segment.iter().chain(&program.mutable_data_segments);
    let named = program.named_data.iter().map(|entry| entry.segment_index);
    let mut users = HashMap::new();
    for index in entries.map(|entries| entries.segment_index).chain(named).chain(delegates) {
        *users.entry(index).or_default() += 1;
    }
    users
}

fn used_segments(program: &Program) -> HashSet<u32> {
    reference_counts(program).into_keys().collect()
}

fn old_segments(program: &VerifiedProgram) -> OldSegments<'_> {
    let header = program.header();
    OldSegments {
        segments: &program.segments,
        base: header.segment_base_offset,
        data_size: header.segment_data_size,
        tables_end: header.program_size,
        file_len: header.file_len,
        default_alignment: DEFAULT_SEGMENT_ALIGNMENT,
    }
}

impl VerifiedProgram {
    /// The alignment of the file's segments in bytes, inferred from their offsets.
    pub fn segment_alignment(&self) -> u64 {
        let (common, each) = old_segments(self).alignments();
        // A base may be aligned more strictly than segments behind it.
        let first = self.segments.iter().position(|segment| segment.size > 0 && segment.offset == 0);
        first.map_or(common, |first| each[first])
    }

    /// The alignment of constants in their segment in bytes, inferred from their offsets.
    pub fn constant_alignment(&self) -> u64 {
        let segment = self.constant_segment.as_ref();
        let size = segment.and_then(|s| self.segments.get(s.segment_index as usize)).map_or(0, |s| s.size);
        let offsets = segment.map_or(&[][..], |segment| &segment.offsets);
        let which = |tensor: &Tensor| tensor.constant_idx().map(|index| (0, index));
        let used = used_entries(&self.execution_plan, which).remove(&0).unwrap_or_default();
        part_alignment(&segment_parts(offsets, &used, size), DEFAULT_CONSTANT_ALIGNMENT)
    }

    /// The alignment of inline data in bytes, inferred from its offsets: from 16 to 64.
    pub(super) fn inline_alignment(&self) -> usize {
        let constants = self.constant_buffer.iter().map(|buffer| &buffer.storage);
        let ranges = constants.chain(self.backend_delegate_data.iter().map(|inline| &inline.data));
        let starts = ranges.filter(|range| !range.is_empty()).map(|range| range.start);
        let all = starts.fold(0, |all, start| all | start);
        1usize << all.trailing_zeros().clamp(4, 6)
    }
}

impl<'d> Revision<'d> {
    /// Starts an edit. `bytes` are the bytes of the program's tables; `source` returns the bytes of a range of the
    /// file.
    pub fn new(
        program: &VerifiedProgram,
        bytes: Vec<u8>,
        source: impl Fn(Range<u64>) -> Blob<'d> + 'd,
    ) -> Self {
        Self {
            program: program.program().clone(),
            old: program.clone(),
            bytes,
            source: Box::new(source),
            constants: Vec::new(),
            initial: Vec::new(),
            named: Vec::new(),
            inline: program.has_inline_constants() && !program.constant_buffer.is_empty(),
            alignments: old_segments(program).alignments().1,
        }
    }

    /// Adds the bytes of a constant tensor and returns its `data_buffer_idx`.
    pub fn add_constant(&mut self, blob: Blob<'d>) -> u32 {
        self.constants.push(blob);
        (self.old.constant_count().max(1) + self.constants.len() - 1) as u32
    }

    /// Adds the initial bytes of a planned tensor to mutable data segment 0 and returns its `data_buffer_idx`.
    pub fn add_initial_data(&mut self, blob: Blob<'d>) -> u32 {
        self.initial.push(blob);
        let old = self.old.mutable_data_segments.first().map_or(0, |segment| segment.offsets.len());
        (old.max(1) + self.initial.len() - 1) as u32
    }

    /// Adds named data.
    pub fn add_named_data(&mut self, named: NamedBlob<'d>) {
        self.named.push(named);
    }

    /// Moves inline constants into a segment.
    pub fn move_constants_to_segment(&mut self) {
        self.inline = false;
    }

    /// The alignment of segment `index`, in bytes.
    pub fn alignment_of_segment(&self, index: u32) -> u64 {
        self.alignments.get(index as usize).copied().unwrap_or(1)
    }

    /// Lays out and verifies the edited program.
    pub fn finish(mut self, limits: &Limits) -> Result<Revised<'d>> {
        let survey = Survey::new(&self.bytes, &PROGRAM, header_range(self.old.header()));
        let opaque: Vec<usize> = self.old.invalid_methods().iter().map(|method| method.index).collect();
        let used = used_segments(&self.old);
        let mut contents = Content::keep_all(&self.old.segments);
        let inline = self.edit_data(&mut contents)?;
        self.drop_segments(&used, &mut contents);
        let segments_refer = (0..self.old.segments.len() as u32).all(|index| used.contains(&index));
        let rewrite = survey.is_complete() && opaque.is_empty();
        if rewrite && segments_refer {
            self.renumber(&mut contents);
        }
        let tables = assemble::OldTables { survey: &survey, is_complete: rewrite, opaque: &opaque };
        self.assemble(&contents, &inline, &tables, limits)
    }

    /// Applies what was added, and drops what no tensor uses any more, in the segments of constants and initial data.
    /// Returns the inline constants.
    fn edit_data(&mut self, contents: &mut Vec<Content<'d>>) -> Result<Vec<Blob<'d>>> {
        let users = reference_counts(&self.old);
        let inline = self.edit_constants(&users, contents)?;
        self.edit_initial_data(&users, contents)?;
        let mut known: HashMap<usize, u32> = HashMap::new();
        for NamedBlob { key, blob, alignment } in std::mem::take(&mut self.named) {
            let add = || {
                contents.push(Content::new_segment(blob.clone(), alignment));
                (contents.len() - 1) as u32
            };
            let segment_index = *known.entry(blob.identity()).or_insert_with(add);
            self.program.named_data.push(NamedData { key, segment_index });
        }
        Ok(inline)
    }

    fn edit_constants(
        &mut self,
        users: &HashMap<u32, usize>,
        contents: &mut Vec<Content<'d>>,
    ) -> Result<Vec<Blob<'d>>> {
        let which = |tensor: &Tensor| tensor.constant_idx().map(|index| (0, index));
        let before = used_entries(&self.old.execution_plan, which).remove(&0).unwrap_or_default();
        let after = used_entries(&self.program.execution_plan, which).remove(&0).unwrap_or_default();
        let mut added = std::mem::take(&mut self.constants);
        let mut edit =
            Entries { old: None, before, after, default: DEFAULT_CONSTANT_ALIGNMENT, is_alone: true };
        if !self.old.has_inline_constants() || self.old.constant_buffer.is_empty() {
            let old = self.old.constant_segment.clone();
            edit.old = old.as_ref();
            edit.is_alone = edit.old.is_none_or(|old| users.get(&old.segment_index).is_none_or(|&n| n <= 1));
            let edited = edit.apply(added, &self.old, &*self.source, contents)?;
            self.program.constant_segment = edited.or(self.program.constant_segment.take());
            return Ok(Vec::new());
        }
        let old_blobs = self.old.constant_buffer.iter().enumerate().map(|(index, buffer)| {
            let is_dropped = edit.is_dropped(&(index as u32));
            if is_dropped { Blob::default() } else { (self.source)(buffer.storage.clone()) }
        });
        let mut all: Vec<Blob<'d>> = old_blobs.collect();
        all.append(&mut added);
        if self.inline {
            return Ok(all);
        }
        let moved = all.into_iter().skip(1).collect();
        (edit.before, edit.after) = (HashMap::new(), HashMap::new());
        self.program.constant_segment = edit.apply(moved, &self.old, &*self.source, contents)?;
        Ok(Vec::new())
    }

    fn edit_initial_data(
        &mut self,
        users: &HashMap<u32, usize>,
        contents: &mut Vec<Content<'d>>,
    ) -> Result<()> {
        let which = |tensor: &Tensor| {
            let info = tensor.extra_tensor_info.as_ref();
            let which = info.map_or(0, |info| info.mutable_data_segments_idx);
            tensor.initial_data_idx().map(|index| (which, index))
        };
        let mut before = used_entries(&self.old.execution_plan, which);
        let mut after = used_entries(&self.program.execution_plan, which);
        let mut added = std::mem::take(&mut self.initial);
        let count = self.old.mutable_data_segments.len().max(usize::from(!added.is_empty()));
        for which in 0..count {
            let old = self.old.mutable_data_segments.get(which);
            let is_alone = old.is_none_or(|old| users.get(&old.segment_index).is_none_or(|&n| n <= 1));
            let edit = Entries {
                old,
                before: before.remove(&(which as u64)).unwrap_or_default(),
                after: after.remove(&(which as u64)).unwrap_or_default(),
                default: 1,
                is_alone,
            };
            if let Some(edited) =
                edit.apply(std::mem::take(&mut added), &self.old, &*self.source, contents)?
            {
                match self.program.mutable_data_segments.get_mut(which) {
                    Some(segment) => *segment = edited,
                    None => self.program.mutable_data_segments.push(edited),
                }
            }
        }
        Ok(())
    }

    /// Drops the segments whose last reference the edit has removed.
    fn drop_segments(&self, before: &HashSet<u32>, contents: &mut [Content<'d>]) {
        let after = used_segments(&self.program);
        for &index in before.difference(&after) {
            if let Some(content) = contents.get_mut(index as usize) {
                *content = Content::Gone;
            }
        }
    }

    /// Removes the segments that were dropped, and renumbers the others.
    fn renumber(&mut self, contents: &mut Vec<Content<'d>>) {
        let used = used_segments(&self.program);
        let mut numbers = vec![0u32; contents.len()];
        let mut next = 0;
        for (index, content) in contents.iter().enumerate() {
            numbers[index] = next;
            let is_dropped = matches!(content, Content::Gone) && !used.contains(&(index as u32));
            next += u32::from(!is_dropped);
        }
        if next as usize == contents.len() {
            return;
        }
        let mut index = 0;
        contents.retain(|content| {
            index += 1;
            !matches!(content, Content::Gone) || used.contains(&(index - 1))
        });
        let renumbered = |index: &mut u32| *index = numbers.get(*index as usize).copied().unwrap_or(*index);
        let program = &mut self.program;
        let segments = program.constant_segment.iter_mut().chain(&mut program.mutable_data_segments);
        segments.for_each(|segment| renumbered(&mut segment.segment_index));
        program.named_data.iter_mut().for_each(|entry| renumbered(&mut entry.segment_index));
        for delegate in program.execution_plan.iter_mut().flat_map(|plan| &mut plan.delegates) {
            if delegate.processed.location == DataLocation::Segment {
                renumbered(&mut delegate.processed.index);
            }
        }
    }
}

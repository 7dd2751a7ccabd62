//! Builds the file of an edited program.

use super::{PROGRAM, Revised, Revision, header_range, old_segments};
use crate::container::{self, Blob, Content, HEADER_AT, Segment, insert_header_space, write_header};
use crate::flatbuffer::{Finished, Survey, merge};
use crate::pte::header::EXTENDED_MAGIC;
use crate::pte::write::write_program;
use crate::pte::{
    BackendDelegateInlineData, Buffer, EXTENDED_HEADER_LENGTH, Header, Prepared, Program, VerifiedProgram,
};
use crate::{Limits, Result};
use std::ops::Range;

/// What to keep of the old tables.
pub(super) struct OldTables<'o> {
    pub(super) survey: &'o Survey,
    /// Whether the tables may be written from scratch, because everything in them is declared.
    pub(super) is_complete: bool,
    /// The indices of methods that are not valid.
    pub(super) opaque: &'o [usize],
}

impl<'d> Revision<'d> {
    pub(super) fn assemble(
        mut self,
        contents: &[Content<'d>],
        inline: &[Blob<'d>],
        old: &OldTables<'_>,
        limits: &Limits,
    ) -> Result<Revised<'d>> {
        let revised = old_segments(&self.old).revise(contents, &*self.source)?;
        self.program.segments = revised.placed.clone();
        let delegates = self.blobs(self.old.backend_delegate_data.iter().map(|inline| &inline.data));
        let intended = write_flatbuffer(&mut self.program, inline, &delegates, self.old.inline_alignment())?;
        let is_old = container::is_unchanged(contents, self.old.segments.len());
        if is_old && intended.bytes == self.old_flatbuffer(&delegates)?.bytes {
            return self.into_unchanged();
        }
        let needs_header = revised.has_data || !revised.pieces.is_empty();
        let (mut tables, mut lost, mut has_header) = self.new_tables(intended, old, needs_header)?;
        lost.extend(revised.lost_gap_phrases(&*self.source)?);
        let extended = self.old.header().extended;
        if !has_header && revised.has_data {
            insert_header_space(&mut tables, EXTENDED_HEADER_LENGTH as usize);
            has_header = true;
        }
        let size = tables.bytes.len() as u64;
        let (base, file_len) = revised.base_and_file_len(size)?;
        if has_header {
            let fields = match revised.has_data {
                true => [size, base, revised.data_size],
                false => [size, 0, 0],
            };
            let length = extended.map_or(EXTENDED_HEADER_LENGTH, |header| header.length);
            write_header(&mut tables.bytes, EXTENDED_MAGIC, length, &fields)?;
        }
        let header = Header::parse(&tables.bytes, file_len)?;
        let new = VerifiedProgram::read(&tables.bytes, &header, limits)?;
        if let Some(first) = new.invalid_methods().get(self.old.invalid_methods().len()) {
            return Err(first.error.clone());
        }
        let (placed, segments) = revised.pieces.into_iter().unzip();
        let prepared = Prepared { tables: tables.bytes, header, base, segments, placed };
        Ok(Revised { prepared, lost, is_unchanged: false })
    }

    fn blobs<'r>(&self, ranges: impl Iterator<Item = &'r Range<u64>>) -> Vec<Blob<'d>> {
        ranges.map(|range| (self.source)(range.clone())).collect()
    }

    /// The old tables as this crate would write them.
    fn old_flatbuffer(&self, delegates: &[Blob<'d>]) -> Result<Finished> {
        let constants = self.blobs(self.old.constant_buffer.iter().map(|buffer| &buffer.storage));
        let mut program = self.old.program().clone();
        write_flatbuffer(&mut program, &constants, delegates, self.old.inline_alignment())
    }

    /// Returns the old file, unchanged, as the result of the edit.
    fn into_unchanged(self) -> Result<Revised<'d>> {
        let header = self.old.header().clone();
        let base = self.bytes.len() as u64;
        let rest = (self.source)(base..header.file_len.max(base));
        let placed = vec![container::DataSegment { offset: 0, size: rest.len() }];
        let prepared =
            Prepared { tables: self.bytes, header, base, segments: vec![Segment::new(rest)], placed };
        Ok(Revised { prepared, lost: Vec::new(), is_unchanged: true })
    }

    /// The tables of the new file, what was lost, and whether the tables have room for a header.
    fn new_tables(
        &self,
        intended: Finished,
        old: &OldTables<'_>,
        needs_header: bool,
    ) -> Result<(Finished, Vec<String>, bool)> {
        let header = self.old.header();
        if !old.is_complete {
            let opaque = ("execution_plan", old.opaque);
            let merged = merge(&self.bytes, &intended, &PROGRAM, opaque, header_range(header));
            if let Some(merged) = merged.filter(|merged| self.decodes_to(&merged.bytes, &intended)) {
                let tables = Finished { bytes: merged.bytes, alignment: intended.alignment };
                return Ok((tables, merged.lost, header.extended.is_some()));
            }
            self.expect_no_opaque_methods()?;
        }
        let mut tables = intended;
        let extended =
            header.extended.filter(|extended| needs_header || extended.length > EXTENDED_HEADER_LENGTH);
        if let Some(extended) = extended {
            let length = extended.length.max(EXTENDED_HEADER_LENGTH) as usize;
            insert_header_space(&mut tables, length);
            let range = header_range(header);
            let known = HEADER_AT + EXTENDED_HEADER_LENGTH as usize;
            if let Some(more) = self.bytes.get(known..range.end) {
                tables.bytes[known..range.end].copy_from_slice(more);
            }
        }
        let lost = if old.is_complete { Vec::new() } else { old.survey.phrases() };
        Ok((tables, lost, extended.is_some()))
    }

    /// Whether `tables` decode to the same program as `intended`.
    fn decodes_to(&self, tables: &[u8], intended: &Finished) -> bool {
        let Ok(decoded) = super::super::read::decode(tables, &Limits::DEFAULT) else { return false };
        let mut program = decoded.program;
        program.execution_plan = decoded.plans.into_iter().filter_map(Result::ok).collect();
        let is_opaque =
            |name: &str| self.old.invalid_methods().iter().any(|m| m.name.as_deref() == Some(name));
        program.execution_plan.retain(|plan| !is_opaque(&plan.name));
        let slice = |range: &Range<u64>| Blob::bytes(&tables[range.start as usize..range.end as usize]);
        let constants: Vec<_> = program.constant_buffer.iter().map(|buffer| slice(&buffer.storage)).collect();
        let delegates: Vec<_> =
            program.backend_delegate_data.iter().map(|inline| slice(&inline.data)).collect();
        let again = write_flatbuffer(&mut program, &constants, &delegates, self.old.inline_alignment());
        again.is_ok_and(|again| again.bytes == intended.bytes)
    }

    fn expect_no_opaque_methods(&self) -> Result<()> {
        self.old.invalid_methods().first().map_or(Ok(()), |method| Err(method.error.clone()))
    }
}

/// Writes the flatbuffer from scratch, with these constants and delegates inline.
fn write_flatbuffer(
    program: &mut Program,
    constants: &[Blob<'_>],
    delegates: &[Blob<'_>],
    alignment: usize,
) -> Result<Finished> {
    let range = |blob: &Blob<'_>| 0..blob.len();
    program.constant_buffer = constants.iter().map(|blob| Buffer { storage: range(blob) }).collect();
    program.backend_delegate_data =
        delegates.iter().map(|blob| BackendDelegateInlineData { data: range(blob) }).collect();
    write_program(program, constants, delegates, alignment)
}

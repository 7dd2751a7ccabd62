use super::tables::write_program;
use crate::container::{Blob, Layout, Place, Segment, insert_header_space, write_header};
use crate::pte::header::EXTENDED_MAGIC;
use crate::pte::{
    BackendDelegateInlineData, Buffer, EXTENDED_HEADER_LENGTH, Header, Program, VerifiedProgram, verify,
};
use crate::{Error, ErrorKind, Limits, Result};
use std::io::Write;
use std::ops::Range;

/// The default alignment of segments in bytes, that of the reference implementation.
pub const DEFAULT_SEGMENT_ALIGNMENT: u64 = 128;

/// A program to be written: complete tables, and the bytes that they refer to.
///
/// References to segments and inline data by index are written unchanged; [`Builder`](super::Builder) makes a draft
/// from loose parts.
#[derive(Debug, Clone, Default)]
pub struct Draft<'d> {
    /// The tables. `segments`, `constant_buffer` and `backend_delegate_data` are filled in from the
    /// fields below when the draft is written.
    pub program: Program,
    /// The segments, in the order of their indices.
    pub segments: Vec<Segment<'d>>,
    /// Inline constants, with a placeholder as entry 0; empty if constants are in a segment.
    pub inline_constants: Vec<Blob<'d>>,
    /// Inline delegate payloads.
    pub inline_delegates: Vec<Blob<'d>>,
    /// Alignment of the segment base and of segments in bytes: a power of two. 0 means [`DEFAULT_SEGMENT_ALIGNMENT`].
    pub segment_alignment: u64,
    /// Alignment of inline data in bytes: a power of two; less than 16 counts as 16.
    pub inline_alignment: usize,
}

/// A draft whose tables are built and verified, ready to be written.
pub type Prepared<'d> = crate::container::Prepared<'d, Header>;

impl<'d> Draft<'d> {
    /// The draft that writes `program` again: the same tables, and every segment at the same offset. `source` returns
    /// the bytes of a range of the file that it was read from. Methods that are not valid are left out.
    ///
    /// The header is always written in its current length.
    pub fn rewrite(program: &VerifiedProgram, source: impl Fn(Range<u64>) -> Blob<'d>) -> Self {
        let indices = 0..program.segments.len() as u32;
        let segment = |index: u32| {
            let range = program.segment(index).unwrap_or_default();
            let offset = program.segments.get(index as usize).map_or(0, |segment| segment.offset);
            Segment { blob: source(range), place: Place::At(offset) }
        };
        Self {
            segments: indices.map(segment).collect(),
            inline_constants: program.constant_buffer.iter().map(|b| source(b.storage.clone())).collect(),
            inline_delegates: program.backend_delegate_data.iter().map(|b| source(b.data.clone())).collect(),
            segment_alignment: segment_alignment(program),
            inline_alignment: 16,
            program: program.program().clone(),
        }
    }

    /// Builds the tables and verifies them, so that whatever is written can be read.
    pub fn prepare(self) -> Result<Prepared<'d>> {
        self.prepare_with(&Limits::DEFAULT)
    }

    /// Like [`prepare`](Self::prepare), under other limits.
    pub fn prepare_with(self, limits: &Limits) -> Result<Prepared<'d>> {
        let (prepared, program) = self.assemble()?;
        verify(&program, &prepared.header, limits)?;
        Ok(prepared)
    }

    /// Builds the tables without verifying them, for tests of readers.
    pub fn prepare_unverified(self) -> Result<Prepared<'d>> {
        self.assemble().map(|(prepared, _)| prepared)
    }

    fn assemble(mut self) -> Result<(Prepared<'d>, Program)> {
        let alignment = match self.segment_alignment {
            0 => DEFAULT_SEGMENT_ALIGNMENT,
            alignment => alignment,
        };
        check_alignment("segment_alignment", alignment)?;
        check_alignment("inline_alignment", self.inline_alignment.max(1) as u64)?;
        let layout = Layout::new(&self.segments, alignment)?;
        let program = &mut self.program;
        program.segments = layout.placed.clone();
        let range = |blob: &Blob<'_>| 0..blob.len();
        program.constant_buffer =
            self.inline_constants.iter().map(|b| Buffer { storage: range(b) }).collect();
        program.backend_delegate_data =
            self.inline_delegates.iter().map(|b| BackendDelegateInlineData { data: range(b) }).collect();

        let mut tables =
            write_program(program, &self.inline_constants, &self.inline_delegates, self.inline_alignment)?;
        let has_header = layout.data_size > 0;
        if has_header {
            insert_header_space(&mut tables, EXTENDED_HEADER_LENGTH as usize);
        }
        let program_size = tables.bytes.len() as u64;
        let (base, file_len) =
            if has_header { layout.base_and_file_len(program_size)? } else { (0, program_size) };
        if has_header {
            let fields = [program_size, base, layout.data_size];
            write_header(&mut tables.bytes, EXTENDED_MAGIC, EXTENDED_HEADER_LENGTH, &fields)?;
        }
        let header = Header::parse(&tables.bytes, file_len)?;
        let (tables, placed) = (tables.bytes, layout.placed);
        Ok((Prepared { tables, header, base, segments: self.segments, placed }, self.program))
    }

    /// Writes the file from front to back. Segments are streamed and are never all in memory.
    pub fn write(self, out: &mut dyn Write) -> Result<Header> {
        let prepared = self.prepare()?;
        prepared.write_to(out)?;
        Ok(prepared.header)
    }
}

/// The apparent alignment of a file's segments: a page, the default, or 16 bytes.
pub(super) fn segment_alignment(program: &VerifiedProgram) -> u64 {
    const PAGE: u64 = 4096;
    let starts = program.segments.iter().filter(|segment| segment.size > 0).map(|segment| segment.offset);
    let all = starts.fold(program.header().segment_base_offset, |all, start| all | start);
    [PAGE, DEFAULT_SEGMENT_ALIGNMENT]
        .into_iter()
        .find(|&step| all != 0 && all.is_multiple_of(step))
        .unwrap_or(if all == 0 { DEFAULT_SEGMENT_ALIGNMENT } else { 16 })
}

fn check_alignment(name: &'static str, alignment: u64) -> Result<()> {
    if alignment.is_power_of_two() && alignment <= 1 << 30 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, name, "a power of two, at most 1 GiB", alignment))
}

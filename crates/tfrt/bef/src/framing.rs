//! File header and section framing: `id:u8  VBR((len << 1) | flag)  [alignment:u8  CC*]  data[len]`.

use std::io;

use crate::buffer::{Buffer, write_all};
use crate::error::{Error, ErrorKind, InField, Result};
use crate::limits::MAX_SECTIONS;
use crate::model::CustomSection;
use crate::region::{Cursor, PAD, Region};
use crate::vbr;

/// The three bytes that every file starts with: a magic number of two bytes, and version 0.
pub const HEADER: [u8; 3] = [0x0B, 0xEF, 0x00];

/// The sections that the format defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SectionId {
    /// NUL-terminated names: kernels, types, functions, attribute names.
    Strings = 0,
    /// Values of attributes, each at its alignment.
    Attributes = 1,
    /// Offsets of kernel names; the position in the list is the kernel code.
    Kernels = 2,
    /// Offsets of type names.
    Types = 3,
    /// Kind, offset, name and signature of each function.
    FunctionIndex = 4,
    /// Registers and kernels of each function.
    Functions = 5,
    /// NUL-terminated names that locations use.
    LocationStrings = 6,
    /// Source locations of functions and kernels.
    Locations = 7,
    /// Type of each attribute; optional.
    AttributeTypes = 8,
    /// Names of the attributes of each kernel; optional.
    AttributeNames = 9,
    /// Types of the registers of each function; optional.
    RegisterTypes = 10,
}

impl SectionId {
    /// All sections, ordered by number.
    pub const ALL: [SectionId; 11] = [
        SectionId::Strings,
        SectionId::Attributes,
        SectionId::Kernels,
        SectionId::Types,
        SectionId::FunctionIndex,
        SectionId::Functions,
        SectionId::LocationStrings,
        SectionId::Locations,
        SectionId::AttributeTypes,
        SectionId::AttributeNames,
        SectionId::RegisterTypes,
    ];

    /// The section with this number; `None` if the format does not define it.
    pub fn new(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// The section's name, as the format spells it.
    pub fn name(self) -> &'static str {
        match self {
            SectionId::Strings => "Strings",
            SectionId::Attributes => "Attributes",
            SectionId::Kernels => "Kernels",
            SectionId::Types => "Types",
            SectionId::FunctionIndex => "FunctionIndex",
            SectionId::Functions => "Functions",
            SectionId::LocationStrings => "LocationStrings",
            SectionId::Locations => "Locations",
            SectionId::AttributeTypes => "AttributeTypes",
            SectionId::AttributeNames => "AttributeNames",
            SectionId::RegisterTypes => "RegisterTypes",
        }
    }
}

/// One section with its framing, known or not.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// The id byte; [`SectionId::new`] gives it a name.
    pub id: u8,
    /// Absolute file offset of the id byte.
    pub header_start: u64,
    /// The alignment byte; `None` if the section's header has none.
    pub alignment: Option<u8>,
    /// The contents of the section.
    pub data: Region<'a>,
}

/// Iterates over the sections of a file in file order, unknown ones included. Stops after the first error.
#[derive(Clone, Debug)]
pub(crate) struct Sections<'a> {
    cursor: Cursor<'a>,
    seen: u32,
}

impl<'a> Sections<'a> {
    /// Checks the header.
    ///
    /// # Errors
    /// [`ErrorKind::Header`].
    pub(crate) fn new(file: &'a [u8]) -> Result<Self> {
        if !file.starts_with(&HEADER) {
            let actual = &file[..file.len().min(HEADER.len())];
            return Err(Error::new(
                ErrorKind::Header,
                0,
                format!("{actual:02X?}"),
                "0B EF 00 (magic, then version 0)",
            ))
            .in_field(|| "header");
        }
        let mut cursor = Region::new(file, 0).cursor();
        cursor.take(HEADER.len() as u64)?;
        Ok(Sections { cursor, seen: 0 })
    }

    // Inlined, because returning a `Section` through memory costs more than decoding its header.
    #[inline(always)]
    fn read(&mut self) -> Result<Section<'a>> {
        let header_start = self.cursor.offset();
        self.seen += 1;
        if self.seen > MAX_SECTIONS {
            return Err(too_many_sections(header_start));
        }
        let id = self.cursor.u8()?;
        let length_and_flag = self.cursor.vbr()?;
        let alignment = if length_and_flag & 1 == 1 {
            let offset = self.cursor.offset();
            let alignment = self.cursor.u8()?;
            if !alignment.is_power_of_two() {
                return Err(invalid_alignment(alignment, offset));
            }
            self.cursor.align(u64::from(alignment))?;
            Some(alignment)
        } else {
            None
        };
        let data = self.cursor.take(length_and_flag >> 1)?;
        Ok(Section { id, header_start, alignment, data })
    }

    #[cold]
    fn stop(&mut self) {
        self.cursor = Region::default().cursor();
    }
}

impl<'a> Iterator for Sections<'a> {
    type Item = Result<Section<'a>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.cursor.remaining() == 0 {
            return None;
        }
        let index = self.seen;
        let section = self.read().in_field(|| format!("sections[{index}]"));
        if section.is_err() {
            self.stop();
        }
        Some(section)
    }
}

#[cold]
fn too_many_sections(offset: u64) -> Error {
    let expected = format!("at most {MAX_SECTIONS} sections");
    Error::new(ErrorKind::Limit, offset, "one more section", expected)
}

#[cold]
fn invalid_alignment(alignment: u8, offset: u64) -> Error {
    Error::new(ErrorKind::SectionHeader, offset, format!("alignment {alignment}"), "a power of two")
}

/// Writes the header, then framed sections.
pub(crate) struct SectionWriter<'w> {
    sink: &'w mut dyn io::Write,
    position: u64,
}

impl<'w> SectionWriter<'w> {
    pub(crate) fn new(sink: &'w mut dyn io::Write) -> Result<Self> {
        let mut writer = SectionWriter { sink, position: 0 };
        writer.write_bytes(&HEADER)?;
        Ok(writer)
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.position += bytes.len() as u64;
        write_all(bytes, self.sink)
    }

    /// Writes a section that the format does not define.
    pub(crate) fn write_custom_section(&mut self, section: &CustomSection<'_>) -> Result<()> {
        if let Some(id) = SectionId::new(section.id) {
            let actual = format!("id {}, the {} section", section.id, id.name());
            return Err(Error::without_offset(ErrorKind::DuplicateSection, actual, "an id from 11 to 255"));
        }
        if !section.alignment.is_power_of_two() {
            let actual = format!("alignment {}", section.alignment);
            return Err(Error::without_offset(ErrorKind::Value, actual, "a power of two"));
        }
        let mut data = Buffer::new();
        data.align(u64::from(section.alignment));
        data.payload(&section.data);
        self.write_framed(section.id, &data)
    }

    /// Writes a section, with the alignment byte and padding only if the data would otherwise not be aligned.
    pub(crate) fn write_section(&mut self, id: SectionId, data: &Buffer<'_>) -> Result<()> {
        self.write_framed(id as u8, data)
    }

    fn write_framed(&mut self, id: u8, data: &Buffer<'_>) -> Result<()> {
        if data.len() > u64::MAX >> 1 {
            return Err(Error::without_offset(
                ErrorKind::Unaddressable,
                format!("{} bytes of section {id}", data.len()),
                "at most 2^63 - 1",
            ));
        }
        let length = data.len() << 1;
        let alignment = data.alignment();
        let mut header = vec![id];
        let plain = self.position + 1 + vbr::len(length) as u64;
        if plain.is_multiple_of(alignment) {
            vbr::encode(length, &mut header);
        } else {
            vbr::encode(length | 1, &mut header);
            header.push(alignment as u8);
            let gap = (self.position + header.len() as u64).wrapping_neg() & (alignment - 1);
            header.resize(header.len() + gap as usize, PAD);
        }
        self.write_bytes(&header)?;
        self.position += data.len();
        data.write_to(self.sink)
    }

    /// Number of bytes written so far.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(alignment: u64, bytes: &[u8]) -> Buffer<'static> {
        let mut buffer = Buffer::new();
        buffer.align(alignment);
        buffer.bytes(bytes);
        buffer
    }

    #[test]
    fn sections_read_back_with_alignment_only_where_needed() {
        let mut out = Vec::new();
        let mut writer = SectionWriter::new(&mut out).unwrap();
        writer.write_section(SectionId::Strings, &aligned(1, b"abc")).unwrap();
        // The id would be at offset 8 and the data at 10, which is not a multiple of 8.
        writer.write_section(SectionId::Attributes, &aligned(8, &[1; 6])).unwrap();
        // The id is at 22 and the data at 24: aligned without an alignment byte.
        writer.write_section(SectionId::Functions, &aligned(4, &[2; 4])).unwrap();
        assert_eq!(writer.position(), out.len() as u64);
        let sections: Vec<_> = Sections::new(&out).unwrap().map(Result::unwrap).collect();
        let seen: Vec<_> =
            sections.iter().map(|s| (s.id, s.alignment, s.data.start(), s.data.bytes())).collect();
        assert_eq!(seen, [(0, None, 5, &b"abc"[..]), (1, Some(8), 16, &[1; 6]), (5, None, 24, &[2; 4])]);
    }

    #[test]
    fn errors_in_headers_have_offsets_and_paths() {
        let error = Sections::new(&[0x0B, 0xEE, 0]).unwrap_err();
        assert_eq!((error.kind, error.offset), (ErrorKind::Header, Some(0)));
        let read = |tail: &[u8]| {
            let file = [&HEADER, tail].concat();
            Sections::new(&file).unwrap().collect::<Result<Vec<_>>>().unwrap_err()
        };
        let error = read(&[0, 0, 5, 0x07, 3]);
        assert_eq!((error.kind, error.offset), (ErrorKind::SectionHeader, Some(7)));
        assert_eq!(error.path, "sections[1]");
        assert_eq!(read(&[0]).kind, ErrorKind::Truncated);
        assert_eq!(read(&[0, 0x08, 1, 2, 3]).kind, ErrorKind::Truncated);
        assert_eq!(read(&[0, 0x03, 4, 0xCC, 0, 1]).kind, ErrorKind::Padding);
        assert_eq!(read(&[77, 0].repeat(2000)).kind, ErrorKind::Limit);
    }
}

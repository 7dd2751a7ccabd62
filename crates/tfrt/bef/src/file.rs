//! An opened file: the table of its sections, and a reader for each.

use crate::error::{Error, ErrorKind, InField, Result};
use crate::framing::{Section, SectionId, Sections};
use crate::function_kind::FunctionKind;
use crate::ids::FunctionId;
use crate::limits::{Budget, Limits};
use crate::region::Region;
use crate::section::attribute_names::AttributeNames;
use crate::section::attribute_types::AttributeTypes;
use crate::section::attributes::Attributes;
use crate::section::function_index::{FunctionEntry, FunctionIndex};
use crate::section::functions::FunctionRecord;
use crate::section::location_strings::LocationStrings;
use crate::section::locations::Locations;
use crate::section::register_types::RegisterTypes;
use crate::section::strings::Strings;
use crate::section::{kernels, types};

/// A BEF file whose section headers have been read.
///
/// Sections are decoded on demand. Readers check the bytes that they decode, so that no file can make them read out of
/// bounds, panic or allocate more than a small multiple of its size; only [`verify`](File::verify) checks that the
/// sections are consistent with each other.
#[derive(Clone, Debug)]
pub struct File<'a> {
    bytes: &'a [u8],
    sections: [Option<Region<'a>>; SectionId::ALL.len()],
    /// The alignment byte of the Attributes section; `None` if the section's header has none.
    attributes_alignment: Option<u8>,
    limits: Limits,
}

impl<'a> File<'a> {
    /// Finds the sections. The bytes may be at any address; unknown sections are skipped.
    ///
    /// # Errors
    /// If the header is not BEF version 0, a section header is malformed, a section is longer than the file, or a known
    /// section occurs twice.
    #[inline]
    pub fn open(bytes: &'a [u8]) -> Result<Self> {
        Self::open_with(bytes, Limits::default())
    }

    /// As [`open`](File::open), with other limits than the defaults.
    ///
    /// # Errors
    /// As [`open`](File::open).
    pub fn open_with(bytes: &'a [u8], limits: Limits) -> Result<Self> {
        let mut sections = [None; SectionId::ALL.len()];
        let mut attributes_alignment = None;
        for section in Sections::new(bytes)? {
            let section = section?;
            let Some(id) = SectionId::new(section.id) else { continue };
            let slot = &mut sections[id as usize];
            if slot.is_some() {
                return Err(duplicate_section(id, section.header_start));
            }
            *slot = Some(section.data);
            if id == SectionId::Attributes {
                attributes_alignment = section.alignment;
            }
        }
        Ok(File { bytes, sections, attributes_alignment, limits })
    }

    /// The whole file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The limits that readers enforce.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Every section with its framing, in file order, unknown sections included.
    pub fn sections(&self) -> impl Iterator<Item = Section<'a>> + use<'a> {
        Sections::new(self.bytes).into_iter().flatten().map_while(Result::ok)
    }

    /// The contents of a section.
    pub fn section(&self, id: SectionId) -> Option<Region<'a>> {
        self.sections[id as usize]
    }

    /// The contents of a section; empty if the file does not have the section.
    #[inline]
    fn section_or_empty(&self, id: SectionId) -> Region<'a> {
        self.section(id).unwrap_or_else(|| Region::new(&[], self.bytes.len() as u64))
    }

    #[inline]
    fn required_section(&self, id: SectionId) -> Result<&Region<'a>> {
        self.sections[id as usize].as_ref().ok_or_else(|| missing_section(id, self.bytes.len() as u64))
    }

    /// The budget for decoded names and locations.
    #[inline]
    pub(crate) fn budget(&self) -> Budget {
        Budget::new(&self.limits, self.bytes.len() as u64)
    }

    pub(crate) fn attributes_alignment(&self) -> Option<u8> {
        self.attributes_alignment
    }

    /// The strings of the Strings section.
    #[inline]
    pub fn strings(&self) -> Strings<'a> {
        Strings::new(self.section_or_empty(SectionId::Strings))
    }

    /// The attributes.
    ///
    /// In a file that does not record their types they may have any alignment: verification cannot check it, and a
    /// kernel must not refuse what was verified.
    pub fn attributes(&self) -> Attributes<'a> {
        let section = self.section_or_empty(SectionId::Attributes);
        let section = match self.section(SectionId::AttributeTypes) {
            Some(_) => section,
            None => section.with_any_alignment(),
        };
        Attributes::new(section, &self.limits)
    }

    /// Kernel names by kernel code.
    ///
    /// # Errors
    /// When the section is absent or malformed.
    pub fn kernel_names(&self) -> Result<Vec<&'a str>> {
        self.kernel_names_in(&self.strings())
    }

    pub(crate) fn kernel_names_in(&self, strings: &Strings<'a>) -> Result<Vec<&'a str>> {
        kernels::read(self.required_section(SectionId::Kernels)?, strings, self.budget())
    }

    /// Type names by type index.
    ///
    /// # Errors
    /// When the section is absent or malformed.
    pub fn type_names(&self) -> Result<Vec<&'a str>> {
        self.type_names_in(&self.strings())
    }

    pub(crate) fn type_names_in(&self, strings: &Strings<'a>) -> Result<Vec<&'a str>> {
        types::read(self.required_section(SectionId::Types)?, strings, self.budget())
    }

    /// Names, signatures and record offsets of the functions.
    ///
    /// # Errors
    /// When the section is absent or malformed.
    pub fn function_index(&self) -> Result<FunctionIndex<'a>> {
        self.function_index_in(&self.strings())
    }

    pub(crate) fn function_index_in(&self, strings: &Strings<'a>) -> Result<FunctionIndex<'a>> {
        FunctionIndex::read(self.required_section(SectionId::FunctionIndex)?, strings, self.budget())
    }

    /// The record of function `id`; `None` if it is native and has none.
    ///
    /// # Errors
    /// If there is no such function, or the record's tables are malformed.
    pub fn function(&self, index: &FunctionIndex<'_>, id: FunctionId) -> Result<Option<FunctionRecord<'a>>> {
        let Some(entry) = index.get(id) else {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                self.section_or_empty(SectionId::FunctionIndex).start(),
                format!("function {id}"),
                format!("one below {}", index.len()),
            ));
        };
        if entry.kind == FunctionKind::Native {
            return Ok(None);
        }
        self.record(&entry).map(Some).in_field(|| format!("functions[{id}]"))
    }

    /// The record of a function that is not native.
    ///
    /// # Errors
    /// When its tables are malformed.
    pub fn record(&self, entry: &FunctionEntry<'_>) -> Result<FunctionRecord<'a>> {
        FunctionRecord::read(self.section_or_empty(SectionId::Functions), entry, &self.limits)
    }

    /// The source locations of the Locations section.
    pub fn locations(&self) -> Locations<'a> {
        let strings = LocationStrings::new(self.section_or_empty(SectionId::LocationStrings));
        Locations::new(self.section_or_empty(SectionId::Locations), strings, &self.limits)
    }

    /// Types of the attributes; `None` if the file does not record them.
    ///
    /// # Errors
    /// When the section is malformed.
    pub fn attribute_types(&self) -> Result<Option<AttributeTypes>> {
        self.section(SectionId::AttributeTypes).map(AttributeTypes::read).transpose()
    }

    /// A reader of attribute names, which must advance in step with the functions; `None` if the file does not record
    /// them.
    ///
    /// # Errors
    /// If the section's number of functions is not `functions`.
    pub fn attribute_names(&self, functions: usize) -> Result<Option<AttributeNames<'a>>> {
        let section = self.section(SectionId::AttributeNames);
        section.map(|section| AttributeNames::read(section, self.strings(), functions)).transpose()
    }

    /// A reader of register types, which must advance in step with the functions; `None` if the file does not record
    /// them.
    ///
    /// # Errors
    /// If the section's number of functions is not `functions`.
    pub fn register_types(&self, functions: usize) -> Result<Option<RegisterTypes<'a>>> {
        self.section(SectionId::RegisterTypes)
            .map(|section| RegisterTypes::read(section, functions))
            .transpose()
    }
}

#[cold]
fn missing_section(id: SectionId, len: u64) -> Error {
    let actual = format!("no {} section", id.name());
    Error::new(ErrorKind::MissingSection, len, actual, "one, even in an empty program")
}

#[cold]
fn duplicate_section(id: SectionId, offset: u64) -> Error {
    let actual = format!("another {} section", id.name());
    Error::new(ErrorKind::DuplicateSection, offset, actual, "each section once")
}

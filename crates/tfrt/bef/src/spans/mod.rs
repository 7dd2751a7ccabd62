//! Explains the meaning of each byte of a file, for hex views and for learning the format.

mod attributes;
mod functions;
mod locations;
mod tables;

use std::cell::RefCell;
use std::fmt::{Display, Write as _};

use crate::error::Result;
use crate::file::File;
use crate::framing::{HEADER, SectionId};
use crate::limits::Budget;
use crate::region::{Cursor, Region};
use crate::section::attribute_types::AttributeTypes;
use crate::section::function_index::FunctionIndex;

/// A range of bytes with one meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Absolute file offset of the first byte.
    pub start: u64,
    /// Number of bytes, at least 1.
    pub len: u64,
    /// Path of the field, as in errors: `functions[3].kernels[2].args[1]`.
    pub path: String,
    /// The meaning of the bytes, such as `register 4`.
    pub meaning: String,
}

impl<'a> File<'a> {
    /// Passes the spans of the file to `visit`, in file order and without gaps. The file need not verify: a malformed
    /// file is explained up to its first error.
    ///
    /// # Errors
    /// The first error that makes the following bytes unreadable.
    pub fn spans(&self, visit: &mut dyn FnMut(Span)) -> Result<()> {
        // A table is left empty if its section is malformed; then its names are missing from the meanings.
        let section_tables = SectionTables {
            file: self,
            kernels: self.kernel_names().unwrap_or_default(),
            types: self.type_names().unwrap_or_default(),
            index: self.function_index().unwrap_or_default(),
            attribute_types: self.attribute_types().unwrap_or_default(),
            budget: RefCell::new(self.budget()),
        };
        let mut labels = Labels { cursor: Region::new(self.bytes(), 0).cursor(), path: String::new(), visit };
        labels.label_bytes(2, "header.magic", |_| "BEF".into())?;
        labels.label_bytes(HEADER.len() as u64 - 2, "header.version", |_| "version 0".into())?;
        while labels.cursor.remaining() > 0 {
            section_tables.label_section(&mut labels)?;
        }
        Ok(())
    }
}

/// The names and tables that other sections refer to, for labels that explain the references.
struct SectionTables<'f, 'a> {
    file: &'f File<'a>,
    kernels: Vec<&'a str>,
    types: Vec<&'a str>,
    index: FunctionIndex<'a>,
    attribute_types: Option<AttributeTypes>,
    /// Limits the cost of looking up names and locations that many bytes refer to.
    budget: RefCell<Budget>,
}

/// The maximum number of characters that a [`Span::meaning`] quotes of a text of the file; the rest is cut.
const MAX_MEANING_CHARS: usize = 120;

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_MEANING_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

impl<'a> SectionTables<'_, 'a> {
    fn label_section(&self, labels: &mut Labels<'a, '_>) -> Result<()> {
        let mut id = None;
        labels.nest("section", |labels| {
            let number =
                labels.label_u8("id", |id| SectionId::new(id).map_or("unknown", SectionId::name).into())?;
            id = SectionId::new(number);
            Ok(())
        })?;
        let mut data = Region::default();
        labels.nest(id.map_or("section", SectionId::name), |labels| {
            let length = labels.label_vbr("length", |length| {
                let aligned = if length & 1 == 1 { ", aligned" } else { "" };
                plural(length >> 1, "byte") + aligned
            })?;
            if length & 1 == 1 {
                let alignment =
                    labels.label_u8("alignment", |alignment| format!("at a multiple of {alignment}"))?;
                labels.label_padding(u64::from(alignment).max(1).next_power_of_two())?;
            }
            data = labels.cursor.take(length >> 1)?;
            Ok(())
        })?;
        let rest = std::mem::replace(&mut labels.cursor, data.cursor());
        match id {
            None => {}
            Some(SectionId::Strings) => tables::label_strings("strings", labels)?,
            Some(SectionId::Attributes) => self.label_attributes(labels)?,
            Some(SectionId::Kernels) => self.label_name_table("kernels", labels)?,
            Some(SectionId::Types) => self.label_name_table("types", labels)?,
            Some(SectionId::FunctionIndex) => self.label_function_index(labels)?,
            Some(SectionId::Functions) => self.label_functions(labels)?,
            Some(SectionId::LocationStrings) => tables::label_strings("location_strings", labels)?,
            Some(SectionId::Locations) => self.label_locations(labels)?,
            Some(SectionId::AttributeTypes) => self.label_attribute_types(labels)?,
            Some(SectionId::AttributeNames) => self.label_attribute_names(labels)?,
            Some(SectionId::RegisterTypes) => self.label_register_types(labels)?,
        }
        let meaning = if id.is_some() { "not used" } else { "contents of an unknown section" };
        labels.nest(id.map_or("section", SectionId::name), |labels| labels.label_rest(meaning))?;
        labels.cursor = rest;
        Ok(())
    }

    /// The text from `look_up`, for `offset` in section `id`; only section and offset once the budget is spent.
    fn look_up(&self, id: SectionId, offset: u64, look_up: impl FnOnce() -> Result<String>) -> String {
        let mut budget = self.budget.borrow_mut();
        if budget.is_spent() {
            return format!("{} at offset {offset}", id.name());
        }
        let (meaning, cost) = match look_up() {
            Ok(text) => (shorten(&text), text.len() as u64),
            // The cost of a failed lookup is unknown; charge the whole section.
            Err(_) => ("nothing readable".into(), self.file.section(id).unwrap_or_default().len()),
        };
        if budget.spend(cost, 0).is_err() {
            *budget = Budget::default();
        }
        meaning
    }

    fn describe_string(&self, offset: u64) -> String {
        self.look_up(SectionId::Strings, offset, || {
            self.file.strings().get(offset).map(|text| format!("{text:?}"))
        })
    }

    fn type_name(&self, index: u64) -> String {
        let name = usize::try_from(index).ok().and_then(|index| self.types.get(index));
        name.map_or_else(|| format!("type {index}"), |name| shorten(name))
    }
}

/// The count with its noun in the singular or plural: `1 name`, `2 names`.
fn plural(count: impl Into<u64>, noun: &str) -> String {
    match count.into() {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// Reads values and reports a span for each.
struct Labels<'a, 'v> {
    cursor: Cursor<'a>,
    path: String,
    visit: &'v mut dyn FnMut(Span),
}

impl<'a> Labels<'a, '_> {
    /// Prefixes the paths of the spans that `label` reports with `field`.
    fn nest<T>(&mut self, field: impl Display, label: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let outer = self.path.len();
        self.push_field(field);
        let result = label(self);
        self.path.truncate(outer);
        result
    }

    fn push_field(&mut self, field: impl Display) {
        let start = self.path.len();
        let _ = write!(self.path, "{field}");
        if start > 0 && !self.path[start..].starts_with('[') && self.path.len() > start {
            self.path.insert(start, '.');
        }
    }

    /// Reports the bytes from `start` to the cursor's position.
    fn report(&mut self, start: u64, field: impl Display, meaning: String) {
        let len = self.cursor.offset() - start;
        if len > 0 {
            let outer = self.path.len();
            self.push_field(field);
            (self.visit)(Span { start, len, path: self.path.clone(), meaning });
            self.path.truncate(outer);
        }
    }

    fn label_vbr(&mut self, field: impl Display, meaning: impl FnOnce(u64) -> String) -> Result<u64> {
        let start = self.cursor.offset();
        let value = self.cursor.vbr()?;
        self.report(start, field, meaning(value));
        Ok(value)
    }

    fn label_u8(&mut self, field: impl Display, meaning: impl FnOnce(u8) -> String) -> Result<u8> {
        let start = self.cursor.offset();
        let value = self.cursor.u8()?;
        self.report(start, field, meaning(value));
        Ok(value)
    }

    fn label_u16(&mut self, field: impl Display, meaning: impl FnOnce(u16) -> String) -> Result<u16> {
        let bytes = self.cursor.clone().take(2)?.array(0)?;
        let value = u16::from_le_bytes(bytes);
        self.label_bytes(2, field, |_| meaning(value))?;
        Ok(value)
    }

    fn label_u32(&mut self, field: impl Display, meaning: impl FnOnce(u32) -> String) -> Result<u32> {
        let value = self.cursor.clone().take(4)?.u32(0)?;
        self.label_bytes(4, field, |_| meaning(value))?;
        Ok(value)
    }

    fn label_bytes(
        &mut self,
        len: u64,
        field: impl Display,
        meaning: impl FnOnce(Region<'a>) -> String,
    ) -> Result<Region<'a>> {
        let start = self.cursor.offset();
        let bytes = self.cursor.take(len)?;
        self.report(start, field, meaning(bytes));
        Ok(bytes)
    }

    fn label_padding(&mut self, alignment: u64) -> Result<()> {
        let start = self.cursor.offset();
        self.cursor.align(alignment)?;
        self.report(start, "", "padding".into());
        Ok(())
    }

    /// Skips unreferenced bytes up to `position`, relative to the section, and reports them with `meaning`.
    fn skip_to(&mut self, position: u64, meaning: &str) -> Result<()> {
        let gap = position.saturating_sub(self.cursor.position());
        self.label_bytes(gap, "", |_| meaning.into()).map(drop)
    }

    fn label_rest(&mut self, meaning: &str) -> Result<()> {
        self.label_bytes(self.cursor.remaining(), "", |_| meaning.into()).map(drop)
    }
}

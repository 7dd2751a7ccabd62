//! Section 9, AttributeNames: `VBR number of functions`, then for each function with a body `VBR nkernels` (including
//! the pseudo kernel) and the names of the attributes of all its kernels, one after another.
//!
//! Optional. Only the kernel records how many attributes, and so names, it has. Native functions are counted but have
//! no entry, contrary to the published grammar.

use super::strings::{LastString, StringOffsets, Strings};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::limits::Budget;
use crate::model::Module;
use crate::region::{Cursor, Region};

/// A reader of the AttributeNames section, which must advance in step with the functions.
#[derive(Clone, Debug)]
pub struct AttributeNames<'a> {
    cursor: Cursor<'a>,
    strings: Strings<'a>,
    last: LastString,
}

impl<'a> AttributeNames<'a> {
    /// Starts to read the AttributeNames section of a file with this number of functions.
    pub(crate) fn read(region: Region<'a>, strings: Strings<'a>, functions: usize) -> Result<Self> {
        let mut cursor = region.cursor();
        expect_count(&mut cursor, functions as u64, "functions").in_field(|| "attribute_names")?;
        Ok(AttributeNames { cursor, strings, last: LastString::default() })
    }

    /// Starts the next function that has a body, with `kernels` kernels, the pseudo kernel included.
    ///
    /// # Errors
    /// If the section records another number of kernels.
    pub fn next_function(&mut self, kernels: usize) -> Result<()> {
        expect_count(&mut self.cursor, kernels as u64, "kernels").in_field(|| "attribute_names")
    }

    /// The next name.
    ///
    /// # Errors
    /// If the section ends, or no string starts at the recorded offset.
    pub fn next_name(&mut self) -> Result<&'a str> {
        self.cursor.vbr().and_then(|offset| self.strings.get(offset)).in_field(|| "attribute_names")
    }

    /// Skips the next name and charges its length to `budget`. Checks that a string starts there, but not its text.
    pub(crate) fn check_name(&mut self, budget: &mut Budget) -> Result<()> {
        let at = self.cursor.offset();
        let length = self.cursor.vbr().and_then(|offset| self.strings.check_start(offset, &mut self.last));
        length.and_then(|length| budget.spend(length, at)).in_field(|| "attribute_names")
    }

    pub(crate) fn finish(&self) -> Result<()> {
        self.cursor.finish().in_field(|| "attribute_names")
    }
}

/// Reads a count of `what`; fails unless it is `expected`, the count in another section.
pub(super) fn expect_count(cursor: &mut Cursor<'_>, expected: u64, what: &str) -> Result<()> {
    let at = cursor.offset();
    let count = cursor.vbr()?;
    if count == expected {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Mismatch, at, format!("{count} {what}"), format!("{expected}, as elsewhere")))
}

pub(crate) fn write(module: &Module<'_>, strings: &StringOffsets<'_>) -> Result<Buffer<'static>> {
    let mut out = Buffer::new();
    out.vbr(module.functions.len() as u64);
    for (function, body) in module.bodies() {
        out.vbr(body.kernels.len() as u64 + 1);
        for (index, kernel) in body.kernels.iter().enumerate() {
            for (number, attribute) in kernel.attributes.iter().enumerate() {
                let name = attribute.name.as_deref().ok_or_else(|| {
                    Error::without_offset(
                        ErrorKind::Mismatch,
                        "no name",
                        "a name, or a module without optional sections",
                    )
                });
                let place = || format!("functions[{function}].kernels[{}].attributes[{number}]", index + 1);
                out.vbr(strings.offset_of(name.in_field(place)?));
            }
        }
    }
    Ok(out)
}

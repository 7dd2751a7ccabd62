//! Section 10, RegisterTypes: `VBR number of functions`, then for each function with a body
//! `VBR nregs, VBR type index * nregs`.
//!
//! Optional. Native functions are counted but have no entry, contrary to the published grammar.

use super::attribute_names::expect_count;
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::ids::TypeId;
use crate::model::Module;
use crate::region::{Cursor, Region};

/// A reader of the RegisterTypes section, which must advance in step with the functions.
#[derive(Clone, Debug)]
pub struct RegisterTypes<'a> {
    cursor: Cursor<'a>,
}

impl<'a> RegisterTypes<'a> {
    /// Starts to read the RegisterTypes section of a file with this number of functions.
    pub(crate) fn read(region: Region<'a>, functions: usize) -> Result<Self> {
        let mut cursor = region.cursor();
        expect_count(&mut cursor, functions as u64, "functions").in_field(|| "register_types")?;
        Ok(RegisterTypes { cursor })
    }

    /// The register types of the next function that has a body, with `registers` registers.
    ///
    /// # Errors
    /// If the section records another number of registers, or ends.
    pub fn next_function(&mut self, registers: usize) -> Result<Vec<TypeId>> {
        let mut types = Vec::new();
        self.next_function_into(registers, &mut types)?;
        Ok(types)
    }

    /// As [`Self::next_function`], reusing the memory of `types`.
    pub(crate) fn next_function_into(&mut self, registers: usize, types: &mut Vec<TypeId>) -> Result<()> {
        types.clear();
        let mut read = || {
            expect_count(&mut self.cursor, registers as u64, "registers")?;
            types.reserve(self.cursor.remaining().min(registers as u64) as usize);
            for index in 0..registers {
                types.push(self.cursor.vbr32("type index").map(TypeId).in_field(|| format!("[{index}]"))?);
            }
            Ok(())
        };
        read().in_field(|| "register_types")
    }

    /// Absolute file offset of the next entry.
    pub(crate) fn offset(&self) -> u64 {
        self.cursor.offset()
    }

    pub(crate) fn finish(&self) -> Result<()> {
        self.cursor.finish().in_field(|| "register_types")
    }
}

pub(crate) fn write(module: &Module<'_>) -> Result<Buffer<'static>> {
    let mut out = Buffer::new();
    out.vbr(module.functions.len() as u64);
    for (function, body) in module.bodies() {
        out.vbr(body.registers.len() as u64);
        for (register, kind) in body.registers.iter().enumerate() {
            let kind = kind.ok_or_else(|| {
                Error::without_offset(
                    ErrorKind::Mismatch,
                    "no type",
                    "a type, or a module without optional sections",
                )
            });
            out.vbr(u64::from(kind.in_field(|| format!("functions[{function}].registers[{register}]"))?.0));
        }
    }
    Ok(out)
}

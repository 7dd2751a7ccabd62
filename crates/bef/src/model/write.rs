//! Writes a module as a file.

use std::io;

use super::Module;
use crate::error::Result;
use crate::framing::{SectionId, SectionWriter};
use crate::section::locations::LocationsWriter;
use crate::section::{
    attribute_names, attribute_types, attributes, function_index, functions, kernels, register_types,
    strings, types,
};

impl Module<'_> {
    /// The program as a file.
    ///
    /// # Errors
    /// If the format cannot represent the module, or an index of the module is out of range; the error has the path of
    /// the field. Without such an error the output [verifies](crate::File::verify), provided that registers are defined
    /// once and before their use.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.write_to(&mut out)?;
        Ok(out)
    }

    /// Writes the program to `sink` without copying large attributes, and returns the number of bytes.
    ///
    /// # Errors
    /// As [`to_bytes`](Self::to_bytes), and if the sink fails.
    pub fn write_to(&self, sink: &mut dyn io::Write) -> Result<u64> {
        let (strings_section, strings) = strings::write(self)?;
        let (attributes_section, offsets) = attributes::write(&self.attributes)?;
        let mut locations = LocationsWriter::new();
        let (functions_section, records) = functions::write(self, &offsets, &mut locations)?;
        let mut out = SectionWriter::new(sink)?;
        out.section(SectionId::Strings, &strings_section)?;
        out.section(SectionId::Attributes, &attributes_section)?;
        out.section(SectionId::Kernels, &kernels::write(self, &strings))?;
        out.section(SectionId::Types, &types::write(self, &strings))?;
        out.section(SectionId::FunctionIndex, &function_index::write(self, &strings, &records))?;
        out.section(SectionId::Functions, &functions_section)?;
        if let Some((strings, locations)) = locations.finish() {
            out.section(SectionId::LocationStrings, &strings)?;
            out.section(SectionId::Locations, &locations)?;
        }
        if self.optional_sections {
            out.section(SectionId::AttributeTypes, &attribute_types::write(self, &offsets)?)?;
            out.section(SectionId::AttributeNames, &attribute_names::write(self, &strings)?)?;
            out.section(SectionId::RegisterTypes, &register_types::write(self)?)?;
        }
        Ok(out.position())
    }
}

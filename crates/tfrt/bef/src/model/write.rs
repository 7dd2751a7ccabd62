//! Writes a module as a file.

use std::io;

use super::Module;
use crate::error::{InField, Result};
use crate::framing::{SectionId, SectionWriter};
use crate::limits::{Budget, Limits};
use crate::section::locations::LocationsWriter;
use crate::section::{
    attribute_names, attribute_types, attributes, function_index, functions, kernels, register_types,
    strings, types,
};

impl Module<'_> {
    /// The program as a file.
    ///
    /// # Errors
    /// If the format cannot represent the module, or [verification](crate::File::verify) with the default limits would
    /// refuse the file: an index out of range, a register that is not defined once and before its use, nesting or
    /// shared names beyond the limits. The error has the path of the field.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.to_bytes_with(&Limits::default())
    }

    /// As [`to_bytes`](Self::to_bytes), for readers with other [limits](crate::File::open_with).
    ///
    /// # Errors
    /// As [`to_bytes`](Self::to_bytes), under these limits.
    pub fn to_bytes_with(&self, limits: &Limits) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.write_with(&mut out, limits)?;
        Ok(out)
    }

    /// Writes the program to `sink` without copying large attributes, and returns the number of bytes.
    ///
    /// # Errors
    /// As [`to_bytes`](Self::to_bytes), and if the sink fails.
    pub fn write_to(&self, sink: &mut dyn io::Write) -> Result<u64> {
        self.write_with(sink, &Limits::default())
    }

    fn write_with(&self, sink: &mut dyn io::Write, limits: &Limits) -> Result<u64> {
        super::check::check(self, limits)?;
        let (strings_section, strings) = strings::write(self)?;
        let (attributes_section, offsets) = attributes::write(&self.attributes)?;
        let mut locations = LocationsWriter::new(limits);
        let (functions_section, records) = functions::write(self, &offsets, &mut locations)?;
        let shared = self.shared_bytes(&locations);
        let mut out = SectionWriter::new(sink)?;
        out.write_section(SectionId::Strings, &strings_section)?;
        out.write_section(SectionId::Attributes, &attributes_section)?;
        out.write_section(SectionId::Kernels, &kernels::write(self, &strings))?;
        out.write_section(SectionId::Types, &types::write(self, &strings))?;
        out.write_section(SectionId::FunctionIndex, &function_index::write(self, &strings, &records))?;
        out.write_section(SectionId::Functions, &functions_section)?;
        if let Some((strings, locations)) = locations.finish() {
            out.write_section(SectionId::LocationStrings, &strings)?;
            out.write_section(SectionId::Locations, &locations)?;
        }
        if self.optional_sections {
            out.write_section(SectionId::AttributeTypes, &attribute_types::write(self, &offsets)?)?;
            out.write_section(SectionId::AttributeNames, &attribute_names::write(self, &strings)?)?;
            out.write_section(SectionId::RegisterTypes, &register_types::write(self)?)?;
        }
        for (index, section) in self.custom_sections.iter().enumerate() {
            out.write_custom_section(section).in_field(|| format!("custom_sections[{index}]"))?;
        }
        // Counted as the reader counts, which refuses a file with more.
        shared.into_iter().try_for_each(|bytes| Budget::new(limits, out.position()).check_model(bytes))?;
        Ok(out.position())
    }

    /// Total bytes of kernel names, type names, function names, and attribute names plus locations, counted once per
    /// use.
    fn shared_bytes(&self, locations: &LocationsWriter<'_>) -> [u64; 4] {
        let sum = |names: &mut dyn Iterator<Item = &str>| names.map(|name| name.len() as u64).sum::<u64>();
        let kernels = self.bodies().flat_map(|(_, body)| &body.kernels);
        let attributes = kernels.flat_map(|kernel| &kernel.attributes);
        let mut names = attributes.filter_map(|a| a.name.as_deref()).filter(|_| self.optional_sections);
        [
            sum(&mut self.kernel_names()),
            sum(&mut self.type_names()),
            sum(&mut self.functions.iter().map(|function| &*function.name)),
            sum(&mut names).saturating_add(locations.reading_cost()),
        ]
    }
}

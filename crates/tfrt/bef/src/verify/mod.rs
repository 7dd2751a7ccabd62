//! Verification: checks an untrusted file completely, once.

mod function;
mod out_of_range;
mod used_bys;

use std::borrow::Cow;

use crate::attribute::{AttributeRef, AttributeType};
use crate::error::{Error, ErrorKind, InField, Result};
use crate::file::File;
use crate::framing::SectionId;
use crate::function_kind::FunctionKind;
use crate::ids::{FunctionId, KernelCode, TypeId};
use crate::limits::Budget;
use crate::location::Location;
use crate::region::Region;
use crate::section::attribute_types::AttributeTypes;
use crate::section::function_index::FunctionIndex;
use crate::section::functions::{FunctionRecord, KERNEL_ALIGNMENT};
use crate::section::locations::Locations;
use crate::section::strings::{LastString, Strings};

/// A verified file, with its tables decoded.
///
/// For every function: registers are defined exactly once, arguments first, and before their use; use counts, operand
/// counts and used-by lists agree with the kernels' arguments; every index and offset is valid; kernel codes, types and
/// functions are in the range of their tables. Sync functions return no argument, and no register twice. Attributes
/// whose types are recorded are well-formed.
///
/// Readers of records and attributes still return a `Result`, because they still check: a mapped file can change while
/// it is read, and a kernel may read an attribute as the wrong type.
#[derive(Clone, Debug)]
pub struct Verified<'a> {
    file: File<'a>,
    kernel_names: Vec<&'a str>,
    type_names: Vec<&'a str>,
    functions: FunctionIndex<'a>,
    attribute_types: Option<AttributeTypes>,
}

impl<'a> File<'a> {
    /// Checks the whole file, in time and memory proportional to its size; unknown sections and the payloads of
    /// numeric arrays and tensors are not touched.
    ///
    /// Where the published grammar is silent, the rules are what every known writer does:
    ///
    /// - names are UTF-8, and offsets refer to the start of a string, a location, or an attribute (if section 8 lists
    ///   them), not into the middle of one;
    /// - padding is `0xCC`, and sections end with their last entry;
    /// - function records fill their section, and kernels fill their function in order;
    /// - kernels come after those whose results they use, so that no program deadlocks;
    /// - arguments are the first registers, and register types agree with the signature;
    /// - section 8 lists attributes in ascending order, and they do not overlap, nor do the elements of an aggregate.
    ///
    /// # Errors
    /// The first error found, with its path and offset.
    pub fn verify(&self) -> Result<Verified<'a>> {
        let file = self.clone();
        let strings = file.strings().validated();
        strings.check().in_field(|| SectionId::Strings.name())?;
        let location_strings = Strings::new(file.section(SectionId::LocationStrings).unwrap_or_default());
        location_strings.validated().check().in_field(|| SectionId::LocationStrings.name())?;
        let verified = Verified {
            kernel_names: file.kernel_names_in(&strings)?,
            type_names: file.type_names_in(&strings)?,
            functions: file.function_index_in(&strings)?,
            attribute_types: file.attribute_types()?,
            file,
        };
        verified.check_signatures()?;
        verified.check_attributes()?;
        let mut budget = verified.file.budget();
        let locations = LocationStarts::check(verified.file.locations(), &mut budget)?;
        verified.check_functions(&locations, budget)?;
        Ok(verified)
    }
}

/// The locations in the Locations section: where each starts, and what it costs to decode.
struct LocationStarts {
    len: u64,
    /// Start offset and decoding cost of each location, in ascending order of offsets.
    starts: Vec<(u64, u64)>,
}

impl LocationStarts {
    /// Checks all locations, which follow one another without gaps. A string that several of them refer to is charged
    /// each time.
    fn check(locations: Locations<'_>, budget: &mut Budget) -> Result<Self> {
        let len = locations.region().len();
        // Most locations are a tag, a file, a line and a column, of at least one byte each.
        let mut starts = Vec::with_capacity((len / 4) as usize);
        let (mut offset, mut last) = (0, LastString::default());
        while offset < len {
            let (end, cost) = locations.check(offset, &mut last)?;
            let at = locations.region().start() + offset;
            budget.spend(cost, at).in_field(|| format!("locations[{offset}]"))?;
            starts.push((offset, cost));
            offset = end;
        }
        Ok(LocationStarts { len, starts })
    }

    /// The position and cost of the location that starts at `offset`. Tries position `hint` first, since kernels use
    /// locations in the order in which they are stored.
    #[inline]
    fn find(&self, offset: u64, hint: usize) -> Option<(usize, u64)> {
        match self.starts.get(hint) {
            Some(&(start, cost)) if start == offset => Some((hint, cost)),
            _ => {
                let index = self.starts.binary_search_by_key(&offset, |&(start, _)| start).ok()?;
                Some((index, self.starts[index].1))
            }
        }
    }
}

impl<'a> Verified<'a> {
    /// The file.
    pub fn file(&self) -> &File<'a> {
        &self.file
    }

    /// Kernel names by kernel code.
    pub fn kernel_names(&self) -> &[&'a str] {
        &self.kernel_names
    }

    /// Type names by type index.
    pub fn type_names(&self) -> &[&'a str] {
        &self.type_names
    }

    /// Names, signatures and record offsets of the functions.
    pub fn functions(&self) -> &FunctionIndex<'a> {
        &self.functions
    }

    /// The name of a kernel; empty for codes that the file does not define.
    pub fn kernel_name(&self, code: KernelCode) -> &'a str {
        self.kernel_names.get(code.index()).copied().unwrap_or_default()
    }

    /// The name of a type; empty for indices that the file does not define.
    pub fn type_name(&self, id: TypeId) -> &'a str {
        self.type_names.get(id.index()).copied().unwrap_or_default()
    }

    /// The record of function `id`; `None` if it is native and has none.
    ///
    /// # Errors
    /// If there is no such function.
    pub fn function(&self, id: FunctionId) -> Result<Option<FunctionRecord<'a>>> {
        self.file.function(&self.functions, id)
    }

    /// The attribute at an `offset` from a kernel.
    pub fn attribute(&self, offset: u32) -> AttributeRef<'a> {
        self.file.attributes().at(u64::from(offset))
    }

    /// The type of the attribute at `offset`; `None` if the file does not record it.
    pub fn attribute_type(&self, offset: u32) -> Option<AttributeType> {
        self.attribute_types.as_ref()?.get(u64::from(offset))
    }

    /// Types of the attributes; `None` if the file does not record them.
    pub fn attribute_types(&self) -> Option<&AttributeTypes> {
        self.attribute_types.as_ref()
    }

    /// The location at an `offset` from a function or kernel; `None` if the offset means "no location".
    ///
    /// # Errors
    /// If no location starts there.
    pub fn location(&self, offset: impl Into<u64>) -> Result<Option<Location<'a>>> {
        self.file.locations().get(offset.into())
    }

    fn check_signatures(&self) -> Result<()> {
        let types = self.type_names.len();
        for (index, function) in self.functions.iter().enumerate() {
            for (name, list) in [("arguments", function.arguments), ("results", function.results)] {
                if let Some(number) = list.iter().position(|id| id.index() >= types) {
                    return Err(Error::new(
                        ErrorKind::OutOfRange,
                        self.functions.entry_offset(index),
                        format!("type {}", list[number]),
                        format!("one below {types}"),
                    ))
                    .in_field(|| format!("function_index[{index}].{name}[{number}]"));
                }
            }
        }
        Ok(())
    }

    /// Checks the attributes whose types are recorded. They must not overlap, which also bounds the time that this
    /// takes.
    fn check_attributes(&self) -> Result<()> {
        let Some(types) = &self.attribute_types else { return Ok(()) };
        let attributes = self.file.attributes();
        let mut end = 0;
        for (index, (offset, kind)) in types.iter().enumerate() {
            let attribute = attributes.at(offset);
            let len = attributes.region().len();
            let fault = if offset >= len {
                Some((ErrorKind::OutOfRange, format!("one below {len}, the size of the Attributes section")))
            } else if offset < end {
                Some((ErrorKind::Overlap, format!("one from {end} on, where the one before it ends")))
            } else {
                None
            };
            if let Some((kind, expected)) = fault {
                return Err(Error::new(kind, attribute.file_offset(), format!("offset {offset}"), expected))
                    .in_field(|| format!("attributes[{index}]"));
            }
            end = attribute.check(kind).in_field(|| format!("attributes[{index}]"))?;
        }
        Ok(())
    }

    fn check_functions(&self, locations: &LocationStarts, budget: Budget) -> Result<()> {
        let section = self.file.section(SectionId::Functions).unwrap_or_default();
        let ends = self.record_ends(section)?;
        let count = self.functions.len();
        let mut checker = function::Checker::new(
            self,
            locations,
            budget,
            self.file.attribute_names(count)?,
            self.file.register_types(count)?,
        );
        let mut record = FunctionRecord::with_capacity(function::INITIAL_CAPACITY);
        for (index, (entry, end)) in self.functions.iter().zip(ends).enumerate() {
            if entry.kind == FunctionKind::Native {
                continue;
            }
            // Truncate the section where the next record starts, so that records cannot overlap.
            section
                .slice(0, end)
                .and_then(|section| record.read_into(section, &entry, self.file.limits()))
                .and_then(|()| checker.check(&record, &entry))
                .in_field(|| format!("functions[{index}]"))?;
        }
        checker.finish()
    }

    /// The end offset of each function's record. Records must fill the section, in any order.
    fn record_ends(&self, section: Region<'_>) -> Result<Vec<u64>> {
        let mut first = section.len();
        let mut last = None;
        let mut in_order = true;
        for (index, entry) in self.functions.iter().enumerate() {
            if entry.offset > section.len() {
                return Err(Error::new(
                    ErrorKind::OutOfRange,
                    self.functions.entry_offset(index),
                    format!("offset {}", entry.offset),
                    format!("one up to {}, the size of the Functions section", section.len()),
                ))
                .in_field(|| format!("function_index[{index}]"));
            }
            if entry.kind != FunctionKind::Native {
                first = first.min(entry.offset);
                in_order &= last <= Some(entry.offset);
                last = Some(entry.offset);
            }
        }
        if first != 0 {
            let expected = "function records that fill the section from its start";
            return Err(Error::new(
                ErrorKind::TrailingBytes,
                section.start(),
                format!("{first} bytes"),
                expected,
            ))
            .in_field(|| "functions");
        }
        if last.is_some() && !section.start().is_multiple_of(KERNEL_ALIGNMENT) {
            return Err(Error::new(
                ErrorKind::Misaligned,
                section.start(),
                format!("the Functions section at file offset {}", section.start()),
                "a multiple of 4",
            ))
            .in_field(|| "functions");
        }
        let mut ends = vec![section.len(); self.functions.len()];
        let starts = self.functions.iter().enumerate();
        let starts = starts.filter(|(_, entry)| entry.kind != FunctionKind::Native);
        let starts = starts.map(|(index, entry)| (entry.offset, index));
        // Each record ends where the next one starts.
        let mut next = section.len();
        let end = |(start, index): (u64, usize)| ends[index] = std::mem::replace(&mut next, start);
        if in_order {
            starts.rev().for_each(end);
        } else {
            let mut starts: Vec<_> = starts.collect();
            starts.sort_unstable();
            starts.into_iter().rev().for_each(end);
        }
        Ok(ends)
    }

    /// The program as a module that can be changed and written again.
    ///
    /// Strings and large attributes are borrowed from the file. Unknown sections are kept, but not an order of used-by
    /// lists that differs from the reference converter's.
    ///
    /// # Errors
    /// None, unless the bytes have changed since they were verified.
    pub fn to_module(&self) -> Result<crate::model::Module<'a>> {
        crate::model::Module::read(self)
    }

    /// The Attributes section and its alignment, for files that do not record attribute types.
    pub(crate) fn untyped_attributes(&self) -> (Cow<'a, [u8]>, u8) {
        let region = self.file.attributes().region();
        let implied = 1 << region.start().trailing_zeros().min(3);
        (region.bytes().into(), self.file.attributes_alignment().unwrap_or(implied))
    }
}

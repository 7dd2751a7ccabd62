//! Verification: everything that an untrusted file can say is checked once.

mod function;
mod used_bys;

use std::borrow::Cow;

use crate::attribute::{AttributeRef, AttributeType};
use crate::error::{Error, ErrorKind, Result, Within};
use crate::file::File;
use crate::framing::SectionId;
use crate::ids::{FunctionId, KernelCode, TypeId};
use crate::limits::Budget;
use crate::region::Region;
use crate::section::attribute_types::AttributeTypes;
use crate::section::function_index::{FunctionIndex, FunctionKind};
use crate::section::functions::{FunctionRecord, KERNEL_ALIGNMENT};
use crate::section::locations::{Location, Locations};
use crate::section::strings::{LastString, Strings};

/// A file whose parts are known to agree, with its tables decoded.
///
/// Holds for every function: registers are defined exactly once, arguments first, and before their use; use counts,
/// operand counts and used-by lists say what the kernels' arguments say; every index and offset leads where it
/// should; kernel codes, types and functions are below the lengths of their tables. Sync functions return neither
/// arguments nor a register twice. Attributes are well-formed as far as their types are recorded.
///
/// Reading records and attributes still answers with a `Result`, because it still checks: a mapped file can change
/// under its reader, and a kernel may take an attribute for something that it is not.
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
    /// Where the published grammar is silent, what every known writer does is the rule:
    ///
    /// - names are UTF-8, and offsets lead to the start of a string, a location, or an attribute (where section 8 lists
    ///   them), not into one;
    /// - padding is `0xCC`, and sections end with their last entry;
    /// - function records fill their section, and kernels their function, in order;
    /// - kernels come after those whose results they use, so that no program can wait for itself;
    /// - arguments are the first registers, and register types agree with the signature;
    /// - attributes rise in section 8 and share no bytes, nor do the elements of an aggregate.
    ///
    /// # Errors
    /// The first fault found, with its place.
    pub fn verify(&self) -> Result<Verified<'a>> {
        let file = self.clone();
        let strings = file.strings().whole();
        strings.check().within(|| SectionId::Strings.name())?;
        let location_strings = Strings::new(file.section(SectionId::LocationStrings).unwrap_or_default());
        location_strings.whole().check().within(|| SectionId::LocationStrings.name())?;
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

/// Where the locations of the Locations section start.
struct LocationStarts {
    len: u64,
    /// By rising offset: where each starts, and what it costs to decode.
    starts: Vec<(u64, u64)>,
}

impl LocationStarts {
    /// Checks all locations, which follow one another without gaps. Long strings that many of them name are counted
    /// each time.
    fn check(locations: Locations<'_>, budget: &mut Budget) -> Result<Self> {
        let len = locations.region().len();
        // Most locations name a file, a line and a column, in a byte each at least.
        let mut starts = Vec::with_capacity((len / 4) as usize);
        let (mut offset, mut last) = (0, LastString::default());
        while offset < len {
            let (end, cost) = locations.check(offset, &mut last)?;
            let at = locations.region().start() + offset;
            budget.spend(cost, at).within(|| format!("locations[{offset}]"))?;
            starts.push((offset, cost));
            offset = end;
        }
        Ok(LocationStarts { len, starts })
    }

    /// The position and cost of the location that starts at `offset`, looked for at position `hint` first: kernels use
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

    /// Names, signatures and places of the functions.
    pub fn functions(&self) -> &FunctionIndex<'a> {
        &self.functions
    }

    /// The name of a kernel; empty for codes that the file does not define.
    pub fn kernel_name(&self, code: KernelCode) -> &'a str {
        self.kernel_names.get(code.index()).copied().unwrap_or_default()
    }

    /// The spelling of a type; empty for indices that the file does not define.
    pub fn type_name(&self, id: TypeId) -> &'a str {
        self.type_names.get(id.index()).copied().unwrap_or_default()
    }

    /// The record of function `id`; `None` if it is native and has none.
    ///
    /// # Errors
    /// When there is no such function.
    pub fn function(&self, id: FunctionId) -> Result<Option<FunctionRecord<'a>>> {
        self.file.function(&self.functions, id)
    }

    /// The attribute at `offset`, as a kernel gives it.
    pub fn attribute(&self, offset: u32) -> AttributeRef<'a> {
        self.file.attributes().at(u64::from(offset))
    }

    /// What the attribute at `offset` is; `None` where the file does not record it.
    pub fn attribute_type(&self, offset: u32) -> Option<AttributeType> {
        self.attribute_types.as_ref()?.get(u64::from(offset))
    }

    /// Types of the attributes; `None` if the file does not record them.
    pub fn attribute_types(&self) -> Option<&AttributeTypes> {
        self.attribute_types.as_ref()
    }

    /// The location at `offset`, as functions and kernels give it; `None` if that means "no location".
    ///
    /// # Errors
    /// When no location starts there.
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
                        self.functions.place(index),
                        format!("type {}", list[number]),
                        format!("one below {types}"),
                    ))
                    .within(|| format!("function_index[{index}].{name}[{number}]"));
                }
            }
        }
        Ok(())
    }

    /// Checks the attributes whose types are recorded. They must not overlap, which also bounds the work.
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
                    .within(|| format!("attributes[{index}]"));
            }
            end = attribute.check(kind).within(|| format!("attributes[{index}]"))?;
        }
        Ok(())
    }

    fn check_functions(&self, locations: &LocationStarts, budget: Budget) -> Result<()> {
        let section = self.file.section(SectionId::Functions).unwrap_or_default();
        let extents = self.extents(section)?;
        let count = self.functions.len();
        let mut checker = function::Checker::new(
            self,
            locations,
            budget,
            self.file.attribute_names(count)?,
            self.file.register_types(count)?,
        );
        let mut record = FunctionRecord::with_capacity(function::ROOM);
        for (index, (entry, end)) in self.functions.iter().zip(extents).enumerate() {
            if entry.kind == FunctionKind::Native {
                continue;
            }
            // A record ends where the next one starts, so that no byte is read for two functions.
            section
                .slice(0, end)
                .and_then(|section| record.read_into(section, &entry, self.file.limits()))
                .and_then(|()| checker.check(&record, &entry))
                .within(|| format!("functions[{index}]"))?;
        }
        checker.finish()
    }

    /// Where the record of each function ends: records fill the section, in any order.
    fn extents(&self, section: Region<'_>) -> Result<Vec<u64>> {
        let mut first = section.len();
        let mut last = None;
        let mut in_order = true;
        for (index, entry) in self.functions.iter().enumerate() {
            if entry.offset > section.len() {
                return Err(Error::new(
                    ErrorKind::OutOfRange,
                    self.functions.place(index),
                    format!("offset {}", entry.offset),
                    format!("one up to {}, the size of the Functions section", section.len()),
                ))
                .within(|| format!("function_index[{index}]"));
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
            .within(|| "functions");
        }
        if last.is_some() && !section.start().is_multiple_of(KERNEL_ALIGNMENT) {
            return Err(Error::new(
                ErrorKind::Misaligned,
                section.start(),
                format!("the Functions section at file offset {}", section.start()),
                "a multiple of 4",
            ))
            .within(|| "functions");
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

    /// The program as a model that can be changed and written again.
    ///
    /// Strings and large attributes are borrowed from the file. Unknown sections, and the used-by lists' order where
    /// it differs from the reference converter's, are not part of the model.
    ///
    /// # Errors
    /// None for bytes that did not change since they were verified.
    pub fn to_module(&self) -> Result<crate::model::Module<'a>> {
        crate::model::Module::read(self)
    }

    /// The Attributes section and the alignment that its start keeps, for files that do not say what is in it.
    pub(crate) fn untyped_attributes(&self) -> (Cow<'a, [u8]>, u8) {
        let region = self.file.attributes().region();
        let implied = 1 << region.start().trailing_zeros().min(3);
        (region.bytes().into(), self.file.attributes_alignment().unwrap_or(implied))
    }
}

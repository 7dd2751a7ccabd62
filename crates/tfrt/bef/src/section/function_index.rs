//! Section 4, FunctionIndex: `VBR n`, then for each function
//! `u8 kind, VBR offset, VBR name, VBR nargs, VBR type * nargs, VBR nresults, VBR type * nresults`.

use super::strings::{StringOffsets, Strings};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::function_kind::FunctionKind;
use crate::ids::{FunctionId, TypeId};
use crate::limits::Budget;
use crate::model::Module;
use crate::region::{Cursor, Region};

/// Name, signature and record offset of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionEntry<'i> {
    /// How the function runs.
    pub kind: FunctionKind,
    /// Offset of the function's record in the Functions section; meaningless for native functions.
    pub offset: u64,
    /// The function's name; empty for regions of kernels.
    pub name: &'i str,
    /// Types of the function's arguments.
    pub arguments: &'i [TypeId],
    /// Types of the function's results.
    pub results: &'i [TypeId],
}

/// The decoded FunctionIndex section.
#[derive(Clone, Debug, Default)]
pub struct FunctionIndex<'a> {
    entries: Vec<Entry<'a>>,
    /// Argument and result types of all functions, one after another.
    types: Vec<TypeId>,
}

#[derive(Clone, Debug)]
struct Entry<'a> {
    kind: FunctionKind,
    offset: u64,
    name: &'a str,
    /// Absolute file offset of the entry.
    at: u64,
    arguments: usize,
    results: usize,
    end: usize,
}

impl<'a> Entry<'a> {
    /// Reads an entry, and appends its argument and result types to `types`.
    #[inline]
    fn read(
        cursor: &mut Cursor<'a>,
        strings: &Strings<'a>,
        budget: &mut Budget,
        types: &mut Vec<TypeId>,
    ) -> Result<Self> {
        let at = cursor.offset();
        let number = cursor.u8().in_field(|| "kind")?;
        let Some(kind) = FunctionKind::new(number) else { return Err(unknown_kind(number, at)) };
        let offset = cursor.vbr().in_field(|| "offset")?;
        let name = cursor.vbr().and_then(|name| strings.get(name)).in_field(|| "name")?;
        budget.spend(name.len() as u64, at).in_field(|| "name")?;
        let arguments = types.len();
        read_types(cursor, types).in_field(|| "arguments")?;
        let results = types.len();
        read_types(cursor, types).in_field(|| "results")?;
        Ok(Entry { kind, offset, name, at, arguments, results, end: types.len() })
    }
}

#[inline(always)]
fn read_types(cursor: &mut Cursor<'_>, types: &mut Vec<TypeId>) -> Result<()> {
    let count = cursor.count("types", 1)?;
    for index in 0..count {
        types.push(TypeId(cursor.vbr32("type index").in_field(|| format!("[{index}]"))?));
    }
    Ok(())
}

#[cold]
fn unknown_kind(number: u8, at: u64) -> Error {
    let actual = format!("function kind {number}");
    Error::new(ErrorKind::UnknownTag, at, actual, "0 (async), 1 (native) or 2 (sync)")
}

/// Minimum size of an entry in bytes: kind, offset, name and two counts.
const MIN_ENTRY: u64 = 5;

impl<'a> FunctionIndex<'a> {
    #[inline]
    pub(crate) fn read(region: &Region<'a>, strings: &Strings<'a>, mut budget: Budget) -> Result<Self> {
        let mut read = || {
            let mut cursor = region.cursor();
            let count = cursor.count("functions", MIN_ENTRY)?;
            let strings = strings.for_names(count);
            let mut entries = Vec::with_capacity(count as usize);
            // Upper bound: each type takes at least one byte, and the rest of each entry at least `MIN_ENTRY` bytes.
            let mut types = Vec::with_capacity((cursor.remaining() - MIN_ENTRY * count) as usize);
            for number in 0..count {
                let entry = Entry::read(&mut cursor, &strings, &mut budget, &mut types);
                entries.push(entry.in_field(|| format!("[{number}]"))?);
            }
            cursor.finish()?;
            Ok(FunctionIndex { entries, types })
        };
        read().in_field(|| "function_index")
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no functions.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The function with index `id`.
    pub fn get(&self, id: FunctionId) -> Option<FunctionEntry<'_>> {
        self.entries.get(id.index()).map(|entry| self.entry(entry))
    }

    fn entry<'i>(&'i self, entry: &'i Entry<'a>) -> FunctionEntry<'i> {
        FunctionEntry {
            kind: entry.kind,
            offset: entry.offset,
            name: entry.name,
            arguments: &self.types[entry.arguments..entry.results],
            results: &self.types[entry.results..entry.end],
        }
    }

    /// All functions in index order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = FunctionEntry<'_>> + DoubleEndedIterator {
        self.entries.iter().map(|entry| self.entry(entry))
    }

    /// The name of function `id`, which borrows from the file rather than from the index.
    pub fn name(&self, id: FunctionId) -> Option<&'a str> {
        self.entries.get(id.index()).map(|entry| entry.name)
    }

    /// The first function called `name`; `None` for the empty name, which all regions have.
    pub fn find(&self, name: &str) -> Option<FunctionId> {
        let named = |entry: &Entry<'_>| !name.is_empty() && entry.name == name;
        self.entries.iter().position(named).map(|index| FunctionId(index as u32))
    }

    /// Absolute file offset of the entry of function number `index`.
    pub(crate) fn entry_offset(&self, index: usize) -> u64 {
        self.entries.get(index).map_or(0, |entry| entry.at)
    }
}

/// Writes the FunctionIndex section; `offsets` are those of the function records, in index order.
pub(crate) fn write(module: &Module<'_>, strings: &StringOffsets<'_>, offsets: &[u64]) -> Buffer<'static> {
    let mut out = Buffer::new();
    out.vbr(module.functions.len() as u64);
    for (function, &offset) in module.functions.iter().zip(offsets) {
        out.byte(function.kind as u8);
        out.vbr(offset);
        out.vbr(strings.offset_of(&function.name));
        for types in [&function.arguments, &function.results] {
            out.vbr(types.len() as u64);
            types.iter().for_each(|id| out.vbr(u64::from(id.0)));
        }
    }
    out
}

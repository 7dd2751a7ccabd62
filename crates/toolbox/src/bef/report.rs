use crate::{Context, Result};
use pteron_bef::{Attribute, FunctionId, FunctionKind, KernelCode, SectionId, Verified};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The contents of a BEF file.
#[derive(Debug, Clone, Serialize)]
pub struct BefReport {
    /// The version of the report's schema.
    pub report: u32,
    pub file: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// The sections, in the order of the file.
    pub sections: Vec<SectionReport>,
    /// The functions, regions included, in the order of the function index.
    pub functions: Vec<FunctionReport>,
    /// The kernels, in the order of the kernel table.
    pub kernels: Vec<KernelReport>,
    /// The attributes; empty if the file has no AttributeTypes section, which lists them.
    pub attributes: Vec<AttributeReport>,
    /// The names of the types, in the order of the type table.
    pub types: Vec<String>,
}

/// A section of a BEF file.
#[derive(Debug, Clone, Serialize)]
pub struct SectionReport {
    pub id: u8,
    /// The section's name; `None` for an id that the format does not define.
    pub name: Option<&'static str>,
    /// The file offset of the section's header.
    pub offset: u64,
    /// The file offset of the section's payload.
    pub data_offset: u64,
    /// Bytes of the section's payload.
    pub bytes: u64,
    /// The alignment that the section's header declares, if any.
    pub alignment: Option<u8>,
}

/// A function of a BEF file.
#[derive(Debug, Clone, Serialize)]
pub struct FunctionReport {
    /// The function's name; empty for a region.
    pub name: String,
    /// `async`, `sync` or `native`.
    pub kind: &'static str,
    /// The types of the function's arguments.
    pub arguments: Vec<String>,
    /// The types of the function's results.
    pub results: Vec<String>,
    /// The number of kernel calls; `None` for a native function.
    pub kernels: Option<usize>,
    /// The number of registers; `None` for a native function.
    pub registers: Option<usize>,
    /// The number of streams to which the function's kernels are assigned; `None` for a native function.
    pub streams: Option<usize>,
    /// The function's source location, if the file records it.
    pub location: Option<String>,
}

/// A kernel that the program names.
#[derive(Debug, Clone, Serialize)]
pub struct KernelReport {
    pub name: String,
    /// The number of call sites in the program.
    pub calls: usize,
    /// Whether this build implements the kernel.
    pub supported: bool,
}

/// An attribute of a BEF file.
#[derive(Debug, Clone, Serialize)]
pub struct AttributeReport {
    /// The attribute's offset in the file.
    pub offset: u64,
    /// The attribute's type.
    pub kind: String,
    /// The attribute's value, truncated if it is long.
    pub value: String,
}

/// Maximum number of characters that are shown of an attribute's value.
const MAX_VALUE_CHARS: usize = 60;

/// Lists the contents of a BEF file.
///
/// # Errors
/// If the file is not valid.
pub fn report(bytes: &[u8], name: &str) -> Result<BefReport> {
    let context = || format!("{name} is not a valid BEF file");
    let program = pteron_bef::File::open(bytes).and_then(|file| file.verify()).context(context)?;
    let mut functions = Vec::new();
    for (i, entry) in program.functions().iter().enumerate() {
        let types =
            |ids: &[pteron_bef::TypeId]| ids.iter().map(|t| program.type_name(*t).to_owned()).collect();
        let mut function = FunctionReport {
            name: entry.name.to_owned(),
            kind: match entry.kind {
                FunctionKind::Async => "async",
                FunctionKind::Sync => "sync",
                FunctionKind::Native => "native",
            },
            arguments: types(entry.arguments),
            results: types(entry.results),
            kernels: None,
            registers: None,
            streams: None,
            location: None,
        };
        if let Some(record) = program.function(FunctionId(i as u32)).context(context)? {
            let mut streams: Vec<u64> = record.kernel_table().iter().map(|k| k.stream_id).collect();
            streams.sort_unstable();
            streams.dedup();
            function.kernels = Some(record.kernel_table().len().saturating_sub(1));
            function.registers = Some(record.register_uses().len());
            function.streams = Some(streams.len());
            let location = program.location(record.location()).context(context)?;
            function.location = location.map(|l| l.to_string());
        }
        functions.push(function);
    }
    Ok(BefReport {
        report: crate::inspect::REPORT_VERSION,
        file: name.to_owned(),
        bytes: bytes.len() as u64,
        sections: sections(&program),
        kernels: kernels(&program).context(context)?,
        attributes: attributes(&program),
        types: program.type_names().iter().map(|t| (*t).to_owned()).collect(),
        functions,
    })
}

/// The kernels that a program names, in the order of its kernel table.
pub(crate) fn kernels(program: &Verified<'_>) -> pteron_bef::Result<Vec<KernelReport>> {
    let registry = pteron_tfrt_kernels::registry();
    let mut calls = BTreeMap::<u32, usize>::new();
    for i in 0..program.functions().len() {
        let Some(record) = program.function(FunctionId(i as u32))? else { continue };
        for kernel in record.kernels().skip(1) {
            *calls.entry(kernel?.code()).or_default() += 1;
        }
    }
    let report = |code| {
        let name = program.kernel_name(KernelCode(code)).to_owned();
        KernelReport {
            calls: calls.get(&code).copied().unwrap_or(0),
            supported: registry.kernel(&name).is_some(),
            name,
        }
    };
    Ok((0..program.kernel_names().len() as u32).map(report).collect())
}

fn sections(program: &Verified<'_>) -> Vec<SectionReport> {
    let section = |s: pteron_bef::Section<'_>| SectionReport {
        id: s.id,
        name: SectionId::new(s.id).map(SectionId::name),
        offset: s.header_start,
        data_offset: s.data.start(),
        bytes: s.data.len(),
        alignment: s.alignment,
    };
    program.file().sections().map(section).collect()
}

/// An attribute's value as text, truncated if it is long.
pub fn truncated_value(attribute: &Attribute<'_>) -> String {
    let mut brief = TruncatedText { text: String::new(), left: MAX_VALUE_CHARS };
    match write!(brief, "{attribute}") {
        Ok(()) => brief.text,
        Err(_) => brief.text + "…",
    }
}

/// A text that accepts at most `left` more characters; a write beyond them fails.
struct TruncatedText {
    text: String,
    left: usize,
}

impl Write for TruncatedText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for c in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(std::fmt::Error)?;
            self.text.push(c);
        }
        Ok(())
    }
}

fn attributes(program: &Verified<'_>) -> Vec<AttributeReport> {
    let Some(types) = program.attribute_types() else { return Vec::new() };
    let base = program.file().section(SectionId::Attributes).map_or(0, |r| r.start());
    types
        .iter()
        .map(|(offset, kind)| {
            let decoded = u32::try_from(offset).ok().map(|o| program.attribute(o).decode(kind));
            let value = match decoded {
                Some(Ok(attribute)) => truncated_value(&attribute),
                _ => String::new(),
            };
            AttributeReport { offset: base + offset, kind: format!("{kind:?}"), value }
        })
        .collect()
}

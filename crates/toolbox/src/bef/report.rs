use crate::{Context, Result};
use bef::{Attribute, DType, ElementType, FunctionId, FunctionKind, KernelCode, SectionId, Verified};
use serde::Serialize;
use std::collections::BTreeMap;

/// What is in a BEF file.
#[derive(Debug, Clone, Serialize)]
pub struct BefReport {
    /// The version of the report's shape.
    pub report: u32,
    /// The file.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The sections, in the order of the file.
    pub sections: Vec<SectionReport>,
    /// The functions, regions included, in the order of the index.
    pub functions: Vec<FunctionReport>,
    /// The kernels, in the order of the table.
    pub kernels: Vec<KernelReport>,
    /// The attributes, as far as the file lists them: it does if it has the section of their types.
    pub attributes: Vec<AttributeReport>,
    /// The names of the types.
    pub types: Vec<String>,
}

/// A section of a BEF file.
#[derive(Debug, Clone, Serialize)]
pub struct SectionReport {
    /// Its number.
    pub id: u8,
    /// Its name; none for one that the format does not define.
    pub name: Option<&'static str>,
    /// Where it starts in the file, its header included.
    pub offset: u64,
    /// Where its contents start.
    pub data_offset: u64,
    /// Bytes of its contents.
    pub bytes: u64,
    /// Its alignment, if it states one.
    pub alignment: Option<u8>,
}

/// A function of a BEF file.
#[derive(Debug, Clone, Serialize)]
pub struct FunctionReport {
    /// Its name; empty for a region.
    pub name: String,
    /// `async`, `sync` or `native`.
    pub kind: &'static str,
    /// The types of its arguments.
    pub arguments: Vec<String>,
    /// The types of its results.
    pub results: Vec<String>,
    /// The number of kernels it calls; none for a native function.
    pub kernels: Option<usize>,
    /// The number of its registers.
    pub registers: Option<usize>,
    /// The number of streams its kernels run in.
    pub streams: Option<usize>,
    /// Where it comes from.
    pub location: Option<String>,
}

/// A kernel that the program calls.
#[derive(Debug, Clone, Serialize)]
pub struct KernelReport {
    /// Its name.
    pub name: String,
    /// How often the program's text calls it.
    pub calls: usize,
    /// Whether this build has it.
    pub supported: bool,
}

/// An attribute of a BEF file.
#[derive(Debug, Clone, Serialize)]
pub struct AttributeReport {
    /// Where it lies in the section of attributes.
    pub offset: u64,
    /// Its type.
    pub kind: String,
    /// Its value, cut short if it is long.
    pub value: String,
}

/// Characters of an attribute's value that are shown.
const LONGEST_VALUE: usize = 60;

/// Looks into a BEF file, which must be valid.
pub fn report(bytes: &[u8], name: &str) -> Result<BefReport> {
    let context = || format!("{name} is not a valid BEF file");
    let program = bef::File::open(bytes).and_then(|file| file.verify()).context(context)?;
    let mut functions = Vec::new();
    for (i, entry) in program.functions().iter().enumerate() {
        let types = |ids: &[bef::TypeId]| ids.iter().map(|t| program.type_name(*t).to_owned()).collect();
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

/// The kernels that a program names, in the order of its table, and whether this build has them.
pub(crate) fn kernels(program: &Verified<'_>) -> bef::Result<Vec<KernelReport>> {
    let registry = tfrt_kernels::registry();
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
    let section = |s: bef::Section<'_>| SectionReport {
        id: s.id,
        name: SectionId::new(s.id).map(SectionId::name),
        offset: s.header_start,
        data_offset: s.data.start(),
        bytes: s.data.len(),
        alignment: s.alignment,
    };
    program.file().sections().map(section).collect()
}

/// An attribute's value for people: numbers as numbers, whatever their bits are, and bytes as text.
fn shown(attribute: &Attribute<'_>) -> String {
    match attribute {
        Attribute::UI8(v) => v.to_string(),
        Attribute::UI16(v) => v.to_string(),
        Attribute::UI32(v) => v.to_string(),
        Attribute::UI64(v) => v.to_string(),
        Attribute::I1(v) => v.to_string(),
        Attribute::I8(v) => v.to_string(),
        Attribute::I16(v) => v.to_string(),
        Attribute::I32(v) => v.to_string(),
        Attribute::I64(v) => v.to_string(),
        Attribute::F16(v) => format!("{:?}", tensor::f16::from_bits(*v).to_f32()),
        Attribute::BF16(v) => format!("{:?}", tensor::bf16::from_bits(*v).to_f32()),
        Attribute::F32(v) => format!("{:?}", f32::from_bits(*v)),
        Attribute::F64(v) => format!("{:?}", f64::from_bits(*v)),
        Attribute::Complex64(v) => format!("{:?} + {:?}i", f32::from_bits(v.re), f32::from_bits(v.im)),
        Attribute::Complex128(v) => format!("{:?} + {:?}i", f64::from_bits(v.re), f64::from_bits(v.im)),
        Attribute::String(v) => format!("{:?}", String::from_utf8_lossy(v)),
        Attribute::Func(v) => format!("@{}", String::from_utf8_lossy(v)),
        Attribute::Type(v) => v.to_string(),
        Attribute::Array(v) => list(v.element_type(), v.bytes()),
        Attribute::Dense(v) => {
            format!("dense {:?} {}", v.dims(), list(ElementType::Data(v.dtype()), v.bytes()))
        }
        Attribute::Aggregate(all) => format!("[{}]", all.iter().map(shown).collect::<Vec<_>>().join(", ")),
        other => format!("{other:?}"),
    }
}

/// The first elements of an array, with their type.
fn list(kind: ElementType, bytes: &[u8]) -> String {
    let size = usize::try_from(kind.size()).unwrap_or(0).max(1);
    // Each takes three characters at least.
    let first = bytes.chunks_exact(size).take(LONGEST_VALUE / 3);
    let values = first.map(|bytes| element(kind, bytes).unwrap_or_else(|| format!("{bytes:02x?}")));
    let name = match kind {
        ElementType::Data(dtype) => dtype.to_string(),
        ElementType::Type => "types".to_owned(),
    };
    format!("{name} [{}]", values.collect::<Vec<_>>().join(", "))
}

/// An element of an array, of its little-endian bytes.
fn element(kind: ElementType, bytes: &[u8]) -> Option<String> {
    macro_rules! number {
        ($variant:ident, $type:ty) => {
            Attribute::$variant(<$type>::from_le_bytes(bytes.try_into().ok()?))
        };
    }
    let ElementType::Data(dtype) = kind else {
        return bytes.first().and_then(|&number| DType::new(number)).map(|dtype| dtype.to_string());
    };
    Some(shown(&match dtype {
        DType::UI8 => number!(UI8, u8),
        DType::UI16 => number!(UI16, u16),
        DType::UI32 => number!(UI32, u32),
        DType::UI64 => number!(UI64, u64),
        DType::I1 => Attribute::I1(*bytes.first()? != 0),
        DType::I8 => number!(I8, i8),
        DType::I16 => number!(I16, i16),
        DType::I32 => number!(I32, i32),
        DType::I64 => number!(I64, i64),
        DType::F16 => number!(F16, u16),
        DType::BF16 => number!(BF16, u16),
        DType::F32 => number!(F32, u32),
        DType::F64 => number!(F64, u64),
        _ => return None,
    }))
}

fn attributes(program: &Verified<'_>) -> Vec<AttributeReport> {
    let Some(types) = program.attribute_types() else { return Vec::new() };
    let base = program.file().section(SectionId::Attributes).map_or(0, |r| r.start());
    types
        .iter()
        .map(|(offset, kind)| {
            let decoded = u32::try_from(offset).ok().map(|o| program.attribute(o).decode(kind));
            let mut value = match decoded {
                Some(Ok(attribute)) => shown(&attribute),
                _ => String::new(),
            };
            if let Some((cut, _)) = value.char_indices().nth(LONGEST_VALUE) {
                value.truncate(cut);
                value.push('…');
            }
            AttributeReport { offset: base + offset, kind: format!("{kind:?}"), value }
        })
        .collect()
}

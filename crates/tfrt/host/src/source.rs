//! The tables of a program's file that are read while it runs: source locations, type names and attributes.

use crate::error::SourceLocation;
use crate::file::ProgramFile;
use crate::sync::{Mutex, lock};
use pteron_bef::attribute::{Attribute, AttributeType};
use pteron_bef::section::attribute_types::AttributeTypes;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The file of a module, with the tables and attributes that have been decoded from it.
pub(crate) struct ProgramSource {
    file: Arc<ProgramFile>,
    attribute_types: OnceLock<Option<AttributeTypes>>,
    decoded: DecodedAttributes,
}

impl ProgramSource {
    pub(crate) fn new(file: ProgramFile) -> Self {
        let (attribute_types, decoded) = (OnceLock::new(), DecodedAttributes::default());
        Self { file: Arc::new(file), attribute_types, decoded }
    }

    pub(crate) fn file(&self) -> &Arc<ProgramFile> {
        &self.file
    }

    /// The source location at an offset of the Locations section.
    pub(crate) fn location(&self, offset: u64) -> Option<SourceLocation> {
        Some(self.file.file().locations().get(offset).ok()??.into_owned())
    }

    /// The name of a type, as the file spells it.
    pub(crate) fn type_name(&self, id: u32) -> Option<&str> {
        self.file.file().type_names().ok()?.get(id as usize).copied()
    }

    /// The recorded type of the attribute at `offset`.
    pub(crate) fn attribute_type(&self, offset: u64) -> Option<AttributeType> {
        let types = self.attribute_types.get_or_init(|| self.file.file().attribute_types().ok()?);
        types.as_ref()?.get(offset)
    }

    /// The attribute at `offset`, decoded as `kind`. It borrows from the file: only the file's module may store it.
    pub(crate) fn attribute(&self, offset: u64, kind: AttributeType) -> Result<Decoded, String> {
        self.decoded.get(&self.file, offset, kind)
    }
}

/// An attribute that borrows from the file of the module that holds it; it must be given out only for as long as the
/// module lives.
#[derive(Clone)]
pub(crate) enum Decoded {
    /// An attribute that needs no heap memory.
    Small(Attribute<'static>),
    /// An attribute that needs heap memory, decoded once for all calls.
    Shared(Arc<Attribute<'static>>),
}

impl Decoded {
    pub(crate) fn get(&self) -> &Attribute<'static> {
        match self {
            Self::Small(value) => value,
            Self::Shared(value) => value,
        }
    }
}

/// The attributes of a file that need heap memory or are costly to check, each decoded only once.
#[derive(Default)]
struct DecodedAttributes(Mutex<Table>);

#[derive(Default)]
struct Table {
    values: HashMap<(u64, AttributeType), Arc<Attribute<'static>>>,
    /// Heap bytes of `values`.
    bytes: u64,
}

/// Maximum heap bytes of a file's decoded attributes, as a multiple of the file's size. Only attributes that share
/// bytes of the file exceed it.
const EXPANSION: u64 = 32;
/// Heap bytes that the decoded attributes of any file may hold, however small the file is.
const MIN_BYTES: u64 = 1 << 16;

impl DecodedAttributes {
    /// The attribute at `offset`, decoded as `kind`.
    fn get(&self, file: &ProgramFile, offset: u64, kind: AttributeType) -> Result<Decoded, String> {
        let read = || {
            let attribute = file.static_file().attributes().at(offset).decode(kind);
            attribute.map_err(|e| e.to_string())
        };
        if matches!(
            kind,
            AttributeType::Scalar(_) | AttributeType::String | AttributeType::Func | AttributeType::Type
        ) {
            return read().map(Decoded::Small);
        }
        let mut table = lock(&self.0);
        if let Some(value) = table.values.get(&(offset, kind)) {
            return Ok(Decoded::Shared(Arc::clone(value)));
        }
        let value = Arc::new(read()?);
        let bytes = table.bytes.saturating_add(heap_bytes(&value));
        let limit = file.len().saturating_mul(EXPANSION).max(MIN_BYTES);
        if bytes > limit {
            return Err(format!(
                "the attributes share so many bytes that they take more than the limit of {limit}"
            ));
        }
        table.bytes = bytes;
        table.values.insert((offset, kind), Arc::clone(&value));
        Ok(Decoded::Shared(value))
    }
}

/// Heap bytes of a decoded attribute.
fn heap_bytes(value: &Attribute<'_>) -> u64 {
    let inside = match value {
        Attribute::Shape(shape) => shape.dims().map_or(0, |dims| 8 * dims.len() as u64),
        Attribute::Dense(dense) => 8 * dense.dims().len() as u64,
        Attribute::Aggregate(elements) => elements.iter().map(heap_bytes).sum(),
        Attribute::SymbolRef(symbol) => (symbol.nested.len() * size_of::<String>()) as u64,
        _ => 0,
    };
    size_of::<Attribute<'_>>() as u64 + inside
}

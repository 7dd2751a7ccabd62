//! Reads a file into a module.

use std::collections::{BTreeSet, HashMap};

use super::{
    AttributeTable, Body, CustomSection, Function, Kernel, Module, NamedAttribute, UntypedAttributes,
};
use crate::error::{InField, Result};
use crate::framing::SectionId;
use crate::ids::{AttributeId, FunctionId, KernelCode, Register, TypeId};
use crate::location::Location;
use crate::section::attribute_names::AttributeNames;
use crate::section::function_index::FunctionEntry;
use crate::section::functions::{FunctionRecord, KernelRecord};
use crate::section::register_types::RegisterTypes;
use crate::verify::Verified;

impl<'a> Module<'a> {
    pub(crate) fn read(file: &Verified<'a>) -> Result<Self> {
        let has = |id| file.file().section(id).is_some();
        let mut module = Module::new(
            has(SectionId::AttributeTypes) && has(SectionId::AttributeNames) && has(SectionId::RegisterTypes),
        );
        file.kernel_names().iter().for_each(|&name| module.kernels.push(name.into()));
        file.type_names().iter().for_each(|&name| module.types.push(name.into()));
        let functions = file.functions().len();
        let mut reader = Reader {
            file,
            names: file.file().attribute_names(functions)?,
            types: file.file().register_types(functions)?,
            untyped: HashMap::new(),
            offsets: Vec::new(),
        };
        for (id, entry) in (0..).map(FunctionId).zip(file.functions().iter()) {
            let name = file.functions().name(id).unwrap_or_default().into();
            let body = match file.function(id)? {
                Some(record) => {
                    Some(reader.read_body(&record, &entry).in_field(|| format!("functions[{id}]"))?)
                }
                None => None,
            };
            let (arguments, results) = (entry.arguments.to_vec(), entry.results.to_vec());
            module.functions.push(Function { name, kind: entry.kind, arguments, results, body });
        }
        let offsets = reader.offsets;
        module.attributes = match file.attribute_types() {
            Some(types) => {
                let attributes = file.file().attributes();
                let values = types.iter().enumerate().map(|(index, (offset, kind))| {
                    attributes.at(offset).decode(kind).in_field(|| format!("attributes[{index}]"))
                });
                values.collect::<Result<Vec<_>>>()?.into()
            }
            None => {
                let (bytes, alignment) = file.untyped_attributes();
                AttributeTable::with_untyped(UntypedAttributes { bytes, alignment, offsets })
            }
        };
        module.read_extra_strings(file)?;
        let custom = file.file().sections().filter(|section| SectionId::new(section.id).is_none());
        module.custom_sections = custom
            .map(|section| CustomSection {
                id: section.id,
                alignment: section.alignment.unwrap_or(1),
                data: section.data.bytes().into(),
            })
            .collect();
        Ok(module)
    }

    /// Keeps the strings that nothing in the module refers to, so that a round trip preserves them.
    fn read_extra_strings(&mut self, file: &Verified<'a>) -> Result<()> {
        let mut used: BTreeSet<&str> = self.kernel_names().chain(self.type_names()).collect();
        used.extend(self.functions.iter().map(|function| &*function.name));
        if self.optional_sections {
            let kernels = self.bodies().flat_map(|(_, body)| &body.kernels);
            used.extend(kernels.flat_map(|kernel| &kernel.attributes).filter_map(|a| a.name.as_deref()));
        }
        let mut extra = Vec::new();
        for string in file.file().strings().iter() {
            let (_, string) = string?;
            if !used.contains(string) {
                extra.push(string);
            }
        }
        self.strings.extend(extra.into_iter().map(Into::into));
        Ok(())
    }
}

struct Reader<'v, 'a> {
    file: &'v Verified<'a>,
    names: Option<AttributeNames<'a>>,
    types: Option<RegisterTypes<'a>>,
    /// Attribute ids, numbered in order of first use, by offset in the section; for files that do not list attributes.
    untyped: HashMap<u32, AttributeId>,
    offsets: Vec<u64>,
}

impl<'a> Reader<'_, 'a> {
    fn read_body(&mut self, record: &FunctionRecord<'a>, entry: &FunctionEntry<'_>) -> Result<Body<'a>> {
        let registers = self.read_register_types(record, entry)?;
        if let Some(names) = &mut self.names {
            names.next_function(record.kernel_table().len())?;
        }
        let mut kernels = Vec::with_capacity(record.kernel_table().len());
        for (kernel, table) in record.kernels().zip(record.kernel_table()).skip(1) {
            kernels.push(self.read_kernel(&kernel?, table.stream_id)?);
        }
        Ok(Body {
            location: self.read_location(record.location())?,
            registers,
            root_stream: record.kernel_table().first().map_or(0, |root| root.stream_id),
            kernels,
            results: record.results().to_vec(),
        })
    }

    /// The type of each register. If the file records none, only the signature's arguments and results have one.
    fn read_register_types(
        &mut self,
        record: &FunctionRecord<'a>,
        entry: &FunctionEntry<'_>,
    ) -> Result<Vec<Option<TypeId>>> {
        let count = record.register_uses().len();
        if let Some(types) = &mut self.types {
            return Ok(types.next_function(count)?.into_iter().map(Some).collect());
        }
        let mut registers = vec![None; count];
        let arguments = entry.arguments.iter().enumerate();
        let results = entry.results.iter().zip(record.results());
        let known = arguments.map(|(index, kind)| (kind, index));
        for (kind, index) in known.chain(results.map(|(kind, register)| (kind, register.index()))) {
            if let Some(register) = registers.get_mut(index) {
                *register = Some(*kind);
            }
        }
        Ok(registers)
    }

    fn read_kernel(&mut self, kernel: &KernelRecord<'a>, stream: u64) -> Result<Kernel<'a>> {
        let mut attributes = Vec::with_capacity(kernel.attributes().len());
        for offset in kernel.attributes().iter() {
            let name = self.names.as_mut().map(AttributeNames::next_name).transpose()?.map(Into::into);
            attributes.push(NamedAttribute { name, value: self.attribute_id(offset) });
        }
        Ok(Kernel {
            code: KernelCode(kernel.code()),
            location: self.read_location(kernel.location().into())?,
            stream,
            arguments: kernel.arguments().iter().map(Register).collect(),
            attributes,
            functions: kernel.functions().iter().map(FunctionId).collect(),
            results: kernel.results().iter().map(Register).collect(),
        })
    }

    fn read_location(&self, offset: u64) -> Result<Option<Location<'a>>> {
        self.file.location(offset)
    }

    fn attribute_id(&mut self, offset: u32) -> AttributeId {
        if let Some(types) = self.file.attribute_types() {
            return AttributeId(types.position(offset.into()).unwrap_or_default() as u32);
        }
        *self.untyped.entry(offset).or_insert_with(|| {
            self.offsets.push(offset.into());
            AttributeId(self.offsets.len() as u32 - 1)
        })
    }
}

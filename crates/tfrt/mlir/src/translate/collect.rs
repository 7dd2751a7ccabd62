//! The first pass of the translation to BEF: collects names, types, attributes and functions in the reference's order.

use std::collections::{HashMap, HashSet};

use pteron_bef::{AttributeId, FunctionId, FunctionKind, KernelCode, TypeId};

use super::symbols::{self, Symbols, Target};
use super::{Options, attributes};
use crate::diagnostics::Diagnostic;
use crate::ir::{Attribute, Block, LocationId, Module, Operation, Region, Text, Type, ValueId};
use crate::limits::MAX_DIAGNOSTICS;

/// A function of the BEF program: a function of the module, or a region.
pub(super) struct FunctionEntry<'m> {
    pub(super) name: String,
    pub(super) kind: FunctionKind,
    pub(super) inputs: Vec<Type>,
    pub(super) results: Vec<Type>,
    /// The operation that owns the body, and the body's block; absent for native functions.
    pub(super) body: Option<(&'m Operation, &'m Block)>,
}

/// The functions, types and attributes that the pass collects.
pub(super) struct Collected<'m> {
    pub(super) module: &'m Module,
    pub(super) symbols: Symbols<'m>,
    pub(super) program: pteron_bef::Module<'static>,
    pub(super) functions: Vec<FunctionEntry<'m>>,
    /// Indices of functions by symbol name.
    pub(super) named: HashMap<Text, FunctionId>,
    /// Indices of the functions made from regions, by the region's address.
    pub(super) regions: HashMap<*const Region, FunctionId>,
    pub(super) attributes: HashMap<Attribute, AttributeId>,
    types: HashMap<Type, TypeId>,
}

impl Collected<'_> {
    /// The index of a type that has been collected.
    pub(super) fn type_id(&self, ty: &Type) -> TypeId {
        self.types.get(ty).copied().unwrap_or(TypeId(0))
    }

    /// The kernel code for an operation's name, added if it is new.
    pub(super) fn kernel_code(&mut self, name: &Text) -> KernelCode {
        self.program.intern_kernel(name.to_string_lossy())
    }
}

/// Whether the operation ends a function or region.
pub(super) fn is_return(op: &Operation) -> bool {
    op.is("tfrt.return")
}

/// How an attribute of a kernel is represented in BEF.
pub(super) enum Use<'a> {
    /// The attribute is left out.
    Dropped,
    /// The attribute refers to functions, which the kernel gets as a list.
    Functions(Vec<&'a Text>),
    /// The attribute is written as a value.
    Value,
}

/// Decides how an attribute of a kernel is represented.
pub(super) fn classify<'a>(symbols: &Symbols<'_>, name: &Text, value: &'a Attribute) -> Use<'a> {
    if *name == "_tfrt_cost" || *name == super::STREAMS {
        return Use::Dropped;
    }
    match value {
        Attribute::SymbolRef { root, nested } => match symbols.resolve(value) {
            Target::Compiled(_) => Use::Value,
            _ if nested.is_empty() => Use::Functions(vec![root]),
            _ => Use::Value,
        },
        Attribute::Array(elements) if matches!(elements.first(), Some(Attribute::SymbolRef { .. })) => {
            Use::Functions(elements.iter().filter_map(Attribute::as_flat_symbol).collect())
        }
        _ => Use::Value,
    }
}

/// Collects the functions, types and attributes of a module.
pub(super) fn collect(module: &Module, options: Options) -> Result<Collected<'_>, Vec<Diagnostic>> {
    let mut collector = Collector {
        collected: Collected {
            module,
            symbols: Symbols::new(&module.op),
            program: pteron_bef::Module::new(options.optional_sections),
            functions: Vec::new(),
            named: HashMap::new(),
            regions: HashMap::new(),
            attributes: HashMap::new(),
            types: HashMap::new(),
        },
        options,
        region_of: vec![0; module.values.len()],
        next_region: 1,
        references: Vec::new(),
        payload: 0,
        symbol_count: 0,
        texts: HashMap::new(),
        problems: Vec::new(),
        attribute_refused: false,
    };
    if let Some(block) = module.op.body() {
        for op in &block.operations {
            collector.visit_operation(op, 0);
        }
    }
    collector.check_references();
    if collector.problems.is_empty() { Ok(collector.collected) } else { Err(collector.problems) }
}

struct Collector<'m> {
    collected: Collected<'m>,
    options: Options,
    /// For each value, the number of the region that defines it.
    region_of: Vec<u32>,
    next_region: u32,
    /// The function references in attributes: the attribute, the function's name, and the operation's location.
    references: Vec<(&'m Attribute, &'m Text, LocationId)>,
    payload: u64,
    symbol_count: u64,
    /// Texts of the compiled modules that symbols refer to, by the module operation's address.
    texts: HashMap<*const Operation, String>,
    problems: Vec<Diagnostic>,
    /// Whether an attribute that cannot be encoded was reported; like the reference, only the first one is.
    attribute_refused: bool,
}

impl<'m> Collector<'m> {
    fn error(&mut self, location: LocationId, message: impl Into<String>) {
        if self.problems.len() < MAX_DIAGNOSTICS {
            let location = self.collected.module.location(location);
            self.problems.push(Diagnostic::error_at(location, message));
        }
    }

    fn utf8_text(&mut self, text: &Text, location: LocationId) -> String {
        match text.as_str() {
            Some(text) if !text.contains('\0') => text.to_string(),
            _ => {
                self.error(
                    location,
                    format!("'{text}' cannot be a name in BEF: names are UTF-8 without NUL"),
                );
                String::new()
            }
        }
    }

    fn add_type(&mut self, ty: &Type) {
        if !self.collected.types.contains_key(ty) {
            let id = self.collected.program.intern_type(ty.to_string());
            self.collected.types.insert(ty.clone(), id);
        }
    }

    fn add_types_of(&mut self, values: &[ValueId]) {
        for value in values {
            let ty = self.collected.module.type_of(*value).clone();
            self.add_type(&ty);
        }
    }

    /// Visits an operation in post-order: its regions, then the operation.
    fn visit_operation(&mut self, op: &'m Operation, region: u32) {
        if symbols::is_compiled_module(op) {
            return;
        }
        if op.is("builtin.module") {
            return self.error(
                op.location,
                "a nested module must be compiled: it needs the attribute 'tfrt.compiled'",
            );
        }
        if op.is("func.func") && region != 0 {
            return self.error(op.location, "a function cannot be nested in a region of another operation");
        }
        for result in &op.results {
            self.region_of[result.0 as usize] = region;
        }
        for inner in &op.regions {
            let id = self.next_region;
            self.next_region += 1;
            for block in &inner.blocks {
                for argument in &block.arguments {
                    self.region_of[argument.0 as usize] = id;
                }
                let last = block.operations.len().saturating_sub(1);
                for (at, op) in block.operations.iter().enumerate() {
                    if is_return(op) && at != last {
                        self.error(op.location, "return op must be at the end of its block");
                    }
                    self.visit_operation(op, id);
                }
            }
        }
        let outside = |value: &ValueId| self.region_of[value.0 as usize] != region;
        if op.operands.iter().any(outside) {
            return self.error(
                op.location,
                "BEF executor only supports references to kernels within the current region",
            );
        }
        if is_return(op) {
            return;
        }
        self.add_types_of(&op.results);
        if op.is("func.func") { self.visit_function(op) } else { self.visit_kernel(op) }
    }

    fn visit_function(&mut self, op: &'m Operation) {
        let name = op.symbol_name().cloned().unwrap_or_else(|| "".into());
        let stated = op.attribute(super::NAME).and_then(Attribute::as_text);
        let shown = self.utf8_text(stated.unwrap_or(&name), op.location);
        if op.attribute("tfrt.native").is_some() {
            let Some(Attribute::Type(Type::Function(ty))) = op.attribute("function_type") else { return };
            ty.inputs.iter().chain(&ty.results).for_each(|ty| self.add_type(ty));
            let entry = FunctionEntry {
                name: shown,
                kind: FunctionKind::Native,
                inputs: ty.inputs.clone(),
                results: ty.results.clone(),
                body: None,
            };
            self.add_function(name, entry);
            return;
        }
        let Some(block) = op.body() else {
            return self.error(op.location, "external functions are not allowed");
        };
        let Some(last) = block.operations.last().filter(|last| is_return(last)) else {
            let location = block.operations.last().map_or(op.location, |last| last.location);
            return self.error(location, "all functions need to have a tfrt.return");
        };
        let sync = op.attribute("tfrt.sync").is_some();
        if sync {
            let arguments: HashSet<&ValueId> = block.arguments.iter().collect();
            let mut returned: HashSet<&ValueId> = HashSet::new();
            for (at, value) in last.operands.iter().enumerate() {
                if arguments.contains(value) {
                    return self.error(
                        last.location,
                        format!("return value {at} is an argument in a sync function"),
                    );
                }
                if !returned.insert(value) {
                    return self
                        .error(last.location, format!("return value {at} is duplicated in a sync function"));
                }
            }
        }
        let kind = if sync { FunctionKind::Sync } else { FunctionKind::Async };
        self.add_region(op, &op.regions[0], name, shown, kind);
    }

    fn add_function(&mut self, name: Text, entry: FunctionEntry<'m>) -> FunctionId {
        let id = FunctionId(self.collected.functions.len() as u32);
        self.collected.functions.push(entry);
        self.collected.named.insert(name, id);
        id
    }

    /// Adds a region as a function. Its name is `shown` in BEF, and `name` among the module's symbols.
    fn add_region(
        &mut self,
        op: &'m Operation,
        region: &'m Region,
        name: Text,
        shown: String,
        kind: FunctionKind,
    ) {
        let [block] = region.blocks.as_slice() else {
            return self.error(op.location, "multi-block regions cannot be emitted to BEF files");
        };
        let Some(last) = block.operations.last().filter(|last| is_return(last)) else {
            let location = block.operations.last().map_or(op.location, |last| last.location);
            return self.error(location, "all regions need to have a tfrt.return");
        };
        self.add_types_of(&block.arguments);
        let module = self.collected.module;
        let entry = FunctionEntry {
            name: shown,
            kind,
            inputs: module.types_of(&block.arguments),
            results: module.types_of(&last.operands),
            body: Some((op, block)),
        };
        let id = self.add_function(name, entry);
        self.collected.regions.insert(std::ptr::from_ref(region), id);
    }

    fn visit_kernel(&mut self, op: &'m Operation) {
        let name = self.utf8_text(&op.name, op.location);
        self.collected.program.intern_kernel(name);
        for (name, value) in &op.attributes {
            if !self.visit_attribute(op, name, value) {
                return;
            }
        }
        for region in &op.regions {
            self.add_region(op, region, "".into(), String::new(), FunctionKind::Async);
        }
    }

    /// Visits an attribute. Returns whether to continue with the operation.
    fn visit_attribute(&mut self, op: &'m Operation, name: &'m Text, value: &'m Attribute) -> bool {
        match classify(&self.collected.symbols, name, value) {
            Use::Dropped => true,
            Use::Functions(functions) => {
                if let Attribute::Array(elements) = value {
                    if functions.len() != elements.len() {
                        return self.report_unencodable(op, name);
                    }
                    if self.options.optional_sections {
                        let name = self.utf8_text(name, op.location);
                        self.collected.program.add_string(name);
                    }
                } else if matches!(self.collected.symbols.resolve(value), Target::Module) {
                    self.error(op.location, format!("{value} is a compiled module, not a function in one"));
                    return false;
                }
                self.references.extend(functions.into_iter().map(|function| (value, function, op.location)));
                true
            }
            Use::Value => self.visit_value(op, name, value),
        }
    }

    fn report_unencodable(&mut self, op: &Operation, name: &Text) -> bool {
        if !self.attribute_refused {
            self.attribute_refused = true;
            self.error(op.location, format!("BEF files cannot encode the '{name}' attribute"));
        }
        false
    }

    fn visit_value(&mut self, op: &'m Operation, name: &Text, value: &'m Attribute) -> bool {
        if let Attribute::SymbolRef { root, .. } = value {
            let Target::Compiled(holder) = self.collected.symbols.resolve(value) else {
                self.references.push((value, root, op.location));
                return true;
            };
            self.add_name(op, name);
            if !self.collected.attributes.contains_key(value) {
                let Some(symbol) = self.compiled_symbol(op, value, holder) else { return false };
                self.intern(value, symbol);
            }
            return true;
        }
        if !self.collected.attributes.contains_key(value) && !self.charge(op, attributes::dense_bytes(value))
        {
            return false;
        }
        let translated = match self.collected.attributes.contains_key(value) {
            true => None,
            false => match attributes::to_bef(value) {
                Some(translated) => Some(translated),
                None => return self.report_unencodable(op, name),
            },
        };
        self.add_name(op, name);
        if self.options.optional_sections {
            self.add_attribute_types(value);
        }
        if let Some(translated) = translated {
            self.intern(value, translated);
        }
        true
    }

    fn intern(&mut self, value: &Attribute, translated: pteron_bef::Attribute<'static>) {
        let id = self.collected.program.attributes.push(translated);
        self.collected.attributes.insert(value.clone(), id);
    }

    fn add_name(&mut self, op: &Operation, name: &Text) {
        if self.options.optional_sections {
            let name = self.utf8_text(name, op.location);
            self.collected.program.add_string(name);
        }
    }

    /// Adds the types of the numbers in an attribute, including those in lists, to the type table.
    fn add_attribute_types(&mut self, value: &Attribute) {
        match value {
            Attribute::Integer { ty, .. } => self.add_type(ty),
            Attribute::Float { kind, .. } => self.add_type(&Type::Float(*kind)),
            Attribute::Array(elements) => {
                elements.iter().for_each(|element| self.add_attribute_types(element))
            }
            _ => {}
        }
    }

    /// Counts `bytes` of dense attributes or compiled modules. Returns false if the limit is exceeded; reports that
    /// once.
    fn charge(&mut self, op: &Operation, bytes: u64) -> bool {
        let (before, limit) = (self.payload, self.options.max_payload);
        self.payload = before.saturating_add(bytes);
        if self.payload > limit && before <= limit {
            // Reported once: whatever follows is beyond the limit, too.
            self.error(
                op.location,
                format!("dense attributes and compiled modules take more than {limit} bytes: the limit"),
            );
        }
        self.payload <= limit
    }

    fn compiled_symbol(
        &mut self,
        op: &Operation,
        value: &Attribute,
        holder: &Operation,
    ) -> Option<pteron_bef::Attribute<'static>> {
        let Attribute::SymbolRef { root, nested } = value else { return None };
        let root = self.utf8_text(root, op.location);
        let nested = nested.iter().map(|name| self.utf8_text(name, op.location).into()).collect();
        let module = self.collected.module;
        let text = self.texts.entry(std::ptr::from_ref(holder));
        let text = text.or_insert_with(|| crate::printer::print_generic(module, holder)).clone();
        if !self.charge(op, text.len() as u64) {
            return None;
        }
        let id = self.symbol_count;
        self.symbol_count += 1;
        let symbol = pteron_bef::attribute::SymbolRef { id, root: root.into(), nested, module: text.into() };
        Some(pteron_bef::Attribute::SymbolRef(Box::new(symbol)))
    }

    /// Checks that the functions that attributes refer to exist. Reports only the first missing one.
    fn check_references(&mut self) {
        if !self.problems.is_empty() {
            return;
        }
        let missing = self.references.iter().find(|(value, name, _)| {
            let nested = matches!(value, Attribute::SymbolRef { nested, .. } if !nested.is_empty());
            nested || !self.collected.named.contains_key(name.as_bytes())
        });
        if let Some((value, name, location)) = missing {
            let shown = match value {
                Attribute::Array(_) => Attribute::symbol((*name).clone()),
                other => (*other).clone(),
            };
            let location = *location;
            self.error(location, format!("function {shown} not defined"));
        }
    }
}

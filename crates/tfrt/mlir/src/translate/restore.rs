//! Translates a BEF program to a module.

use std::collections::{HashMap, HashSet};

use pteron_bef::stream_analysis;
use pteron_bef::{Body, FunctionId, FunctionKind, Kernel};

use super::names::Namer;
use super::untyped::InferredTypes;
use super::{FromBefOptions, NAME, SECTIONS, STREAMS, attributes, locations, units};
use crate::diagnostics::Diagnostic;
use crate::ir::{
    Attribute, Block, Location, LocationId, Module, NamedAttribute, Operation, Region, Text, Type, ValueId,
};
use crate::limits::MAX_DEPTH;

/// Operation names that MLIR text reserves for structure. A BEF file with a kernel of such a name is rejected (unless
/// the reference is imitated), because its text would not translate back to a kernel.
const NOT_KERNELS: [&str; 3] = ["tfrt.return", "func.func", "builtin.module"];

type Restored<T> = Result<T, Vec<Diagnostic>>;

fn new_error(message: impl Into<String>) -> Vec<Diagnostic> {
    vec![Diagnostic::error_at(&Location::Unknown, message)]
}

/// Translates a BEF program to a module.
pub(super) fn restore(
    program: &pteron_bef::Module<'_>,
    name: &str,
    options: FromBefOptions,
) -> Restored<Module> {
    let location = Location::FileLineCol { file: name.into(), line: 0, column: 0 };
    let types = program.type_names().map(|name| {
        crate::parser::parse_type(name).map_err(|_| new_error(format!("type '{name}' cannot be read")))
    });
    let types = types.collect::<Restored<Vec<Type>>>()?;
    let mut namer = Namer::new(program.extra_strings());
    program.kernel_names().for_each(|name| namer.reserve_list_name(name));
    let mut restorer = Restorer {
        program,
        options,
        module: Module::new(location),
        guesses: InferredTypes::new(program, &types),
        types,
        namer,
        merge_chains: program.kernel_names().position(|name| name == "tfrt.merge.chains"),
        used: vec![false; program.functions.len()],
        open: Vec::new(),
        symbols: function_symbols(program, options),
    };
    let guessed = restorer.guesses.probable_symbols();
    let known = program.attributes.values().iter().filter_map(|value| match value {
        pteron_bef::Attribute::SymbolRef(symbol) => Some(&**symbol),
        _ => None,
    });
    let units = units::restore_units(guessed.iter().chain(known), &mut restorer.module, options)?;
    restorer.module.body_mut().operations = units;
    for (id, function) in program.functions.iter().enumerate() {
        if !function.name.is_empty() {
            let op = restorer.restore_function(FunctionId(id as u32), function)?;
            restorer.module.body_mut().operations.push(op);
        }
    }
    for (id, function) in program.functions.iter().enumerate() {
        if function.name.is_empty() && !restorer.used[id] {
            return Err(new_error(format!("function {id} has no name and is no kernel's region")));
        }
    }
    super::signs::restore_signs(&mut restorer.module, &restorer.types);
    let mut module = restorer.module;
    if !options.as_reference {
        if !program.custom_sections.is_empty() {
            let sections = program.custom_sections.iter().map(section_attribute).collect();
            module.op.set_attribute(SECTIONS, Attribute::array(sections));
        }
        if let Some((function, mut error)) = crate::verify::first_error(&module) {
            let function = function.map(|name| format!("@{name}: ")).unwrap_or_default();
            error.message = format!("{function}text cannot hold this: {}", error.message);
            return Err(vec![error]);
        }
    }
    Ok(module)
}

/// A custom section of a BEF file, as an element of the attribute [`SECTIONS`].
fn section_attribute(section: &pteron_bef::CustomSection<'_>) -> Attribute {
    let number = |value: u8| Attribute::int(64, value.into());
    let contents = Attribute::string(Text::from(&*section.data));
    Attribute::array(vec![number(section.id), number(section.alignment), contents])
}

/// Returns a function that adds `place` to the messages of diagnostics.
fn with_place(place: String) -> impl FnOnce(Vec<Diagnostic>) -> Vec<Diagnostic> {
    move |mut problems| {
        problems.iter_mut().for_each(|problem| problem.message = format!("{place}: {}", problem.message));
        problems
    }
}

struct Restorer<'p, 'b> {
    program: &'p pteron_bef::Module<'b>,
    options: FromBefOptions,
    module: Module,
    types: Vec<Type>,
    guesses: InferredTypes<'p>,
    namer: Namer,
    /// The code of `tfrt.merge.chains`, the only operation in restored text that does not have the default cost.
    merge_chains: Option<usize>,
    /// For each function, whether it has been restored as a region.
    used: Vec<bool>,
    /// The functions whose bodies, as regions, enclose the current kernel, outermost first.
    open: Vec<FunctionId>,
    /// The symbol of each function.
    symbols: Vec<Text>,
}

/// A symbol for each function: its name, with a number after it if an earlier function has the name.
fn function_symbols(program: &pteron_bef::Module<'_>, options: FromBefOptions) -> Vec<Text> {
    let names: HashSet<&str> = program.functions.iter().map(|function| &*function.name).collect();
    let mut seen: HashMap<&str, u32> = HashMap::new();
    let symbol = |function: &pteron_bef::Function<'_>| -> Text { Text::from(&*function.name) };
    let mut restored = Vec::with_capacity(program.functions.len());
    for function in &program.functions {
        let count = seen.entry(&function.name).or_default();
        if *count > 0 && !function.name.is_empty() && !options.as_reference {
            let mut numbered = format!("{}_{count}", function.name);
            while names.contains(&*numbered) {
                *count += 1;
                numbered = format!("{}_{count}", function.name);
            }
            restored.push(numbered.into());
        } else {
            restored.push(symbol(function));
        }
        *count += 1;
    }
    restored
}

impl<'p, 'b> Restorer<'p, 'b> {
    fn restore_types(&self, ids: &[pteron_bef::TypeId]) -> Restored<Vec<Type>> {
        let ty = |id: &pteron_bef::TypeId| self.types.get(id.index()).cloned();
        ids.iter().map(|id| ty(id).ok_or_else(|| new_error(format!("there is no type {id}")))).collect()
    }

    fn restore_location(&mut self, location: Option<&pteron_bef::Location<'_>>) -> Restored<LocationId> {
        let location = match location.filter(|_| !self.options.without_locations) {
            Some(location) => {
                locations::from_bef(location, self.options.as_reference, 0).map_err(new_error)?
            }
            None => Location::Unknown,
        };
        Ok(self.module.add_location(location))
    }

    fn restore_function(
        &mut self,
        id: FunctionId,
        function: &'p pteron_bef::Function<'b>,
    ) -> Restored<Operation> {
        self.function_operation(id, function).map_err(with_place(format!("@{}", function.name)))
    }

    fn function_operation(
        &mut self,
        id: FunctionId,
        function: &'p pteron_bef::Function<'b>,
    ) -> Restored<Operation> {
        let (inputs, results) =
            (self.restore_types(&function.arguments)?, self.restore_types(&function.results)?);
        let location =
            self.restore_location(function.body.as_ref().and_then(|body| body.location.as_ref()))?;
        let mut op = Operation::new("func.func", location);
        let symbol = self.symbols[id.index()].clone();
        if symbol != *function.name {
            op.set_attribute(NAME, Attribute::string(&*function.name));
        }
        op.set_attribute("sym_name", Attribute::string(symbol));
        op.set_attribute("function_type", Attribute::Type(Type::function(inputs.clone(), results)));
        let Some(body) = &function.body else {
            op.set_attribute("sym_visibility", Attribute::string("private"));
            op.set_attribute("tfrt.native", Attribute::Unit);
            op.regions.push(Region::default());
            return Ok(op);
        };
        if function.kind == FunctionKind::Sync {
            op.set_attribute("tfrt.sync", Attribute::Unit);
        }
        let block = self.restore_body(id, body, &inputs, location, 0)?;
        op.regions.push(Region { blocks: vec![block] });
        if let Some(streams) = self.streams_attribute(body) {
            op.set_attribute(STREAMS, streams);
        }
        Ok(op)
    }

    /// The streams of a body as an attribute; `None` if the stream analysis of the restored text gives the same ones.
    fn streams_attribute(&self, body: &Body<'_>) -> Option<Attribute> {
        if self.options.as_reference {
            return None;
        }
        let mut analyzed = body.clone();
        let cost = |at: usize| {
            let merges = body.kernels.get(at).is_some_and(|k| Some(k.code.index()) == self.merge_chains);
            merges.then_some(1)
        };
        let is_chain = |register: pteron_bef::Register| {
            let ty = body.registers.get(register.index()).copied().flatten();
            ty.and_then(|ty| self.types.get(ty.index())).is_some_and(|ty| ty.is_dialect("tfrt", "chain"))
        };
        stream_analysis::assign_streams(&mut analyzed, &stream_analysis::Options::default(), cost, is_chain);
        let streams = |body: &Body<'_>| -> Vec<u64> {
            std::iter::once(body.root_stream).chain(body.kernels.iter().map(|kernel| kernel.stream)).collect()
        };
        let recorded = streams(body);
        if streams(&analyzed) == recorded {
            return None;
        }
        let number = |stream: u64| Attribute::int(64, stream.into());
        Some(Attribute::DenseArray(Type::int(64), recorded.into_iter().map(number).collect()))
    }

    fn restore_body(
        &mut self,
        id: FunctionId,
        body: &'p Body<'b>,
        inputs: &[Type],
        location: LocationId,
        depth: usize,
    ) -> Restored<Block> {
        if depth + 4 > MAX_DEPTH && !self.options.as_reference || depth >= MAX_DEPTH {
            return Err(new_error(format!("regions are nested deeper than {MAX_DEPTH} levels")));
        }
        let mut registers: Vec<Option<ValueId>> = vec![None; body.registers.len()];
        let mut block = Block::default();
        for (at, ty) in inputs.iter().enumerate() {
            let value = self.module.add_value(ty.clone(), location);
            block.arguments.push(value);
            match registers.get_mut(at) {
                Some(register) => *register = Some(value),
                None => return Err(new_error(format!("function {id} has fewer registers than arguments"))),
            }
        }
        for kernel in &body.kernels {
            let op = self.restore_kernel(id, kernel, body, &mut registers, depth)?;
            block.operations.push(op);
        }
        let mut end = Operation::new("tfrt.return", location);
        end.operands = read_registers(&registers, &body.results)?;
        block.operations.push(end);
        Ok(block)
    }

    fn restore_kernel(
        &mut self,
        id: FunctionId,
        kernel: &'p Kernel<'b>,
        body: &'p Body<'b>,
        registers: &mut [Option<ValueId>],
        depth: usize,
    ) -> Restored<Operation> {
        let name = self.program.kernel_name(kernel.code);
        let name = name.ok_or_else(|| new_error(format!("there is no kernel {}", kernel.code)))?;
        let operation = self.kernel_operation(name, id, kernel, body, registers, depth);
        operation.map_err(with_place(format!("kernel `{name}`")))
    }

    fn kernel_operation(
        &mut self,
        name: &str,
        id: FunctionId,
        kernel: &'p Kernel<'b>,
        body: &'p Body<'b>,
        registers: &mut [Option<ValueId>],
        depth: usize,
    ) -> Restored<Operation> {
        if !self.options.as_reference && (name.is_empty() || NOT_KERNELS.contains(&name)) {
            return Err(new_error("in text this is no kernel"));
        }
        let location = self.restore_location(kernel.location.as_ref())?;
        let mut op = Operation::new(name, location);
        op.operands = read_registers(registers, &kernel.arguments)?;
        op.attributes = self.restore_attributes(name, kernel, depth)?;
        let mut functions: Vec<Text> = Vec::new();
        let mut streams: Vec<Option<Attribute>> = Vec::new();
        for function in &kernel.functions {
            let callee = self.program.functions.get(function.index());
            let callee = callee.ok_or_else(|| new_error(format!("there is no function {function}")))?;
            if !callee.name.is_empty() {
                functions.push(self.symbols[function.index()].clone());
                continue;
            }
            if self.open.contains(function) {
                return Err(new_error(format!("its region, function {function}, contains itself")));
            }
            if std::mem::replace(&mut self.used[function.index()], true) {
                let message =
                    format!("its region, function {function}, is also the region of another kernel");
                return Err(new_error(message));
            }
            let Some(inner) = &callee.body else {
                return Err(new_error(format!("function {function} is a region without a body")));
            };
            let inputs = self.restore_types(&callee.arguments)?;
            let location = self.restore_location(inner.location.as_ref())?;
            self.open.push(*function);
            let block = self.restore_body(*function, inner, &inputs, location, depth + 1)?;
            self.open.pop();
            op.regions.push(Region { blocks: vec![block] });
            streams.push(self.streams_attribute(inner));
        }
        if streams.iter().any(Option::is_some) {
            let streams = streams.into_iter().map(|s| s.unwrap_or(Attribute::Unit)).collect();
            op.set_attribute(STREAMS, Attribute::array(streams));
        }
        if self.options.as_reference {
            op.attributes.extend(functions.into_iter().map(|f| (Text::from("callee"), Attribute::symbol(f))));
            op.attributes.sort_by(|a, b| a.0.cmp(&b.0));
        } else {
            for (name, value) in self.namer.function_attributes(name, &functions, &op.attributes) {
                op.set_attribute(name, value);
            }
            if name == "tfrt_test.test_cost" {
                // BEF does not store costs, but the operation must have one; the streams are recorded in an attribute.
                op.set_attribute("_tfrt_cost", Attribute::int(64, 1));
            }
        }
        for register in &kernel.results {
            let known = body.registers.get(register.index()).copied().flatten();
            let ty = match known.and_then(|ty| self.types.get(ty.index())) {
                Some(ty) => ty.clone(),
                None => self.guesses.register_type(id, *register),
            };
            let value = self.module.add_value(ty, location);
            match registers.get_mut(register.index()) {
                Some(slot @ None) => *slot = Some(value),
                Some(_) => {
                    return Err(new_error(format!("register {register} of function {id} is defined twice")));
                }
                None => return Err(new_error(format!("function {id} has no register {register}"))),
            }
            op.results.push(value);
        }
        Ok(op)
    }

    fn restore_attributes(
        &self,
        kernel_name: &str,
        kernel: &Kernel<'_>,
        depth: usize,
    ) -> Restored<Vec<NamedAttribute>> {
        let mut restored: HashMap<Text, Attribute> = HashMap::new();
        for (at, attribute) in kernel.attributes.iter().enumerate() {
            let (name, value) = match (&attribute.name, self.program.attribute(attribute.value)) {
                (Some(name), Some(value)) => {
                    let value = attributes::from_bef(value).ok_or_else(|| {
                        new_error(format!(
                            "attribute '{name}' of a kernel '{kernel_name}' has no form in text"
                        ))
                    })?;
                    (Text::from(&**name), value)
                }
                (name, _) => {
                    let (guessed, value) = self.guesses.named_attribute(kernel_name, kernel, at);
                    (name.as_ref().map_or(guessed, |name| Text::from(&**name)), value)
                }
            };
            if !self.options.as_reference {
                if matches!(name.as_str(), Some("_tfrt_cost" | STREAMS | "")) {
                    return Err(new_error(format!("in text '{name}' is no attribute of a kernel")));
                }
                if depth + value.depth() + 3 > MAX_DEPTH {
                    let message = format!("attribute '{name}' is nested deeper than {MAX_DEPTH} levels");
                    return Err(new_error(message));
                }
            }
            if restored.insert(name.clone(), value).is_some() {
                return Err(new_error(format!("a kernel '{kernel_name}' has two attributes '{name}'")));
            }
        }
        let mut restored: Vec<NamedAttribute> = restored.into_iter().collect();
        restored.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(restored)
    }
}

fn read_registers(registers: &[Option<ValueId>], used: &[pteron_bef::Register]) -> Restored<Vec<ValueId>> {
    let value = |register: &pteron_bef::Register| {
        let value = registers.get(register.index()).copied().flatten();
        value.ok_or_else(|| new_error(format!("register {register} is used before it is defined")))
    };
    used.iter().map(value).collect()
}

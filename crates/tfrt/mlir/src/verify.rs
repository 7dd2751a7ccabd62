//! The verifier: MLIR's structural checks of a module.

use std::collections::{HashMap, HashSet};

use crate::diagnostics::{Diagnostic, Severity};
use crate::dialects::{self, AttributeDef, AttributeKind, OpDef, Problem, Slot};
use crate::ir::{
    Attribute, Block, FloatKind, FunctionType, LocationId, Module, Operation, Region, Signedness, Text, Type,
    ValueId,
};

/// The result of a symbol lookup.
pub(crate) enum Symbol<'a> {
    /// A function with this type.
    Function(&'a FunctionType),
    /// There is no symbol of this name, or it is not a function.
    Missing,
    /// Symbols cannot be looked up in this context.
    Unknown,
}

/// The state of a check: the operations and regions that enclose the operation being checked.
pub(crate) struct Verifier<'a> {
    module: &'a Module,
    /// The functions of each enclosing module by name, innermost module last.
    functions: Vec<HashMap<&'a [u8], &'a Operation>>,
    /// The enclosing operations, outermost first.
    parents: Vec<&'a Operation>,
    /// For each value, the number of the region that defines it, in program order from 1; 0 if no region does.
    region_of: Vec<u32>,
    /// The numbers of the enclosing regions up to the innermost that is isolated from above, outermost first.
    regions: Vec<u32>,
    /// Number of regions entered so far.
    entered: u32,
    /// Whether to check only that the custom form can represent the operation completely.
    pub(crate) printing: bool,
    /// The name of the function in which an error was found.
    failed_in: Option<Text>,
}

/// Checks a module. Returns the first error as a list of one, or an empty list.
pub fn verify(module: &Module) -> Vec<Diagnostic> {
    first_error(module).into_iter().map(|(_, error)| error).collect()
}

/// The first error, and the name of the function that contains it.
pub(crate) fn first_error(module: &Module) -> Option<(Option<Text>, Diagnostic)> {
    let mut verifier = Verifier::new(module, false);
    verifier.region_of = vec![0; module.values.len()];
    let mut entered = 0;
    number_regions(&module.op, &mut entered, &mut verifier.region_of);
    let error = verifier.check_operation(&module.op).err()?;
    Some((verifier.failed_in, error))
}

/// Whether the custom form of an operation can be printed and parsed back to the same operation.
pub(crate) fn is_printable(module: &Module, op: &Operation, definition: &OpDef) -> bool {
    let verifier = Verifier::new(module, true);
    let single_blocks = op.regions.iter().all(|region| region.blocks.len() == 1);
    (op.successors.is_empty() || definition.name.starts_with("cf."))
        && (definition.regions == 0 || single_blocks || definition.unchecked)
        && verifier.check_definition(op, definition).is_ok()
}

/// Records in `region_of` for each value the number of the region that defines it.
fn number_regions(op: &Operation, entered: &mut u32, region_of: &mut [u32]) {
    for region in &op.regions {
        *entered += 1;
        let id = *entered;
        let defined = region.blocks.iter().flat_map(|block| {
            block.arguments.iter().chain(block.operations.iter().flat_map(|op| &op.results))
        });
        defined.for_each(|value| region_of[value.0 as usize] = id);
        let operations = region.blocks.iter().flat_map(|block| &block.operations);
        operations.for_each(|op| number_regions(op, entered, region_of));
    }
}

impl<'a> Verifier<'a> {
    fn new(module: &'a Module, printing: bool) -> Verifier<'a> {
        Verifier {
            module,
            functions: Vec::new(),
            parents: Vec::new(),
            region_of: Vec::new(),
            regions: Vec::new(),
            entered: 0,
            printing,
            failed_in: None,
        }
    }

    /// Looks up a function by symbol name in the innermost module.
    pub(crate) fn function(&self, name: &[u8]) -> Symbol<'a> {
        let Some(functions) = self.functions.last() else { return Symbol::Unknown };
        match functions.get(name).and_then(|op| op.attribute("function_type")) {
            Some(Attribute::Type(Type::Function(ty))) => Symbol::Function(ty),
            _ => Symbol::Missing,
        }
    }

    /// The error message for a symbol that does not refer to a function.
    pub(crate) fn not_a_function_message(&self, name: &Text) -> String {
        let functions = self.functions.last().into_iter().flat_map(HashMap::keys);
        let functions = functions.filter_map(|name| std::str::from_utf8(name).ok());
        let hint = pteron_text::did_you_mean(&name.to_string_lossy(), functions);
        format!("'{name}' does not reference a valid function{hint}")
    }

    /// Types of values.
    pub(crate) fn types(&self, values: &[ValueId]) -> Vec<Type> {
        self.module.types_of(values)
    }

    /// The declared result types of the directly enclosing function; `None` if the directly enclosing operation is not a function.
    pub(crate) fn enclosing_result_types(&self) -> Option<&'a [Type]> {
        let parent = self.parents.last().filter(|parent| parent.is("func.func"))?;
        match parent.attribute("function_type") {
            Some(Attribute::Type(Type::Function(ty))) => Some(&ty.results),
            _ => None,
        }
    }

    fn error(&self, location: LocationId, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error_at(self.module.location(location), message)
    }

    fn check_operation(&mut self, op: &'a Operation) -> Result<(), Diagnostic> {
        let outcome = self.check_operation_inner(op);
        if outcome.is_err() && self.failed_in.is_none() && op.is("func.func") {
            self.failed_in = op.symbol_name().cloned();
        }
        outcome
    }

    fn check_operation_inner(&mut self, op: &'a Operation) -> Result<(), Diagnostic> {
        let definition = dialects::lookup_op(&op.name);
        if let Some(definition) = definition {
            self.check_definition(op, definition).map_err(|problem| match problem {
                Problem::Op(message) => self.error(op.location, format!("'{}' op {message}", op.name)),
                Problem::OtherOp(location, name, message) => {
                    self.error(location, format!("'{name}' op {message}"))
                }
                Problem::Plain(message) => self.error(op.location, message),
            })?;
        }
        let is_module = op.is("builtin.module");
        if is_module {
            let functions = self.collect_functions(op)?;
            self.functions.push(functions);
        }
        self.parents.push(op);
        for region in &op.regions {
            self.check_region(op, region, definition)?;
        }
        self.parents.pop();
        if is_module {
            self.functions.pop();
        }
        Ok(())
    }

    /// The functions of a module. Fails if a symbol is defined twice.
    fn collect_functions(
        &self,
        module: &'a Operation,
    ) -> Result<HashMap<&'a [u8], &'a Operation>, Diagnostic> {
        let mut seen: HashMap<&'a [u8], &'a Operation> = HashMap::new();
        for op in module.body().map_or(&[][..], |block| &block.operations) {
            let Some(name) = op.symbol_name() else { continue };
            if let Some(first) = seen.insert(name.as_bytes(), op) {
                let mut problem = self.error(op.location, format!("redefinition of symbol named '{name}'"));
                let mut note = self.error(first.location, "see existing symbol definition here");
                note.severity = Severity::Note;
                problem.notes.push(note);
                return Err(problem);
            }
        }
        seen.retain(|_, op| op.is("func.func"));
        Ok(seen)
    }

    fn check_region(
        &mut self,
        op: &'a Operation,
        region: &'a Region,
        definition: Option<&OpDef>,
    ) -> Result<(), Diagnostic> {
        let is_module = op.is("builtin.module");
        for block in &region.blocks {
            if definition.is_some() && !is_module {
                self.check_terminator(op, block)?;
            }
        }
        // In a region of a registered operation with a single block, a value must be defined before its uses.
        let ordered = definition.is_some() && region.blocks.len() == 1;
        let mut later: HashSet<ValueId> = HashSet::new();
        if ordered {
            later.extend(region.blocks[0].operations.iter().flat_map(|op| &op.results));
        }
        self.entered += 1;
        let id = self.entered;
        let isolated = definition.is_some_and(|d| d.isolated);
        // Values of enclosing regions are visible too, up to the first region that is isolated from above.
        let hidden = if isolated { std::mem::take(&mut self.regions) } else { Vec::new() };
        self.regions.push(id);
        for block in &region.blocks {
            for (at, inner) in block.operations.iter().enumerate() {
                if !inner.successors.is_empty() && at + 1 != block.operations.len() {
                    let message = "operation with block successors must terminate its parent block";
                    return Err(self.error(inner.location, message));
                }
                self.check_operands(inner, &later, &hidden)?;
                self.check_operation(inner)?;
                for result in &inner.results {
                    later.remove(result);
                }
            }
        }
        self.regions.pop();
        if isolated {
            self.regions = hidden;
        }
        Ok(())
    }

    /// Checks that operands are defined before the operation and are visible to it.
    fn check_operands(
        &self,
        op: &Operation,
        later: &HashSet<ValueId>,
        hidden: &[u32],
    ) -> Result<(), Diagnostic> {
        for (at, value) in op.operands.iter().enumerate() {
            let region = self.region_of[value.0 as usize];
            if hidden.contains(&region) {
                let message = format!("'{}' op using value defined outside the region", op.name);
                return Err(self.error(op.location, message));
            }
            if later.contains(value) || !self.regions.contains(&region) {
                return Err(self.error(op.location, format!("operand #{at} does not dominate this use")));
            }
        }
        Ok(())
    }

    /// Checks that a block ends in a terminator, and has no terminator before its end.
    fn check_terminator(&self, op: &Operation, block: &'a Block) -> Result<(), Diagnostic> {
        let Some((last, others)) = block.operations.split_last() else {
            return Err(self.error(op.location, "empty block: expect at least a terminator"));
        };
        let is_terminator = |op: &Operation| dialects::lookup_op(&op.name).is_some_and(|d| d.terminator);
        if let Some(early) = others.iter().find(|op| is_terminator(op)) {
            let message = format!("'{}' op must be the last operation in the parent block", early.name);
            return Err(self.error(early.location, message));
        }
        if dialects::lookup_op(&last.name).is_some_and(|d| !d.terminator) {
            let shown = crate::printer::print_generic(self.module, last);
            let shown = shown.lines().next().unwrap_or("");
            return Err(self.error(last.location, format!("block with no terminator, has {shown}")));
        }
        Ok(())
    }

    fn check_definition(&self, op: &Operation, definition: &OpDef) -> Result<(), Problem> {
        if definition.unchecked {
            if op.regions.len() != definition.regions {
                return Err(Problem::Op(count_message("region", definition.regions, op.regions.len())));
            }
        } else {
            self.check_counts(op, definition)?;
            for attribute in &definition.attributes {
                self.check_attribute(op, attribute)?;
            }
            self.check_slot_types("operand", &op.operands, &definition.operands)?;
            self.check_slot_types("result", &op.results, &definition.results)?;
            if let Some(at) = op.regions.iter().position(|region| region.blocks.len() != 1) {
                let message = format!("region #{at} failed to verify constraint: region with 1 blocks");
                return Err(Problem::Op(message));
            }
        }
        match definition.check {
            Some(check) => check(self, op),
            None => Ok(()),
        }
    }

    fn check_counts(&self, op: &Operation, definition: &OpDef) -> Result<(), Problem> {
        if !op.successors.is_empty() && !definition.name.starts_with("cf.") {
            return Err(Problem::Op(format!("requires 0 successors but found {}", op.successors.len())));
        }
        if op.regions.len() != definition.regions {
            return Err(Problem::Op(count_message("region", definition.regions, op.regions.len())));
        }
        let counted = [
            ("operand", &definition.operands, op.operands.len()),
            ("result", &definition.results, op.results.len()),
        ];
        for (what, slots, actual) in counted {
            let fixed = slots.iter().filter(|slot| !slot.variadic).count();
            let variadic = fixed != slots.len();
            if actual < fixed || (!variadic && actual != fixed) {
                let message = if variadic {
                    format!("expected {fixed} or more {what}s, but found {actual}")
                } else {
                    count_message(what, fixed, actual)
                };
                return Err(Problem::Op(message));
            }
        }
        Ok(())
    }

    fn check_slot_types(&self, what: &str, values: &[ValueId], slots: &[Slot]) -> Result<(), Problem> {
        let extra = (values.len() + 1).saturating_sub(slots.len());
        let expanded = slots.iter().flat_map(|slot| {
            let count = if slot.variadic { extra } else { 1 };
            std::iter::repeat_n(slot, count)
        });
        for (at, (value, slot)) in values.iter().zip(expanded).enumerate() {
            let actual = self.module.type_of(*value);
            // The custom form states no types, so the type would be read back with the older name.
            let fits = |expected: &Type| {
                expected == actual
                    || (!self.printing && dialects::newer_type_name(expected).as_ref() == Some(actual))
            };
            if let Some(expected) = slot.ty.as_ref().filter(|expected| !fits(expected)) {
                let message = format!("{what} #{at} must be {}, but got '{actual}'", describe(expected));
                return Err(Problem::Op(message));
            }
        }
        Ok(())
    }

    fn check_attribute(&self, op: &Operation, definition: &AttributeDef) -> Result<(), Problem> {
        let Some(value) = op.attribute(definition.name) else {
            if definition.optional {
                return Ok(());
            }
            return Err(Problem::Op(format!("requires attribute '{}'", definition.name)));
        };
        let all =
            |fits: &dyn Fn(&Attribute) -> bool| matches!(value, Attribute::Array(a) if a.iter().all(fits));
        let (fits, what) = match &definition.kind {
            AttributeKind::Number(Type::Float(kind)) => (
                matches!(value, Attribute::Float { kind: actual, .. } if actual == kind),
                format!("{}-bit float attribute", kind.width()),
            ),
            AttributeKind::Number(ty) => (
                matches!(value, Attribute::Integer { ty: actual, .. } if actual == ty),
                if *ty == Type::int(1) {
                    "bool attribute".into()
                } else {
                    format!("{} attribute", describe(ty))
                },
            ),
            AttributeKind::String => (matches!(value, Attribute::String(..)), "string attribute".into()),
            AttributeKind::FlatSymbol => {
                (value.as_flat_symbol().is_some(), "flat symbol reference attribute".into())
            }
            AttributeKind::Array => (matches!(value, Attribute::Array(_)), "array attribute".into()),
            AttributeKind::I64Array => (
                all(&|a| matches!(a, Attribute::Integer { ty, .. } if *ty == Type::int(64))),
                "64-bit integer array attribute".into(),
            ),
            AttributeKind::StringArray => {
                (all(&|a| matches!(a, Attribute::String(..))), "string array attribute".into())
            }
            AttributeKind::Elements => {
                (matches!(value, Attribute::Dense(_)), "constant vector/tensor attribute".into())
            }
            AttributeKind::Any => (true, String::new()),
        };
        if fits {
            return Ok(());
        }
        let name = definition.name;
        Err(Problem::Op(format!("attribute '{name}' failed to satisfy constraint: {what}")))
    }
}

/// MLIR's message for a wrong number of operands, results or regions.
fn count_message(what: &str, expected: usize, actual: usize) -> String {
    match (what, expected) {
        ("operand", 0) => "requires zero operands".into(),
        ("operand", 1) => "requires a single operand".into(),
        ("operand", _) => format!("expected {expected} operands, but found {actual}"),
        (_, 0) => format!("requires zero {what}s"),
        (_, 1) => format!("requires one {what}"),
        _ => format!("requires {expected} {what}s"),
    }
}

/// MLIR's description of a type in messages.
fn describe(ty: &Type) -> String {
    match ty {
        Type::Integer { width, signedness } => {
            let sign = match signedness {
                Signedness::Signless => "signless",
                Signedness::Signed => "signed",
                Signedness::Unsigned => "unsigned",
            };
            format!("{width}-bit {sign} integer")
        }
        Type::Float(FloatKind::BF16) => "bfloat16 type".into(),
        Type::Float(kind) => format!("{}-bit float", kind.width()),
        Type::Complex(element) => format!("complex type with {} elements", describe(element)),
        other => format!("{other} type"),
    }
}

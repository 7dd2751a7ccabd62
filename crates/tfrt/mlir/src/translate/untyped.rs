//! Guesses the types and names that a file without the optional sections does not record.
//!
//! - The type of a register is the result type of its defining operation, or the operand type of an operation or
//!   function that uses it. Registers for which neither is known get the types of the file's table that nothing else
//!   accounts for, in order, so that translating the text again gives the same type table.
//! - The name and kind of an attribute come from the operation's definition. Without a definition the attribute is
//!   called `attr0`, `attr1`, ..., and its kind is the first that fits the bytes between its offset and the next, so
//!   that translating the text again writes the same bytes.

use std::collections::{BTreeMap, HashMap, VecDeque};

use pteron_bef::attribute::{AttributeType, ElementType, SymbolRef};
use pteron_bef::model::UntypedAttributes;
use pteron_bef::{Body, DType, Kernel, Register};

use super::attributes;
use crate::dialects::{self, AttributeKind, Slot};
use crate::ir::{Attribute, Text, Type};

/// The types of a program's registers and attributes, guessed where the file does not record them.
pub(super) struct InferredTypes<'p> {
    registers: HashMap<(u32, u32), Type>,
    untyped: Option<&'p UntypedAttributes<'p>>,
    /// Byte offsets of the attributes of unknown type, in ascending order.
    offsets: Vec<u64>,
}

impl<'p> InferredTypes<'p> {
    pub(super) fn new(program: &'p pteron_bef::Module<'_>, types: &[Type]) -> InferredTypes<'p> {
        let untyped = program.attributes.untyped();
        let mut offsets = untyped.map(|untyped| untyped.offsets.clone()).unwrap_or_default();
        offsets.sort_unstable();
        let unknown = program.bodies().any(|(_, body)| body.registers.iter().any(Option::is_none));
        let registers = if unknown { infer_register_types(program, types) } else { HashMap::new() };
        InferredTypes { registers, untyped, offsets }
    }

    /// The recorded or guessed type of a register.
    pub(super) fn register_type(&self, function: pteron_bef::FunctionId, register: Register) -> Type {
        self.registers.get(&(function.0, register.0)).cloned().unwrap_or(Type::None)
    }

    /// The attributes of unknown type that are probably symbols in compiled modules.
    pub(super) fn probable_symbols(&self) -> Vec<SymbolRef<'p>> {
        let Some(untyped) = self.untyped else { return Vec::new() };
        let ids = (0..untyped.offsets.len() as u32).map(pteron_bef::AttributeId);
        let symbol = |(id, offset): (pteron_bef::AttributeId, &u64)| {
            if !matches!(self.guess_value(id), Attribute::SymbolRef { .. }) {
                return None;
            }
            match untyped.read_as(*offset, AttributeType::SymbolRef) {
                Ok((pteron_bef::Attribute::SymbolRef(symbol), _)) => Some(*symbol),
                _ => None,
            }
        };
        ids.zip(&untyped.offsets).filter_map(symbol).collect()
    }

    /// The probable name and value of attribute number `at` of a kernel.
    pub(super) fn named_attribute(
        &self,
        kernel_name: &str,
        kernel: &Kernel<'_>,
        at: usize,
    ) -> (Text, Attribute) {
        let id = kernel.attributes[at].value;
        if let Some(definition) = dialects::lookup_op(kernel_name.as_bytes()) {
            let mut known: Vec<(&str, &AttributeKind)> = definition
                .attributes
                .iter()
                .filter(|a| a.kind != AttributeKind::FlatSymbol && a.name != "_tfrt_cost")
                .map(|a| (a.name, &a.kind))
                .collect();
            known.sort_unstable_by_key(|(name, _)| *name);
            if known.len() == kernel.attributes.len() {
                let (name, kind) = known[at];
                let value = bef_type(kind).and_then(|kind| self.decode_as(id, kind)).map(|(value, _)| value);
                return (name.into(), value.unwrap_or_else(|| self.guess_value(id)));
            }
        }
        (format!("attr{at}").into(), self.guess_value(id))
    }

    fn decode_as(&self, id: pteron_bef::AttributeId, kind: AttributeType) -> Option<(Attribute, u64)> {
        let untyped = self.untyped?;
        let (value, end) = untyped.read_as(*untyped.offsets.get(id.index())?, kind).ok()?;
        Some((attributes::from_bef(&value)?, end))
    }

    /// Decodes an attribute as the first type for which it extends to the next attribute, except for padding.
    fn guess_value(&self, id: pteron_bef::AttributeId) -> Attribute {
        let fills = |end: u64| {
            let Some(untyped) = self.untyped else { return false };
            let next = self.offsets.get(self.offsets.partition_point(|offset| *offset < end)).copied();
            let next = next.unwrap_or(untyped.bytes.len() as u64);
            let starts_inside = untyped.offsets.get(id.index()).is_some_and(|start| {
                self.offsets.get(self.offsets.partition_point(|o| o <= start)).is_some_and(|o| *o < end)
            });
            let rest = untyped.bytes.get(end as usize..next as usize).unwrap_or(&[0]);
            !starts_inside && rest.len() < 8 && rest.iter().all(|b| *b == 0xcc)
        };
        let candidates = candidate_types().into_iter().filter_map(|kind| self.decode_as(id, kind));
        let exact = candidates.into_iter().find(|(_, end)| fills(*end));
        let smallest = || self.decode_as(id, AttributeType::Scalar(DType::I8));
        exact.or_else(smallest).map_or(Attribute::bool(false), |(value, _)| value)
    }
}

/// The types that an attribute is guessed to have, from the most to the least restrictive encoding.
fn candidate_types() -> Vec<AttributeType> {
    let array = |dtype| AttributeType::Array(ElementType::Data(dtype));
    let (arrays, scalars) = (
        [DType::I64, DType::I32, DType::I16, DType::I8].map(array),
        [DType::I64, DType::I32, DType::I16, DType::I8].map(AttributeType::Scalar),
    );
    let mut kinds = vec![AttributeType::Aggregate, AttributeType::Dense, AttributeType::Shape];
    kinds.extend([AttributeType::SymbolRef, AttributeType::String]);
    kinds.extend(arrays);
    kinds.extend(scalars);
    kinds
}

/// The BEF type of an attribute of this kind; `None` if the kind allows several.
fn bef_type(kind: &AttributeKind) -> Option<AttributeType> {
    Some(match kind {
        AttributeKind::Number(ty) => AttributeType::Scalar(attributes::dtype(ty)?),
        AttributeKind::String => AttributeType::String,
        AttributeKind::I64Array => AttributeType::Array(ElementType::Data(DType::I64)),
        AttributeKind::Elements => AttributeType::Dense,
        _ => return None,
    })
}

/// The recorded or guessed type of each register, by the indices of function and register.
fn infer_register_types(program: &pteron_bef::Module<'_>, types: &[Type]) -> HashMap<(u32, u32), Type> {
    let mut known: BTreeMap<(u32, u32), Type> = BTreeMap::new();
    for (id, body) in program.bodies() {
        let id = id as u32;
        for (register, ty) in body.registers.iter().enumerate() {
            if let Some(ty) = ty.and_then(|ty| types.get(ty.index())) {
                known.insert((id, register as u32), ty.clone());
            }
        }
        for kernel in &body.kernels {
            infer_from_kernel(program, types, id, kernel, &mut known);
        }
    }
    let positions = types.iter().enumerate().rev().map(|(at, ty)| (ty, at)).collect();
    let mut filler = TypeAssigner { types, positions, seen: 0, pending: VecDeque::new(), known };
    for function in collect_type_events(program) {
        match function {
            TypeEvent::Types(ids) => ids.iter().for_each(|id| filler.account_for_type(id.index())),
            TypeEvent::Register(id, register) => filler.account_for_register((id, register.0)),
        }
    }
    filler.finish()
}

/// Infers register types from the definition of the kernel's operation and from its callee.
fn infer_from_kernel(
    program: &pteron_bef::Module<'_>,
    types: &[Type],
    function: u32,
    kernel: &Kernel<'_>,
    known: &mut BTreeMap<(u32, u32), Type>,
) {
    let mut note = |register: &Register, ty: &Type| {
        known.entry((function, register.0)).or_insert_with(|| ty.clone());
    };
    let name = program.kernel_name(kernel.code).unwrap_or("");
    if let Some(definition) = dialects::lookup_op(name.as_bytes()) {
        for (registers, slots) in
            [(&kernel.results, &definition.results), (&kernel.arguments, &definition.operands)]
        {
            for (register, slot) in registers.iter().zip(expand_variadic(slots, registers.len())) {
                if let Some(ty) = &slot.ty {
                    note(register, ty);
                }
            }
        }
    }
    if matches!(name, "tfrt.parallel_for.i32" | "tfrt.parallel_call.i32") {
        kernel.results.iter().for_each(|register| note(register, &Type::dialect("tfrt", "chain")));
    }
    // Operands and results that are passed on to a callee or region have its argument and result types.
    let Some(callee) = kernel.functions.first().and_then(|id| program.functions.get(id.index())) else {
        return;
    };
    let all = |ids: &[pteron_bef::TypeId]| -> Vec<Type> {
        ids.iter().filter_map(|id| types.get(id.index()).cloned()).collect()
    };
    let (inputs, outputs) = (all(&callee.arguments), all(&callee.results));
    if name == "tfrt.parallel_for.i32" {
        let passed = kernel.arguments.iter().skip(3).zip(inputs.iter().skip(2));
        return passed.for_each(|(register, ty)| note(register, ty));
    }
    let skipped = match name {
        "tfrt.call" | "tfrt.once" | "tfrt_test.do.async" => 0,
        "tfrt.if" | "tfrt.cond" | "tfrt.case" | "tfrt.repeat.i32" | "tfrt.while" => 1,
        _ => return,
    };
    let passed = kernel.arguments.iter().skip(skipped);
    passed.zip(&inputs).for_each(|(register, ty)| note(register, ty));
    kernel.results.iter().zip(&outputs).for_each(|(register, ty)| note(register, ty));
}

fn expand_variadic(slots: &[Slot], count: usize) -> impl Iterator<Item = &Slot> {
    let extra = (count + 1).saturating_sub(slots.len());
    slots.iter().flat_map(move |slot| std::iter::repeat_n(slot, if slot.variadic { extra } else { 1 }))
}

/// A step of the reference's walk over a program, at which it adds types to the type table.
enum TypeEvent<'p> {
    Types(&'p [pteron_bef::TypeId]),
    Register(u32, Register),
}

fn collect_type_events<'p>(program: &'p pteron_bef::Module<'_>) -> Vec<TypeEvent<'p>> {
    let mut steps = Vec::new();
    for (id, function) in program.functions.iter().enumerate() {
        if function.name.is_empty() {
            continue;
        }
        match &function.body {
            Some(body) => walk_body(program, id as u32, body, &mut steps, 0),
            None => {
                steps.push(TypeEvent::Types(&function.arguments));
                steps.push(TypeEvent::Types(&function.results));
                continue;
            }
        }
        steps.push(TypeEvent::Types(&function.arguments));
    }
    steps
}

fn walk_body<'p>(
    program: &'p pteron_bef::Module<'_>,
    id: u32,
    body: &'p Body<'_>,
    steps: &mut Vec<TypeEvent<'p>>,
    depth: usize,
) {
    if depth > crate::limits::MAX_DEPTH {
        return;
    }
    for kernel in &body.kernels {
        let regions = kernel.functions.iter().filter_map(|id| {
            let function = program.functions.get(id.index())?;
            Some((id.0, function)).filter(|_| function.name.is_empty() && steps.len() < 1 << 24)
        });
        let regions: Vec<_> = regions.collect();
        for (inner, function) in &regions {
            if let Some(body) = &function.body {
                walk_body(program, *inner, body, steps, depth + 1);
            }
        }
        steps.extend(kernel.results.iter().map(|register| TypeEvent::Register(id, *register)));
        steps.extend(regions.iter().map(|(_, function)| TypeEvent::Types(&function.arguments)));
    }
}

/// Assigns the types in the type table that no known use explains to the registers of unknown type.
struct TypeAssigner<'t> {
    types: &'t [Type],
    /// The position at which each type first occurs in the type table.
    positions: HashMap<&'t Type, usize>,
    /// Number of types at the start of the type table that have been traced to a known use or assigned to a register.
    seen: usize,
    pending: VecDeque<(u32, u32)>,
    known: BTreeMap<(u32, u32), Type>,
}

impl TypeAssigner<'_> {
    fn account_for_type(&mut self, index: usize) {
        if index < self.seen {
            return;
        }
        self.assign_until(index);
        self.seen = index + 1;
    }

    fn assign_until(&mut self, end: usize) {
        for index in self.seen..end.min(self.types.len()) {
            let Some(register) = self.pending.pop_front() else { return };
            self.known.insert(register, self.types[index].clone());
        }
    }

    fn account_for_register(&mut self, register: (u32, u32)) {
        match self.known.get(&register) {
            Some(ty) => {
                if let Some(&index) = self.positions.get(ty) {
                    self.account_for_type(index);
                }
            }
            None => self.pending.push_back(register),
        }
    }

    fn finish(mut self) -> HashMap<(u32, u32), Type> {
        self.assign_until(self.types.len());
        let rest = self.types.first().cloned().unwrap_or(Type::None);
        for register in std::mem::take(&mut self.pending) {
            self.known.insert(register, rest.clone());
        }
        self.known.into_iter().collect()
    }
}

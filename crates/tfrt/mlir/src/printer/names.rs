//! Names of values and blocks.

use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;

use crate::dialects;
use crate::ir::{Attribute, Module, Operation, Region, Type};

/// The name under which a value is printed, without the `%`.
#[derive(Clone, Debug)]
pub(super) enum Name {
    /// `5`, or `5#1` for one of several results of an operation.
    Number(u32, Option<u32>),
    /// `arg3`, for an argument of a region.
    Argument(u32),
    /// `results`, or `results#1` for one of several results that share a name.
    Special(String, Option<u32>),
}

impl Name {
    pub(super) fn write(&self, out: &mut String) {
        match self {
            Name::Number(number, None) => out.push_str(&number.to_string()),
            Name::Number(number, Some(result)) => out.push_str(&format!("{number}#{result}")),
            Name::Argument(number) => out.push_str(&format!("arg{number}")),
            Name::Special(text, None) => out.push_str(text),
            Name::Special(text, Some(result)) => out.push_str(&format!("{text}#{result}")),
        }
    }
}

/// The counters and used names of a region; nested regions start from a copy.
struct Counters {
    value: u32,
    argument: u32,
    /// Number of name conflicts so far, which is the next suffix.
    conflicts: u32,
    /// Names used in this region.
    used: HashSet<String>,
    /// Names used in the enclosing regions.
    outer: Option<Rc<Names>>,
}

/// Names used in a region, linked to those of the enclosing regions.
struct Names {
    used: HashSet<String>,
    outer: Option<Rc<Names>>,
}

impl Counters {
    /// Reserves a name. Returns false if it is already used here or in an enclosing region.
    fn reserve(&mut self, name: &str) -> bool {
        let mut around = self.outer.as_deref();
        while let Some(names) = around {
            if names.used.contains(name) {
                return false;
            }
            around = names.outer.as_deref();
        }
        self.used.insert(name.to_string())
    }

    /// Reserves `hint` or, if that name is used already, `hint` with a suffix. Returns the reserved name.
    fn reserve_with_suffix(&mut self, hint: &str) -> String {
        let mut name = hint.to_string();
        while !self.reserve(&name) {
            name = format!("{hint}_{}", self.conflicts);
            self.conflicts += 1;
        }
        name
    }
}

/// Numbers the values of an operation's regions, breadth first: all values of a region come before those of
/// the regions nested in it, and sibling regions reuse numbers.
pub(super) fn name_values(module: &Module, top: &Operation, generic: bool) -> Vec<Name> {
    let mut names = vec![Name::Special("unknown".into(), None); module.values.len()];
    let mut counters = Counters { value: 0, argument: 0, conflicts: 0, used: HashSet::new(), outer: None };
    name_operation_values(module, top, generic, &mut counters, &mut names);
    let mut pending: Vec<(&Region, [u32; 3], Option<Rc<Names>>)> = Vec::new();
    let start = [counters.value, counters.argument, counters.conflicts];
    pending.extend(top.regions.iter().map(|region| (region, start, None)));
    while let Some((region, [value, argument, conflicts], outer)) = pending.pop() {
        let mut counters = Counters { value, argument, conflicts, used: HashSet::new(), outer };
        for (position, block) in region.blocks.iter().enumerate() {
            for argument in &block.arguments {
                names[argument.0 as usize] = if position == 0 {
                    counters.argument += 1;
                    Name::Argument(counters.argument - 1)
                } else {
                    counters.value += 1;
                    Name::Number(counters.value - 1, None)
                };
            }
            for op in &block.operations {
                name_operation_values(module, op, generic, &mut counters, &mut names);
            }
        }
        let Counters { value, argument, conflicts, used, outer } = counters;
        let numbers = [value, argument, conflicts];
        let here = if used.is_empty() { outer } else { Some(Rc::new(Names { used, outer })) };
        for op in region.blocks.iter().flat_map(|block| &block.operations) {
            pending.extend(op.regions.iter().map(|nested| (nested, numbers, here.clone())));
        }
    }
    names
}

fn name_operation_values(
    module: &Module,
    op: &Operation,
    generic: bool,
    counters: &mut Counters,
    names: &mut [Name],
) {
    if op.results.is_empty() {
        return;
    }
    if !generic
        && op.is("arith.constant")
        && let Some(hint) = constant_name(op)
    {
        names[op.results[0].0 as usize] = Name::Special(counters.reserve_with_suffix(&hint), None);
        return;
    }
    let groups = if generic { Vec::new() } else { named_groups(op) };
    if !groups.is_empty() {
        for (hint, results) in groups {
            let name = counters.reserve_with_suffix(hint);
            let several = results.len() > 1;
            for (at, result) in op.results[results].iter().enumerate() {
                names[result.0 as usize] = Name::Special(name.clone(), several.then_some(at as u32));
            }
        }
        return;
    }
    let number = counters.value;
    counters.value += 1;
    let several = op.results.len() > 1;
    for (at, result) in op.results.iter().enumerate() {
        if (result.0 as usize) < module.values.len() {
            names[result.0 as usize] = Name::Number(number, several.then_some(at as u32));
        }
    }
}

/// The named result groups of an operation's definition, with the range of results of each. Empty unless the definition
/// has several groups; groups without results are omitted.
pub(super) fn named_groups(op: &Operation) -> Vec<(&'static str, Range<usize>)> {
    let Some(definition) = dialects::lookup_op(&op.name) else { return Vec::new() };
    let slots = &definition.results;
    if slots.len() < 2 || slots.iter().any(|slot| slot.name.is_empty()) {
        return Vec::new();
    }
    let single = slots.iter().filter(|slot| !slot.variadic).count();
    let variadic = slots.len() - single;
    if variadic > 1 || op.results.len() < single || (variadic == 0 && op.results.len() > single) {
        return Vec::new();
    }
    let mut first = 0;
    let groups = slots.iter().map(|slot| {
        let len = if slot.variadic { op.results.len() - single } else { 1 };
        first += len;
        (slot.name, first - len..first)
    });
    groups.filter(|(_, results)| !results.is_empty()).collect()
}

/// MLIR's name for the result of a constant: `c42`, `c42_i32`, `true`, `cst`.
fn constant_name(op: &Operation) -> Option<String> {
    Some(match op.attribute("value")? {
        Attribute::Integer { ty, value } if *ty == Type::int(1) => {
            String::from(if *value == 0 { "false" } else { "true" })
        }
        Attribute::Integer { ty: Type::Index, value } => format!("c{value}"),
        Attribute::Integer { ty, value } => format!("c{value}_{ty}"),
        _ => String::from("cst"),
    })
}

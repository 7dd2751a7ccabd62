//! Names of values and blocks.

use std::collections::HashSet;
use std::rc::Rc;

use crate::ir::{Attribute, Module, Operation, Region, Type};

/// How a value is called, without its `%`.
#[derive(Clone, Debug)]
pub(super) enum Name {
    /// `5`, or `5#1` for a result of an operation with several.
    Number(u32, Option<u32>),
    /// `arg3`.
    Argument(u32),
    /// Anything else.
    Special(String),
}

impl Name {
    pub(super) fn write(&self, out: &mut String) {
        match self {
            Name::Number(number, None) => out.push_str(&number.to_string()),
            Name::Number(number, Some(result)) => out.push_str(&format!("{number}#{result}")),
            Name::Argument(number) => out.push_str(&format!("arg{number}")),
            Name::Special(text) => out.push_str(text),
        }
    }
}

/// The counters that a region hands down to the regions nested in it.
struct Counters {
    value: u32,
    argument: u32,
    /// Names given in this region.
    used: HashSet<String>,
    /// Names given in the regions around.
    outer: Option<Rc<Names>>,
}

/// Names given in a region, and in those around it.
struct Names {
    used: HashSet<String>,
    outer: Option<Rc<Names>>,
}

impl Counters {
    /// Takes a name that is not taken yet; whether it was free.
    fn take(&mut self, name: &str) -> bool {
        let mut around = self.outer.as_deref();
        while let Some(names) = around {
            if names.used.contains(name) {
                return false;
            }
            around = names.outer.as_deref();
        }
        self.used.insert(name.to_string())
    }
}

/// Numbers the values of an operation's regions, breadth first: all values of a region come before those of
/// the regions nested in it, and sibling regions reuse numbers.
pub(super) fn number(module: &Module, top: &Operation, generic: bool) -> Vec<Name> {
    let mut names = vec![Name::Special("unknown".into()); module.values.len()];
    let mut counters = Counters { value: 0, argument: 0, used: HashSet::new(), outer: None };
    number_operation(module, top, generic, &mut counters, &mut names);
    let mut pending: Vec<(&Region, u32, u32, Option<Rc<Names>>)> = Vec::new();
    pending.extend(top.regions.iter().map(|region| (region, counters.value, counters.argument, None)));
    while let Some((region, value, argument, outer)) = pending.pop() {
        let mut counters = Counters { value, argument, used: HashSet::new(), outer };
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
                number_operation(module, op, generic, &mut counters, &mut names);
            }
        }
        let Counters { value, argument, used, outer } = counters;
        let here = if used.is_empty() { outer } else { Some(Rc::new(Names { used, outer })) };
        for op in region.blocks.iter().flat_map(|block| &block.operations) {
            pending.extend(op.regions.iter().map(|nested| (nested, value, argument, here.clone())));
        }
    }
    names
}

fn number_operation(
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
        let mut name = hint.clone();
        let mut suffix = 0;
        while !counters.take(&name) {
            name = format!("{hint}_{suffix}");
            suffix += 1;
        }
        names[op.results[0].0 as usize] = Name::Special(name);
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

/// `c42`, `c42_i32`, `true`, `cst`: what MLIR calls the result of a constant.
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

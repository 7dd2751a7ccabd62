//! Restores compiled modules: BEF stores the text of the enclosing module with each symbol that a kernel refers to.

use std::collections::{BTreeSet, HashSet};

use pteron_bef::SymbolRef;

use super::FromBefOptions;
use crate::diagnostics::Diagnostic;
use crate::ir::{Attribute, Block, Location, LocationId, Module, Operation, Region, Text, ValueId};

/// Restores the compiled modules of a program inside `module`, the last one first, as TFRT's converter does.
///
/// A symbol in nested modules may come with the text of the innermost module only. If the text of an outer module is
/// present too, it already contains the inner one; otherwise an empty compiled module is created around it.
pub(super) fn restore_units<'s>(
    symbols: impl Iterator<Item = &'s SymbolRef<'s>>,
    module: &mut Module,
    options: FromBefOptions,
) -> Result<Vec<Operation>, Vec<Diagnostic>> {
    let mut texts: Vec<(Vec<Text>, &str)> = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for symbol in symbols {
        let mut path = vec![Text::from(&*symbol.root)];
        path.extend(symbol.nested.iter().map(|name| Text::from(&**name)));
        path.pop();
        if seen.insert(&*symbol.module) {
            texts.push((path, &symbol.module));
        }
    }
    let mut units: Vec<Operation> = Vec::new();
    if options.as_reference {
        for (_, text) in texts {
            let unit = parse_unit(module, text)?;
            units.insert(0, unit);
        }
        return Ok(units);
    }
    let complete_paths: BTreeSet<Vec<Text>> = texts.iter().map(|(path, _)| path.clone()).collect();
    for (path, text) in &texts {
        let in_another_unit = (1..path.len()).any(|length| complete_paths.contains(&path[..length]));
        if in_another_unit || path.is_empty() {
            continue;
        }
        let unit = parse_unit(module, text)?;
        insert_at_path(&mut units, &path[..path.len() - 1], unit);
    }
    Ok(units)
}

/// Inserts `unit` into the module that `path` leads to from `units`, creating modules that do not exist.
fn insert_at_path(units: &mut Vec<Operation>, path: &[Text], unit: Operation) {
    let Some((outer, rest)) = path.split_first() else {
        units.insert(0, unit);
        return;
    };
    let at = units.iter().position(|op| op.symbol_name() == Some(outer)).unwrap_or_else(|| {
        let mut wrapper = Operation::new("builtin.module", LocationId(0));
        wrapper.set_attribute("sym_name", Attribute::string(outer.clone()));
        wrapper.set_attribute("tfrt.compiled", Attribute::Unit);
        wrapper.regions.push(Region { blocks: vec![Block::default()] });
        units.insert(0, wrapper);
        0
    });
    if let Some(block) = units[at].regions.first_mut().and_then(|region| region.blocks.first_mut()) {
        insert_at_path(&mut block.operations, rest, unit);
    }
}

/// Parses the text of a compiled module, and moves its values and locations into `module`.
fn parse_unit(module: &mut Module, text: &str) -> Result<Operation, Vec<Diagnostic>> {
    let parsed = crate::parser::parse(text, "<unknown>").map_err(|crate::Error(mut diagnostics)| {
        let message = "a compiled module in the file cannot be read";
        diagnostics.insert(0, Diagnostic::error_at(&Location::Unknown, message));
        diagnostics
    })?;
    let (values, locations) = (module.values.len() as u32, module.locations.len() as u32);
    let Module { mut op, values: new_values, locations: new_locations } = parsed;
    module.locations.extend(new_locations);
    module.values.extend(new_values.into_iter().map(|mut value| {
        value.location.0 += locations;
        value
    }));
    shift_ids(&mut op, values, locations);
    Ok(op)
}

fn shift_ids(op: &mut Operation, values: u32, locations: u32) {
    let shift_all = |list: &mut Vec<ValueId>| list.iter_mut().for_each(|value| value.0 += values);
    shift_all(&mut op.operands);
    shift_all(&mut op.results);
    op.location.0 += locations;
    for block in op.regions.iter_mut().flat_map(|region| &mut region.blocks) {
        shift_all(&mut block.arguments);
        block.operations.iter_mut().for_each(|op| shift_ids(op, values, locations));
    }
}

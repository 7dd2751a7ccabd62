//! Symbols, and the compiled modules that they may lead into.

use crate::ir::{Attribute, Operation, Text};

/// Whether the operation is a module whose program is compiled, not interpreted.
pub(super) fn is_compiled(op: &Operation) -> bool {
    op.is("builtin.module") && op.attribute("tfrt.compiled").is_some()
}

fn find<'m>(scope: &'m Operation, name: &Text) -> Option<&'m Operation> {
    scope.body()?.operations.iter().find(|op| op.symbol_name() == Some(name))
}

/// What a symbol leads to.
pub(super) enum Target<'m> {
    /// A symbol in a compiled module: the module that directly holds it.
    Compiled(&'m Operation),
    /// A compiled module itself.
    Module,
    /// Anything else, or nothing.
    Other,
}

/// Follows a symbol reference from the top module.
pub(super) fn resolve<'m>(top: &'m Operation, attribute: &Attribute) -> Target<'m> {
    let Attribute::SymbolRef { root, nested } = attribute else { return Target::Other };
    let Some(mut found) = find(top, root) else { return Target::Other };
    let (mut holder, mut compiled) = (top, is_compiled(found));
    for name in nested.iter() {
        let Some(inner) = find(found, name) else { return Target::Other };
        holder = found;
        found = inner;
        compiled |= is_compiled(found);
    }
    match (compiled, nested.is_empty()) {
        (true, true) => Target::Module,
        (true, false) => Target::Compiled(holder),
        (false, _) => Target::Other,
    }
}

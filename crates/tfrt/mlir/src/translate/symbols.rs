//! Resolves symbols, including those in compiled modules.

use std::collections::HashMap;

use crate::ir::{Attribute, Operation, Text};

/// Whether the operation is a compiled module (`tfrt.compiled`), which is passed to a compiler as text.
pub(super) fn is_compiled_module(op: &Operation) -> bool {
    op.is("builtin.module") && op.attribute("tfrt.compiled").is_some()
}

/// The target of a symbol reference.
pub(super) enum Target<'m> {
    /// A symbol in a compiled module, with the module that directly contains it.
    Compiled(&'m Operation),
    /// A compiled module.
    Module,
    /// Any other symbol, or one that does not exist.
    Other,
}

/// The symbols that are defined directly in the top module.
pub(super) struct Symbols<'m> {
    top: HashMap<&'m Text, &'m Operation>,
}

impl<'m> Symbols<'m> {
    pub(super) fn new(module: &'m Operation) -> Symbols<'m> {
        let operations = module.body().map_or(&[][..], |block| &block.operations);
        Symbols { top: operations.iter().filter_map(|op| Some((op.symbol_name()?, op))).collect() }
    }

    /// Finds what a symbol reference refers to.
    pub(super) fn resolve(&self, attribute: &Attribute) -> Target<'m> {
        let Attribute::SymbolRef { root, nested } = attribute else { return Target::Other };
        let Some(&top) = self.top.get(root) else { return Target::Other };
        let (mut target, mut holder, mut compiled) = (top, top, is_compiled_module(top));
        for name in nested.iter() {
            let inside = target.body().map_or(&[][..], |block| &block.operations);
            let Some(inner) = inside.iter().find(|op| op.symbol_name() == Some(name)) else {
                return Target::Other;
            };
            holder = target;
            target = inner;
            compiled |= is_compiled_module(target);
        }
        match (compiled, nested.is_empty()) {
            (true, true) => Target::Module,
            (true, false) => Target::Compiled(holder),
            (false, _) => Target::Other,
        }
    }
}

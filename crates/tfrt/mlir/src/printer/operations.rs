//! Prints operations, regions and blocks.

use super::Printer;
use super::names::named_groups;
use crate::dialects::{self, OpDef, Syntax};
use crate::ir::{Block, Operation, Region, Type};

impl<'a> Printer<'a> {
    /// Prints an operation with its results and its location.
    pub(super) fn full_operation(&mut self, op: &Operation) {
        let named = if self.options.generic { Vec::new() } else { named_groups(op) };
        let mut groups: Vec<_> = named.into_iter().map(|(_, results)| results).collect();
        if groups.is_empty() && !op.results.is_empty() {
            groups.push(0..op.results.len());
        }
        for (at, results) in groups.iter().enumerate() {
            self.push(if at > 0 { ", %" } else { "%" });
            let mut name = String::new();
            self.names[op.results[results.start].0 as usize].write(&mut name);
            self.push(name.split('#').next().unwrap_or(""));
            if results.len() > 1 {
                self.push(&format!(":{}", results.len()));
            }
        }
        if !groups.is_empty() {
            self.push(" = ");
        }
        match dialects::lookup_op(&op.name).filter(|_| !self.options.generic) {
            Some(definition) if crate::verify::is_printable(self.module, op, definition) => {
                self.custom_operation(op, definition);
            }
            _ => self.generic_operation(op),
        }
        self.trailing_location(op.location);
    }

    fn custom_operation(&mut self, op: &Operation, definition: &OpDef) {
        match &definition.syntax {
            Syntax::Generic => self.generic_operation(op),
            Syntax::Format(format) => {
                self.operation_name(op);
                dialects::print_format(self, op, definition, format);
            }
            Syntax::Hooks { print, .. } => {
                self.operation_name(op);
                print(self, op);
            }
        }
    }

    /// Prints the operation's name, without the dialect prefix if the enclosing operation implies it.
    fn operation_name(&mut self, op: &Operation) {
        let name = op.name.to_string_lossy();
        let dialect = self.default_dialects.last().copied().unwrap_or("");
        let short = name.strip_prefix(dialect).and_then(|rest| rest.strip_prefix('.'));
        match short.filter(|short| !dialect.is_empty() && !short.contains('.')) {
            Some(short) => self.push(short),
            None => self.push(&name),
        }
    }

    /// Prints `"name"(operands)[successors] ({regions}) {attributes} : type`.
    pub(super) fn generic_operation(&mut self, op: &Operation) {
        super::attributes::write_string(&mut self.out, &op.name);
        self.push("(");
        self.operands(&op.operands);
        self.push(")");
        if !op.successors.is_empty() {
            self.push("[");
            for (at, successor) in op.successors.iter().enumerate() {
                let separator = if at > 0 { ", " } else { "" };
                self.push(&format!("{separator}^bb{successor}"));
            }
            self.push("]");
        }
        if !op.regions.is_empty() {
            self.push(" (");
            self.default_dialects.push("");
            for (at, region) in op.regions.iter().enumerate() {
                if at > 0 {
                    self.push(", ");
                }
                self.region_inner(region, true, true);
            }
            self.default_dialects.pop();
            self.push(")");
        }
        self.optional_attribute_dictionary(&op.attributes, &[]);
        self.push(" : (");
        self.types_of(&op.operands);
        self.push(") -> ");
        let wrapped = match op.results.as_slice() {
            [only] => matches!(self.type_of(*only), Type::Function(_)),
            _ => true,
        };
        if wrapped {
            self.push("(");
        }
        self.types_of(&op.results);
        if wrapped {
            self.push(")");
        }
    }

    /// Prints a region of `op`; with the arguments of the entry block if `entry_arguments`.
    pub(crate) fn region(&mut self, op: &Operation, region: &Region, entry_arguments: bool) {
        let default = dialects::lookup_op(&op.name).map_or("", |d| d.default_dialect);
        self.default_dialects.push(default);
        self.region_inner(region, entry_arguments, false);
        self.default_dialects.pop();
    }

    fn region_inner(&mut self, region: &Region, entry_arguments: bool, label_empty: bool) {
        self.push("{");
        self.new_line();
        let predecessors = predecessors(region);
        for (position, block) in region.blocks.iter().enumerate() {
            let label = position > 0
                || (label_empty && block.operations.is_empty())
                || (entry_arguments && !block.arguments.is_empty());
            if label {
                self.block_label(block, position, &predecessors[position]);
            }
            self.indent += 2;
            for op in &block.operations {
                self.push_indent();
                self.full_operation(op);
                self.new_line();
            }
            self.indent -= 2;
        }
        self.push_indent();
        self.push("}");
    }

    fn block_label(&mut self, block: &Block, position: usize, from: &[usize]) {
        self.push_indent();
        self.push(&format!("^bb{position}"));
        if !block.arguments.is_empty() {
            self.push("(");
            for (at, argument) in block.arguments.iter().enumerate() {
                if at > 0 {
                    self.push(", ");
                }
                self.region_argument(*argument, &[]);
            }
            self.push(")");
        }
        self.push(":");
        match from {
            [] if position > 0 => self.push("  // no predecessors"),
            [] => {}
            [only] => self.push(&format!("  // pred: ^bb{only}")),
            several => {
                let shown: Vec<String> = several.iter().map(|p| format!("^bb{p}")).collect();
                self.push(&format!("  // {} preds: {}", several.len(), shown.join(", ")));
            }
        }
        self.new_line();
    }
}

/// For each block of a region, the positions of its predecessors, each once.
fn predecessors(region: &Region) -> Vec<Vec<usize>> {
    let mut predecessors: Vec<Vec<usize>> = vec![Vec::new(); region.blocks.len()];
    for (index, block) in region.blocks.iter().enumerate() {
        for successor in block.operations.iter().flat_map(|op| &op.successors) {
            if let Some(from) =
                predecessors.get_mut(*successor as usize).filter(|from| from.last() != Some(&index))
            {
                from.push(index);
            }
        }
    }
    predecessors
}

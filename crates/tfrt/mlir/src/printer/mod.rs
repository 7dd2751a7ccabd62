//! The printer: writes a [`Module`] as text, like MLIR.

mod aliases;
mod attributes;
mod names;
mod operations;

use std::collections::HashMap;

use crate::ir::{Attribute, Location, LocationId, Module, NamedAttribute, Operation, Region, Type, ValueId};
use crate::lexer::is_bare_identifier;

pub(crate) use attributes::{write_attribute, write_type};

/// Options for printing a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrintOptions {
    /// Whether to print the location of every operation and argument, with aliases.
    pub locations: bool,
    /// Whether to print every operation in generic form.
    pub generic: bool,
}

/// Prints a module, with a newline at the end.
pub fn print(module: &Module, options: PrintOptions) -> String {
    let mut printer = Printer::new(module, &module.op, options);
    let deferred = printer.alias_definitions();
    printer.full_operation(&module.op);
    printer.push("\n");
    printer.push(&deferred);
    printer.out
}

/// Prints one operation of a module in generic form, without locations and without a newline at the end.
pub(crate) fn print_generic(module: &Module, op: &Operation) -> String {
    let mut printer = Printer::new(module, op, PrintOptions { locations: false, generic: true });
    printer.full_operation(op);
    printer.out
}

/// The state of the printer.
pub(crate) struct Printer<'a> {
    module: &'a Module,
    options: PrintOptions,
    out: String,
    indent: usize,
    names: Vec<names::Name>,
    aliases: HashMap<&'a Location, aliases::Alias>,
    default_dialects: Vec<&'static str>,
}

impl<'a> Printer<'a> {
    fn new(module: &'a Module, top: &'a Operation, options: PrintOptions) -> Printer<'a> {
        let mut printer = Printer {
            module,
            options,
            out: String::new(),
            indent: 0,
            names: names::name_values(module, top, options.generic),
            aliases: HashMap::new(),
            default_dialects: vec!["builtin"],
        };
        if options.locations {
            printer.aliases = aliases::collect_aliases(module, top, options.generic);
        }
        printer
    }

    /// Prints text unchanged.
    pub(crate) fn push(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn new_line(&mut self) {
        self.out.push('\n');
    }

    fn push_indent(&mut self) {
        self.out.extend(std::iter::repeat_n(' ', self.indent));
    }

    /// The type of a value.
    pub(crate) fn type_of(&self, value: ValueId) -> &'a Type {
        self.module.type_of(value)
    }

    /// Prints a type.
    pub(crate) fn ty(&mut self, ty: &Type) {
        write_type(&mut self.out, ty);
    }

    /// Prints a value's name, `%0#1`.
    pub(crate) fn operand(&mut self, value: ValueId) {
        self.out.push('%');
        match self.names.get(value.0 as usize) {
            Some(name) => name.write(&mut self.out),
            None => self.out.push_str("unknown"),
        }
    }

    /// Prints names of values, separated by commas.
    pub(crate) fn operands(&mut self, values: &[ValueId]) {
        for (at, value) in values.iter().enumerate() {
            if at > 0 {
                self.push(", ");
            }
            self.operand(*value);
        }
    }

    /// Prints types of values, separated by commas.
    pub(crate) fn types_of(&mut self, values: &[ValueId]) {
        for (at, value) in values.iter().enumerate() {
            if at > 0 {
                self.push(", ");
            }
            self.ty(self.type_of(*value));
        }
    }

    /// Prints an attribute with its type.
    pub(crate) fn attribute(&mut self, attribute: &Attribute) {
        write_attribute(&mut self.out, attribute);
    }

    /// Prints a numeric attribute without its type, and any other attribute in full.
    pub(crate) fn attribute_without_type(&mut self, attribute: &Attribute) {
        attributes::write_without_type(&mut self.out, attribute);
    }

    /// Prints ` {...}` with the attributes not named in `hidden`; nothing if there are none.
    pub(crate) fn optional_attribute_dictionary(&mut self, attributes: &[NamedAttribute], hidden: &[&str]) {
        let shown: Vec<&NamedAttribute> =
            attributes.iter().filter(|(name, _)| !hidden.iter().any(|h| *name == *h)).collect();
        if shown.is_empty() {
            return;
        }
        self.push(" {");
        for (at, entry) in shown.into_iter().enumerate() {
            if at > 0 {
                self.push(", ");
            }
            attributes::write_named(&mut self.out, entry);
        }
        self.push("}");
    }

    /// As [`Self::optional_attribute_dictionary`], with the keyword: ` attributes {...}`.
    pub(crate) fn optional_attributes_keyword(&mut self, attributes: &[NamedAttribute], hidden: &[&str]) {
        if attributes.iter().any(|(name, _)| !hidden.iter().any(|h| *name == *h)) {
            self.push(" attributes");
            self.optional_attribute_dictionary(attributes, hidden);
        }
    }

    /// Prints `@name`.
    pub(crate) fn symbol_name(&mut self, name: &[u8]) {
        attributes::write_symbol(&mut self.out, name);
    }

    /// Prints `text`, quoted if it is not a bare identifier.
    pub(crate) fn keyword_or_string(&mut self, text: &[u8]) {
        if is_bare_identifier(text) {
            self.out.push_str(&String::from_utf8_lossy(text));
        } else {
            attributes::write_string(&mut self.out, text);
        }
    }

    /// From now on, prints the arguments of the region's entry block with the names of `values`, which they shadow.
    pub(crate) fn shadow_region_arguments(&mut self, region: &Region, values: &[ValueId]) {
        let Some(entry) = region.blocks.first() else { return };
        for (argument, value) in entry.arguments.iter().zip(values) {
            let mut shown = String::new();
            self.names[value.0 as usize].write(&mut shown);
            self.names[argument.0 as usize] = names::Name::Special(shown, None);
        }
    }

    /// Prints an argument of a function's body: name, type, attributes, location.
    pub(crate) fn region_argument(&mut self, argument: ValueId, attributes: &[NamedAttribute]) {
        self.operand(argument);
        self.push(": ");
        self.ty(self.type_of(argument));
        self.optional_attribute_dictionary(attributes, &[]);
        self.argument_location(argument);
    }

    fn argument_location(&mut self, argument: ValueId) {
        if self.options.locations {
            let location = self.module.location(self.module.values[argument.0 as usize].location);
            self.push(" loc(");
            self.location_inner(location, true);
            self.push(")");
        }
    }

    fn trailing_location(&mut self, id: LocationId) {
        if self.options.locations {
            self.push(" loc(");
            self.location_inner(self.module.location(id), false);
            self.push(")");
        }
    }

    /// Prints the location inside `loc(...)`: the alias of the location if it has one; with `top`, the location itself, for the definition
    /// of its alias.
    fn location_inner(&mut self, location: &'a Location, top: bool) {
        if !top && let Some(alias) = self.aliases.get(location) {
            let shown = alias.to_string();
            self.push(&shown);
            return;
        }
        match location {
            Location::Unknown => self.push("unknown"),
            Location::FileLineCol { file, line, column } => {
                attributes::write_string(&mut self.out, file);
                self.push(&format!(":{line}:{column}"));
            }
            Location::Name { name, child } => {
                attributes::write_string(&mut self.out, name);
                if **child != Location::Unknown {
                    self.push("(");
                    self.location_inner(child, false);
                    self.push(")");
                }
            }
            Location::CallSite { callee, caller } => {
                self.push("callsite(");
                self.location_inner(callee, false);
                self.push(" at ");
                self.location_inner(caller, false);
                self.push(")");
            }
            Location::Fused { locations, metadata } => {
                self.push("fused");
                if let Some(metadata) = metadata {
                    self.push("<");
                    self.attribute(metadata);
                    self.push(">");
                }
                self.push("[");
                for (at, inner) in locations.iter().enumerate() {
                    if at > 0 {
                        self.push(", ");
                    }
                    self.location_inner(inner, false);
                }
                self.push("]");
            }
        }
    }

    /// Prints the aliases that must be defined before use; returns the definitions of the others, for the end of the
    /// text.
    fn alias_definitions(&mut self) -> String {
        let mut all: Vec<(&'a Location, aliases::Alias)> =
            self.aliases.iter().map(|(location, alias)| (*location, *alias)).collect();
        all.sort_by_key(|(_, alias)| alias.index);
        let mut deferred = String::new();
        for (location, alias) in all {
            let start = self.out.len();
            self.push(&format!("{alias} = loc("));
            self.location_inner(location, true);
            self.push(")\n");
            if alias.deferred {
                deferred.push_str(&self.out[start..]);
                self.out.truncate(start);
            }
        }
        deferred
    }
}

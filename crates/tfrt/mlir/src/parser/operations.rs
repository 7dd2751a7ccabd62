//! Parses operations: the generic form, and the parts around custom forms.

use super::attributes::sort_by_name;
use super::{Operand, Parse, Parser};
use crate::dialects::{self, OpDef, Syntax};
use crate::ir::{Attribute, LocationId, NamedAttribute, Operation, Region, Text, Type, ValueId};
use crate::lexer::{Kind, unescape};
use crate::limits::MAX_RESULTS;

/// An operation that is being parsed.
pub(crate) struct OpState {
    /// The operation's full name, `dialect.name`.
    pub(crate) name: Text,
    /// Byte offset of the operation's name.
    pub(crate) name_at: u32,
    /// Operands.
    pub(crate) operands: Vec<ValueId>,
    /// Result types.
    pub(crate) types: Vec<Type>,
    /// Attributes in source order.
    pub(crate) attributes: Vec<NamedAttribute>,
    /// Regions.
    pub(crate) regions: Vec<Region>,
    /// Provisional numbers of the successor blocks.
    pub(crate) successors: Vec<u32>,
    /// Location of the operation's name.
    pub(crate) location: LocationId,
}

impl OpState {
    /// Adds an attribute.
    pub(crate) fn add_attribute(&mut self, name: &str, value: Attribute) {
        self.attributes.push((name.into(), value));
    }

    /// Whether an attribute of this name was parsed.
    pub(crate) fn has_attribute(&self, name: &str) -> bool {
        self.attributes.iter().any(|(n, _)| *n == name)
    }
}

impl<'a> Parser<'a> {
    /// Parses `(results =)? (generic | custom) loc(...)?`.
    pub(super) fn parse_operation(&mut self) -> Parse<Operation> {
        let start = self.current_offset();
        let mut names: Vec<(&'a [u8], u32, u32)> = Vec::new();
        let mut expected = 0u64;
        if self.at_token(Kind::PercentId) {
            loop {
                let (name, at) = (self.spelling(), self.current_offset());
                self.expect(Kind::PercentId, "expected valid ssa identifier")?;
                let mut count = 1;
                if self.consume(Kind::Colon) {
                    if !self.at_token(Kind::Integer) {
                        return self.error_expected("expected integer number of results");
                    }
                    count = match self.spelling_str().parse() {
                        Ok(count) if (1..=MAX_RESULTS).contains(&count) => count,
                        _ => return self.error_here("expected named operation to have at least 1 result"),
                    };
                    self.advance();
                }
                expected += count;
                names.push((name, count as u32, at));
                if !self.consume(Kind::Comma) {
                    break;
                }
            }
            self.expect(Kind::Equal, "expected '=' after SSA name")?;
        }
        let (state, location) = match self.token.kind {
            Kind::BareId | Kind::IntType => self.custom_operation()?,
            Kind::String => self.generic_operation()?,
            _ => return self.error_expected("expected operation name in quotes"),
        };
        if !names.is_empty() {
            if state.types.is_empty() {
                return self.error(start, "cannot name an operation with no results");
            }
            if expected != state.types.len() as u64 {
                let message = format!(
                    "operation defines {} results but was provided {expected} to bind",
                    state.types.len()
                );
                return self.error(start, message);
            }
        }
        let location = location.unwrap_or(state.location);
        let mut results = Vec::with_capacity(state.types.len());
        if names.is_empty() {
            results.extend(state.types.iter().map(|ty| self.module.add_value(ty.clone(), location)));
        } else {
            let mut types = state.types.iter();
            for (name, count, at) in names {
                for (number, ty) in (0..count).zip(&mut types) {
                    results.push(self.define(Operand { name, number, at }, ty.clone(), location)?);
                }
            }
        }
        Ok(Operation {
            name: state.name,
            operands: state.operands,
            results,
            attributes: sort_by_name(state.attributes),
            regions: state.regions,
            successors: state.successors,
            location,
        })
    }

    fn new_state(&mut self, name: Text) -> OpState {
        let name_at = self.current_offset();
        OpState {
            name,
            name_at,
            operands: Vec::new(),
            types: Vec::new(),
            attributes: Vec::new(),
            regions: Vec::new(),
            successors: Vec::new(),
            location: self.location_at(name_at),
        }
    }

    /// Parses `"name"(operands) [successors] ({regions}) {attributes} : type`.
    fn generic_operation(&mut self) -> Parse<(OpState, Option<LocationId>)> {
        let name = Text::from(unescape(self.spelling()));
        if name.is_empty() {
            return self.error_here("empty operation name is invalid");
        }
        if name.contains(&0) {
            return self.error_here("null character not allowed in operation name");
        }
        let definition = dialects::lookup_op(&name);
        let mut state = self.new_state(name);
        self.advance();
        self.expect(Kind::LParen, "expected '(' to start operand list")?;
        let operands = self.operand_list(super::Delimiter::None)?;
        self.expect(Kind::RParen, "expected ')' to end operand list")?;
        if self.at_token(Kind::LSquare) {
            if definition.is_some_and(|d| !d.terminator) {
                return self.error_here("successors in non-terminator");
            }
            self.advance();
            if self.at_token(Kind::RSquare) {
                return self.error_expected("expected list element");
            }
            let mut successors = Vec::new();
            self.list_until(Kind::RSquare, "expected ',' or ']'", |parser| {
                successors.push(parser.successor()?);
                Ok(())
            })?;
            state.successors = successors;
        }
        if self.consume(Kind::Less) {
            // Newer MLIR has properties; here they become attributes.
            let entries = self.attribute_dictionary()?;
            state.attributes.extend(entries);
            self.expect(Kind::Greater, "expected '>' to close properties")?;
        }
        if self.consume(Kind::LParen) {
            loop {
                let region = self.region(&[], false)?;
                state.regions.push(region);
                if !self.consume(Kind::Comma) {
                    break;
                }
            }
            self.expect(Kind::RParen, "expected ')' to end region list")?;
        }
        self.optional_attribute_dictionary(&mut state)?;
        self.expect(Kind::Colon, "expected ':' followed by operation type")?;
        let type_at = self.current_offset();
        let Type::Function(function) = self.parse_type()? else {
            return self.error(type_at, "expected function type");
        };
        if function.inputs.len() != operands.len() {
            let plural = if operands.len() == 1 { "" } else { "s" };
            let message =
                format!("expected {} operand type{plural} but had {}", operands.len(), function.inputs.len());
            return self.error(type_at, message);
        }
        for (operand, ty) in operands.iter().zip(&function.inputs) {
            let value = self.resolve(*operand, ty)?;
            state.operands.push(value);
        }
        state.types = function.results.clone();
        let location = self.trailing_location()?;
        Ok((state, location))
    }

    fn custom_operation(&mut self) -> Parse<(OpState, Option<LocationId>)> {
        let written = self.spelling_str();
        let at = self.current_offset();
        let (definition, tried) = self.custom_definition(written);
        let Some(definition) = definition else {
            let dialect = tried.split('.').next().unwrap_or("");
            let mut message = if dialects::is_registered(dialect) {
                format!("custom op '{written}' is unknown")
            } else {
                format!("Dialect `{dialect}' not found for custom op '{written}' ")
            };
            if tried != written {
                message.push_str(&format!(" (tried '{tried}' as well)"));
            }
            // Older MLIR uses `func` for `func.func`.
            let named_as_dialect =
                dialects::op_names().find(|name| name.split('.').all(|part| part == written));
            message.push_str(&match named_as_dialect {
                Some(name) => format!("; did you mean `{name}`?"),
                None => pteron_text::did_you_mean(&tried, dialects::op_names()),
            });
            self.advance();
            return self.error(at, message);
        };
        let mut state = self.new_state(definition.name.as_str().into());
        self.advance();
        self.default_dialects.push(definition.default_dialect);
        match &definition.syntax {
            Syntax::Generic => {
                let message = format!("custom op '{}' has no custom assembly form", definition.name);
                return self.error(at, message);
            }
            Syntax::Format(format) => dialects::parse_format(self, &mut state, definition, format)?,
            Syntax::Hooks { parse, .. } => parse(self, &mut state)?,
        }
        self.default_dialects.pop();
        let mut names: Vec<&Text> = state.attributes.iter().map(|(name, _)| name).collect();
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("attribute '{}' occurs more than once in the attribute list", pair[0]);
            return self.error_in_op(&state, at, message);
        }
        let location = self.trailing_location()?;
        Ok((state, location))
    }

    /// The definition of the operation that is called `written` in custom form, and its full name.
    fn custom_definition(&self, written: &str) -> (Option<&'static OpDef>, String) {
        if let Some(definition) = dialects::lookup_op(written.as_bytes()) {
            return (Some(definition), written.to_string());
        }
        if written.contains('.') {
            return (None, written.to_string());
        }
        let dialect = self.default_dialects.last().copied().unwrap_or("builtin");
        let full = format!("{dialect}.{written}");
        (dialects::lookup_op(full.as_bytes()), full)
    }
}

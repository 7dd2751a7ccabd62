//! Parses attributes.

use std::sync::Arc;

use super::symbols::Symbol;
use super::{OpState, Parse, Parser, numbers};
use crate::dialects;
use crate::ir::{Attribute, FloatKind, NamedAttribute, Text, Type};
use crate::lexer::{Kind, unescape};

impl<'a> Parser<'a> {
    /// Parses an attribute. If `ty` is given, a literal gets that type and needs no `: type` of its own.
    pub(crate) fn parse_attribute(&mut self, ty: Option<&Type>) -> Parse<Attribute> {
        self.parse_nested(|parser| parser.attribute_inner(ty))
    }

    fn attribute_inner(&mut self, ty: Option<&Type>) -> Parse<Attribute> {
        match self.token.kind {
            Kind::LSquare => {
                self.advance();
                let mut elements = Vec::new();
                self.list_until(Kind::RSquare, "expected ',' or ']'", |parser| {
                    elements.push(parser.parse_attribute(None)?);
                    Ok(())
                })?;
                Ok(Attribute::array(elements))
            }
            Kind::LBrace => Ok(Attribute::Dictionary(sort_by_name(self.attribute_dictionary()?).into())),
            Kind::HashId => self.extended_attribute(ty),
            Kind::Float => self.float_attribute(ty, false),
            Kind::Integer => self.number_attribute(ty, false),
            Kind::Minus => {
                self.advance();
                match self.token.kind {
                    Kind::Integer => self.number_attribute(ty, true),
                    Kind::Float => self.float_attribute(ty, true),
                    _ => self.error_expected("expected constant integer or floating point value"),
                }
            }
            Kind::String => {
                let text = Text::from(unescape(self.spelling()));
                self.advance();
                let ty = match ty {
                    Some(ty) => Some(ty.clone()),
                    None if self.consume(Kind::Colon) => Some(self.parse_type()?),
                    None => None,
                };
                Ok(Attribute::String(text, ty.filter(|t| *t != Type::None).map(Arc::new)))
            }
            Kind::AtId => self.symbol_reference(),
            Kind::BareId => self.keyword_attribute(ty),
            Kind::IntType | Kind::BangId | Kind::LParen => Ok(Attribute::Type(self.parse_type()?)),
            _ => self.error_expected("expected attribute value"),
        }
    }

    fn keyword_attribute(&mut self, ty: Option<&Type>) -> Parse<Attribute> {
        match self.spelling() {
            b"true" => {
                self.advance();
                Ok(Attribute::bool(true))
            }
            b"false" => {
                self.advance();
                Ok(Attribute::bool(false))
            }
            b"unit" => {
                self.advance();
                Ok(Attribute::Unit)
            }
            b"dense" => self.dense_attribute(ty),
            b"array" => self.dense_array(),
            b"loc" => {
                self.advance();
                self.expect(Kind::LParen, "expected '(' in inline location")?;
                let location = self.location_instance()?;
                self.expect(Kind::RParen, "expected ')' in inline location")?;
                Ok(Attribute::Location(Arc::new(location)))
            }
            b"affine_map" | b"affine_set" | b"strided" => self.verbatim_attribute(false),
            b"sparse" => self.verbatim_attribute(true),
            b"dense_resource" | b"opaque" => {
                self.error_here(format!("'{}' attributes are not supported", self.spelling_str()))
            }
            keyword if is_type_keyword(keyword) => Ok(Attribute::Type(self.parse_type()?)),
            _ => self.error_expected("expected attribute value"),
        }
    }

    /// Parses `keyword<...>`, with a `: type` after it if `typed`, to an attribute that keeps the text.
    fn verbatim_attribute(&mut self, typed: bool) -> Parse<Attribute> {
        let start = self.current_offset();
        self.advance();
        if !self.at_token(Kind::Less) {
            return self.error_expected("expected '<'");
        }
        let end = self.balanced_end(self.token.start)?;
        let text = &self.source.text[start as usize..end as usize];
        let mut text = match std::str::from_utf8(text) {
            Ok(text) => text.to_string(),
            Err(_) => return self.error(start, "attribute is not UTF-8"),
        };
        self.jump_to(end);
        if typed {
            let ty = self.colon_type()?;
            text.push_str(&format!(" : {ty}"));
        }
        Ok(Attribute::Verbatim(text.into()))
    }

    fn float_attribute(&mut self, ty: Option<&Type>, negative: bool) -> Parse<Attribute> {
        let literal = self.token;
        self.advance();
        let ty = match ty {
            Some(ty) => ty.clone(),
            None if self.consume(Kind::Colon) => self.parse_type()?,
            None => Type::Float(FloatKind::F64),
        };
        let Type::Float(kind) = ty else {
            return self.error_here("floating point value not valid for specified type");
        };
        let bits = self.float_bits(kind, negative, literal)?;
        Ok(Attribute::Float { kind, bits })
    }

    fn number_attribute(&mut self, ty: Option<&Type>, negative: bool) -> Parse<Attribute> {
        let literal = self.token;
        self.advance();
        let ty = match ty {
            Some(ty) => ty.clone(),
            None if self.consume(Kind::Colon) => self.parse_type()?,
            None => Type::int(64),
        };
        match &ty {
            Type::Float(kind) => {
                let bits = self.float_bits(*kind, negative, literal)?;
                Ok(Attribute::Float { kind: *kind, bits })
            }
            Type::Integer { .. } | Type::Index => {
                let unsigned =
                    matches!(&ty, Type::Integer { signedness: crate::ir::Signedness::Unsigned, .. });
                if negative && unsigned {
                    return self.error(
                        literal.start,
                        "negative integer literal not valid for unsigned integer type",
                    );
                }
                // `-0` is zero.
                let spelling = self.token_bytes(literal);
                let negative = negative && numbers::magnitude(spelling) != Some(0);
                match numbers::integer_value(&ty, negative, spelling) {
                    Some(value) => Ok(Attribute::Integer { ty, value }),
                    None => self.error(literal.start, "integer constant out of range for attribute"),
                }
            }
            _ => self.error(literal.start, "integer literal not valid for specified type"),
        }
    }

    fn symbol_name_token(&mut self) -> Text {
        let spelling = &self.spelling()[1..];
        let name =
            if spelling.starts_with(b"\"") { Text::from(unescape(spelling)) } else { Text::from(spelling) };
        self.advance();
        name
    }

    /// Parses `@root::@nested::@...`.
    fn symbol_reference(&mut self) -> Parse<Attribute> {
        let root = self.symbol_name_token();
        let mut nested = Vec::new();
        while self.at_token(Kind::Colon) {
            // A single colon does not belong to the attribute.
            if self.source.text.get(self.token.end as usize) != Some(&b':') {
                break;
            }
            let colon = self.current_offset();
            self.advance();
            self.advance();
            if !self.at_token(Kind::AtId) {
                let _ = colon;
                return self.error_here("expected nested symbol reference identifier");
            }
            nested.push(self.symbol_name_token());
        }
        Ok(Attribute::SymbolRef { root, nested: nested.into() })
    }

    /// Parses `@name`, the name of a symbol that `op` defines or refers to.
    pub(crate) fn symbol_name(&mut self, op: &OpState) -> Parse<Text> {
        if !self.at_token(Kind::AtId) {
            return self.error_in_op(
                op,
                self.current_offset(),
                "expected valid '@'-identifier for symbol name",
            );
        }
        Ok(self.symbol_name_token())
    }

    /// Parses `#alias` or `#dialect.attribute`.
    pub(super) fn extended_attribute(&mut self, ty: Option<&Type>) -> Parse<Attribute> {
        let at = self.current_offset();
        match self.symbol(|parser, alias| parser.attribute_aliases.get(alias).cloned())? {
            Symbol::Alias(alias) => self.expand_attribute(at, &alias),
            Symbol::Dialect { symbol, body_at } => {
                if ty.is_none() && self.consume(Kind::Colon) {
                    self.parse_type()?;
                }
                match dialects::dialect_attribute(symbol) {
                    Ok(attribute) => Ok(attribute),
                    Err(message) => self.error(body_at, message),
                }
            }
        }
    }

    /// Parses `{name = attribute, ...}` in source order.
    pub(crate) fn attribute_dictionary(&mut self) -> Parse<Vec<NamedAttribute>> {
        self.expect(Kind::LBrace, "expected '{' in attribute dictionary")?;
        let mut entries: Vec<NamedAttribute> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        self.list_until(Kind::RBrace, "expected '}' in attribute dictionary", |parser| {
            let name = match parser.token.kind {
                Kind::String => Text::from(unescape(parser.spelling())),
                Kind::BareId | Kind::IntType => Text::from(parser.spelling()),
                _ => return parser.error_expected("expected attribute name"),
            };
            if name.is_empty() {
                return parser.error_here("expected valid attribute name");
            }
            if !seen.insert(name.clone()) {
                return parser.error_here(format!("duplicate key '{name}' in dictionary attribute"));
            }
            parser.advance();
            let value =
                if parser.consume(Kind::Equal) { parser.parse_attribute(None)? } else { Attribute::Unit };
            entries.push((name, value));
            Ok(())
        })?;
        Ok(entries)
    }

    /// Parses `{...}`, if present, and adds its entries to the attributes of `op`.
    pub(crate) fn optional_attribute_dictionary(&mut self, op: &mut OpState) -> Parse {
        if self.at_token(Kind::LBrace) {
            let entries = self.attribute_dictionary()?;
            op.attributes.extend(entries);
        }
        Ok(())
    }

    /// Parses `attributes {...}`, if present, and adds its entries to the attributes of `op`.
    pub(crate) fn optional_attributes_keyword(&mut self, op: &mut OpState) -> Parse {
        if self.optional_keyword("attributes") {
            if !self.at_token(Kind::LBrace) {
                return self.error_expected("expected '{' in attribute dictionary");
            }
            self.optional_attribute_dictionary(op)?;
        }
        Ok(())
    }
}

/// Sorts dictionary entries by name.
pub(crate) fn sort_by_name(mut entries: Vec<NamedAttribute>) -> Vec<NamedAttribute> {
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries
}

fn is_type_keyword(keyword: &[u8]) -> bool {
    matches!(keyword, b"index" | b"none" | b"complex" | b"tuple" | b"tensor" | b"vector" | b"memref")
        || std::str::from_utf8(keyword).is_ok_and(|k| FloatKind::from_keyword(k).is_some())
}

//! Parses types.

use std::sync::Arc;

use super::{Parse, Parser};
use crate::dialects;
use crate::ir::{FloatKind, ShapedKind, ShapedType, Signedness, Type};
use crate::lexer::Kind;
use crate::limits::{MAX_DEPTH, MAX_INTEGER_WIDTH};

impl<'a> Parser<'a> {
    /// A type of any kind.
    pub(crate) fn parse_type(&mut self) -> Parse<Type> {
        self.parse_nested(|parser| {
            if parser.at_token(Kind::LParen) {
                return parser.function_type();
            }
            parser.non_function_type()
        })
    }

    /// The type of an operand or result that a custom form does not state: with its newer name, if the text uses the
    /// newer names.
    pub(crate) fn slot_type(&self, slot: &dialects::Slot) -> Option<Type> {
        let ty = slot.ty.as_ref()?;
        dialects::newer_type_name(ty).filter(|_| self.newer_types).or_else(|| Some(ty.clone()))
    }

    /// Parses `: type`.
    pub(crate) fn colon_type(&mut self) -> Parse<Type> {
        self.expect(Kind::Colon, "expected ':'")?;
        self.parse_type()
    }

    /// Parses `: (types) -> types`, for an operation whose syntax requires a function type.
    pub(crate) fn colon_function_type(&mut self, op: &super::OpState) -> Parse<(Vec<Type>, Vec<Type>)> {
        let at = self.current_offset();
        match self.colon_type()? {
            Type::Function(function) => Ok((function.inputs.clone(), function.results.clone())),
            _ => self.error_in_op(op, at, "invalid kind of type specified"),
        }
    }

    /// Parses one or more types, separated by commas.
    pub(crate) fn type_list(&mut self) -> Parse<Vec<Type>> {
        let mut types = vec![self.parse_type()?];
        while self.consume(Kind::Comma) {
            types.push(self.parse_type()?);
        }
        Ok(types)
    }

    /// Parses `: types`, if present; no types otherwise.
    pub(crate) fn optional_colon_type_list(&mut self) -> Parse<Vec<Type>> {
        if self.consume(Kind::Colon) { self.type_list() } else { Ok(Vec::new()) }
    }

    /// Parses the results of a function type: `(types)`, or a single type that is not a function type.
    pub(crate) fn function_results(&mut self) -> Parse<Vec<Type>> {
        if self.at_token(Kind::LParen) {
            return self.type_list_parens();
        }
        Ok(vec![self.parse_nested(|parser| parser.non_function_type())?])
    }

    fn type_list_parens(&mut self) -> Parse<Vec<Type>> {
        self.expect(Kind::LParen, "expected '('")?;
        let mut types = Vec::new();
        self.list_until(Kind::RParen, "expected ')'", |parser| {
            types.push(parser.parse_type()?);
            Ok(())
        })?;
        Ok(types)
    }

    fn function_type(&mut self) -> Parse<Type> {
        let inputs = self.type_list_parens()?;
        self.expect(Kind::Arrow, "expected '->' in function type")?;
        let results = self.function_results()?;
        Ok(Type::function(inputs, results))
    }

    fn non_function_type(&mut self) -> Parse<Type> {
        match self.token.kind {
            Kind::IntType => return self.integer_type(),
            Kind::BangId => return self.extended_type(),
            Kind::BareId => {}
            _ => return self.error_expected("expected non-function type"),
        }
        let keyword = self.spelling_str();
        if let Some(kind) = FloatKind::from_keyword(keyword) {
            self.advance();
            return Ok(Type::Float(kind));
        }
        match keyword {
            "index" => {
                self.advance();
                Ok(Type::Index)
            }
            "none" => {
                self.advance();
                Ok(Type::None)
            }
            "complex" => self.complex_type(),
            "tuple" => self.tuple_type(),
            "tensor" => self.shaped_type(ShapedKind::Tensor),
            "vector" => self.shaped_type(ShapedKind::Vector),
            "memref" => self.shaped_type(ShapedKind::MemRef),
            _ => self.error_expected("expected non-function type"),
        }
    }

    fn integer_type(&mut self) -> Parse<Type> {
        let text = self.spelling_str();
        let (signedness, digits) = match text.as_bytes()[0] {
            b's' => (Signedness::Signed, &text[2..]),
            b'u' => (Signedness::Unsigned, &text[2..]),
            _ => (Signedness::Signless, &text[1..]),
        };
        match digits.parse() {
            Ok(width) if width <= MAX_INTEGER_WIDTH => {
                self.advance();
                Ok(Type::Integer { width, signedness })
            }
            _ => self.error_here(format!("integer bitwidth is limited to {MAX_INTEGER_WIDTH} bits")),
        }
    }

    fn complex_type(&mut self) -> Parse<Type> {
        self.advance();
        self.expect(Kind::Less, "expected '<' in complex type")?;
        let at = self.current_offset();
        let element = self.parse_type()?;
        self.expect(Kind::Greater, "expected '>' in complex type")?;
        if !matches!(element, Type::Integer { .. } | Type::Float(_)) {
            return self.error(at, "invalid element type for complex");
        }
        Ok(Type::complex(element))
    }

    fn tuple_type(&mut self) -> Parse<Type> {
        self.advance();
        self.expect(Kind::Less, "expected '<' in tuple type")?;
        let mut types = Vec::new();
        self.list_until(Kind::Greater, "expected '>' in tuple type", |parser| {
            types.push(parser.parse_type()?);
            Ok(())
        })?;
        Ok(Type::Tuple(types.into()))
    }

    fn shaped_type(&mut self, kind: ShapedKind) -> Parse<Type> {
        self.advance();
        let opening = match kind {
            ShapedKind::Tensor => "expected '<' in tensor type",
            ShapedKind::Vector => "expected '<' in vector type",
            ShapedKind::MemRef => "expected '<' in memref type",
        };
        if !self.at_token(Kind::Less) {
            return self.error_expected(opening);
        }
        let (shape, scalable) = self.dimensions(kind)?;
        let element_at = self.current_offset();
        let element = self.parse_type()?;
        if matches!(element, Type::Function(_) | Type::None | Type::Tuple(_)) && kind != ShapedKind::MemRef {
            return self.error(element_at, "invalid element type");
        }
        let mut extra = Vec::new();
        while kind != ShapedKind::Vector && self.consume(Kind::Comma) {
            extra.push(self.parse_attribute(None)?);
        }
        self.expect(Kind::Greater, "expected '>' in type")?;
        Ok(Type::Shaped(Arc::new(ShapedType { kind, shape, scalable, element, extra })))
    }

    /// Parses the dimensions after `<`, up to the element type. It works on characters, because `4x?xf32` is one
    /// token to the lexer. The current token is the `<`.
    fn dimensions(&mut self, kind: ShapedKind) -> Parse<(Option<Vec<i64>>, Vec<bool>)> {
        let text = self.source.text;
        let mut at = self.token.end as usize;
        let skip = |mut at: usize| {
            while text.get(at).is_some_and(u8::is_ascii_whitespace) {
                at += 1;
            }
            at
        };
        let (mut shape, mut scalable, mut ranked) = (Vec::new(), Vec::new(), true);
        loop {
            at = skip(at);
            let (start, bracket) = (at, text.get(at) == Some(&b'['));
            if bracket {
                at = skip(at + 1);
            }
            let digits = at;
            match text.get(at) {
                Some(b'?') if kind != ShapedKind::Vector => {
                    shape.push(-1);
                    at += 1;
                }
                Some(b'*') if shape.is_empty() && kind != ShapedKind::Vector => {
                    ranked = false;
                    at += 1;
                }
                Some(b'0'..=b'9') => {
                    while text.get(at).is_some_and(u8::is_ascii_digit) {
                        at += 1;
                    }
                    let digits = std::str::from_utf8(&text[digits..at]).unwrap_or("");
                    match digits.parse() {
                        Ok(size) => shape.push(size),
                        Err(_) => return self.error(start as u32, "invalid dimension"),
                    }
                }
                _ if bracket => return self.error(at as u32, "expected scalable dimension"),
                _ => break,
            }
            scalable.push(bracket);
            if bracket {
                at = skip(at);
                if text.get(at) != Some(&b']') {
                    return self.error(at as u32, "missing ']' closing scalable dimension");
                }
                at += 1;
            }
            at = skip(at);
            if text.get(at) != Some(&b'x') {
                self.jump_to(at as u32);
                return self.error(at as u32, "expected 'x' in dimension list");
            }
            at += 1;
            if !ranked {
                break;
            }
        }
        if !scalable.contains(&true) {
            scalable.clear();
        }
        self.jump_to(at as u32);
        Ok((ranked.then_some(shape), scalable))
    }

    /// Parses `!alias` or `!dialect.type`.
    fn extended_type(&mut self) -> Parse<Type> {
        let at = self.current_offset();
        match self.symbol(|parser, alias| parser.type_aliases.get(alias).cloned())? {
            super::symbols::Symbol::Alias(alias) => self.expand_alias(at, &alias, MAX_DEPTH),
            super::symbols::Symbol::Dialect { symbol, body_at } => match dialects::check_type(&symbol) {
                Ok(()) => Ok(Type::Dialect(Arc::new(symbol))),
                Err(message) => self.error(body_at, message),
            },
        }
    }
}

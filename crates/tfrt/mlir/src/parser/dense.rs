//! Parses `dense<...>` and `array<...>` literals.

use super::{Parse, Parser, numbers};
use crate::ir::{Attribute, DenseData, DenseElements, ShapedType, Signedness, Text, Type, element_size};
use crate::lexer::{Kind, Token, unescape};
use crate::limits::MAX_DENSE_BYTES;

/// The contents of `dense<...>` as tokens, before the element type is known.
#[derive(Default)]
struct Literal {
    elements: Vec<(bool, Token)>,
    shape: Vec<i64>,
    hex: Option<Token>,
}

impl<'a> Parser<'a> {
    /// Parses `dense<literal> : type`.
    pub(super) fn dense_attribute(&mut self, ty: Option<&Type>) -> Parse<Attribute> {
        let start = self.current_offset();
        self.advance();
        self.expect(Kind::Less, "expected '<' after 'dense'")?;
        let mut literal = Literal::default();
        if !self.consume(Kind::Greater) {
            if self.at_token(Kind::String) {
                literal.hex = Some(self.token);
                self.advance();
            } else if self.at_token(Kind::LSquare) {
                literal.shape = self.dense_list(&mut literal.elements)?;
            } else {
                self.dense_element(&mut literal.elements)?;
            }
            self.expect(Kind::Greater, "expected '>'")?;
        }
        let at = self.current_offset();
        let ty = match ty {
            Some(ty) => ty.clone(),
            None => {
                self.expect(Kind::Colon, "expected ':'")?;
                self.parse_type()?
            }
        };
        let Type::Shaped(shaped) = &ty else {
            return self.error(at, "elements literal must be a shaped type");
        };
        let Some(count) = shaped.num_elements() else {
            return self.error(at, "elements literal type must have static shape");
        };
        let size = element_size(&shaped.element).unwrap_or(16) as u64;
        if count.checked_mul(size).is_none_or(|bytes| bytes > MAX_DENSE_BYTES) {
            return self.error(
                at,
                format!("elements literal of {count} elements is larger than {MAX_DENSE_BYTES} bytes"),
            );
        }
        let data = self.dense_data(&literal, shaped, count, start)?;
        let elements = match data {
            DenseData::Bytes(bytes) => DenseElements::from_bytes(ty.clone(), bytes),
            strings => DenseElements { ty: ty.clone(), data: strings },
        };
        Ok(Attribute::Dense(elements.into()))
    }

    fn dense_element(&mut self, elements: &mut Vec<(bool, Token)>) -> Parse {
        match self.token.kind {
            Kind::Float | Kind::Integer | Kind::String => elements.push((false, self.token)),
            Kind::BareId if matches!(self.spelling(), b"true" | b"false") => {
                elements.push((false, self.token))
            }
            Kind::Minus => {
                self.advance();
                if !matches!(self.token.kind, Kind::Float | Kind::Integer) {
                    return self.error_here("expected integer or floating point literal");
                }
                elements.push((true, self.token));
            }
            Kind::LParen => {
                self.advance();
                return self.parse_nested(|parser| {
                    parser.dense_element(elements)?;
                    parser.expect(Kind::Comma, "expected ',' between complex elements")?;
                    parser.dense_element(elements)?;
                    parser.expect(Kind::RParen, "expected ')' after complex elements")
                });
            }
            _ => return self.error_here("expected element literal of primitive type"),
        }
        self.advance();
        Ok(())
    }

    /// Parses a bracketed list of elements or of such lists, and returns its shape.
    fn dense_list(&mut self, elements: &mut Vec<(bool, Token)>) -> Parse<Vec<i64>> {
        self.parse_nested(|parser| {
            parser.advance();
            let (mut count, mut inner): (i64, Option<Vec<i64>>) = (0, None);
            parser.list_until(Kind::RSquare, "expected ']'", |parser| {
                let shape = if parser.at_token(Kind::LSquare) {
                    parser.dense_list(elements)?
                } else {
                    parser.dense_element(elements)?;
                    Vec::new()
                };
                count += 1;
                match &inner {
                    Some(first) if *first != shape => parser
                        .error_here("tensor literal is invalid; ranks are not consistent between elements"),
                    Some(_) => Ok(()),
                    None => {
                        inner = Some(shape);
                        Ok(())
                    }
                }
            })?;
            let mut shape = vec![count];
            shape.extend(inner.unwrap_or_default());
            Ok(shape)
        })
    }

    fn dense_data(&mut self, literal: &Literal, ty: &ShapedType, count: u64, at: u32) -> Parse<DenseData> {
        let numeric = element_size(&ty.element).is_some();
        if let (Some(token), true) = (literal.hex, numeric) {
            return self.dense_hex(token, ty, count, at);
        }
        let shape = ty.shape.clone().unwrap_or_default();
        if !literal.shape.is_empty() && literal.shape != shape {
            let message = format!(
                "inferred shape of elements literal ([{}]) does not match type ([{}])",
                shape_text(&literal.shape),
                shape_text(&shape)
            );
            return self.error(at, message);
        }
        if literal.hex.is_none() && literal.elements.is_empty() && count > 0 {
            let shown = Type::Shaped(ty.clone().into());
            return self.error(at, format!("parsed zero elements, but type ('{shown}') expected at least 1"));
        }
        if !numeric {
            let tokens: Vec<Token> =
                literal.hex.into_iter().chain(literal.elements.iter().map(|(_, token)| *token)).collect();
            if let Some(other) = tokens.iter().find(|t| t.kind != Kind::String) {
                let shown = String::from_utf8_lossy(self.token_bytes(*other)).into_owned();
                return self.error(at, format!("expected string token, got {shown}"));
            }
            let strings: Vec<Text> =
                tokens.iter().map(|t| Text::from(unescape(self.token_bytes(*t)))).collect();
            return Ok(DenseData::Strings(strings));
        }
        let (element, parts) = match &ty.element {
            Type::Complex(element) => ((**element).clone(), 2),
            other => (other.clone(), 1),
        };
        let expected = if literal.shape.is_empty() { parts } else { parts * count };
        if count > 0 && literal.elements.len() as u64 != expected {
            let shown = Type::Shaped(ty.clone().into());
            let message = format!(
                "parsed {} elements, but type ('{shown}') expected {expected} elements",
                literal.elements.len()
            );
            return self.error(at, message);
        }
        let size = element_size(&element).unwrap_or(0);
        let mut bytes = Vec::with_capacity(literal.elements.len() * size);
        for &(negative, token) in &literal.elements {
            let bits = self.element_bits(&element, negative, token)?;
            bytes.extend_from_slice(&bits.to_le_bytes()[..size]);
        }
        Ok(DenseData::Bytes(bytes))
    }

    /// The bits of one element as written in `token`: a float's format, or two's complement for integers.
    fn element_bits(&mut self, ty: &Type, negative: bool, token: Token) -> Parse<u128> {
        if let Type::Float(kind) = ty {
            if !matches!(token.kind, Kind::Float | Kind::Integer) {
                return self.error(token.start, "expected floating-point elements");
            }
            return self.float_bits(*kind, negative, token);
        }
        let spelling = self.token_bytes(token);
        match token.kind {
            Kind::BareId if *ty == Type::int(1) => return Ok(u128::from(spelling == b"true")),
            Kind::BareId => {
                return self.error(token.start, "expected i1 type for 'true' or 'false' values");
            }
            Kind::Float => {
                return self.error(token.start, "expected integer elements, but parsed floating-point");
            }
            Kind::String => return self.error(token.start, "expected integer elements, but parsed a string"),
            _ => {}
        }
        if negative && matches!(ty, Type::Integer { signedness: Signedness::Unsigned, .. }) {
            return self.error(token.start, "expected unsigned integer elements, but parsed negative value");
        }
        let negative = negative && numbers::magnitude(spelling) != Some(0);
        match numbers::integer_value(ty, negative, spelling) {
            Some(value) => Ok(value as u128),
            None => self.error(token.start, "integer constant out of range for type"),
        }
    }

    /// Parses `"0x..."`: the raw little-endian elements, `i1` packed eight to a byte; a single element is a splat.
    fn dense_hex(&mut self, token: Token, ty: &ShapedType, count: u64, at: u32) -> Parse<DenseData> {
        let text = unescape(self.token_bytes(token));
        let digits = text.strip_prefix(b"0x").filter(|d| d.len() % 2 == 0);
        let raw: Option<Vec<u8>> = digits.and_then(|digits| {
            digits
                .chunks_exact(2)
                .map(|pair| {
                    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
                    Some(digit(pair[0])? << 4 | digit(pair[1])?)
                })
                .collect()
        });
        let Some(raw) = raw else {
            return self.error(token.start, "expected string containing hex digits starting with `0x`");
        };
        let size = element_size(&ty.element).unwrap_or(1);
        let invalid = |parser: &mut Self| {
            let shown = Type::Shaped(ty.clone().into());
            parser.error(at, format!("elements hex data size is invalid for provided type: '{shown}'"))
        };
        if ty.element == Type::int(1) {
            if raw.len() == 1 && (raw[0] == 0 || raw[0] == 0xff) {
                return Ok(DenseData::Bytes(vec![raw[0] & 1]));
            }
            if raw.len() as u64 != count.div_ceil(8) {
                return invalid(self);
            }
            let bit = |at: u64| raw[(at / 8) as usize] >> (at % 8) & 1;
            return Ok(DenseData::Bytes((0..count).map(bit).collect()));
        }
        if raw.len() != size && raw.len() as u64 != count * size as u64 {
            return invalid(self);
        }
        Ok(DenseData::Bytes(raw))
    }

    /// Parses `array<type: elements>`.
    pub(super) fn dense_array(&mut self) -> Parse<Attribute> {
        self.advance();
        self.expect(Kind::Less, "expected '<' after 'array'")?;
        let at = self.current_offset();
        let ty = self.parse_type()?;
        if !matches!(ty, Type::Integer { .. } | Type::Float(_)) {
            return self.error(at, "expected integer or float type");
        }
        let mut elements = Vec::new();
        if self.consume(Kind::Colon) {
            loop {
                let negative = self.consume(Kind::Minus);
                let token = self.token;
                self.advance();
                let bits = match token.kind {
                    Kind::Integer | Kind::Float | Kind::BareId => self.element_bits(&ty, negative, token)?,
                    _ => return self.error(token.start, "expected element literal"),
                };
                elements.push(match &ty {
                    Type::Float(kind) => Attribute::Float { kind: *kind, bits },
                    _ => Attribute::Integer { ty: ty.clone(), value: bits as i128 },
                });
                if !self.consume(Kind::Comma) {
                    break;
                }
            }
        }
        self.expect(Kind::Greater, "expected '>' to close an array attribute")?;
        Ok(Attribute::DenseArray(ty, elements.into()))
    }
}

fn shape_text(shape: &[i64]) -> String {
    shape.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

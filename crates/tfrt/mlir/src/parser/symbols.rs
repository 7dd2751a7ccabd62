//! Parses the text after `!` and `#`: aliases, and dialect types and attributes.

use super::{Parse, Parser};
use crate::ir::DialectSymbol;
use crate::lexer::Kind;

/// The value of an alias, or a dialect type or attribute.
pub(super) enum Symbol<T> {
    Alias(T),
    Dialect {
        symbol: DialectSymbol,
        /// Byte offset of the text after the dialect's name.
        body_at: u32,
    },
}

impl<'a> Parser<'a> {
    /// Parses an alias, dialect type or dialect attribute, given the current `!` or `#` token.
    pub(super) fn symbol<T>(&mut self, alias: impl FnOnce(&Self, &'a [u8]) -> Option<T>) -> Parse<Symbol<T>> {
        let token = self.token;
        let identifier = &self.token_bytes(token)[1..];
        let text = std::str::from_utf8(identifier).unwrap_or("");
        let trailing = self.source.text.get(token.end as usize) == Some(&b'<');
        let Some((dialect, name)) = text.split_once('.') else {
            if !trailing {
                self.advance();
                return match alias(self, identifier) {
                    Some(value) => Ok(Symbol::Alias(value)),
                    None => self.error_expected(format!("undefined symbol alias id '{text}'")),
                };
            }
            let end = self.balanced_end(token.end)?;
            let body = self.source.text[token.end as usize + 1..end as usize - 1].to_vec();
            return self.dialect_symbol(text, body, token.end + 1, end);
        };
        let body_at = token.start + 2 + dialect.len() as u32;
        let end = if trailing { self.balanced_end(token.end)? } else { token.end };
        let mut body = name.as_bytes().to_vec();
        body.extend_from_slice(&self.source.text[token.end as usize..end as usize]);
        self.dialect_symbol(dialect, body, body_at, end)
    }

    fn dialect_symbol<T>(
        &mut self,
        dialect: &str,
        body: Vec<u8>,
        body_at: u32,
        end: u32,
    ) -> Parse<Symbol<T>> {
        if dialect.is_empty() {
            return self.error_here("expected the name of a dialect");
        }
        let Ok(body) = String::from_utf8(body) else {
            return self.error(body_at, "dialect symbol is not UTF-8");
        };
        self.jump_to(end);
        Ok(Symbol::Dialect { symbol: DialectSymbol { dialect: dialect.into(), body }, body_at })
    }

    /// The offset after the bracket that matches the one at `at`. Brackets in strings do not count, nor does `->`.
    pub(super) fn balanced_end(&mut self, at: u32) -> Parse<u32> {
        let text = self.source.text;
        let mut open: Vec<u8> = Vec::new();
        let mut at = at as usize;
        loop {
            let Some(&byte) = text.get(at) else {
                return self.error(at.saturating_sub(1) as u32, "unexpected end of file in dialect symbol");
            };
            match byte {
                b'<' => open.push(b'>'),
                b'(' => open.push(b')'),
                b'[' => open.push(b']'),
                b'{' => open.push(b'}'),
                b'-' if text.get(at + 1) == Some(&b'>') => at += 1,
                b'"' => {
                    self.jump_to(at as u32);
                    if !self.at_token(Kind::String) {
                        return self.error_here("expected '\"' in string literal");
                    }
                    at = self.token.end as usize - 1;
                }
                b'>' | b')' | b']' | b'}' => {
                    if open.pop() != Some(byte) {
                        let shown = char::from(byte);
                        return self.error(
                            at as u32,
                            format!("unbalanced '{shown}' character in pretty dialect name"),
                        );
                    }
                    if open.is_empty() {
                        return Ok(at as u32 + 1);
                    }
                }
                0 => return self.error(at as u32, "unexpected nul or EOF in pretty dialect name"),
                _ => {}
            }
            at += 1;
        }
    }
}

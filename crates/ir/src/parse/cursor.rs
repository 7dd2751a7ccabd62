//! A position in a line of a listing.

use crate::Type;
use crate::value::scalar_meta;
use pteron_tensor::{DimOrder, Scalar, ScalarType, ShapeDynamism, TensorMeta};
use std::str::FromStr;

/// The value that was read, or a message that says what is wrong.
pub(super) type Result<T = ()> = std::result::Result<T, String>;

/// The rest of a line that is being parsed.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'t>(&'t str);

/// A value's name and type, written `%name: type`.
pub(super) struct Typed<'t> {
    pub(super) name: &'t str,
    pub(super) ty: Type,
    pub(super) meta: TensorMeta,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(line: &'t str) -> Self {
        Self(line)
    }

    /// The text that is not read yet.
    pub(super) fn rest(&self) -> &'t str {
        self.0
    }

    pub(super) fn starts_with(&self, text: &str) -> bool {
        self.0.starts_with(text)
    }

    /// Advances past `text` if it comes next. Returns whether it did.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// Advances past `text`, which must be next.
    pub(super) fn expect(&mut self, text: &str) -> Result {
        if self.eat(text) { Ok(()) } else { Err(self.expected_error(&format!("`{}`", text.trim()))) }
    }

    /// Checks that the line ends here.
    pub(super) fn expect_end(&self) -> Result {
        if self.0.is_empty() { Ok(()) } else { Err(self.expected_error("the end of the line")) }
    }

    /// The error message that `expected` was expected at the cursor, with the text found there.
    pub(super) fn expected_error(&self, expected: &str) -> String {
        match self.0 {
            "" => format!("expected {expected}, found the end of the line"),
            rest => format!("expected {expected}, found `{rest}`"),
        }
    }

    /// Reads up to the next of the characters `marks`, or to the end of the line.
    pub(super) fn take_until_any(&mut self, marks: &[char]) -> &'t str {
        self.take_bytes(self.0.find(marks).unwrap_or(self.0.len()))
    }

    pub(super) fn digits(&mut self) -> &'t str {
        self.take_bytes(self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len()))
    }

    fn take_bytes(&mut self, at: usize) -> &'t str {
        let (before, rest) = self.0.split_at(at);
        self.0 = rest;
        before
    }

    /// Reads a decimal number that fits the type `T`.
    pub(super) fn number<T: FromStr>(&mut self) -> Result<T> {
        let error = self.expected_error("a number");
        self.digits().parse().map_err(|_| error)
    }

    /// Reads items separated by `, `, between `open` and `close`. An empty `close` is the end of the line.
    pub(super) fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.expect(open)?;
        let mut items = Vec::new();
        loop {
            if items.is_empty() && self.eat(close) && !close.is_empty() {
                return Ok(items);
            }
            items.push(item(self)?);
            if self.eat(", ") {
                continue;
            }
            match close {
                "" => self.expect_end()?,
                _ if self.eat(close) => {}
                _ => return Err(self.expected_error(&format!("`,` or `{}`", close.trim()))),
            }
            return Ok(items);
        }
    }

    /// Reads `%name` and returns the name.
    pub(super) fn name(&mut self) -> Result<&'t str> {
        self.expect("%")?;
        match self.take_until_any(&[':', ',', ')', ' ']) {
            "" => Err(self.expected_error("a name")),
            name => Ok(name),
        }
    }

    /// Reads `%name` and returns the name, or reads `none`.
    pub(super) fn operand(&mut self) -> Result<Option<&'t str>> {
        if self.eat("none") { Ok(None) } else { self.name().map(Some) }
    }

    pub(super) fn typed_name(&mut self) -> Result<Typed<'t>> {
        let name = self.name()?;
        self.expect(": ")?;
        let expected = self.expected_error("a type");
        let word = self.take_until_any(&['[', ' ', ',', ')']);
        if !self.starts_with("[") {
            let dtype = match word {
                "int" => ScalarType::Long,
                "float" => ScalarType::Double,
                "bool" => ScalarType::Bool,
                _ => return Err(expected),
            };
            return Ok(Typed { name, ty: Type::Scalar, meta: scalar_meta(dtype) });
        }
        let dtype = ScalarType::ALL.iter().find(|dtype| dtype.name() == word).ok_or(expected)?;
        let sizes = self.list("[", "]", Self::number::<usize>)?;
        let order = match self.eat(" in dim order ") {
            true => DimOrder::new(&self.list("[", "]", Self::number::<u8>)?).map_err(|e| e.to_string())?,
            false => DimOrder::contiguous(sizes.len()),
        };
        let mut meta = TensorMeta::new(*dtype, &sizes, order).map_err(|e| e.to_string())?;
        if self.eat(" at most") {
            meta = meta.with_dynamism(ShapeDynamism::DynamicBound);
        }
        Ok(Typed { name, ty: Type::Tensor, meta })
    }

    /// Reads a string in quotes, with Rust's escapes.
    pub(super) fn string(&mut self) -> Result<String> {
        let unended = || "expected the end of a string, found the end of the line".to_owned();
        let mut chars = self.0.char_indices();
        let quote = chars.next().map(|(_, c)| c).filter(|c| matches!(c, '"' | '\''));
        let quote = quote.ok_or_else(|| self.expected_error("a string"))?;
        let mut text = String::new();
        loop {
            let (at, c) = chars.next().ok_or_else(unended)?;
            if c == quote {
                self.0 = &self.0[at + c.len_utf8()..];
                return Ok(text);
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let (at, c) = chars.next().ok_or_else(unended)?;
            text.push(match c {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                '0' => '\0',
                '"' | '\\' | '\'' => c,
                'u' => {
                    let code: String = chars.by_ref().map(|(_, c)| c).take_while(|&c| c != '}').collect();
                    let code = code.strip_prefix('{').and_then(|code| u32::from_str_radix(code, 16).ok());
                    code.and_then(char::from_u32).ok_or("expected the number of a character after `\\u`")?
                }
                _ => return Err(format!("expected an escape, found `{}`", &self.0[at - 1..])),
            });
        }
    }
}

/// Parses a number or a boolean.
pub(super) fn scalar(word: &str) -> Result<Scalar> {
    match word {
        "true" | "True" => return Ok(Scalar::Bool(true)),
        "false" | "False" => return Ok(Scalar::Bool(false)),
        _ => {}
    }
    let int = word.parse().map(Scalar::Int);
    int.or_else(|_| word.parse().map(Scalar::Double))
        .map_err(|_| format!("expected a number, found `{word}`"))
}

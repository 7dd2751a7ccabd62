//! The lexer: splits MLIR text into tokens.

/// Kinds of tokens. Keywords are bare identifiers; the parser compares their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Eof,
    Error,
    BareId,
    IntType,
    AtId,
    HashId,
    PercentId,
    CaretId,
    BangId,
    Integer,
    Float,
    String,
    Arrow,
    Colon,
    Comma,
    Ellipsis,
    Equal,
    Greater,
    LBrace,
    LParen,
    LSquare,
    Less,
    Minus,
    Plus,
    Question,
    RBrace,
    RParen,
    RSquare,
    Slash,
    Star,
    VerticalBar,
    MetadataBegin,
    MetadataEnd,
}

/// A token: its kind and its bytes in the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// Splits a source text into tokens.
pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    /// Offset and message of a lexical error; set when a token of kind [`Kind::Error`] is returned.
    pub(crate) error: Option<(u32, &'static str)>,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Lexer<'a> {
        Lexer { text, at: 0, error: None }
    }

    /// Continues with the token at this byte offset.
    pub(crate) fn reset(&mut self, offset: u32) {
        self.at = offset as usize;
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// The next token, after white space and comments.
    pub(crate) fn next(&mut self) -> Token {
        self.skip_space();
        let start = self.at;
        let Some(&first) = self.text.get(start) else {
            return self.new_token(Kind::Eof, start);
        };
        self.at += 1;
        let kind = match first {
            b':' => Kind::Colon,
            b',' => Kind::Comma,
            b'=' => Kind::Equal,
            b'>' => Kind::Greater,
            b'(' => Kind::LParen,
            b')' => Kind::RParen,
            b'[' => Kind::LSquare,
            b']' => Kind::RSquare,
            b'}' => Kind::RBrace,
            b'<' => Kind::Less,
            b'+' => Kind::Plus,
            b'*' => Kind::Star,
            b'?' => Kind::Question,
            b'|' => Kind::VerticalBar,
            b'/' => Kind::Slash,
            b'{' if self.peek(0) == b'-' && self.peek(1) == b'#' => {
                self.at += 2;
                Kind::MetadataBegin
            }
            b'{' => Kind::LBrace,
            b'-' if self.peek(0) == b'>' => {
                self.at += 1;
                Kind::Arrow
            }
            b'-' => Kind::Minus,
            b'.' if self.peek(0) == b'.' && self.peek(1) == b'.' => {
                self.at += 2;
                Kind::Ellipsis
            }
            b'#' if self.peek(0) == b'-' && self.peek(1) == b'}' => {
                self.at += 2;
                Kind::MetadataEnd
            }
            b'@' => return self.lex_symbol_name(start),
            b'#' => return self.lex_prefixed(start, Kind::HashId),
            b'%' => return self.lex_prefixed(start, Kind::PercentId),
            b'^' => return self.lex_prefixed(start, Kind::CaretId),
            b'!' => return self.lex_prefixed(start, Kind::BangId),
            b'"' => return self.lex_string(start, Kind::String),
            b'0'..=b'9' => return self.lex_number(start),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => return self.lex_bare(start),
            _ => return self.error_token(start, start, "unexpected character"),
        };
        self.new_token(kind, start)
    }

    fn new_token(&self, kind: Kind, start: usize) -> Token {
        Token { kind, start: start as u32, end: self.at as u32 }
    }

    fn error_token(&mut self, start: usize, place: usize, message: &'static str) -> Token {
        self.error = Some((place as u32, message));
        self.new_token(Kind::Error, start)
    }

    fn skip_space(&mut self) {
        loop {
            match self.peek(0) {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                0 if self.at < self.text.len() => self.at += 1,
                b'/' if self.peek(1) == b'/' => {
                    while self.at < self.text.len() && !matches!(self.text[self.at], b'\n' | b'\r') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn lex_bare(&mut self, start: usize) -> Token {
        while is_identifier_byte(self.peek(0)) {
            self.at += 1;
        }
        let kind = if is_integer_type(&self.text[start..self.at]) { Kind::IntType } else { Kind::BareId };
        self.new_token(kind, start)
    }

    fn lex_prefixed(&mut self, start: usize, kind: Kind) -> Token {
        if self.peek(0).is_ascii_digit() {
            while self.peek(0).is_ascii_digit() {
                self.at += 1;
            }
        } else if is_suffix_byte(self.peek(0)) {
            while is_suffix_byte(self.peek(0)) || self.peek(0).is_ascii_digit() {
                self.at += 1;
            }
        } else {
            let message = match kind {
                Kind::HashId => "invalid attribute name",
                Kind::PercentId => "invalid SSA name",
                Kind::CaretId => "invalid block name",
                _ => "invalid type identifier",
            };
            return self.error_token(start, self.at - 1, message);
        }
        self.new_token(kind, start)
    }

    fn lex_symbol_name(&mut self, start: usize) -> Token {
        match self.peek(0) {
            b'"' => {
                self.at += 1;
                return self.lex_string(start, Kind::AtId);
            }
            b if b.is_ascii_alphabetic() || b == b'_' => {}
            _ => {
                return self.error_token(
                    start,
                    self.at - 1,
                    "@ identifier expected to start with letter or '_'",
                );
            }
        }
        while is_identifier_byte(self.peek(0)) {
            self.at += 1;
        }
        self.new_token(Kind::AtId, start)
    }

    fn lex_string(&mut self, start: usize, kind: Kind) -> Token {
        loop {
            let Some(&byte) = self.text.get(self.at) else {
                return self.error_token(start, self.at, "expected '\"' in string literal");
            };
            self.at += 1;
            match byte {
                b'"' => return self.new_token(kind, start),
                b'\n' | 0x0b | 0x0c => {
                    return self.error_token(start, self.at - 1, "expected '\"' in string literal");
                }
                b'\\' => {
                    let (one, two) = (self.peek(0), self.peek(1));
                    if matches!(one, b'"' | b'\\' | b'n' | b't') {
                        self.at += 1;
                    } else if one.is_ascii_hexdigit() && two.is_ascii_hexdigit() {
                        self.at += 2;
                    } else {
                        return self.error_token(start, self.at - 1, "unknown escape in string literal");
                    }
                }
                _ => {}
            }
        }
    }

    fn lex_number(&mut self, start: usize) -> Token {
        if self.text[start] == b'0' && self.peek(0) == b'x' && self.peek(1).is_ascii_hexdigit() {
            self.at += 1;
            while self.peek(0).is_ascii_hexdigit() {
                self.at += 1;
            }
            return self.new_token(Kind::Integer, start);
        }
        while self.peek(0).is_ascii_digit() {
            self.at += 1;
        }
        if self.peek(0) != b'.' {
            return self.new_token(Kind::Integer, start);
        }
        self.at += 1;
        while self.peek(0).is_ascii_digit() {
            self.at += 1;
        }
        if matches!(self.peek(0), b'e' | b'E') {
            let sign = usize::from(matches!(self.peek(1), b'+' | b'-'));
            if self.peek(1 + sign).is_ascii_digit() {
                self.at += 2 + sign;
                while self.peek(0).is_ascii_digit() {
                    self.at += 1;
                }
            }
        }
        self.new_token(Kind::Float, start)
    }
}

fn is_identifier_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.')
}

fn is_suffix_byte(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'.' | b'-')
}

/// Whether the text is an integer type: `i32`, `si8`, `ui16`.
fn is_integer_type(text: &[u8]) -> bool {
    let digits = match text {
        [b's' | b'u', b'i', rest @ ..] | [b'i', rest @ ..] => rest,
        _ => return false,
    };
    matches!(digits, [b'1'..=b'9', more @ ..] if more.iter().all(u8::is_ascii_digit))
}

/// Whether a text is a valid bare identifier.
pub(crate) fn is_bare_identifier(text: &[u8]) -> bool {
    matches!(text, [first, rest @ ..]
        if (first.is_ascii_alphabetic() || *first == b'_') && rest.iter().all(|&b| is_identifier_byte(b)))
}

/// The bytes that a string token (with its quotes) denotes.
pub(crate) fn unescape(quoted: &[u8]) -> Vec<u8> {
    let inner = &quoted[1..quoted.len() - 1];
    let mut out = Vec::with_capacity(inner.len());
    let mut at = 0;
    while at < inner.len() {
        let byte = inner[at];
        at += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let escaped = inner[at];
        at += 1;
        match escaped {
            b'"' | b'\\' => out.push(escaped),
            b'n' => out.push(b'\n'),
            b't' => out.push(b'\t'),
            hex => {
                let digit = |b: u8| char::from(b).to_digit(16).unwrap_or(0) as u8;
                out.push(digit(hex) << 4 | digit(inner[at]));
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Kind> {
        let mut lexer = Lexer::new(text.as_bytes());
        std::iter::from_fn(|| Some(lexer.next().kind).filter(|k| *k != Kind::Eof)).take(64).collect()
    }

    #[test]
    fn every_kind_of_token_is_recognized() {
        assert_eq!(
            kinds("%0#1 = a.b$c @f @\"q r\" !t.x i32 ui7 ix 0x1F 12 1.5e-3 -> - ... \"s\\22\" // c\n^bb0"),
            [
                Kind::PercentId,
                Kind::HashId,
                Kind::Equal,
                Kind::BareId,
                Kind::AtId,
                Kind::AtId,
                Kind::BangId,
                Kind::IntType,
                Kind::IntType,
                Kind::BareId,
                Kind::Integer,
                Kind::Integer,
                Kind::Float,
                Kind::Arrow,
                Kind::Minus,
                Kind::Ellipsis,
                Kind::String,
                Kind::CaretId,
            ]
        );
    }

    #[test]
    fn escapes_become_bytes() {
        assert_eq!(unescape(br#""a\22\5C\n\FF""#), b"a\"\\\n\xff");
    }

    #[test]
    fn lexical_errors_have_an_offset() {
        let mut lexer = Lexer::new(b"  \"abc\n");
        assert_eq!(lexer.next().kind, Kind::Error);
        assert_eq!(lexer.error, Some((6, "expected '\"' in string literal")));
    }
}

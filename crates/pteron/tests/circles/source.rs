//! A tokenizer of Rust source, and which tokens exist in tests only.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Name,
    /// A string, a character, a number or a lifetime.
    Literal,
    Mark,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Token<'t> {
    pub(crate) kind: Kind,
    pub(crate) text: &'t str,
}

/// The tokens of a source text, without white space and comments.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut at, mut tokens) = (0, Vec::new());
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (kind, len) = if first.is_whitespace() {
            (None, first.len_utf8())
        } else if rest.starts_with("//") {
            (None, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (None, block_comment(rest))
        } else if let Some(len) = string(rest) {
            (Some(Kind::Literal), len)
        } else if let Some(len) = quoted(rest) {
            (Some(Kind::Literal), len)
        } else if is_start(first) {
            let raw = if rest.starts_with("r#") { 2 } else { 0 };
            (Some(Kind::Name), raw + word(&rest[raw..]))
        } else if first.is_ascii_digit() {
            (Some(Kind::Literal), number(rest))
        } else {
            let long = ["..=", "::", "->", "=>", ".."].into_iter().find(|mark| rest.starts_with(mark));
            (Some(Kind::Mark), long.map_or(first.len_utf8(), str::len))
        };
        tokens.extend(kind.map(|kind| Token { kind, text: &rest[..len] }));
        at += len;
    }
    tokens
}

fn is_start(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

/// The length of the letters and digits at the start of a text.
fn word(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

fn number(text: &str) -> usize {
    let digits = word(text);
    match text[digits..].strip_prefix('.') {
        Some(fraction) if fraction.starts_with(|c: char| c.is_ascii_digit()) => digits + 1 + word(fraction),
        _ => digits,
    }
}

/// The length of a comment in `/* */`, which may contain others.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let step = match text.as_bytes()[at..] {
            [b'/', b'*', ..] => 1,
            [b'*', b'/', ..] => -1,
            _ => 0,
        };
        depth += step;
        at += if step == 0 { 1 } else { 2 };
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length of a string, raw or not, if the text starts with one.
fn string(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r", "b", "c", ""];
    prefix.into_iter().find_map(|prefix| {
        let rest = text.strip_prefix(prefix)?;
        let hashes = rest.len() - rest.trim_start_matches('#').len();
        let is_raw = prefix.ends_with('r');
        let body = rest[hashes..].strip_prefix('"').filter(|_| is_raw || hashes == 0)?;
        let start = text.len() - body.len();
        if is_raw {
            let end = format!("\"{}", "#".repeat(hashes));
            return Some(start + body.find(&end)? + end.len());
        }
        Some(start + escaped(body, '"')?)
    })
}

/// The length of a character or a lifetime, if the text starts with one.
fn quoted(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("b'").or_else(|| text.strip_prefix('\''))?;
    let start = text.len() - rest.len();
    let first = rest.chars().next()?;
    match rest[first.len_utf8()..].starts_with('\'') {
        _ if first == '\\' => Some(start + escaped(rest, '\'')?),
        true => Some(start + first.len_utf8() + 1),
        false => Some(start + word(rest)),
    }
}

/// The length up to an end mark, inclusively, where a backslash escapes.
fn escaped(text: &str, end: char) -> Option<usize> {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => _ = chars.next(),
            _ if c == end => return Some(at + c.len_utf8()),
            _ => {}
        }
    }
    None
}

/// The index after the bracket that closes the one at `at`.
pub(crate) fn close(tokens: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(at).filter(|(_, token)| token.kind == Kind::Mark) {
        depth += match token.text {
            "(" | "[" | "{" => 1,
            ")" | "]" | "}" => -1,
            _ => 0,
        };
        if depth == 0 && matches!(token.text, ")" | "]" | "}") {
            return i + 1;
        }
    }
    tokens.len()
}

/// The index after the attribute at `at`, and its text without white space. `None` if there is none.
pub(crate) fn attribute(tokens: &[Token<'_>], at: usize) -> Option<(usize, String)> {
    let is = |i: usize, mark| tokens.get(i).is_some_and(|token| token.text == mark);
    let bracket = at + 1 + usize::from(is(at + 1, "!"));
    if !is(at, "#") || !is(bracket, "[") {
        return None;
    }
    let end = close(tokens, bracket);
    Some((end, tokens[bracket + 1..end - 1].iter().map(|token| token.text).collect()))
}

/// Whether an item with this attribute exists in tests only.
pub(crate) fn is_test(attribute: &str) -> bool {
    let needs_test = |all: &str| all.trim_end_matches(')').split(',').any(|part| part == "test");
    attribute == "test"
        || attribute.ends_with("::test")
        || attribute == "cfg(test)"
        || attribute.strip_prefix("cfg(all(").is_some_and(needs_test)
}

/// The index after the item at `at`: after its `;`, or after its first block.
pub(crate) fn skip_item(tokens: &[Token<'_>], mut at: usize) -> usize {
    while at < tokens.len() {
        match tokens[at].text {
            ";" => return at + 1,
            "{" => return close(tokens, at),
            "(" | "[" => at = close(tokens, at),
            _ => at += 1,
        }
    }
    at
}

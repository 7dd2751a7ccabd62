//! Parses comments that declare expected diagnostics: `// expected-error @+1 {{part of the message}}`.

/// The kind of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Error,
    Warning,
    Remark,
    Note,
}

impl Kind {
    const ALL: [(&'static str, Kind); 4] =
        [("error", Kind::Error), ("warning", Kind::Warning), ("remark", Kind::Remark), ("note", Kind::Note)];

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("error", |(name, _)| name)
    }
}

/// A diagnostic that a source file expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) kind: Kind,
    /// Line, from 1, at which the diagnostic is expected.
    pub(super) line: u64,
    /// Parts that the diagnostic's message must contain, in order; several if the comment has patterns between them.
    pub(super) parts: Vec<String>,
    /// The text between the comment's double braces.
    pub(super) text: String,
    /// Line and column of the comment, from 1.
    pub(super) at: (u64, u64),
    pub(super) matched: bool,
}

impl Expected {
    /// Whether a message contains the parts in order.
    pub(super) fn matches(&self, mut message: &str) -> bool {
        self.parts.iter().all(|part| match message.find(part.as_str()) {
            Some(at) => {
                message = &message[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

/// The diagnostics that a source expects.
pub(super) fn expected_diagnostics(source: &str) -> Vec<Expected> {
    let mut expectations: Vec<Expected> = Vec::new();
    let (mut below, mut last_plain): (Vec<usize>, u64) = (Vec::new(), 1);
    for (number, line) in (1u64..).zip(source.split('\n')) {
        match parse_expectation(line, number) {
            Some((mut expected, place)) => {
                match place {
                    Place::Line(line) => expected.line = line,
                    Place::Above => expected.line = last_plain,
                    Place::Below => below.push(expectations.len()),
                }
                expectations.push(expected);
            }
            None => {
                below.drain(..).for_each(|index| expectations[index].line = number);
                last_plain = number;
            }
        }
    }
    expectations
}

enum Place {
    Line(u64),
    Above,
    Below,
}

/// Parses `expected-KIND(-re)? *(@(+N|-N|above|below))? *{{TEXT}}` at the end of a line.
fn parse_expectation(line: &str, number: u64) -> Option<(Expected, Place)> {
    let (start, after) = line.match_indices("expected-").find_map(|(at, word)| {
        let rest = &line[at + word.len()..];
        let (kind, rest) = Kind::ALL.iter().find_map(|(n, k)| Some((*k, rest.strip_prefix(n)?)))?;
        Some((at, (kind, rest)))
    })?;
    let (kind, rest) = after;
    let (patterns, rest) = match rest.strip_prefix("-re") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let rest = rest.trim_start_matches(' ');
    let (place, rest) = match rest.strip_prefix('@') {
        None => (Place::Line(number), rest),
        Some(rest) => parse_place(rest, number)?,
    };
    let text = rest.trim_start_matches(' ').strip_prefix("{{")?.trim_end_matches('\r').strip_suffix("}}")?;
    let parts = if patterns {
        text.split("{{")
            .map(|part| part.split_once("}}").map_or(part, |(_, plain)| plain).to_owned())
            .collect()
    } else {
        vec![text.to_owned()]
    };
    let at = (number, start as u64 + 1);
    Some((Expected { kind, line: number, parts, text: text.to_owned(), at, matched: false }, place))
}

fn parse_place(rest: &str, number: u64) -> Option<(Place, &str)> {
    if let Some(rest) = rest.strip_prefix("above") {
        return Some((Place::Above, rest));
    }
    if let Some(rest) = rest.strip_prefix("below") {
        return Some((Place::Below, rest));
    }
    let digits = rest.get(1..)?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let offset: u64 = digits[..end].parse().ok()?;
    let line = match rest.as_bytes()[0] {
        b'+' => number.checked_add(offset)?,
        b'-' => number.checked_sub(offset)?,
        _ => return None,
    };
    Some((Place::Line(line), &digits[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_parsed_with_their_lines_and_kinds() {
        let source = "// expected-error @+1 {{one}}\nop // expected-warning {{two}}\n\
                      // expected-note@above {{three}}\n// expected-error-re @below {{a {{[0-9]+}} b}}\nop\n\
                      // expected-error {{not closed\n";
        let expectations = expected_diagnostics(source);
        let lines: Vec<_> = expectations.iter().map(|e| (e.line, e.kind, e.text.as_str())).collect();
        assert_eq!(
            lines,
            [
                (2, Kind::Error, "one"),
                (2, Kind::Warning, "two"),
                (1, Kind::Note, "three"),
                (5, Kind::Error, "a {{[0-9]+}} b"),
            ]
        );
        assert!(expectations[3].matches("x a 12 b y") && !expectations[3].matches("b a"));
        assert_eq!(expectations[0].at, (1, 4));
    }
}

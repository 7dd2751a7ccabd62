//! `--verify-diagnostics`: comments that declare the diagnostics expected of a program.
//!
//! The syntax is MLIR's: `// expected-error @+1 {{text}}`, with `error`, `warning`, `remark` or `note`; `@+N`, `@-N`,
//! `@above`, `@below` or nothing (the same line). `-re`, for patterns with regular expressions in `{{...}}`, is
//! accepted, but the text is matched literally.

use crate::diagnostics::{Diagnostic, Place, Severity};
use crate::source::Source;

/// A diagnostic that a comment in a source text expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The severity that the diagnostic must have.
    pub severity: Severity,
    /// The line at which the diagnostic is expected, from 1.
    pub line: u32,
    /// Text that the diagnostic's message must contain.
    pub text: String,
    /// Line and column of the comment, both from 1.
    pub at: (u32, u32),
}

/// Finds the expected diagnostics of a source text, in order of lines; a line has at most one.
///
/// # Errors
/// A diagnostic for each malformed comment.
pub fn expectations(source: &[u8], name: &str) -> Result<Vec<Expectation>, Vec<Diagnostic>> {
    let table = Source::new(name, source);
    let (mut expected, mut wrong) = (Vec::new(), Vec::new());
    let mut designators: Vec<usize> = Vec::new();
    let mut start = 0;
    for (index, line) in source.split(|&b| b == b'\n').enumerate() {
        let number = index as u32 + 1;
        let before = expected.len();
        if let Some(at) = find(line, b"expected-") {
            match parse_one(&line[at..], number, at as u32 + 1) {
                Ok(Some((expectation, below))) => {
                    if below {
                        designators.push(expected.len());
                    }
                    expected.push(expectation);
                }
                Ok(None) => {}
                Err(message) => {
                    wrong.push(table.diagnostic(Severity::Error, (start + at) as u32, message));
                }
            }
        }
        // `@below` on earlier lines refers to the next line without such a comment.
        if expected.len() == before {
            for at in designators.drain(..) {
                expected[at].line = number;
            }
        }
        start += line.len() + 1;
    }
    if wrong.is_empty() { Ok(expected) } else { Err(wrong) }
}

/// Splits a source text at lines `// -----` into parts, each with the number of lines before it.
///
/// Tests of MLIR tools use this to put many small programs into one file.
pub fn split(source: &[u8]) -> Vec<(u32, &[u8])> {
    let (mut pieces, mut first_line, mut start, mut at) = (Vec::new(), 0, 0, 0);
    for (index, line) in source.split_inclusive(|&b| b == b'\n').enumerate() {
        if line.trim_ascii() == b"// -----" {
            pieces.push((first_line, &source[start..at]));
            first_line = index as u32 + 1;
            start = at + line.len();
        }
        at += line.len();
    }
    pieces.push((first_line, &source[start..]));
    pieces
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

/// Parses an expectation that starts with `expected-`. The flag is set for `@below`: the next line without
/// expectations.
fn parse_one(text: &[u8], line: u32, column: u32) -> Result<Option<(Expectation, bool)>, &'static str> {
    let text = String::from_utf8_lossy(text);
    let mut rest = &text["expected-".len()..];
    let kinds = [
        ("error", Severity::Error),
        ("warning", Severity::Warning),
        ("remark", Severity::Remark),
        ("note", Severity::Note),
    ];
    let Some((word, severity)) = kinds.into_iter().find(|(word, _)| rest.starts_with(word)) else {
        return Ok(None);
    };
    rest = &rest[word.len()..];
    rest = rest.strip_prefix("-re").unwrap_or(rest).trim_start();
    let (mut target, mut below) = (i64::from(line), false);
    if let Some(designator) = rest.strip_prefix('@') {
        let end = designator.find([' ', '\t', '{']).unwrap_or(designator.len());
        let (what, tail) = designator.split_at(end);
        match what {
            "above" => target -= 1,
            "below" => {
                target += 1;
                below = true;
            }
            "unknown" => target = 0,
            _ => {
                let offset = what.parse::<i32>().ok().filter(|_| what.starts_with(['+', '-']));
                target += i64::from(offset.ok_or("expected '@+N', '@-N', '@above' or '@below'")?);
            }
        }
        rest = tail.trim_start();
    }
    let body = rest.strip_prefix("{{").ok_or("expected '{{' and the message")?;
    let end = body.find("}}").ok_or("expected '}}' after the message")?;
    let target = u32::try_from(target).map_err(|_| "the line designator points before the first line")?;
    let text = body[..end].to_string();
    Ok(Some((Expectation { severity, line: target, text, at: (line, column) }, below)))
}

/// Compares diagnostics with the expected ones of the source.
///
/// Returns an error for each unexpected diagnostic (as `unexpected error: ...`) and for each expected one that did not
/// occur; an empty list means that they match. Notes of a diagnostic are ignored unless a note is expected.
pub fn check_diagnostics(source: &[u8], name: &str, diagnostics: &[Diagnostic]) -> Vec<Diagnostic> {
    let mut open = match expectations(source, name) {
        Ok(expected) => expected,
        Err(wrong) => return wrong,
    };
    let mut problems = Vec::new();
    let mut seen: Vec<&Diagnostic> = Vec::new();
    for diagnostic in diagnostics {
        seen.push(diagnostic);
        seen.extend(&diagnostic.notes);
    }
    for diagnostic in seen {
        let line = match &diagnostic.place {
            Some(place) if place.file == name => place.line,
            _ => 0,
        };
        let matching = open.iter().position(|e| {
            e.severity == diagnostic.severity && e.line == line && diagnostic.message.contains(&e.text)
        });
        match matching {
            Some(at) => {
                open.remove(at);
            }
            None if diagnostic.severity == Severity::Note => {}
            None => {
                let mut problem = diagnostic.clone();
                problem.message =
                    format!("unexpected {}: {}", diagnostic.severity.keyword(), problem.message);
                problem.severity = Severity::Error;
                problems.push(problem);
            }
        }
    }
    let table = Source::new(name, source);
    problems.extend(open.into_iter().map(|e| Diagnostic {
        severity: Severity::Error,
        place: Some(Place { file: name.to_string(), line: e.at.0, column: e.at.1 }),
        message: format!("expected {} \"{}\" was not produced", e.severity.keyword(), e.text),
        quote: table.line(e.at.0),
        notes: Vec::new(),
    }));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// expected-error @+2 {{two down}}\n\nx // expected-note {{here}}\n\
        // expected-warning@below {{next}}\n// expected-error @below {{same}}\ny\nz\n// expected-remark @-1 {{up}}\n";

    #[test]
    fn finds_every_form() {
        let expected = expectations(TEXT.as_bytes(), "f").expect("well-formed");
        let lines: Vec<_> = expected.iter().map(|e| (e.severity, e.line, e.text.as_str())).collect();
        assert_eq!(
            lines,
            [
                (Severity::Error, 3, "two down"),
                (Severity::Note, 3, "here"),
                (Severity::Warning, 6, "next"),
                (Severity::Error, 6, "same"),
                (Severity::Remark, 7, "up"),
            ]
        );
    }

    #[test]
    fn errors_in_malformed_comments_have_positions() {
        let wrong = expectations(b"\n  // expected-error @5 {{x}}\n", "f").expect_err("malformed");
        assert_eq!(wrong[0].place, Some(Place { file: "f".into(), line: 2, column: 6 }));
    }

    #[test]
    fn parts_have_the_number_of_lines_before_them() {
        let pieces = split(b"a\nb\n  // -----\r\n// ------\nc\n// -----");
        assert_eq!(pieces, [(0, &b"a\nb\n"[..]), (3, &b"// ------\nc\n"[..]), (6, &b""[..])]);
        assert_eq!(split(b""), [(0, &b""[..])]);
    }

    #[test]
    fn unexpected_and_missing_diagnostics_are_reported() {
        let source = b"a\n// expected-error @+1 {{missing}}\nb\n";
        let table = Source::new("f", source);
        let other = table.diagnostic(Severity::Error, 0, "other");
        let problems = check_diagnostics(source, "f", std::slice::from_ref(&other));
        let shown: Vec<_> = problems.iter().map(|p| p.message.as_str()).collect();
        assert_eq!(shown, ["unexpected error: other", "expected error \"missing\" was not produced"]);
        let good = table.diagnostic(Severity::Error, 37, "it is missing here");
        assert_eq!(check_diagnostics(source, "f", &[good]), []);
    }
}

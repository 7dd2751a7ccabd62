//! Patterns of names, as a shell has them for files.

use crate::{Error, Result};
use std::fmt;

/// A pattern: `*` matches any number of characters, including none, and `?` matches one. A name always matches itself,
/// even if it contains `*` or `?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    is_name: bool,
}

impl Pattern {
    /// A pattern, in which `*` stands for any characters and `?` for one.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self { text: pattern.into(), is_name: false }
    }

    /// A pattern that matches only this name; its characters have no special meaning.
    pub fn name(name: impl Into<String>) -> Self {
        Self { text: name.into(), is_name: true }
    }

    /// Whether the whole name matches. The cost is at most the product of the two lengths.
    pub fn fits(&self, name: &str) -> bool {
        if self.is_name || self.text == name {
            return self.text == name;
        }
        let (pattern, name): (Vec<char>, Vec<char>) = (self.text.chars().collect(), name.chars().collect());
        let (mut p, mut n) = (0, 0);
        // The last `*`, and where the characters that it does not stand for begin.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match (pattern.get(p), star) {
                (Some('*'), _) => {
                    star = Some((p, n));
                    p += 1;
                }
                (Some(&c), _) if c == '?' || c == name[n] => (p, n) = (p + 1, n + 1),
                (_, Some((at, from))) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                (_, None) => return false,
            }
        }
        pattern[p..].iter().all(|&c| c == '*')
    }
}

impl From<&str> for Pattern {
    fn from(pattern: &str) -> Self {
        Self::new(pattern)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether a name matches one of the patterns, or there are no patterns.
pub(crate) fn fits_any(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.fits(name))
}

/// Checks that each pattern fits one of the names, which are those of the `things` of a file.
///
/// # Errors
/// One does not: the error shows a similar name.
pub(crate) fn require_fitting<'n>(
    patterns: &[Pattern],
    names: impl Iterator<Item = &'n str> + Clone,
    things: &str,
) -> Result<()> {
    match patterns.iter().find(|pattern| !names.clone().any(|name| pattern.fits(name))) {
        None => Ok(()),
        Some(Pattern { text, .. }) => {
            let (meant, text) = (crate::did_you_mean(text, names), crate::show::name(text));
            Err(Error::input(format!("there is no {things} `{text}`{meant}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_stand_for_characters() {
        let fits = |pattern: &str, name: &str| Pattern::new(pattern).fits(name);
        let fitting = [
            ("*", ""),
            ("*", "a.b"),
            ("a*", "a"),
            ("*.weight", "l1.weight"),
            ("a*c*e", "abcde"),
            ("a*bc", "abcbc"),
            ("a?c", "aäc"),
            ("", ""),
            ("a[*]?", "a[*]?"),
        ];
        for (pattern, name) in fitting {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        let others =
            [("a", "ab"), ("a?", "a"), ("*.weight", "weight"), ("a*b", "abc"), ("", "a"), ("A", "a")];
        for (pattern, name) in others {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
        assert!(!Pattern::name("*").fits("a") && Pattern::name("*").fits("*"));
    }

    #[test]
    fn patterns_that_fit_nothing_are_errors() {
        let names = ["l1.weight", "l1.bias"];
        let check = |pattern: &str| require_fitting(&[Pattern::new(pattern)], names.into_iter(), "weight");
        check("l1.*").unwrap();
        let error = check("l1.wieght").unwrap_err().to_string();
        assert!(error.contains("there is no weight `l1.wieght`") && error.contains("l1.weight"), "{error}");
    }
}

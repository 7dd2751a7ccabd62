//! Named data that Pteron adds to programs: what it knows of a method and the tables cannot say.
//!
//! Named data is looked up by delegates only, so the reference runtime ignores entries whose key no delegate asks for.
//! All keys that Pteron adds start with [`OWN_KEY_PREFIX`], and go on with what the entry is and the name of the
//! method, if it is about one. The entries are text whose first line has a version, or JSON with a version.
//!
//! | key | entry |
//! | --- | --- |
//! | `pteron.input_sizes.METHOD` | the sizes that the export allows for the inputs: `pteron_exported::InputSizes` |
//! | `pteron.alignments.METHOD` | the alignments that payloads and named data must have in memory: [`Alignments`] |
//! | `pteron.names.METHOD` | the names of the inputs and outputs: [`ValueNames`](super::ValueNames) |
//! | `pteron.delegates.METHOD` | with source frames, what the delegates compute: `pteron_exported::delegate::DelegateSources` |
//! | `pteron.task` | JSON: preprocessing, labels, licence and more of the task that the program is for (docs/task.md) |

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The prefix of the keys of named data that Pteron adds to programs.
pub const OWN_KEY_PREFIX: &str = "pteron.";

/// The maximum size in bytes of a named data entry that Pteron adds.
pub const MAX_OWN_BYTES: u64 = 1 << 20;

/// Whether named data with this key was added by Pteron for the program itself, and does not belong to a delegate.
pub fn is_own_key(key: &str) -> bool {
    key.starts_with(OWN_KEY_PREFIX)
}

/// The key of the sizes that the inputs of a method may have.
pub fn input_sizes_key(method: &str) -> String {
    format!("{OWN_KEY_PREFIX}input_sizes.{method}")
}

/// The key of the names of the inputs and outputs of a method.
pub fn value_names_key(method: &str) -> String {
    format!("{VALUE_NAMES}{method}")
}

/// Whether named data with this key has the names of inputs and outputs.
pub fn is_value_names_key(key: &str) -> bool {
    key.starts_with(VALUE_NAMES)
}

/// The prefix of the keys under which value names are stored.
const VALUE_NAMES: &str = "pteron.names.";

/// The key of the task metadata of a program.
pub const TASK_KEY: &str = "pteron.task";

/// The prefix of the keys under which delegate sources are stored.
const DELEGATE_SOURCES: &str = "pteron.delegates.";

/// The key of the delegate sources of a method: which nodes each delegate replaced.
pub fn delegate_sources_key(method: &str) -> String {
    format!("{DELEGATE_SOURCES}{method}")
}

/// Whether named data with this key holds delegate sources, which are debug information.
pub fn is_delegate_sources_key(key: &str) -> bool {
    key.starts_with(DELEGATE_SOURCES)
}

/// The key of the [`Alignments`] of a method.
pub fn alignments_key(method: &str) -> String {
    format!("{OWN_KEY_PREFIX}alignments.{method}")
}

/// The alignments in memory, in bytes, that the delegates of a method ask for. The tables of a program cannot say this:
/// where something lies in the file says only what it is a multiple of by intention or by chance.
///
/// ```text
/// alignments 1
/// payload 0 4096
/// data 64 KEY
/// ```
///
/// A key is written with `\n` for a line feed and `\\` for a backslash.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Alignments {
    /// The alignment of each delegate's payload in bytes, by delegate index.
    pub payloads: BTreeMap<u32, u64>,
    /// The alignment of named data in bytes, by key.
    pub data: BTreeMap<String, u64>,
}

impl Alignments {
    /// Whether no payload and no named data requires an alignment.
    pub fn is_empty(&self) -> bool {
        self.payloads.is_empty() && self.data.is_empty()
    }
}

const ALIGNMENTS_HEAD: &str = "alignments 1";

/// The greatest alignment that is supported, in bytes: that of a huge page.
const MAX_ALIGNMENT: u64 = 1 << 21;

impl fmt::Display for Alignments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{ALIGNMENTS_HEAD}")?;
        self.payloads.iter().try_for_each(|(index, alignment)| writeln!(f, "payload {index} {alignment}"))?;
        self.data.iter().try_for_each(|(key, alignment)| writeln!(f, "data {alignment} {}", escape(key)))
    }
}

impl FromStr for Alignments {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut alignments = Self::default();
        for line in lines_after_head(ALIGNMENTS_HEAD, text)? {
            let wrong = || format!("`{line}` is no alignment");
            let alignment = |text: &str| {
                let alignment: u64 = text.parse().map_err(|_| wrong())?;
                match alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
                    true => Ok(alignment),
                    false => Err(wrong()),
                }
            };
            match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
                ["payload", index, n] => {
                    alignments.payloads.insert(index.parse().map_err(|_| wrong())?, alignment(n)?);
                }
                ["data", n, key] => {
                    alignments.data.insert(unescape(key).ok_or_else(wrong)?, alignment(n)?);
                }
                _ => return Err(wrong()),
            }
        }
        Ok(alignments)
    }
}

/// The lines of an entry after its first, which must be `head`.
pub(super) fn lines_after_head<'t>(
    head: &str,
    text: &'t str,
) -> Result<impl Iterator<Item = &'t str>, String> {
    let mut lines = text.split_terminator('\n');
    match lines.next() == Some(head) {
        true => Ok(lines),
        false => Err(format!("it does not begin with `{head}`")),
    }
}

/// A text on one line: `\n` for a line feed, `\\` for a backslash.
pub(super) fn escape(text: &str) -> String {
    text.replace('\\', r"\\").replace('\n', r"\n")
}

/// The inverse of [`escape`]; `None` if the text contains an unknown escape.
pub(super) fn unescape(text: &str) -> Option<String> {
    let (mut key, mut rest) = (String::new(), text.chars());
    while let Some(c) = rest.next() {
        key.push(match c {
            '\\' => match rest.next()? {
                'n' => '\n',
                '\\' => '\\',
                _ => return None,
            },
            other => other,
        });
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignments_are_written_and_read() {
        let keys = ["k", "", "a b", "line\nfeed\\n", "payload 0 3"];
        let data = keys.into_iter().map(|key| (key.to_owned(), 4096)).collect();
        let alignments = Alignments { payloads: BTreeMap::from([(0, 64), (7, 1 << 21)]), data };
        assert_eq!(alignments.to_string().parse(), Ok(alignments));
        assert!("alignments 1\n".parse::<Alignments>().unwrap().is_empty());
        for wrong in ["", "alignments 2\n", "payload 0 3", "data 4194304 k", "data 16", "data 16 \\x", "x"] {
            let text = if wrong.starts_with("alignments") {
                wrong.to_owned()
            } else {
                format!("alignments 1\n{wrong}\n")
            };
            assert!(text.parse::<Alignments>().is_err(), "{text}");
        }
        assert!("".parse::<Alignments>().is_err());
    }
}

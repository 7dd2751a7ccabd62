//! The named data that Pteron adds to programs, which is text.

use crate::{Error, Program, Purpose, Result};
use pteron_format::pte::{Alignments, MAX_OWN_BYTES, alignments_key};
use std::str::FromStr;

/// Parses the named data under `key`, which describes a method. `None` if the program has no such entry.
pub(crate) fn parse_entry<T: FromStr<Err = String>>(
    program: &Program,
    method: &str,
    key: &str,
) -> Result<Option<T>> {
    let text = entry_text(program, method, key)?;
    text.map(|text| text.parse().map_err(|problem| malformed_entry(method, key, problem))).transpose()
}

fn entry_text(program: &Program, method: &str, key: &str) -> Result<Option<String>> {
    let text = program.own_text(key)?;
    text.transpose().map_err(|problem| malformed_entry(method, key, problem))
}

impl Program {
    /// The text of the named data under `key`, which Pteron adds to programs. `None` if the program has no such entry.
    /// The inner error says in words why an entry is no text of at most [`MAX_OWN_BYTES`].
    ///
    /// # Errors
    /// The entry cannot be read.
    pub fn own_text(&self, key: &str) -> Result<Option<Result<String, String>>> {
        let Some(range) = self.tables().named_data(key) else { return Ok(None) };
        let len = range.end.saturating_sub(range.start);
        if len > MAX_OWN_BYTES {
            return Ok(Some(Err(format!("it has {len} bytes, at most {MAX_OWN_BYTES} are read"))));
        }
        let bytes = self.load_range(range, Purpose::Program)?;
        let text = std::str::from_utf8(&bytes).map(str::to_owned);
        Ok(Some(text.map_err(|_| "it is no text".to_owned())))
    }
}

/// The error for a malformed entry of the named data that describes a method.
pub(crate) fn malformed_entry(method: &str, key: &str, problem: String) -> Error {
    Error::Load { method: method.to_owned(), place: format!("named data `{key}`"), problem }
}

/// The alignments that the delegates of a method require of their payloads and named data.
pub(crate) fn alignments(program: &Program, method: &str) -> Result<Alignments> {
    Ok(parse_entry(program, method, &alignments_key(method))?.unwrap_or_default())
}

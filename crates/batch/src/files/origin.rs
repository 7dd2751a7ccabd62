//! What an output was made of, as its metadata says.

use super::identity::FileState;
use pteron_toolbox::Result;
use serde_json::{Value, json};
use std::path::Path;

/// The key of a file's metadata that says what it was made of.
pub(super) const KEY: &str = "pteron.batch";

/// What an output is made of: a program, options and an input file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Origin(Value);

impl Origin {
    pub(super) fn of(source: &Path, digest: &str, options: &Value) -> Result<Self> {
        let FileState { bytes, modified_ns, .. } = FileState::of(source)?;
        Ok(Self(json!({
            "program": digest, "options": options, "input": { "bytes": bytes, "modified_ns": modified_ns },
        })))
    }

    /// The text for the metadata of the output.
    pub(super) fn to_text(&self) -> String {
        self.0.to_string()
    }

    /// How an output with this metadata differs: what it was made of that is not the same, or that it does not say what it was
    /// made of. `None` if it was made of the same.
    pub(super) fn difference(&self, metadata: Option<&str>) -> Option<String> {
        let made: Value = metadata.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if made == self.0 {
            return None;
        }
        let names = ["program", "options", "input"];
        let differing: Vec<&str> =
            names.into_iter().filter(|name| made.get(name) != self.0.get(name)).collect();
        match made.as_object() {
            Some(made) if !made.is_empty() && !differing.is_empty() => {
                Some(format!("was made of another {}", differing.join(" and ")))
            }
            _ => Some("is there, and not from this step".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_says_what_is_another() {
        let origin = |program: &str, bytes: u64| {
            Origin(json!({ "program": program, "options": { "top": null }, "input": { "bytes": bytes } }))
        };
        let one = origin("a", 1);
        assert_eq!(one.difference(Some(&one.to_text())), None);
        let other = origin("b", 2).to_text();
        assert_eq!(one.difference(Some(&other)).unwrap(), "was made of another program and input");
        for foreign in [None, Some("{}"), Some("no JSON"), Some("[1]")] {
            assert_eq!(one.difference(foreign).unwrap(), "is there, and not from this step");
        }
    }
}

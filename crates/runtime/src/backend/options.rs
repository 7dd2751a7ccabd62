use std::collections::BTreeMap;

/// The value of a backend option, given at load time as a runtime spec or later with `set_option`.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionValue {
    /// A flag.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A string.
    Str(String),
}

/// Options by key.
pub type BackendOptions = BTreeMap<String, OptionValue>;

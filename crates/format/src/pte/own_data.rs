//! Named data that Pteron adds to programs: what it knows of a method and the tables cannot say.
//!
//! Named data is looked up by delegates only, so the reference runtime ignores entries whose key no delegate asks for. All
//! keys that Pteron adds start with [`OWN_KEY_PREFIX`], and go on with what the entry is and the name of the method. The
//! entries are text whose first line has a version.
//!
//! | key | entry |
//! | --- | --- |
//! | `pteron.input_sizes.METHOD` | the sizes that the export allows for the inputs: `ir::exported::InputSizes` |

/// The prefix of the keys of named data that Pteron adds to programs.
pub const OWN_KEY_PREFIX: &str = "pteron.";

/// The maximum number of bytes of an entry of Pteron's own.
pub const MAX_OWN_BYTES: u64 = 1 << 20;

/// Whether named data with this key belongs to the program itself and not to a delegate.
pub fn is_own_key(key: &str) -> bool {
    key.starts_with(OWN_KEY_PREFIX)
}

/// The key of the sizes that the inputs of a method may have.
pub fn input_sizes_key(method: &str) -> String {
    format!("{OWN_KEY_PREFIX}input_sizes.{method}")
}

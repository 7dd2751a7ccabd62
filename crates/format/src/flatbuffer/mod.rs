//! Reads and writes FlatBuffers, the encoding inside every file of this crate.
//!
//! The reader is handwritten rather than generated: the schemas are small, every access must be checked because files
//! are not trusted, and an error must name the byte and the field. A generated reader provides only some of that, and
//! needs `unsafe` or thousands of lines of code. This one decodes into owned structs that mirror the schema, so that
//! nothing above it ever handles an offset.
//!
//! It checks that every offset, vtable, table, vector and string is in bounds of the buffer, and every field in bounds
//! of its table; that strings are UTF-8; and that vectors, strings and nesting are within [`Limits`](crate::Limits).
//! The total size of decoded objects is bounded even if offsets alias or form cycles. Alignment inside the buffer is
//! not required, because integers are converted from little-endian bytes and never cast.

mod layout;
mod merge;
mod path;
mod raw;
mod reader;
mod survey;
mod writer;

pub(crate) use layout::{FieldKind, Layout};
pub(crate) use merge::merge;

pub use path::Path;
pub use reader::{Reader, Scalar, Table};
pub(crate) use survey::Survey;
pub use writer::{Field, Finished, Ref, Writer};

/// A table, as it is passed to the function that decodes it.
pub(crate) type In<'t, 'r, 'a> = &'t Table<'r, 'a>;

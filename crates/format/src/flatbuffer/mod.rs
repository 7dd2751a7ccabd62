//! Reading and writing FlatBuffers, the encoding inside every file of this crate.
//!
//! The reader is written here rather than generated: the schemas are small, every access must be
//! checked because the files are not trusted, and an error must name the byte and the field. A
//! generated reader gives some of that and needs `unsafe`, or thousands of lines, or both. This one
//! decodes into owned structs that mirror the schema, so that nothing above it ever sees an offset.
//!
//! What is checked: every offset, vtable, table, vector and string lies in the buffer; a field lies
//! in its table; strings are UTF-8; vectors, strings and nesting are within [`Limits`](crate::Limits);
//! and the decoded bytes together are bounded even if offsets share or cycle. Alignment inside the
//! buffer is not demanded, because integers are converted from little-endian bytes and never cast.

mod path;
mod reader;
mod writer;

pub use path::Path;
pub use reader::{Reader, Scalar, Table};
pub use writer::{Field, Finished, Ref, Writer};

/// A table being read by a function that decodes it.
pub(crate) type In<'t, 'r, 'a> = &'t Table<'r, 'a>;

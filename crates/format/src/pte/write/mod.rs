//! Writes programs: [`Draft`] writes given tables, [`Builder`] builds a program from its parts.

mod builder;
mod draft;
mod tables;

pub use builder::{Builder, DEFAULT_CONSTANT_ALIGNMENT, NamedBlob};
pub use draft::{DEFAULT_SEGMENT_ALIGNMENT, Draft, Prepared};
pub(super) use tables::write_program;

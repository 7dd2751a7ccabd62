//! Writing programs: [`Draft`] writes what its tables say, [`Builder`] puts a program together.

mod builder;
mod draft;
mod tables;

pub use builder::{Builder, DEFAULT_CONSTANT_ALIGNMENT, NamedBlob};
pub use draft::{DEFAULT_SEGMENT_ALIGNMENT, Draft, Prepared};

//! Executes programs over Arrow columns, and over Parquet and Arrow files.
//!
//! [`ArrowColumn`] reads the rows of an [`Array`], whose memory is borrowed, for [`pteron_toolbox::batch`]; a
//! [`BuiltArray`] is a column of results. Both describe arrays as the C data interface of Arrow does, so that any
//! implementation of Arrow can lend them and take them over.
#![cfg_attr(
    feature = "files",
    doc = "\nWith the feature `files`, [`files::Job`] executes a program over files, by the crates `arrow-*` and `parquet`."
)]
#![forbid(unsafe_code)]

mod array;
mod built;
mod column;
mod encoded;
#[cfg(feature = "files")]
pub mod files;
mod run;
#[cfg(test)]
mod tests;

pub use array::{Array, Bitmap};
pub use built::{BuiltArray, Lists};
pub use column::ArrowColumn;
pub use run::{with_stacked, with_top};

//! The implementation of the `pteron` command's verbs, shared by all front ends: a front end parses arguments, calls
//! one of these functions, and prints the result.
// Items whose names say everything have no doc comments.
#![allow(missing_docs)]
#![forbid(unsafe_code)]
// Imports and helpers that only some features use are not feature-gated one by one.
#![cfg_attr(
    not(all(feature = "bef", feature = "image", feature = "safetensors")),
    allow(dead_code, unused_imports)
)]

pub mod arrays;
pub mod batch;
#[cfg(feature = "bef")]
pub mod bef;
pub mod bundle;
pub mod comparison;
pub mod convert;
pub mod delegates;
pub mod diff;
pub mod divergence;
pub mod edit;
mod error;
pub mod etdump;
pub mod etrecord;
pub mod extract;
pub mod file;
pub mod input;
pub mod inspect;
pub mod json;
mod kind;
pub mod merge;
pub mod npy;
pub mod ops;
pub mod paths;
pub mod pattern;
pub mod picture;
pub mod plan;
pub mod print;
pub mod profile;
pub mod random;
pub mod run;
pub mod show;
pub mod stream;
pub mod task;
pub mod tolerance;
pub mod validate;

pub use error::{Context, Error, Result};
pub use kind::{file_kind, wrong_format};
pub use pteron_operator::did_you_mean;
pub use pteron_runtime::one_line;

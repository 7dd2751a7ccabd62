//! What the verbs of the `pteron` command do, for any face to use: a face parses arguments, calls
//! one of these, and prints what comes back.
#![forbid(unsafe_code)]

mod error;
pub mod input;
pub mod npy;
pub mod picture;
pub mod show;
mod sniff;
pub mod verify;

pub use error::{Context, Error, Result, one_line};
pub use sniff::{Format, SNIFF_BYTES};

//! Pteron's own backend: graphs that are fused and folded ahead of time, stored as BEF functions.
//!
//! ```text
//! part of a program ─ lower ─► Payload ─ raise, passes ─► fused graph ─► Payload ─► BEF file, named data
//!                                                                                       │
//!          Executable ◄─ fused with the calls around it ◄─ graph::Graph ◄─ read, verified ┘
//! ```
//!
//! [`Payload`] is the stored graph. [`BefBackend`] is the run-time half; ahead of time (feature `compile`)
//! `BefPartitioner` decides which nodes of a program are taken, and `BefPreprocess` makes their payloads.
//!
//! A payload whose sizes are all known holds the graph after the passes of [`graph`]: batch norms in the weights of
//! convolutions, constants folded and in the layout that steps read, images channels-last, activations and residuals in
//! what they follow. One with sizes that change holds calls of operators and the expressions of their sizes, and is fused
//! for the sizes that it meets.
#![forbid(unsafe_code)]

mod data;
mod delegate;
mod error;
mod kinds;
#[cfg(feature = "compile")]
mod lower;
pub mod payload;
mod raise;

pub use delegate::BefBackend;
pub use error::Error;
#[cfg(feature = "compile")]
pub use lower::{BefPartitioner, BefPreprocess};
pub use payload::Payload;

/// The id by which programs name this backend.
pub const BACKEND_ID: &str = "PteronBefBackend";

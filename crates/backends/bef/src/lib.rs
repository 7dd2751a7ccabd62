//! Pteron's own backend: graphs that are optimized ahead of time and stored as BEF functions.
//!
//! ```text
//! part of a program ─ lower ─► Payload ─ raise, passes ─► fused graph ─► Payload ─► BEF file, named data
//!                                                                                       │
//!          Executable ◄─ fused with the calls around it ◄─ pteron_engine::Graph ◄─ read, verified ┘
//! ```
//!
//! [`Payload`] is the stored graph. [`BefBackend`] is the run-time half. The ahead-of-time half (feature `compile`) is
//! `BefPartitioner`, which selects the nodes of a program to delegate, and `BefPreprocess`, which creates their
//! payloads.
//!
//! A payload with static sizes contains the graph after the passes of [`pteron_engine`]: batch norms are folded into
//! convolutions, constants are folded and in the layout that steps read, images are channels-last, and activations and
//! residuals are fused. A payload with dynamic sizes contains operator calls and expressions of their sizes, and is
//! fused at run time for the sizes that occur.
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

//! XNNPACK delegates, without XNNPACK.
//!
//! ```text
//! payload ── read, verified ──► Payload ── raised, for sizes ──► graph::Graph ──► Executable
//!            values, nodes,               operator calls,        passes, packed weights, one workspace
//!            constants                    quantized nodes
//! ```
//!
//! [`Payload`] is what ExecuTorch's XNNPACK backend leaves in a program: a graph of values and nodes, read and
//! verified like any other untrusted file. [`XnnpackBackend`] runs it: a payload becomes a graph like that of any
//! other calls. It is lowered when the program is loaded, and again for inputs of other sizes.
#![forbid(unsafe_code)]

mod data;
mod delegate;
mod error;
pub mod payload;
mod raise;

pub use delegate::XnnpackBackend;
pub use payload::Payload;

/// The id by which programs name this backend.
pub const BACKEND_ID: &str = "XnnpackBackend";

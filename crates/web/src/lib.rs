//! Pteron in browsers and other JavaScript engines.
//!
//! ```text
//! pteron.js ── bytes into buffers, requests as JSON ──► abi ─► Engine ─► pteron, toolbox
//!           ◄─ bytes of buffers, responses as JSON ───
//! ```
//!
//! The WebAssembly module has a handful of functions over numbers (`abi`, only on `wasm32-unknown-unknown`). Everything
//! that they do is in [`Engine`], which runs and is tested anywhere. It needs no clock, thread, file or process.
#![deny(unsafe_code)]

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
#[allow(unsafe_code)]
mod abi;
mod buffers;
mod engine;
mod failure;
mod opened;
mod request;
mod values;

pub use engine::Engine;

/// The version of the functions, requests and responses: a script for another version refuses the module.
pub const ABI: u32 = 1;

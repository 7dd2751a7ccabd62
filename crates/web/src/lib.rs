//! Pteron in browsers and other JavaScript engines.
//!
//! ```text
//! pteron.js ── bytes into buffers, requests as JSON ──► abi ─► Engine ─► pteron, toolbox
//!           ◄─ bytes of buffers, responses as JSON ───
//! ```
//!
//! The WebAssembly module exports a handful of functions with integer arguments (`abi`, only in WebAssembly).
//! They are implemented by [`Engine`], which runs and is tested on any platform. It needs no clock, file or process, and no
//! threads: the module for `wasm32-unknown-unknown` has none, that for `wasm32-wasip1-threads` as many as JavaScript has started
//! workers.
#![deny(unsafe_code)]

#[cfg(target_family = "wasm")]
#[allow(unsafe_code)]
mod abi;
mod buffers;
mod engine;
mod failure;
mod opened;
mod request;
mod values;

pub use engine::Engine;

/// The version of the interface to JavaScript. A script that expects another version refuses the module.
pub const ABI: u32 = 1;

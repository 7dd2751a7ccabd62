//! XNNPACK delegates, without XNNPACK.
//!
//! [`Payload`] is what ExecuTorch's XNNPACK backend leaves in a program: a graph of values and nodes, read and
//! verified like any other untrusted file.
#![forbid(unsafe_code)]

pub mod payload;

pub use payload::Payload;

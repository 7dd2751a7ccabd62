//! A pure-Rust runtime and toolbox for ExecuTorch programs and their relatives.
#![forbid(unsafe_code)]

pub use tensor;

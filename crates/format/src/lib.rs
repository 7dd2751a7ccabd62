//! Readers, verifiers and writers for the program files of ExecuTorch and related formats.
//!
//! | module | file | what it is |
//! | --- | --- | --- |
//! | [`pte`] | `.pte` | a program: a flatbuffer, an extended header and segments |
//! | [`ptd`] | `.ptd` | named tensors and blobs outside a program |
//! | [`bpte`] | `.bpte` | a program with test inputs and the outputs expected for them |
//! | [`etdump`] | `.etdp` | what a runtime recorded during execution |
//! | [`gguf`] | `.gguf` | named tensors of language models, quantized in blocks (read only) |
//!
//! All but the last are a flatbuffer with a header inserted or segments appended, so they share two modules:
//! [`flatbuffer`] reads and writes the tables, [`container`] the headers and segments.
//!
//! This crate does no I/O beyond byte slices, [`Read`](std::io::Read) and [`Write`](std::io::Write). No input makes it
//! panic, recurse without bound or allocate more than a small multiple of the input's size, within the bounds of
//! [`Limits`]. Integers are little-endian on any host.
#![forbid(unsafe_code)]

pub mod bpte;
pub mod container;
#[cfg(feature = "digest")]
mod digest;
mod error;
pub mod etdump;
pub mod flatbuffer;
pub mod gguf;
pub mod limits;
pub mod ptd;
pub mod pte;
mod shape;
mod sniff;

#[cfg(feature = "digest")]
pub use digest::Digest;
pub use error::{Error, ErrorKind, Result};
pub use limits::Limits;
pub use sniff::{FileKind, SNIFFED_BYTES, sniff};

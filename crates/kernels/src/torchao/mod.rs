//! Torchao's operators on weights of one to eight bits, in the layouts of its packing functions.
//!
//! A packed tensor is a header of 64 bytes (sixteen little-endian 32-bit integers: a magic number, the kind of layout, its
//! parameters) and a payload. The layouts are those of torchao's sources, `csrc/cpu`: `shared_kernels` for headers and
//! operators, `torch_free_kernels` for payloads.

mod bits;
pub(crate) mod embedding;
mod header;
pub(crate) mod linear;
pub(crate) mod packed;

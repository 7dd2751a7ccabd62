//! XNNPACK delegates, without XNNPACK.
//!
//! ```text
//! payload ── read, verified ──► Payload ── raised, for sizes ──► pteron_engine::Graph ──► Executable
//!            values, nodes,               operator calls,        passes, packed weights, one workspace
//!            constants                    quantized nodes
//! ```
//!
//! A [`Payload`] is the serialized graph of values and nodes that ExecuTorch's XNNPACK backend stores in a program. It
//! is read and verified like any other untrusted file. [`XnnpackBackend`] runs it: the payload is raised to a graph,
//! like any other calls of a method, and lowered when the program is loaded, and again for inputs of other sizes.
//!
//! | kind of node | types |
//! | --- | --- |
//! | Conv2d, DepthwiseConv2d, ConvTranspose2d | fp32, fp16, bf16, and mixtures of them (exporters keep filters of fp16 images in fp32); qint8 images with qint8 or qcint8 weights; quint8 images with quint8, qint8 or qcint8 weights; qdint8 images with qint8 or qcint8 weights |
//! | FullyConnected | fp32, fp16, bf16, and mixtures of them; qint8 and quint8 as convolutions have them; qdint8 with qint8, qcint8, qcint4 or qbint4 weights |
//! | BatchMatrixMultiply, PReLU, ArgMaxPooling2d | fp32, fp16, bf16 |
//! | every other unary and binary kind, Softmax, AvgPooling2d, GlobalAvgPooling2d, StaticResizeBilinear2D | fp32, fp16, bf16, qint8, quint8 |
//! | MaxPooling2d, StaticTranspose, StaticReshape, StaticSlice, StaticConstantPad, Concatenate2 to 5, Copy | those, without a change of scales |
//! | Convert | between any two of those, and from fp32, fp16 and bf16 to qdint8 |
//!
//! Anything else is refused when the payload is loaded, by an error that names the node and the types. The reference's
//! runtime refuses the same: convolutions whose weights are not constant, dilated average pooling, and
//! ScaledDotProductAttention. BatchMatrixMultiply of qdint8, which no exporter writes but the reference's runtime
//! computes, runs with fp32 results and constant qcint8 matrices only.
//!
//! Quantized sums are accumulated exactly and rounded as XNNPACK rounds them.
//!
//! The ahead-of-time half needs the feature `compile`. `XnnpackPartitioner` selects the nodes of an exported program
//! that are delegated, and `XnnpackPreprocess` writes their payloads, which the reference's runtime also accepts.
//! `XnnpackRecover` converts payloads back to ATen operators.
#![forbid(unsafe_code)]

mod data;
mod delegate;
mod error;
mod example;
mod layout;
#[cfg(feature = "compile")]
mod lower;
pub mod payload;
mod raise;
#[cfg(feature = "compile")]
mod recover;
mod support;

pub use delegate::XnnpackBackend;
#[cfg(feature = "compile")]
pub use lower::{XnnpackPartitioner, XnnpackPreprocess};
pub use payload::Payload;
#[cfg(feature = "compile")]
pub use recover::XnnpackRecover;

/// The id by which programs name this backend.
pub const BACKEND_ID: &str = "XnnpackBackend";

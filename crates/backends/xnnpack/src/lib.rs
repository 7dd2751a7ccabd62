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
//!
//! | kind of node | types |
//! | --- | --- |
//! | Conv2d, DepthwiseConv2d, ConvTranspose2d | fp32, fp16, bf16; qint8 images with qint8 or qcint8 weights; quint8 images with quint8, qint8 or qcint8 weights; qdint8 images with qint8 or qcint8 weights |
//! | FullyConnected | fp32, fp16, bf16, and mixtures of them; qint8 and quint8 as convolutions have them; qdint8 with qint8, qcint8, qcint4 or qbint4 weights |
//! | BatchMatrixMultiply, PReLU, ArgMaxPooling2d | fp32, fp16, bf16 |
//! | every other unary and binary kind, Softmax, AvgPooling2d, GlobalAvgPooling2d, StaticResizeBilinear2D | fp32, fp16, bf16, qint8, quint8 |
//! | MaxPooling2d, StaticTranspose, StaticReshape, StaticSlice, StaticConstantPad, Concatenate2 to 5, Copy | those, without a change of scales |
//! | Convert | between any two of those, and from fp32, fp16 and bf16 to qdint8 |
//!
//! Whatever else a payload asks for is refused when it is loaded, by an error that names the node and the types:
//! BatchMatrixMultiply of qdint8, which no exporter writes but the reference's runtime computes, and what that refuses,
//! too: weights of convolutions that are not constant, dilated average pooling, and ScaledDotProductAttention.
//!
//! Quantized sums are exact, and are rounded as XNNPACK rounds them.
//!
//! Ahead of time (feature `compile`) `XnnpackPartitioner` decides which nodes of an exported program are XNNPACK's, and
//! `XnnpackPreprocess` makes their payloads, which the reference's runtime takes, too. `XnnpackRecover` brings payloads
//! back to the operators that they compute.
#![forbid(unsafe_code)]

mod data;
mod delegate;
mod error;
mod forms;
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

//! Compiles torch.export archives (`.pt2`) to ExecuTorch programs (`.pte`).
//!
//! ```text
//! archive ─ pt2 ─► ExportedProgram ─ passes, decompose ─► nodes that kernels take ─ emit ─► .pte
//!                        ▲                                └ partition, preprocess ─┘
//!                        └─ recover ─ .pte
//! ```
//!
//! Archives are read without Python, and nothing in them is unpickled. Weights are never copied: they are read from the
//! archive while the program is written. An [`OperatorTable`] lists the operators that a program may call; all others
//! are decomposed into these, or rejected with the source line of the model that calls them. Backends ([`Delegation`])
//! take parts of the resulting program. A program can be lifted back to operators ([`recover`]) and recompiled for
//! other backends without its source ([`retarget`]). A [`GraphBuilder`] makes programs without an exporter, which
//! [`compile_exported`] compiles.
#![forbid(unsafe_code)]

mod build;
mod clamp;
mod compile;
mod decompose;
mod dtypes;
mod emit;
mod error;
mod limits;
mod names;
mod operand_types;
mod operators;
mod passes;
mod promotion;
pub mod pt2;
mod quantize;
mod recover;
mod retarget;
mod rewrite;
mod sizes;
mod specialize;
mod weights;

pub use build::GraphBuilder;
pub use compile::{
    Compiled, DelegateSummary, Delegation, ExternalTensor, LeftNode, LeftNodes, MethodSummary, Options,
    Watch, compile, compile_exported,
};
pub use error::{Error, NodeError, Result, UnsupportedOperator};
pub use operators::OperatorTable;
pub use passes::{expect_pass, pass_names};
pub use quantize::{
    ChannelStatistics, Channels, FloatNode, Histogram, LayerObservation, LayerShape, Quantize,
    QuantizedLayer, RoundedWeights, StaticScheme, ValueObservation, ValueRanges,
};
pub use recover::{Recoverable, recover};
pub use retarget::retarget;
pub use specialize::SizeBounds;
pub use weights::{NarrowWeight, WeightType, WideWeight};

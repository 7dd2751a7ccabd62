//! From torch.export archives (`.pt2`) to ExecuTorch programs (`.pte`).
//!
//! ```text
//! archive ─ pt2 ─► ExportedProgram ─ passes, decompose ─► nodes that kernels take ─ emit ─► .pte
//!                        ▲                                └ partition, preprocess ─┘
//!                        └─ recover ─ .pte
//! ```
//!
//! An archive is read without Python, and nothing in it is unpickled. Its weights are never copied: they are read from
//! the archive when the program is written. Which operators a program may call is an [`OperatorTable`]; whatever else
//! the archive holds is rewritten in terms of those, or refused with the line of the model that asked for it. Backends
//! ([`Delegation`]) take parts of what results. A program can take the way back ([`recover`]), and be compiled again for
//! other backends without its source ([`retarget`]).
#![forbid(unsafe_code)]

mod compile;
mod constants;
mod decompose;
mod dtypes;
mod emit;
mod error;
mod limits;
mod operators;
mod passes;
pub mod pt2;
mod quantize;
mod recover;
mod retarget;
mod rewrite;

pub use compile::{
    Compiled, DelegateSummary, Delegation, ExternalTensor, LeftNodes, MethodSummary, Options, Watch, compile,
};
pub use error::{Error, NodeError, Result, UnsupportedOperator};
pub use operators::OperatorTable;
pub use passes::{expect_pass, pass_names};
pub use quantize::{Histogram, Quantize, QuantizedLayer, ValueRanges};
pub use recover::{Recoverable, recover};
pub use retarget::retarget;

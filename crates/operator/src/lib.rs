//! The definition of an operator: its schema, its arguments, the kernel that computes it, and the registry of
//! kernels. This crate implements no operator.
//!
//! A call of an operator has *arguments* in schema order and *outs*. The outs are the arguments that
//! the schema marks as written (`Tensor(a!)`), in schema order, followed by the result if the
//! schema returns something fresh (`-> Scalar`, `-> Tensor(a)`). In the argument list, an out is
//! an [`Arg::Out`], so positions always match the schema.
//!
//! | schema | outs |
//! | --- | --- |
//! | `aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)` | `out` |
//! | `aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)` | `self` |
//! | `aten::sym_size.int(Tensor self, int dim) -> int` | the result, a scalar |
//! | `executorch_prim::et_view.default(Tensor(a) self, int[] size) -> Tensor(a)` | the result, which aliases `self` |
#![forbid(unsafe_code)]

mod args;
mod budget;
mod context;
mod dtype_set;
mod error;
mod evalue;
mod expression;
pub mod facts;
pub mod formula;
mod isa;
mod kernel;
mod outs;
mod registry;
mod result_sizes;
mod schema;

pub use args::{Arg, ArgKey, Args};
pub use budget::{Budget, CountedTensor, Reservation};
pub use context::{Generator, KernelContext, Scratch, ScratchBuffer};
pub use dtype_set::DtypeSet;
pub use error::{Error, Result};
pub use evalue::{EValue, Tag};
pub use expression::{Binary, Expression, Instr, Unary};
pub use facts::{Facts, Meaning, MeaningFn, Rounding};
pub use isa::{Feature, Features, Isa, MissingFeatures, UnknownFeature};
pub use kernel::{FnKernel, Kernel, KernelFn, Operator, PrepareFn, PreparedKernel, Results, SizesFn};
pub use outs::{Out, Outs};
pub use pteron_text::{closest, did_you_mean, line as shown_line, message as shown_message, text as shown};
pub use registry::{DuplicateKernel, KernelRegistry};
pub use schema::{ArgType, Schema, SchemaArg, SchemaError};

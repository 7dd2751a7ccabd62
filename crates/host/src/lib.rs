//! The engine that programs run on: functions of kernels, and their execution.
//!
//! A [`Function`] is registers, kernels, and who uses what; it is put together by a
//! [`FunctionBuilder`] or read from a BEF file ([`Module::open`]). It runs in one of two ways:
//!
//! * in order, by an [`Interpreter`]: kernels one after another on one thread, no atomics, no
//!   allocation;
//! * as dataflow ([`Function::execute`]): a kernel runs once its operands are available, counted by
//!   atomics. Kernels of one stream run one after another on one thread; others become tasks of a
//!   [`pool::WorkQueue`]. Values that are not available yet are [`AsyncValue`]s.
//!
//! On a single-threaded queue the second keeps the order of the reference's scheduler. There, a function whose
//! execution order is not observable runs in program order ([`Function::execute_alone`], [`Effect`]).
//!
//! Kernels are found by name in a [`KernelRegistry`], a value; a [`HostContext`] says where tasks, text
//! and failures go; an [`ExecutionContext`] is one request, which can be cancelled and is limited.

mod async_value;
mod attributes;
mod body;
mod builder;
mod context;
mod dataflow;
mod decode;
mod effects;
mod error;
mod function;
mod kernel;
pub mod limits;
mod ordered;
mod registry;
mod stack;
mod sync;
mod timer;
mod typed;
mod value;

#[cfg(all(test, loom))]
mod models;

pub use async_value::{AsyncValue, Promise};
pub use attributes::{AttributeValue, Bf16Bits, F16Bits};
pub use builder::{FunctionBuilder, FunctionId, KernelEditor, KernelId, ModuleBuilder, Register};
pub use context::{ExecutionContext, HostBuilder, HostContext};
pub use decode::Bytes;
pub use error::{Error, ErrorCode, ErrorValue, Result, SourceLocation, UnknownKernel};
pub use function::{Function, FunctionKind, FunctionRef, Module, Results};
pub use kernel::{Effect, Fault, Frame, Kernel, PlainKernel, PlainResults, Reporter};
pub use limits::Limits;
pub use ordered::Interpreter;
pub use registry::{KernelRegistry, NativeFunction, closest};
pub use typed::{Attr, Cursor, IntoKernel, Outcome, Parameter, typed};
pub use value::{Chain, FromValue, IntoValue, Object, Value};

//! The execution engine: functions made of kernels, and the two ways to run them.
//!
//! A [`Function`] consists of registers, kernels and their def-use edges. A [`FunctionBuilder`] builds one, or
//! [`Module::open`] reads it from a BEF file. It runs in one of two ways:
//!
//! * in order, by an [`Interpreter`]: kernels run one after another on one thread, without atomics and without
//!   allocation;
//! * as dataflow ([`Function::execute`]): a kernel runs as soon as its operands are available, which atomic
//!   counters track. Kernels of one stream run one after another on one thread; kernels of other streams become
//!   tasks of a [`pteron_pool::WorkQueue`]. A value that is not available yet is an [`AsyncValue`].
//!
//! On a single-threaded queue, dataflow execution keeps the scheduling order of the reference implementation (TFRT).
//! There, a function whose execution order is not observable runs in program order
//! ([`Function::execute_alone`], [`Effect`]).
//!
//! A [`KernelRegistry`] maps names to kernels; nothing is registered globally. A [`HostContext`] holds the work queue,
//! the output and log streams and the error handler. An [`ExecutionContext`] is one request: it can be cancelled, has a
//! deadline and [`Limits`].

mod async_value;
mod attributes;
mod body;
mod builder;
mod context;
mod dataflow;
mod decode;
mod effects;
mod error;
mod execute;
mod file;
mod frame;
mod function;
mod instances;
mod kernel;
pub mod limits;
mod memory;
mod nested;
mod ordered;
mod pending;
mod registry;
mod request;
mod source;
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
pub use context::{HostBuilder, HostContext};
pub use error::{Error, ErrorCode, ErrorValue, Fault, Result, SourceLocation, UnknownKernel};
pub use file::{Bytes, ProgramBytes};
pub use frame::{Frame, Reporter};
pub use function::{Function, FunctionKind, FunctionRef, Module};
pub use kernel::{Effect, Kernel, NativeFunction, PlainKernel, PlainResults};
pub use limits::Limits;
pub use memory::Charge;
pub use ordered::Interpreter;
pub use registry::KernelRegistry;
pub use request::ExecutionContext;
pub use timer::Timer;
pub use typed::{Attr, Cursor, IntoKernel, Outcome, Parameter, typed};
pub use value::{Chain, FromValue, IntoValue, Object, Results, Value};

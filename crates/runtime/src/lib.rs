//! Programs and methods at run time: opening and verifying a file, loading a method into memory
//! arenas, resolving its calls, executing its instructions.
//!
//! ```text
//! DataLoader ── ranges ──► Program ── load_method ──► Method ── execute ──► outputs
//!   file, mmap, bytes       verified    │               values, arenas, constants,
//!                                       │               resolved instructions, delegates
//!           KernelRegistry, BackendRegistry, NamedDataMap (.ptd), Limits
//! ```
//!
//! The folders follow the life of a method. Each uses those above it:
//!
//! | folder | what it has |
//! | --- | --- |
//! | `open` | loaders of byte ranges, programs and what their tables say, named data, constants |
//! | `plan` | values, instructions, and the state that they work on |
//! | `backend` | the traits of backends and delegates |
//! | `load` | from the tables of a plan to its state, instructions and delegates |
//! | `prepare` | def-use analysis, regions, folding: from a loaded plan to a prepared one |
//! | `execute` | the loop over the instructions of a prepared plan |
//! | `method` | a complete method: inputs, outputs, named tensors, checkpoints, sessions |
//! | `training` | training on the device |
//!
//! [`Module`] wraps all of that in a simple interface. This crate names no concrete operator and no concrete
//! backend: both come in registries that the caller passes in.
#![forbid(unsafe_code)]

mod backend;
mod convert;
mod error;
mod execute;
mod limits;
mod load;
mod machine;
mod method;
mod module;
mod open;
mod options;
mod plan;
mod prepare;
mod replace;
#[cfg(feature = "training")]
mod training;

pub use backend::{
    Backend, BackendExecutionContext, BackendInitContext, BackendOptions, BackendRegistry, CallArgument,
    CompileSpec, Delegate, DelegateGraph, DuplicateBackend, GraphDelegate, GraphRequest, OptionValue,
    PayloadBackend, PayloadBytes, PayloadContents, PayloadNode, PayloadRole, PayloadSupport, PayloadValue,
    RefusedNode,
};
pub use error::{
    BackendError, Error, ExecuteError, InputProblem, InstructionPlace, Missing, MissingBackend,
    MissingDevice, MissingOperator, Result, one_line,
};
pub use limits::Limits;
pub use machine::free_memory;
pub use method::{Method, MethodGraph, Session, SharedMethod};
pub use module::Module;
pub use open::{
    BackendUse, BytesLoader, ConstantBytes, DataLoader, FileLoader, FreeableBuffer, LoaderReader,
    MergedDataMap, MethodMeta, MmapLoader, NamedDataMap, OperatorUse, Program, PtdDataMap, PteDataMap,
    Purpose, TensorInfo, ValueMeta, arrange_inputs, check_tensor,
};
pub use options::LoadOptions;
pub use prepare::AsWritten;
pub use prepare::raise::{RaisedFlow, RaisedInstruction, RaisedMethod, RaisedRead, RaisedView, ReachingDef};
pub use pteron_engine::{Call, CallArg, CallOut, Constant, Graph, Identity, PackStore, SourceId, ValueId};
pub use pteron_exported::delegate::{DebugHandle, DelegateSource, DelegateSources, SourceNode};
pub use pteron_exported::{InputSizes, SizeProblem};
pub use pteron_format::pte::ValueNames;
pub use pteron_pool::{Interrupt, Interrupted};
pub use pteron_tensor::Unchanged;
pub use replace::{
    EditLock, Protected, before_unfinished_files, discard_unfinished_files, replace_entry, replace_file,
    replace_file_with, replaced_path, write_stream,
};
#[cfg(feature = "training")]
pub use training::{
    Adam, AdamOptions, Decay, Optimizer, OptimizerState, Schedule, Sgd, SgdOptions, TrainingModule,
    saved_optimizer,
};

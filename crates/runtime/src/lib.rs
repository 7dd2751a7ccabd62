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
//! [`Module`] wraps all of that in a simple interface. This crate names no concrete operator and no concrete
//! backend: both come in registries that the caller passes in.
#![forbid(unsafe_code)]

mod backend;
mod call;
mod checkpoint;
mod constants;
mod error;
mod execute;
mod fold;
mod freeable;
mod input_sizes;
mod limits;
mod load;
mod loader;
mod machine;
mod meta;
mod method;
mod module;
mod named_data;
mod operands;
mod options;
mod own_data;
mod prepare;
mod program;
mod raise;
mod region;
mod release;
mod replace;
mod resolve;
mod session;
mod step;
mod tables;
#[cfg(feature = "training")]
mod training;
mod value;

pub use backend::{
    Backend, BackendError, BackendExecutionContext, BackendInitContext, BackendOptions, BackendRegistry,
    CallArgument, CompileSpec, Delegate, DelegateGraph, DuplicateBackend, GraphDelegate, GraphRequest,
    OptionValue, PayloadBytes, PayloadContents, PayloadNode, PayloadRole, PayloadSupport, PayloadValue,
    RefusedNode,
};
pub use constants::ConstantBytes;
pub use error::{
    Error, ExecuteError, InputProblem, InstructionPlace, Missing, MissingBackend, MissingDevice,
    MissingOperator, Result, one_line,
};
pub use freeable::FreeableBuffer;
pub use limits::Limits;
pub use loader::{BytesLoader, DataLoader, FileLoader, LoaderReader, MmapLoader, Purpose};
pub use machine::free_memory;
pub use meta::{BackendUse, MethodMeta, OperatorUse, TensorInfo, ValueMeta, check_tensor};
pub use method::{AsWritten, Method, MethodGraph};
pub use module::Module;
pub use named_data::{MergedDataMap, NamedDataMap, PtdDataMap, PteDataMap};
pub use options::LoadOptions;
pub use program::Program;
pub use pteron_engine::{Call, CallArg, CallOut, Constant, Graph, Identity, PackStore, SourceId, ValueId};
pub use pteron_exported::delegate::{DebugHandle, DelegateSource, DelegateSources, SourceNode};
pub use pteron_exported::{InputSizes, SizeProblem};
pub use pteron_pool::{Interrupt, Interrupted};
pub use pteron_tensor::Unchanged;
pub use raise::{Found, RaisedFlow, RaisedInstruction, RaisedMethod, RaisedRead, RaisedView};
pub use replace::{
    EditLock, Protected, before_unfinished_files, discard_unfinished_files, replace_entry, replace_file,
    replace_file_with, replaced_path, write_stream,
};
pub use session::{Session, SharedMethod};
#[cfg(feature = "training")]
pub use training::{
    Adam, AdamOptions, Decay, Optimizer, OptimizerState, Schedule, Sgd, SgdOptions, TrainingModule,
    saved_optimizer,
};

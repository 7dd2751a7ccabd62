//! A pure-Rust runtime and toolbox for machine-learning program files: ExecuTorch's `.pte` and `.ptd`,
//! and their relatives. No C++ build, no Python, no global state.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::{EValue, Tensor};
//! # let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.pte");
//!
//! let mut module = pteron::open(digits)?;
//! let picture = Tensor::from_slice(&[1, 1, 8, 8], &[0.0f32; 64])?;
//! let outputs = module.forward(&[picture.into()])?;
//! let EValue::Tensor(probabilities) = &outputs[0] else { panic!("the model gives a tensor") };
//! assert_eq!(probabilities.as_slice::<f32>()?.len(), 10);
//! # Ok(()) }
//! ```
//!
//! [`open`] knows every operator of this crate and no backend. [`load_options`] is where to start for
//! more: backends, operators of one's own, `.ptd` files, threads, limits, a tracer.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::{Module, Pool, PtdDataMap};
//! use std::sync::Arc;
//!
//! let options = pteron::load_options().data(Arc::new(PtdDataMap::map("weights.ptd")?)).pool(Pool::new(2));
//! let mut module = Module::map("model.pte", options)?;
//! println!("{:?}", module.method_meta("forward")?.inputs());
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

use std::path::Path;

pub use format;
pub use operator::{
    Arg, Args, DtypeSet, EValue, FnKernel, Isa, Kernel, KernelContext, KernelRegistry, Level, Operator, Out,
    Outs, Schema, Tag,
};
pub use pool::Pool;
pub use runtime::{
    Backend, BackendError, BackendExecutionContext, BackendInitContext, BackendRegistry, BytesLoader,
    CompileSpec, DataLoader, Delegate, Error, FileLoader, FreeableBuffer, Limits, LoadOptions, MergedDataMap,
    Method, MethodMeta, Missing, MmapLoader, Module, NamedDataMap, Program, PtdDataMap, Result, Sgd,
    SgdOptions, TrainingModule, ValueMeta, replace_file,
};
pub use tensor::{DimOrder, Scalar, ScalarType, Shape, Tensor, TensorMeta, TensorView, TensorViewMut};
pub use trace::{EventTracer, Span, SpanKind};

/// Every operator of the library.
pub fn kernel_registry() -> KernelRegistry {
    kernels::registry()
}

/// Options with every operator of the library, no backend, and one thread.
pub fn load_options() -> LoadOptions {
    LoadOptions::new(kernel_registry())
}

/// Opens a program with [`load_options`].
pub fn open(path: impl AsRef<Path>) -> Result<Module> {
    Module::open(path, load_options())
}

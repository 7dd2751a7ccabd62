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
//!
//! An operator of one's own is a schema and a function (`examples/custom_op.rs` says more):
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::{EValue, FnKernel, LoadOptions, Module, Tensor};
//! # let program = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mul3.pte");
//!
//! let mut kernels = pteron::kernel_registry();
//! let schema = "my_ops::mul3.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)";
//! kernels.register(FnKernel::new(schema, |_, args, outs| {
//!     let (x, out) = (args.tensor(0)?, outs.tensor(0)?);
//!     out.resize(x.sizes())?;
//!     out.storage_mut::<f32>()?.iter_mut().zip(x.storage::<f32>()?).for_each(|(o, x)| *o = 3.0 * x);
//!     Ok(())
//! })?)?;
//! let mut module = Module::open(program, LoadOptions::new(kernels))?;
//! let outputs = module.forward(&[Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?.into()])?;
//! let EValue::Tensor(tripled) = &outputs[0] else { panic!("the program gives a tensor") };
//! assert_eq!(tripled.as_slice::<f32>()?, [3.0, 6.0, 9.0, 12.0]);
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
    SgdOptions, TrainingModule, ValueMeta, discard_unfinished_files, replace_file, write_stream,
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

//! A pure-Rust runtime and toolbox for machine-learning program files: ExecuTorch's `.pte` and `.ptd`,
//! and their relatives. No C++ build, no Python, no global state.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::Tensor;
//! # let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.pte");
//!
//! let mut module = pteron::open(digits)?;
//! let picture = Tensor::from_slice(&[1, 1, 8, 8], &[0.0f32; 64])?;
//! let outputs = module.forward(&[picture.into()])?;
//! let probabilities: Vec<f32> = outputs[0].as_tensor()?.to_vec()?;
//! assert_eq!(probabilities.len(), 10);
//! # Ok(()) }
//! ```
//!
//! [`open`] uses every operator and every backend of this crate ([`backend_registry`]). [`open_with`] takes options: start
//! from [`load_options`] to add other backends, custom operators, `.ptd` files, threads, limits or a tracer.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::{Pool, PtdDataMap};
//! use std::sync::Arc;
//!
//! let options = pteron::load_options().data(Arc::new(PtdDataMap::open("weights.ptd")?)).pool(Pool::new(2));
//! let mut module = pteron::open_with("model.pte", options)?;
//! println!("{:?}", module.method_meta("forward")?.inputs());
//! # Ok(()) }
//! ```
//!
//! A custom operator is a schema and a function (see `examples/custom_op.rs`):
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::{FnKernel, LoadOptions, Module, Tensor};
//! # let program = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mul3.pte");
//!
//! let mut kernels = pteron::kernel_registry();
//! let schema = "my_ops::mul3.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)";
//! kernels.register(FnKernel::new(schema, |_, args, outs| {
//!     let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
//!     out.resize(x.sizes())?;
//!     x.relayout(out)?;
//!     out.storage_mut::<f32>()?.iter_mut().for_each(|v| *v *= 3.0);
//!     Ok(())
//! })?)?;
//! let mut module = Module::open(program, LoadOptions::new(kernels))?;
//! let outputs = module.forward(&[Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?.into()])?;
//! assert_eq!(outputs[0].as_tensor()?.as_slice::<f32>()?, [3.0, 6.0, 9.0, 12.0]);
//! # Ok(()) }
//! ```
//!
//! # Modules
//!
//! | module | for | cargo feature |
//! | --- | --- | --- |
//! | the root | running programs: [`Module`], [`Method`], [`Tensor`], [`EValue`] | |
//! | [`kernel`] | writing operators, or linking only those that a program calls ([`kernels!`]) | |
//! | [`data`] | storing programs and weights elsewhere than in files | |
//! | [`backend`] | writing a delegate backend | |
//! | [`trace`](mod@trace) | receiving events about loading and running | |
//! | [`facts`] | passing errors on, for example to another language | |
//! | [`format`](mod@format) | reading and writing `.pte`, `.ptd`, `.bpte` and ETDumps | |
#![cfg_attr(
    feature = "compile",
    doc = "| [`compile`](mod@compile) | compiling torch.export archives (`.pt2`) | `compile` |"
)]
#![cfg_attr(feature = "bef", doc = "| [`bef`](mod@bef) | BEF programs | `bef` |")]
#![cfg_attr(
    feature = "tools",
    doc = "| [`tools`] | the verbs of the `pteron` command | `tools`, with `image` and `safetensors` |"
)]
#![cfg_attr(
    all(feature = "compile", feature = "tools"),
    doc = "| [`testing`] | testing a backend: a model delegated and as written | `compile` and `tools` |"
)]
//! | `BefBackend` | running programs compiled for Pteron's own backend; [`open`] includes it | `bef-backend` |
//! | `XnnpackBackend` | running programs lowered to XNNPACK; [`open`] includes it | `xnnpack` |
//! | `TrainingModule`, `Sgd`, `Adam`, `Schedule` | on-device training | `training` |
//! | `Tensor` from and to arrays | using the `ndarray` crate | `ndarray`, not by default |
//!
//! Every feature but `ndarray` is on by default. With `default-features = false` the crate only runs `.pte`
//! programs.
#![forbid(unsafe_code)]

pub mod backend;
#[cfg(feature = "bef")]
pub mod bef;
mod built_in;
#[cfg(feature = "compile")]
pub mod compile;
pub mod data;
pub mod facts;
pub mod kernel;
mod registries;
#[cfg(all(feature = "compile", feature = "tools"))]
pub mod testing;
#[cfg(feature = "tools")]
pub mod tools;
pub mod trace;

use std::path::Path;
use std::sync::{Arc, OnceLock};

#[cfg(feature = "bef-backend")]
pub use pteron_backend_bef::BefBackend;
#[cfg(feature = "xnnpack")]
pub use pteron_backend_xnnpack::XnnpackBackend;
pub use pteron_format as format;
pub use pteron_operator::{
    Arg, ArgKey, Args, DtypeSet, EValue, Feature, Features, FnKernel, Isa, Kernel, KernelContext,
    KernelRegistry, Operator, Out, Outs, Schema, Tag,
};
pub use pteron_pool::{Pool, available_threads};
#[cfg(feature = "training")]
pub use pteron_runtime::{
    Adam, AdamOptions, Decay, Optimizer, OptimizerState, Schedule, Sgd, SgdOptions, TrainingModule,
    saved_optimizer,
};
pub use pteron_runtime::{
    Backend, BackendError, BackendExecutionContext, BackendInitContext, BackendRegistry, BytesLoader,
    CompileSpec, DataLoader, Delegate, EditLock, Error, ExecuteError, FileLoader, FreeableBuffer,
    InputProblem, Interrupt, Interrupted, Limits, LoadOptions, MergedDataMap, Method, MethodMeta, Missing,
    MmapLoader, Module, NamedDataMap, Program, Protected, PtdDataMap, Purpose, Result, Session, SharedMethod,
    TensorInfo, Unchanged, ValueMeta, ValueNames, arrange_inputs, before_unfinished_files,
    discard_unfinished_files, free_memory, replace_entry, replace_file, replace_file_with, write_stream,
};
pub use pteron_tensor::{
    self as tensor, Bool, Complex, DimOrder, Element, Scalar, ScalarType, Shape, Tensor, TensorMeta,
    TensorView, TensorViewMut, bf16, f16,
};
pub use pteron_trace::{EventTracer, Span, SpanKind};
pub use registries::Registries;

/// A registry of every operator of the library.
pub fn kernel_registry() -> KernelRegistry {
    (*all_kernels()).clone()
}

/// The registry of every operator of the library. It is built, and its names hashed, once per process, and never changes.
fn all_kernels() -> Arc<KernelRegistry> {
    static KERNELS: OnceLock<Arc<KernelRegistry>> = OnceLock::new();
    Arc::clone(KERNELS.get_or_init(|| Arc::new(pteron_kernels::registry())))
}

/// Every backend of the library: `BefBackend` with the feature `bef-backend` and `XnnpackBackend` with `xnnpack`. Both
/// features are on by default.
pub fn backend_registry() -> BackendRegistry {
    backends_with(&all_kernels())
}

/// The backends of the library. They compute with the given kernels.
fn backends_with(kernels: &Arc<KernelRegistry>) -> BackendRegistry {
    let none = BackendRegistry::new();
    built_in::BACKENDS.iter().fold(none, |backends, built_in| (built_in.register)(backends, kernels))
}

/// Load options with every operator and backend of the library, and one thread.
pub fn load_options() -> LoadOptions {
    let kernels = all_kernels();
    let backends = backends_with(&kernels);
    LoadOptions::new(kernels).backends(backends)
}

/// Opens a program with [`load_options`]. With the feature `compile`, a torch.export archive (`.pt2`) is accepted too, and
/// is compiled in memory. The test cases of a bundled program (`.bpte`) are left out.
pub fn open(path: impl AsRef<Path>) -> Result<Module> {
    open_with(path, load_options())
}

/// As [`open`], with options: threads, `.ptd` files, limits, other operators and backends. Start from [`load_options`].
///
/// ```
/// # fn main() -> pteron::Result<()> {
/// use pteron::{Pool, available_threads};
/// # let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.pte");
///
/// let options = pteron::load_options().pool(Pool::new(available_threads()));
/// let module = pteron::open_with(digits, options)?;
/// assert!(module.method_meta("forward").is_ok());
/// # Ok(()) }
/// ```
pub fn open_with(path: impl AsRef<Path>, options: LoadOptions) -> Result<Module> {
    let file: Arc<dyn DataLoader> = Arc::new(FileLoader::open(path)?);
    let file = unbundle(file, &options.limits)?;
    #[cfg(feature = "compile")]
    let file = compile::program(file, &options.kernels, &options.limits)?;
    Module::load(file, options)
}

/// The program of a bundled program; any other file is returned unchanged.
fn unbundle(file: Arc<dyn DataLoader>, limits: &Limits) -> Result<Arc<dyn DataLoader>> {
    let head = file.load(0, file.size().min(64), Purpose::Program)?;
    if format::sniff(&head) != Some(format::FileKind::Bpte) {
        return Ok(file);
    }
    let bytes = file.load(0, file.size(), Purpose::Program)?;
    let invalid = |error| Error::Format { file: file.name().to_owned(), source: Box::new(error) };
    let program = format::bpte::read(&bytes, &limits.format).map_err(invalid)?.program;
    let index = |at| usize::try_from(at).ok();
    let program = index(program.start).zip(index(program.end)).and_then(|(a, b)| bytes.slice(a..b));
    let name = format!("the program of {}", file.name());
    match program {
        Some(program) => Ok(Arc::new(BytesLoader::named(name, program))),
        None => Err(Error::Unsupported(format!("{name} is not within the file, which must have changed"))),
    }
}

/// The guide, whose code is tested.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/threads.md")]
mod threads {}

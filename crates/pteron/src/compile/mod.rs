//! Compiles torch.export archives (`.pt2`) to programs (`.pte`), without Python or PyTorch.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::compile::{self, OperatorTable, Options};
//! use pteron::{DataLoader, FileLoader};
//! use std::sync::Arc;
//!
//! let archive: Arc<dyn DataLoader> = Arc::new(FileLoader::open("model.pt2")?);
//! let table = OperatorTable::portable(&pteron::kernel_registry());
//! let compiled = compile::from_loader(&archive, &table, &Options::default(), &mut |_, _, _| {})?;
//! compiled.program.write_to(&mut std::fs::File::create("model.pte")?)?;
//! # Ok(()) }
//! ```
//!
//! [`open`](crate::open) accepts an archive directly.
//!
//! A [`GraphBuilder`] makes a program without an exporter:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::compile::exported::TensorSpec;
//! use pteron::compile::{self, GraphBuilder, OperatorTable, Options};
//! use pteron::{BytesLoader, Module, ScalarType, Tensor};
//! use std::sync::Arc;
//!
//! let kernels = pteron::kernel_registry();
//! let mut graph = GraphBuilder::new("forward", &kernels);
//! let row = TensorSpec::contiguous(ScalarType::Float, vec![1.into(), 2.into()]);
//! let x = graph.input("x", row.clone())?;
//! let elements: Vec<u8> = [1f32, 2.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
//! let weight = graph.constant(Some("weight"), row, Arc::new(elements))?;
//! let y = graph.call("aten.linear", &[x.into(), weight.into()], &[])?[0];
//! graph.output(y)?;
//!
//! let (table, options) = (OperatorTable::portable(&kernels), Options::default());
//! let compiled = compile::compile_exported(vec![graph.finish()?], &table, &options, &mut |_, _, _| {})?;
//! let mut program = Vec::new();
//! compiled.program.write_to(&mut program)?;
//! let mut module = Module::load(Arc::new(BytesLoader::new(program)), pteron::load_options())?;
//! let outputs = module.forward(&[Tensor::from_slice(&[1, 2], &[3f32, 4.0])?.into()])?;
//! assert_eq!(outputs[0].to_vec::<f32>()?, [11.0]);
//! # Ok(()) }
//! ```

#[cfg(feature = "bef-backend")]
mod cache;
mod calibration;
mod failure;
mod in_place;
#[cfg(feature = "tools")]
mod quantizer;
mod rounding;
mod seen;

pub use crate::built_in::recovering_backends;
#[cfg(feature = "bef-backend")]
pub use crate::built_in::to_bef;
#[cfg(feature = "xnnpack")]
pub use crate::built_in::to_xnnpack;
#[cfg(feature = "bef-backend")]
pub use cache::Cache;
pub use calibration::{Calibration, LayerErrors};
pub use pteron_compiler::*;
pub use pteron_exported as exported;
pub use pteron_exported::delegate;
#[cfg(feature = "tools")]
pub use quantizer::{
    Compile, FLOAT_BUDGET, QuantizationGoal, QuantizationReport, Quantized, Quantizer, SpentOn,
};
pub use seen::{SeenArgument, SeenOperator, seen_by_partitioners};

#[cfg(feature = "bef-backend")]
pub use pteron_backend_bef::{BefPartitioner, BefPreprocess};
#[cfg(feature = "xnnpack")]
pub use pteron_backend_xnnpack::{XnnpackPartitioner, XnnpackPreprocess, XnnpackRecover};

use crate::{BytesLoader, DataLoader, EValue, KernelRegistry, NamedDataMap, Registries};
use delegate::Recover;
use exported::ConstantTensor;
use failure::compile_failure;
use in_place::{CompiledLoader, FileArchive};
use pt2::ExampleInput;
use pteron_runtime::{Limits, LoaderReader, Program, PtdDataMap, Purpose, check_tensor};
use pteron_tensor::{Tensor, TensorMeta};
use std::sync::Arc;

/// The program in a file. A torch.export archive is compiled in memory, within the limit on memory, and may call every
/// operator of the registry; any other file is returned unchanged.
///
/// # Errors
/// The archive cannot be read or compiled.
pub fn program(
    file: Arc<dyn DataLoader>,
    kernels: &KernelRegistry,
    limits: &Limits,
) -> crate::Result<Arc<dyn DataLoader>> {
    program_with(file, kernels, &Options { memory: limits.memory, ..Options::default() })
}

/// As [`program`], with options.
///
/// # Errors
/// As [`program`].
pub fn program_with(
    file: Arc<dyn DataLoader>,
    kernels: &KernelRegistry,
    options: &Options,
) -> crate::Result<Arc<dyn DataLoader>> {
    if !pt2::is_archive(LoaderReader::new(&file)) {
        return Ok(file);
    }
    let compiled = from_loader(&file, &OperatorTable::all(kernels), options, &mut |_, _, _| {})?;
    Ok(in_memory(file, &compiled))
}

/// Serves a compiled program without writing it. `file` is the source that it was compiled from: weights are read from
/// there when they are needed, or used in place if it is mapped. The weights that the program stores outside are in
/// [`named_data`].
pub fn in_memory(file: Arc<dyn DataLoader>, compiled: &Compiled) -> Arc<dyn DataLoader> {
    Arc::new(CompiledLoader::new(file, compiled))
}

/// The weights that a compiled program stores outside of itself, in memory.
///
/// # Errors
/// The weights cannot be read or computed.
pub fn named_data(file: &dyn DataLoader, compiled: &Compiled) -> crate::Result<Arc<dyn NamedDataMap>> {
    let mut bytes = Vec::new();
    let written = compiled.named_data().and_then(|data| Ok(data.write_to(&mut bytes)?));
    written.map_err(|e| compile_failure(file, e))?;
    let loader = BytesLoader::named(format!("the weights of {}", file.name()), bytes);
    Ok(Arc::new(PtdDataMap::load(Arc::new(loader), &Limits::default())?))
}

/// The example inputs with which the model was exported, converted to the inputs of the compiled method. `None` if the
/// file is no archive, or has no example inputs that can be read without unpickling (see [`pt2::example_inputs`]).
///
/// # Errors
/// The archive cannot be read, or its inputs exceed the limit on memory.
pub fn example_inputs(
    file: &Arc<dyn DataLoader>,
    program: &Program,
    method: &str,
    limits: &Limits,
) -> crate::Result<Option<Vec<EValue>>> {
    if !pt2::is_archive(LoaderReader::new(file)) {
        return Ok(None);
    }
    let (archive, budget) = (FileArchive(Arc::clone(file)), exported::CompileBudget::new(limits.memory));
    let examples = pt2::example_inputs(&archive, method, &budget).map_err(|e| compile_failure(&**file, e))?;
    let Some(examples) = examples else { return Ok(None) };
    // Sizes that were fixed when compiling may differ from those of the example inputs.
    let fits = |example: &&ExampleInput, meta: &TensorMeta| {
        check_tensor(0, meta, None, example.dtype, &example.sizes).is_ok()
    };
    let mut examples = examples.iter();
    let mut inputs = Vec::new();
    for declared in program.method_meta(method)?.inputs() {
        inputs.push(match (declared.tensor, declared.traced) {
            (Some(info), _) => match examples
                .next()
                .filter(|example| fits(example, &info.meta))
                .map(|example| to_declared_layout(example, &info.meta))
            {
                Some(Ok(tensor)) => EValue::Tensor(tensor),
                _ => return Ok(None),
            },
            (None, Some(fixed)) => fixed,
            (None, None) => return Ok(None),
        });
    }
    Ok(examples.next().is_none().then_some(inputs))
}

/// The task metadata of an archive, as JSON; `None` if it has none, or the file is no archive.
///
/// # Errors
/// As [`pt2::task`].
pub fn archived_task(file: &Arc<dyn DataLoader>) -> crate::Result<Option<String>> {
    match pt2::is_archive(LoaderReader::new(file)) {
        true => pt2::task(&FileArchive(Arc::clone(file))).map_err(|e| compile_failure(&**file, e)),
        false => Ok(None),
    }
}

fn to_declared_layout(example: &ExampleInput, meta: &TensorMeta) -> pteron_tensor::Result<Tensor> {
    let mut tensor = Tensor::zeros(TensorMeta::contiguous(example.dtype, &example.sizes)?)?;
    tensor.view_mut().bytes_mut().copy_from_slice(&example.elements);
    if cfg!(target_endian = "big") {
        let width = example.dtype.to_real().size();
        tensor.view_mut().bytes_mut().chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
    tensor.to_dim_order(*meta.dim_order())
}

/// Recompiles a program in memory without its source, as [`retarget`] does; `data` holds the weights that it stores outside.
/// The new program calls operators of the reference runtime, and others only for nodes that those cannot compute, as by
/// default on the command line.
///
/// # Errors
/// As [`from_program`].
pub fn retargeted(
    file: Arc<dyn DataLoader>,
    data: Option<&Arc<dyn NamedDataMap>>,
    registries: &Registries,
    options: &Options,
) -> crate::Result<Arc<dyn DataLoader>> {
    let known = OperatorTable::all(registries.kernels());
    let table = OperatorTable::preferring_portable(registries.kernels());
    let (tables, recoverers) = ((&known, &table), registries.recoverers());
    let compiled =
        from_program_with(Arc::clone(&file), data, tables, recoverers, options, &mut |_, _, _| {})?;
    Ok(in_memory(file, &compiled))
}

/// The program of a file as [`program_with`] gives it, then recompiled for the backends of each entry of `again`, in order.
/// Recompiling embeds the weights that the program stores outside.
///
/// # Errors
/// As [`program_with`] and [`retargeted`].
pub fn converted(
    (file, mut data): (Arc<dyn DataLoader>, Option<Arc<dyn NamedDataMap>>),
    registries: &Registries,
    archive: &Options,
    again: &[Vec<Delegation>],
) -> crate::Result<(Arc<dyn DataLoader>, Option<Arc<dyn NamedDataMap>>)> {
    let mut program = program_with(file, registries.kernels(), archive)?;
    for delegation in again {
        let options =
            Options { delegation: delegation.clone(), memory: archive.memory, ..Options::default() };
        program = retargeted(program, data.take().as_ref(), registries, &options)?;
    }
    Ok((program, data))
}

/// Recompiles the program that a loader serves, as [`retarget`] does. The two tables list the operators that the program
/// may call, and those that the new program may call.
///
/// # Errors
/// The file cannot be read, one of its methods is not valid, or as [`retarget`].
pub fn from_program(
    file: Arc<dyn DataLoader>,
    data: Option<&Arc<dyn NamedDataMap>>,
    tables: (&OperatorTable, &OperatorTable),
    options: &Options,
    watch: Watch<'_>,
) -> crate::Result<Compiled> {
    from_program_with(file, data, tables, &recovering_backends(), options, watch)
}

/// As [`from_program`], with these backends, instead of those of the library, to convert payloads back to operators
/// ([`Registries::recoverers`](crate::Registries::recoverers)).
///
/// # Errors
/// As [`from_program`].
pub fn from_program_with(
    file: Arc<dyn DataLoader>,
    data: Option<&Arc<dyn NamedDataMap>>,
    (operators, table): (&OperatorTable, &OperatorTable),
    recoverers: &[Arc<dyn Recover + Send + Sync>],
    options: &Options,
    watch: Watch<'_>,
) -> crate::Result<Compiled> {
    let program = Program::load(Arc::clone(&file), &Limits::default())?;
    program.require_valid_methods()?;
    let bytes = Arc::new(file.load(0, file.size(), Purpose::Program)?);
    let elsewhere = |key: &str| -> Option<ConstantTensor> {
        let data = data?.data(key).ok()?;
        let range = 0..data.len();
        Some(ConstantTensor { name: None, bytes: Arc::new(data), range })
    };
    let source = Recoverable {
        program: program.tables(),
        file: bytes,
        data: &elsewhere,
        operators,
        backends: recoverers,
    };
    retarget(&source, table, options, watch).map_err(|e| compile_failure(&*file, e))
}

/// The archive that a loader serves, for the functions of [`pt2`].
pub fn archive_of(file: &Arc<dyn DataLoader>) -> Box<dyn pt2::ArchiveFile> {
    Box::new(FileArchive(Arc::clone(file)))
}

/// Compiles the archive that a loader serves, as [`compile`] does. Weights are read when they are folded or written.
///
/// # Errors
/// The file cannot be read, or as [`compile`].
pub fn from_loader(
    file: &Arc<dyn DataLoader>,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> crate::Result<Compiled> {
    let archive = FileArchive(Arc::clone(file));
    compile(&archive, table, options, watch).map_err(|e| compile_failure(&**file, e))
}

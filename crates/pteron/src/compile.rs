//! From torch.export archives (`.pt2`) to programs (`.pte`): no Python, no PyTorch.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::compile::{self, OperatorTable, Options};
//! use std::sync::Arc;
//!
//! let archive = std::fs::read("model.pt2")?;
//! let table = OperatorTable::portable(&pteron::kernel_registry());
//! let compiled = compile::compile(Arc::new(archive), &table, &Options::default(), &mut |_, _, _| {})?;
//! compiled.program.write_to(&mut std::fs::File::create("model.pte")?)?;
//! # Ok(()) }
//! ```
//!
//! [`open`](crate::open) takes an archive as it is.

pub use compiler::*;
pub use ir::exported;
pub use ir::exported::delegate;

#[cfg(feature = "bef-backend")]
pub use backend_bef::{BefPartitioner, BefPreprocess};
#[cfg(feature = "xnnpack")]
pub use backend_xnnpack::{XnnpackPartitioner, XnnpackPreprocess, XnnpackRecover};

use crate::{BytesLoader, DataLoader, Error as Failure, FreeableBuffer, KernelRegistry, NamedDataMap};
use delegate::Recover;
use exported::ConstantTensor;
use runtime::{Limits, LoaderReader, Program, Purpose};
use std::sync::Arc;
use tensor::AlignedBuffer;

/// Everything that XNNPACK takes, for [`Options::delegation`].
#[cfg(feature = "xnnpack")]
pub fn to_xnnpack() -> Delegation {
    Delegation { partitioner: Arc::new(XnnpackPartitioner), backend: Arc::new(XnnpackPreprocess) }
}

/// Everything that kernels of a registry compute, as delegates that are fused ahead of time, for
/// [`Options::delegation`]. Packed weights are stored, too, for machines with the instructions of `target`.
#[cfg(feature = "bef-backend")]
pub fn to_bef(kernels: &Arc<KernelRegistry>, target: Option<crate::Isa>) -> Delegation {
    let backend = BefPreprocess::new(Arc::clone(kernels));
    Delegation {
        partitioner: Arc::new(BefPartitioner::new(kernels)),
        backend: Arc::new(match target {
            Some(isa) => backend.packed_for(isa),
            None => backend,
        }),
    }
}

/// The backends of this crate whose payloads are brought back to operators.
pub fn recovering_backends() -> Vec<Arc<dyn Recover + Send + Sync>> {
    vec![
        #[cfg(feature = "xnnpack")]
        Arc::new(XnnpackRecover),
    ]
}

/// The program that a file holds: a torch.export archive is compiled in memory, and may call every operator of the
/// registry; any other file is served as it is.
///
/// # Errors
/// The archive cannot be read, or not be compiled.
pub fn program(file: Arc<dyn DataLoader>, kernels: &KernelRegistry) -> crate::Result<Arc<dyn DataLoader>> {
    program_with(file, kernels, &Options::default())
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
    let compiled = from_loader(&*file, &OperatorTable::all(kernels), options, &mut |_, _, _| {})?;
    in_memory(&*file, &compiled)
}

fn in_memory(file: &dyn DataLoader, compiled: &Compiled) -> crate::Result<Arc<dyn DataLoader>> {
    let len = usize::try_from(compiled.program.header().file_len).unwrap_or(usize::MAX);
    let mut program = AlignedBuffer::zeroed(len)?;
    let written = compiled.program.write_to(&mut &mut program[..]);
    written.map_err(|e| failed(file, e.into()))?;
    Ok(Arc::new(BytesLoader::named(file.name(), FreeableBuffer::read(program))))
}

/// Compiles a program again, in memory, without its source, as [`retarget`] does; `data` has what it looks for outside.
///
/// # Errors
/// As [`from_program`].
pub fn retargeted(
    file: Arc<dyn DataLoader>,
    data: Option<&Arc<dyn NamedDataMap>>,
    kernels: &KernelRegistry,
    options: &Options,
) -> crate::Result<Arc<dyn DataLoader>> {
    let table = OperatorTable::all(kernels);
    let compiled = from_program(Arc::clone(&file), data, (&table, &table), options, &mut |_, _, _| {})?;
    in_memory(&*file, &compiled)
}

/// Compiles the program that a loader serves again, as [`retarget`] does. `tables` are the operators that it may call,
/// and those that the new one may.
///
/// # Errors
/// The file cannot be read, or as [`retarget`].
pub fn from_program(
    file: Arc<dyn DataLoader>,
    data: Option<&Arc<dyn NamedDataMap>>,
    (operators, table): (&OperatorTable, &OperatorTable),
    options: &Options,
    watch: Watch<'_>,
) -> crate::Result<Compiled> {
    let program = Program::load(Arc::clone(&file), &Limits::default())?;
    let bytes = Arc::new(file.load(0, file.size(), Purpose::Program)?);
    let elsewhere = |key: &str| -> Option<ConstantTensor> {
        let found = data?.data(key).ok()?;
        let range = 0..found.len();
        Some(ConstantTensor { name: None, bytes: Arc::new(found), range })
    };
    let source = Recoverable {
        program: program.tables(),
        file: bytes,
        data: &elsewhere,
        operators,
        backends: &recovering_backends(),
    };
    retarget(&source, table, options, watch).map_err(|e| failed(&*file, e))
}

/// Compiles the archive that a loader serves, as [`compile`] does.
///
/// # Errors
/// The file cannot be read, or as [`compile`].
pub fn from_loader(
    file: &dyn DataLoader,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> crate::Result<Compiled> {
    let bytes = Arc::new(file.load(0, file.size(), Purpose::Program)?);
    compile(bytes, table, options, watch).map_err(|e| failed(file, e))
}

fn failed(file: &dyn DataLoader, source: Error) -> Failure {
    Failure::Compile { file: file.name().to_owned(), source: Box::new(source) }
}

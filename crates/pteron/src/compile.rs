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

#[cfg(feature = "xnnpack")]
pub use backend_xnnpack::{XnnpackPartitioner, XnnpackPreprocess};

use crate::{BytesLoader, DataLoader, Error as Failure, KernelRegistry};
use runtime::Purpose;
use std::sync::Arc;

/// Everything that XNNPACK takes, for [`Options::delegation`].
#[cfg(feature = "xnnpack")]
pub fn to_xnnpack() -> Delegation {
    Delegation { partitioner: Arc::new(XnnpackPartitioner), backend: Arc::new(XnnpackPreprocess) }
}

/// Bytes by which an archive is known.
const MAGIC_BYTES: u64 = 4;

/// Whether a file is an archive of models.
///
/// # Errors
/// The file cannot be read.
pub fn is_archive(loader: &dyn DataLoader) -> crate::Result<bool> {
    let name = loader.name().to_ascii_lowercase();
    let other = [".npz", ".zip"].iter().any(|end| name.ends_with(end));
    if other || loader.size() < MAGIC_BYTES {
        return Ok(false);
    }
    Ok(pt2::is_archive(&loader.load(0, MAGIC_BYTES, Purpose::Program)?))
}

/// The program that an archive compiles to, in memory. It may call every operator of the registry.
///
/// # Errors
/// The file cannot be read, or not be compiled.
pub fn in_memory(loader: &dyn DataLoader, kernels: &KernelRegistry) -> crate::Result<Arc<dyn DataLoader>> {
    let failed =
        |source: Error| Failure::Compile { file: loader.name().to_owned(), source: Box::new(source) };
    let bytes = Arc::new(loader.load(0, loader.size(), Purpose::Program)?);
    let compiled = compile(bytes, &OperatorTable::all(kernels), &Options::default(), &mut |_, _, _| {});
    let mut program = Vec::new();
    compiled.and_then(|c| Ok(c.program.write_to(&mut program)?)).map_err(failed)?;
    Ok(Arc::new(BytesLoader::named(loader.name(), program)))
}

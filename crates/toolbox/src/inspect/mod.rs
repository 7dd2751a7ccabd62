//! What is in a file: a report for people ([`text`]) and for programs (the same structs as JSON).
//!
//! Only the header, the tables and a few bytes of each delegate's payload are read, however large the
//! file is.

mod flat_tensor;
mod gguf;
mod payload;
mod program;
mod text;

pub use flat_tensor::{EntryReport, FlatTensorReport};
pub use gguf::{GgufReport, GgufTensorReport};
pub use payload::sniff_payload;
pub(crate) use program::holds;
pub use program::{
    ArenaReport, ConstantReport, DelegateReport, ExtendedHeaderReport, HeaderReport, InstructionCounts,
    MethodReport, MissingReport, NamedDataReport, OperatorReport, ProgramReport, SegmentReport, TensorCounts,
    ValueReport,
};
pub use text::text;

#[cfg(feature = "bef")]
use crate::bef::BefReport;
use crate::bundle::{self, Bundle, BundleReport};
use crate::etdump::{self, EtdumpReport};
use crate::{Result, kind};
use format::FileKind;
use operator::KernelRegistry;
use runtime::{BackendRegistry, DataLoader, Limits, Purpose};
use serde::Serialize;
use std::sync::Arc;

/// What a file holds. In JSON, `format` says which kind of report it is, and `report` the version
/// of the report's own shape.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "format", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Report {
    /// An ExecuTorch program.
    Pte(Box<ProgramReport>),
    /// Named data.
    Ptd(FlatTensorReport),
    /// A program in the Binary Executable Format.
    #[cfg(feature = "bef")]
    Bef(BefReport),
    /// A program with test cases.
    Bpte(Box<BundleReport>),
    /// What a runtime recorded.
    Etdump(EtdumpReport),
    /// Weights of a language model.
    Gguf(GgufReport),
}

/// The version of the reports' shape: it grows when a field is renamed or removed.
pub const REPORT_VERSION: u32 = 1;

/// Looks into a file. The registries decide what is missing to run it.
pub fn inspect(
    loader: &Arc<dyn DataLoader>,
    kernels: &KernelRegistry,
    backends: &BackendRegistry,
    limits: &Limits,
) -> Result<Report> {
    match kind::of(&**loader)? {
        Some(FileKind::Pte) => Ok(Report::Pte(Box::new(program::report(loader, kernels, backends, limits)?))),
        Some(FileKind::Ptd) => Ok(Report::Ptd(flat_tensor::report(loader, limits)?)),
        #[cfg(feature = "bef")]
        Some(FileKind::Bef) => {
            let bytes = loader.load(0, loader.size(), Purpose::Program)?;
            Ok(Report::Bef(crate::bef::report(&bytes, loader.name())?))
        }
        Some(FileKind::Bpte) => {
            let bundle = Bundle::open(&**loader, limits)?;
            let program = program::report(&bundle.program(), kernels, backends, limits)?;
            Ok(Report::Bpte(Box::new(bundle::report(&**loader, &bundle, program))))
        }
        Some(FileKind::Etdump) => Ok(Report::Etdump(etdump::report(&**loader, limits)?)),
        Some(FileKind::Gguf) => Ok(Report::Gguf(gguf::report(loader, limits)?)),
        other => {
            let expected = "programs (.pte, .bpte, .bef), named data (.ptd), ETDumps and .gguf files";
            Err(kind::wrong(&**loader, other, "inspect", expected))
        }
    }
}

//! Reports on the contents of a file, as text ([`text`]) and as JSON (the same structs, serialized).
//!
//! Of programs and named data, only the header, the tables and the first bytes of each delegate's payload are read, however
//! large the file is.

mod arrays;
mod flat_tensor;
mod gguf;
mod payload;
mod program;
mod text;
mod version;

pub use arrays::{ArrayReport, ArraysReport};
pub use flat_tensor::{EntryReport, FlatTensorReport};
pub use gguf::{GgufReport, GgufTensorReport};
pub use payload::sniff_payload;
pub(crate) use program::uses_of_segments;
pub use program::{
    ArenaReport, ConstantReport, DelegateReport, ExtendedHeaderReport, HeaderReport, InstructionCounts,
    MethodReport, MissingReport, NamedDataReport, OperatorReport, ProgramReport, SegmentReport, SymbolReport,
    TensorCounts, ValueReport,
};
pub use text::{Detail, text, write_text};
pub use version::REPORT_VERSION;

#[cfg(feature = "bef")]
use crate::bef::BefReport;
use crate::bundle::{self, Bundle, BundleReport};
use crate::etdump::{self, EtdumpReport};
pub use crate::etrecord::{EtrecordEntry, EtrecordReport};
use crate::{Result, etrecord, kind};
use pteron_format::FileKind;
use pteron_operator::KernelRegistry;
use pteron_runtime::{BackendRegistry, DataLoader, Limits, Program, Purpose};
use serde::Serialize;
use std::sync::Arc;

/// The contents of a file. In JSON, the field `format` is the kind of report and `report` the version of its
/// schema.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "format", rename_all = "lowercase")]
pub enum Report {
    /// An ExecuTorch program.
    Pte(Box<ProgramReport>),
    /// A file of named data.
    Ptd(FlatTensorReport),
    /// A program in the Binary Executable Format.
    #[cfg(feature = "bef")]
    Bef(BefReport),
    /// A bundled program: a program with test cases.
    Bpte(Box<BundleReport>),
    /// An ETDump: events that a runtime recorded.
    Etdump(EtdumpReport),
    /// An ETRecord: what an exporter recorded about a program.
    Etrecord(EtrecordReport),
    /// A `.gguf` file with the weights of a language model.
    Gguf(GgufReport),
    /// A file of tensors with metadata.
    Safetensors(ArraysReport),
    /// An archive of NumPy arrays.
    Npz(ArraysReport),
    /// A NumPy array.
    Npy(ArraysReport),
}

/// Fails if the reported program has methods, but no valid one.
pub fn require_valid_method(loader: &Arc<dyn DataLoader>, report: &Report, limits: &Limits) -> Result<()> {
    match report {
        Report::Pte(program) if program.methods.is_empty() && !program.invalid_methods.is_empty() => {
            Program::load(Arc::clone(loader), limits).map(drop)?;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Reports the contents of a file. The registries determine which operators and backends are reported as missing.
pub fn inspect(
    loader: &Arc<dyn DataLoader>,
    kernels: &KernelRegistry,
    backends: &BackendRegistry,
    limits: &Limits,
) -> Result<Report> {
    match kind::file_kind(&**loader)? {
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
        Some(FileKind::Safetensors) => Ok(Report::Safetensors(arrays::safetensors_report(loader)?)),
        Some(FileKind::Npy) => Ok(Report::Npy(arrays::npy_report(loader)?)),
        other => {
            if other == Some(FileKind::Zip) {
                if let Some(report) = etrecord::report(loader, limits)? {
                    return Ok(Report::Etrecord(report));
                }
                if let Some(report) = arrays::npz_report(loader, limits)? {
                    return Ok(Report::Npz(report));
                }
            }
            let expected = "programs (.pte, .bpte, .bef), named data (.ptd), arrays (.safetensors, .npz, .npy), ETDumps, \
                            ETRecords and .gguf files";
            Err(kind::wrong_format(&**loader, other, "inspect", expected))
        }
    }
}

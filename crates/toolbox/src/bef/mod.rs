//! The verbs for BEF files and for the MLIR text that BEF files are compiled from.

mod bytes;
mod report;
mod run;
mod translate;

pub use bytes::labelled_bytes;
pub(crate) use report::kernels;
pub use report::{
    AttributeReport, BefReport, FunctionReport, KernelReport, SectionReport, report, truncated_value,
};
pub use run::{CapturedRun, Queue, RunOptions, run, run_captured};
pub use translate::{Translation, check_diagnostics, missing_sections, round_trip_warning, to_bef, to_text};

use crate::{Error, Result, kind};
use pteron_format::FileKind;
use pteron_runtime::{DataLoader, FreeableBuffer, Purpose};

/// A BEF program, as a BEF file or as MLIR text.
pub enum Program {
    /// The bytes of a BEF file.
    Bef(FreeableBuffer),
    /// MLIR text.
    Mlir(FreeableBuffer),
}

/// Loads a BEF program or MLIR text; `None` if the file is neither. Text is taken for MLIR if the file's name
/// ends with `.mlir`, or if it is UTF-8 from standard input.
pub fn open(loader: &dyn DataLoader) -> Result<Option<Program>> {
    let kind = kind::file_kind(loader)?;
    let all = || loader.load(0, loader.size(), Purpose::Program);
    Ok(match kind {
        Some(FileKind::Bef) => Some(Program::Bef(all()?)),
        None if loader.name().ends_with(".mlir") => Some(Program::Mlir(all()?)),
        None if loader.name() == "stdin" && loader.size() > 0 => {
            let bytes = all()?;
            std::str::from_utf8(&bytes).is_ok().then_some(Program::Mlir(bytes))
        }
        _ => None,
    })
}

/// The error for a file that is neither a BEF program nor MLIR text.
pub fn wrong_format(loader: &dyn DataLoader, verb: &'static str, expected: &'static str) -> Error {
    match kind::file_kind(loader) {
        Ok(kind) => kind::wrong_format(loader, kind, verb, expected),
        Err(e) => e,
    }
}

//! What all verbs that write files share: opening, streaming of byte ranges, and progress.

mod blobs;
mod progress;

pub(crate) use blobs::{InFile, blob_source};
pub use progress::{Listener, Progress};

use crate::bundle::unbundle;
use crate::{Result, kind};
use pteron_format::FileKind;
use pteron_runtime::{DataLoader, Limits, Program, PtdDataMap};
use std::sync::Arc;

/// A file of a format that can be edited.
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "a verb has one or two of them")]
pub enum File {
    /// A program, which may come from a bundled program.
    Program(Program),
    /// Named data.
    Data(PtdDataMap),
}

impl File {
    /// Opens a program (`.pte`, or that in a `.bpte`) or named data (`.ptd`) for `verb`. Only the tables are read, but a bundled program is
    /// read as a whole.
    pub fn open(loader: Arc<dyn DataLoader>, verb: &'static str, limits: &Limits) -> Result<Self> {
        let loader = unbundle(loader, limits)?;
        match kind::file_kind(&*loader)? {
            Some(FileKind::Pte) => Ok(Self::Program(Program::load(loader, limits)?)),
            Some(FileKind::Ptd) => Ok(Self::Data(PtdDataMap::load(loader, limits)?)),
            other => {
                Err(kind::wrong_format(&*loader, other, verb, "programs (.pte, .bpte) and named data (.ptd)"))
            }
        }
    }

    /// Opens a file as [`open`](Self::open) does, and accepts programs without valid methods, to show what can be read.
    pub fn open_readable(loader: Arc<dyn DataLoader>, verb: &'static str, limits: &Limits) -> Result<Self> {
        let loader = unbundle(loader, limits)?;
        match kind::file_kind(&*loader)? {
            Some(FileKind::Pte) => Ok(Self::Program(Program::load_readable(loader, limits)?)),
            _ => Self::open(loader, verb, limits),
        }
    }

    /// Fails if the file is a program that has methods, but none that is valid.
    pub fn require_valid_method(&self) -> Result<()> {
        match self {
            Self::Program(program) => Ok(program.require_a_valid_method()?),
            Self::Data(_) => Ok(()),
        }
    }

    /// Opens a program (`.pte`, or that in a `.bpte`) for `verb`.
    pub fn open_program(loader: Arc<dyn DataLoader>, verb: &'static str, limits: &Limits) -> Result<Program> {
        let loader = unbundle(loader, limits)?;
        match kind::file_kind(&*loader)? {
            Some(FileKind::Pte) => Ok(Program::load(loader, limits)?),
            other => Err(kind::wrong_format(&*loader, other, verb, "programs (.pte, .bpte)")),
        }
    }

    /// Opens named data (`.ptd`) for `verb`.
    pub fn open_data(loader: Arc<dyn DataLoader>, verb: &'static str, limits: &Limits) -> Result<PtdDataMap> {
        match kind::file_kind(&*loader)? {
            Some(FileKind::Ptd) => Ok(PtdDataMap::load(loader, limits)?),
            other => Err(kind::wrong_format(&*loader, other, verb, "named data (.ptd)")),
        }
    }
}

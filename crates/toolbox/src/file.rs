//! What all verbs that write files share: opening, streaming of byte ranges, and progress.

use crate::bundle::unbundled;
use crate::{Context, Result, kind};
use pteron_format::FileKind;
use pteron_format::container::Blob;
use pteron_runtime::{DataLoader, Limits, Program, PtdDataMap, Purpose};
use pteron_tensor::AlignedBuffer;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes read at a time.
const CHUNK: u64 = 1 << 20;

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
    /// Opens a program (`.pte`, or that in a `.bpte`) or named data (`.ptd`) for `verb`. Only the tables are read, except of a
    /// bundled program.
    pub fn open(loader: Arc<dyn DataLoader>, verb: &'static str, limits: &Limits) -> Result<Self> {
        let loader = unbundled(loader, limits)?;
        match kind::of(&*loader)? {
            Some(FileKind::Pte) => Ok(Self::Program(Program::load(loader, limits)?)),
            Some(FileKind::Ptd) => Ok(Self::Data(PtdDataMap::load(loader, limits)?)),
            other => Err(kind::wrong(&*loader, other, verb, "programs (.pte, .bpte) and named data (.ptd)")),
        }
    }

    /// As [`open`](Self::open), but also opens a program none of whose methods is valid, to show what can be read.
    pub fn open_readable(loader: Arc<dyn DataLoader>, verb: &'static str, limits: &Limits) -> Result<Self> {
        let loader = unbundled(loader, limits)?;
        match kind::of(&*loader)? {
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
        let loader = unbundled(loader, limits)?;
        match kind::of(&*loader)? {
            Some(FileKind::Pte) => Ok(Program::load(loader, limits)?),
            other => Err(kind::wrong(&*loader, other, verb, "programs (.pte, .bpte)")),
        }
    }

    /// Opens named data (`.ptd`) for `verb`.
    pub fn open_data(loader: Arc<dyn DataLoader>, verb: &'static str, limits: &Limits) -> Result<PtdDataMap> {
        match kind::of(&*loader)? {
            Some(FileKind::Ptd) => Ok(PtdDataMap::load(loader, limits)?),
            other => Err(kind::wrong(&*loader, other, verb, "named data (.ptd)")),
        }
    }
}

/// Reports the progress of long operations. Clones report to the same listener; the default reports to none.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Listener>>);

/// Receives the progress of long operations.
pub trait Listener: Send + Sync {
    /// A phase of the work begins, such as `writing`, that will process about `bytes` bytes.
    fn begin(&self, what: &'static str, bytes: u64);
    /// Another `bytes` bytes of the phase are done.
    fn advance(&self, bytes: u64);
}

impl Progress {
    /// Reports to this listener.
    pub fn new(listener: impl Listener + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    /// See [`Listener::begin`].
    pub fn begin(&self, what: &'static str, bytes: u64) {
        if let Some(listener) = &self.0 {
            listener.begin(what, bytes);
        }
    }

    /// See [`Listener::advance`].
    pub fn advance(&self, bytes: u64) {
        if let Some(listener) = &self.0 {
            listener.advance(bytes);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Progress(told)" } else { "Progress(silent)" })
    }
}

/// A function from byte ranges of a file to blobs that stream them: a blob is read chunk by chunk while it is written,
/// so that at most one chunk is in memory.
pub(crate) fn source<'d>(
    loader: &Arc<dyn DataLoader>,
    progress: &Progress,
) -> impl Fn(Range<u64>) -> Blob<'d> + use<'d> {
    let (loader, progress) = (Arc::clone(loader), progress.clone());
    move |range| {
        let (loader, progress) = (Arc::clone(&loader), progress.clone());
        Blob::stream(range.end.saturating_sub(range.start), move |out| {
            let len = range.end.saturating_sub(range.start).min(CHUNK) as usize;
            let mut piece = AlignedBuffer::zeroed(len).map_err(io::Error::other)?;
            let mut at = range.start;
            while at < range.end {
                let piece = &mut piece[..(range.end - at).min(CHUNK) as usize];
                loader.load_into(at, piece, Purpose::Named).map_err(io::Error::other)?;
                out.write_all(piece)?;
                at += piece.len() as u64;
                progress.advance(piece.len() as u64);
            }
            Ok(())
        })
    }
}

/// Adds the file's name to errors of the format crate.
pub(crate) trait InFile<T> {
    /// Adds the file's name to the error.
    fn in_file(self, file: &str) -> Result<T>;
}

impl<T> InFile<T> for pteron_format::Result<T> {
    fn in_file(self, file: &str) -> Result<T> {
        self.context(|| file.to_owned())
    }
}

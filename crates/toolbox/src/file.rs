//! What the verbs that write share: files whose bytes are streamed, and how far that has come.

use crate::{Context, Result, kind};
use format::FileKind;
use format::container::Blob;
use runtime::{DataLoader, Limits, Program, PtdDataMap, Purpose};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tensor::AlignedBuffer;

/// Bytes that are read at a time.
const PIECE: u64 = 1 << 20;

/// A file of a format that can be taken apart and written.
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "a verb has one or two of them")]
pub enum File {
    /// A program.
    Program(Program),
    /// Named data.
    Data(PtdDataMap),
}

impl File {
    /// Opens a program (`.pte`) or named data (`.ptd`) for `verb`. Only the tables are read.
    pub fn open(loader: Arc<dyn DataLoader>, verb: &'static str, limits: &Limits) -> Result<Self> {
        match kind::of(&*loader)? {
            Some(FileKind::Pte) => Ok(Self::Program(Program::load(loader, limits)?)),
            Some(FileKind::Ptd) => Ok(Self::Data(PtdDataMap::load(loader, limits)?)),
            other => Err(kind::wrong(&*loader, other, verb, "programs (.pte) and named data (.ptd)")),
        }
    }

    /// Opens a program (`.pte`) for `verb`.
    pub fn open_program(loader: Arc<dyn DataLoader>, verb: &'static str, limits: &Limits) -> Result<Program> {
        match kind::of(&*loader)? {
            Some(FileKind::Pte) => Ok(Program::load(loader, limits)?),
            other => Err(kind::wrong(&*loader, other, verb, "programs (.pte)")),
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

/// Hears how far something long has come. Clones speak to the same listener; the default is silent.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Listener>>);

/// Shows how far something long has come.
pub trait Listener: Send + Sync {
    /// A part of the work begins, such as `writing`, that will go through about this many bytes.
    fn begin(&self, what: &'static str, bytes: u64);
    /// So many further bytes are done.
    fn advance(&self, bytes: u64);
}

impl Progress {
    /// Tells this listener.
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

/// Where the bytes of files to be written come from: loaders, of which pieces are read when their turn
/// comes, so that no more than one piece is in memory.
pub(crate) fn source<'d>(
    loader: &Arc<dyn DataLoader>,
    progress: &Progress,
) -> impl Fn(Range<u64>) -> Blob<'d> + use<'d> {
    let (loader, progress) = (Arc::clone(loader), progress.clone());
    move |range| {
        let (loader, progress) = (Arc::clone(&loader), progress.clone());
        Blob::stream(range.end.saturating_sub(range.start), move |out| {
            let len = range.end.saturating_sub(range.start).min(PIECE) as usize;
            let mut piece = AlignedBuffer::zeroed(len).map_err(io::Error::other)?;
            let mut at = range.start;
            while at < range.end {
                let piece = &mut piece[..(range.end - at).min(PIECE) as usize];
                loader.load_into(at, piece, Purpose::Named).map_err(io::Error::other)?;
                out.write_all(piece)?;
                at += piece.len() as u64;
                progress.advance(piece.len() as u64);
            }
            Ok(())
        })
    }
}

/// Lets an error of the format crate say which file it is about.
pub(crate) trait InFile<T> {
    /// Names the file.
    fn in_file(self, file: &str) -> Result<T>;
}

impl<T> InFile<T> for format::Result<T> {
    fn in_file(self, file: &str) -> Result<T> {
        self.context(|| file.to_owned())
    }
}

//! Edits of programs and named data, which keep what they do not change.
//!
//! An edit returns an [`Output`], a file that streams its bytes from the old file when it is written; they are
//! never all in memory. An edit that changes nothing returns the bytes of the old file. What an edit cannot keep, such as a
//! field of a newer schema in a table that has to be replaced, is listed in its result.

mod dedupe;
mod embed;
mod externalize;
mod keys;
mod set_task;
mod set_weight;
mod strip;

pub use dedupe::{Deduped, Member, dedupe};
pub use embed::{Embedded, embed};
pub use externalize::{Externalized, MoveOptions, externalize};
pub(crate) use keys::layout_of;
pub use set_task::{TaskSet, set_task};
pub use set_weight::{WeightSet, set_weight};
pub use strip::{StripOptions, Stripped, strip};

use crate::file::{InFile, Progress, blob_source};
use crate::{Error, Result};
use pteron_format::container::Blob;
use pteron_format::pte::{EValue, Tensor};
use pteron_format::{ptd, pte};
use pteron_runtime::{DataLoader, Limits, Program, PtdDataMap, Purpose};
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

/// A file that is laid out and verified, ready to be written.
pub struct Output {
    bytes: u64,
    write: Box<dyn Fn(&mut dyn Write) -> pteron_format::Result<()>>,
    progress: Progress,
}

impl Output {
    /// The size of the file in bytes; for `.npy` and `.npz` files, the bytes of the source elements, without headers.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the file, front to back.
    pub fn write_to(&self, out: &mut dyn Write) -> Result<()> {
        self.progress.begin("writing", self.bytes);
        (self.write)(out).in_file("the new file")
    }

    /// The bytes of the file, in memory. Only for files that are known to be small.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)?;
        Ok(bytes)
    }

    /// The output for a file that has been laid out and verified.
    pub(crate) fn from_prepared<H: 'static>(
        prepared: pteron_format::container::Prepared<'static, H>,
        bytes: u64,
        progress: &Progress,
    ) -> Self {
        Self::stream(bytes, progress, move |out| prepared.write_to(out))
    }

    /// A byte-for-byte copy of an existing file.
    pub(crate) fn copy_of(loader: &Arc<dyn DataLoader>, progress: &Progress) -> Self {
        Self::with_overwritten(loader, Vec::new(), progress)
    }

    /// An existing file with these ranges overwritten; they are in ascending order and do not overlap.
    pub(crate) fn with_overwritten(
        loader: &Arc<dyn DataLoader>,
        ranges: Vec<(Range<u64>, Blob<'static>)>,
        progress: &Progress,
    ) -> Self {
        let bytes_of = blob_source(loader, progress);
        let bytes = loader.size();
        let mut pieces = Vec::new();
        let mut at = 0;
        for (range, blob) in ranges {
            pieces.push(bytes_of(at..range.start));
            pieces.push(blob);
            at = range.end;
        }
        pieces.push(bytes_of(at..bytes));
        Self::stream(bytes, progress, move |out| pieces.iter().try_for_each(|piece| piece.copy_to(out)))
    }

    /// Lays out named data, and verifies it with the default limits.
    pub(crate) fn named_data(builder: ptd::Builder<'static>, progress: &Progress) -> Result<Self> {
        Self::named_data_within(builder, &Limits::default(), progress)
    }

    /// Lays out named data, and verifies it with these limits.
    pub(crate) fn named_data_within(
        builder: ptd::Builder<'static>,
        limits: &Limits,
        progress: &Progress,
    ) -> Result<Self> {
        let prepared = builder.prepare_with(&limits.format).in_file("the new named data")?;
        let bytes = prepared.header().file_len;
        Ok(Self { bytes, write: Box::new(move |out| prepared.write_to(out)), progress: progress.clone() })
    }

    /// An output of `bytes` bytes, which `write` writes to a stream.
    pub(crate) fn stream(
        bytes: u64,
        progress: &Progress,
        write: impl Fn(&mut dyn Write) -> pteron_format::Result<()> + 'static,
    ) -> Self {
        Self { bytes, write: Box::new(write), progress: progress.clone() }
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Output({} bytes)", self.bytes)
    }
}

/// Starts an edit of a program. Its segments are read only when the new file is written.
pub(crate) fn revise(program: &Program, progress: &Progress) -> Result<pte::Revision<'static>> {
    let loader = program.loader();
    progress.begin("reading", loader.size());
    let tables = program.tables();
    let bytes = loader.load(0, tables.header().program_size, Purpose::Program)?;
    Ok(pte::Revision::new(tables, bytes.to_vec(), blob_source(loader, progress)))
}

/// Lays out and verifies an edited program. Returns the file, and descriptions of what the edit could not keep.
pub(crate) fn finish(revision: pte::Revision<'static>, progress: &Progress) -> Result<(Output, Vec<String>)> {
    let revised = revision.finish(&pteron_format::Limits::DEFAULT).in_file("the new program")?;
    let bytes = revised.prepared.header().file_len;
    Ok((Output::from_prepared(revised.prepared, bytes, progress), revised.lost))
}

/// Starts an edit of named data.
pub(crate) fn revise_data(data: &PtdDataMap, progress: &Progress) -> Result<ptd::Revision<'static>> {
    let loader = data.loader();
    let tables = data.tables();
    let bytes = loader.load(0, tables.header().tables_size, Purpose::Program)?;
    Ok(ptd::Revision::new(tables, bytes.to_vec(), blob_source(loader, progress)))
}

/// Lays out and verifies edited named data. Returns the file, and descriptions of what the edit could not keep.
pub(crate) fn finish_data(
    revision: ptd::Revision<'static>,
    progress: &Progress,
) -> Result<(Output, Vec<String>)> {
    let revised = revision.finish(&pteron_format::Limits::DEFAULT).in_file("the new named data")?;
    let bytes = revised.prepared.header().file_len;
    Ok((Output::from_prepared(revised.prepared, bytes, progress), revised.lost))
}

/// What a program that is compiled from this one does not have: what only an edit of its file keeps, and named data, if there
/// are no delegates that could use it.
///
/// # Errors
/// The tables cannot be read.
pub fn lost_by_recompiling(program: &Program) -> Result<Vec<String>> {
    let tables = program.tables();
    let bytes = program.loader().load(0, tables.header().program_size, Purpose::Program)?;
    let mut lost = pte::undeclared_parts(tables, &bytes);
    if tables.execution_plan.iter().all(|plan| plan.delegates.is_empty()) {
        let named = tables.named_data.iter().filter(|entry| !pte::is_own_key(&entry.key));
        lost.extend(named.map(|entry| format!("the named data `{}`", entry.key)));
    }
    Ok(lost)
}

/// Descriptions of fields of named data that an edit loses, because this build's schema lacks them.
pub(crate) fn undeclared_fields(data: &PtdDataMap) -> Result<Vec<String>> {
    let tables = data.tables();
    let bytes = data.loader().load(0, tables.header().tables_size, Purpose::Program)?;
    Ok(ptd::undeclared_parts(tables, &bytes))
}

/// Fails if an edit of `file` could not keep something.
///
/// # Errors
/// `lost` is not empty; the error lists it.
pub fn refuse_losses(file: &str, lost: &[String]) -> Result<()> {
    match lost {
        [] => Ok(()),
        lost => Err(Error::bad_file(file, format!("cannot keep {}", lost.join(", ")))),
    }
}

/// The tensors of a program, in all methods.
pub(crate) fn tensors_mut(program: &mut pte::Program) -> impl Iterator<Item = &mut Tensor> {
    program.execution_plan.iter_mut().flat_map(|plan| &mut plan.values).filter_map(|value| match value {
        EValue::Tensor(tensor) => Some(tensor),
        _ => None,
    })
}

//! Edits of programs and named data: a file is taken apart, changed and laid out again.
//!
//! An edit returns an [`Output`], a file that streams its bytes from the old file when it is written; they are
//! never all in memory.

mod dedupe;
mod embed;
mod externalize;
mod keys;
mod set_weight;
mod strip;

pub use dedupe::{Deduped, Member, dedupe};
pub use embed::{Embedded, embed};
pub use externalize::{Externalized, MoveOptions, externalize};
pub(crate) use keys::layout_of;
pub use set_weight::{WeightSet, set_weight};
pub use strip::{StripOptions, Stripped, strip};

use crate::Result;
use crate::file::{InFile, Progress, source};
use format::pte::{Builder, EValue, Tensor};
use format::{ptd, pte};
use runtime::{Limits, Program};
use std::io::Write;

/// A file that is laid out and verified, ready to be written.
pub struct Output {
    bytes: u64,
    write: Box<dyn Fn(&mut dyn Write) -> format::Result<()>>,
    progress: Progress,
}

impl Output {
    /// The size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes the file, front to back.
    pub fn write_to(&self, out: &mut dyn Write) -> Result<()> {
        self.progress.begin("writing", self.bytes);
        (self.write)(out).in_file("the new file")
    }

    /// All bytes in memory, for files known to be small.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Lays out and verifies a program.
    pub(crate) fn program(builder: Builder<'static>, progress: &Progress) -> Result<Self> {
        let prepared = builder.finish().and_then(pte::Draft::prepare).in_file("the new program")?;
        let bytes = prepared.header().file_len;
        Ok(Self { bytes, write: Box::new(move |out| prepared.write_to(out)), progress: progress.clone() })
    }

    /// Lays out and verifies named data, within the default limits.
    pub(crate) fn data(builder: ptd::Builder<'static>, progress: &Progress) -> Result<Self> {
        Self::data_within(builder, &Limits::default(), progress)
    }

    /// Lays out and verifies named data, within these limits.
    pub(crate) fn data_within(
        builder: ptd::Builder<'static>,
        limits: &Limits,
        progress: &Progress,
    ) -> Result<Self> {
        let prepared = builder.prepare_with(&limits.format).in_file("the new named data")?;
        let bytes = prepared.header().file_len;
        Ok(Self { bytes, write: Box::new(move |out| prepared.write_to(out)), progress: progress.clone() })
    }

    /// A file of `bytes` bytes that `write` produces.
    pub(crate) fn stream(
        bytes: u64,
        progress: &Progress,
        write: impl Fn(&mut dyn Write) -> format::Result<()> + 'static,
    ) -> Self {
        Self { bytes, write: Box::new(write), progress: progress.clone() }
    }
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Output({} bytes)", self.bytes)
    }
}

/// Converts a program back to a builder, for editing. Its segments are read only when the new file is written.
///
/// # Errors
/// If a method is not valid: the new file would not have it.
pub(crate) fn take_apart(program: &Program, progress: &Progress) -> Result<Builder<'static>> {
    program.require_valid_methods()?;
    progress.begin("reading", program.loader().size());
    Ok(Builder::from_program(program.tables(), source(program.loader(), progress)))
}

/// The tensors of a builder, in all methods.
pub(crate) fn tensors_mut<'b>(builder: &'b mut Builder<'_>) -> impl Iterator<Item = &'b mut Tensor> {
    builder.execution_plan.iter_mut().flat_map(|plan| &mut plan.values).filter_map(|value| match value {
        EValue::Tensor(tensor) => Some(tensor),
        _ => None,
    })
}

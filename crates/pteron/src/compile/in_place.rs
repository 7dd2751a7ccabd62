//! A compiled program that is loaded without being written: its weights stay in the file that it was compiled from.

use super::failure::compile_failure;
use crate::{BytesLoader, DataLoader, Error, FreeableBuffer};
use pteron_compiler::Compiled;
use pteron_compiler::pt2::ArchiveFile;
use pteron_exported::ConstantTensor;
use pteron_format::container::Blob;
use pteron_ir::SharedBytes;
use pteron_runtime::{ConstantBytes, Purpose, SourceId};
use pteron_tensor::AlignedBuffer;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file of an archive, whose weights are read on access, and used in place if the file is mapped.
pub(super) struct FileArchive(pub(super) Arc<dyn DataLoader>);

impl ArchiveFile for FileArchive {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        self.0.load_into(offset, target, Purpose::Program).map_err(io::Error::other)
    }

    fn part(&self, range: Range<u64>) -> SharedBytes {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        ConstantBytes::of_file(Arc::clone(&self.0), range.start, len).shared()
    }
}

/// Serves the file that a compiled program would be written to. Ranges of weights are loaded from the source file, and
/// those of computed weights from memory; only ranges across several of them are copied.
pub(super) struct CompiledLoader {
    source: Arc<dyn DataLoader>,
    size: u64,
    /// The parts of the file with their offsets, in ascending order. The bytes between parts are zeros.
    parts: Vec<(u64, Blob<'static>)>,
    id: SourceId,
    loaded: AtomicU64,
}

impl CompiledLoader {
    /// Serves `compiled`, which was compiled from `source`.
    pub(super) fn new(source: Arc<dyn DataLoader>, compiled: &Compiled) -> Self {
        let (size, parts) = (compiled.program.header().file_len, compiled.program.parts());
        Self { source, size, parts, id: SourceId::unique(), loaded: AtomicU64::new(0) }
    }

    /// The parts that overlap a range.
    fn overlapping_parts(&self, range: &Range<u64>) -> &[(u64, Blob<'static>)] {
        let first = self.parts.partition_point(|(at, blob)| at.saturating_add(blob.len()) <= range.start);
        let end = self.parts.partition_point(|(at, _)| *at < range.end);
        self.parts.get(first..end).unwrap_or_default()
    }

    /// Loads a range of a constant's bytes: from the source file, if it has them unchanged, otherwise from memory.
    fn load_constant(
        &self,
        constant: &ConstantTensor,
        within: Range<usize>,
        purpose: Purpose<'_>,
    ) -> crate::Result<FreeableBuffer> {
        let len = (within.end - within.start) as u64;
        let start = self.source.source().and_then(|source| constant.bytes.identity()?.start_in(source));
        if let Some(start) = start {
            let skipped = constant.range.start as u64 + within.start as u64;
            return self.source.load(start.saturating_add(skipped), len, purpose);
        }
        // The bytes are in memory, or computed: the loader shares them. Computed ones are freed with the last buffer that
        // has them, usually once they are packed, and computed again if they are loaded again. Pieces are loaded in
        // order, and the last one releases the whole.
        let is_last = within.end == constant.range.len();
        let buffer = BytesLoader::new(AsBytes(constant.reopened())).load(within.start as u64, len, purpose);
        if is_last {
            constant.bytes.release();
        }
        buffer
    }
}

/// Adapts a constant to `AsRef<[u8]>`.
struct AsBytes(ConstantTensor);

impl AsRef<[u8]> for AsBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.data()
    }
}

impl DataLoader for CompiledLoader {
    fn size(&self) -> u64 {
        self.size
    }

    fn load(&self, offset: u64, len: u64, purpose: Purpose<'_>) -> crate::Result<FreeableBuffer> {
        let end = offset.checked_add(len).filter(|&end| end <= self.size);
        let Some(end) = end else {
            let file = self.source.name().to_owned();
            return Err(Error::OutOfFile { file, offset, len, size: self.size });
        };
        self.loaded.fetch_add(len, Ordering::Relaxed);
        let range = offset..end;
        let parts = self.overlapping_parts(&range);
        if let [(at, blob)] = parts
            && *at <= offset
            && end <= at + blob.len()
            && let Some(constant) = blob.owner::<ConstantTensor>()
        {
            return self.load_constant(&constant, (offset - at) as usize..(end - at) as usize, purpose);
        }
        let mut buffer = AlignedBuffer::zeroed_long_lived(usize::try_from(len).unwrap_or(usize::MAX))?;
        for (at, blob) in parts {
            let skipped = offset.saturating_sub(*at);
            let start = at.saturating_sub(offset) as usize;
            let target = buffer.get_mut(start..).unwrap_or_default();
            let copied = blob.copy_to(&mut SkippingWriter { skipped, target });
            copied.map_err(|e| compile_failure(&*self.source, e.into()))?;
        }
        Ok(FreeableBuffer::owned(buffer))
    }

    fn bytes_loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    fn source_archive_bytes(&self) -> Option<u64> {
        Some(self.source.source_archive_bytes().unwrap_or(self.source.size()))
    }

    fn source(&self) -> Option<SourceId> {
        Some(self.id)
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}

/// A writer that drops the first `skipped` bytes, then fills `target`, and drops the bytes that do not fit.
struct SkippingWriter<'t> {
    skipped: u64,
    target: &'t mut [u8],
}

impl Write for SkippingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let skipped = self.skipped.min(bytes.len() as u64);
        self.skipped -= skipped;
        let remaining = &bytes[skipped as usize..];
        let target = std::mem::take(&mut self.target);
        let fitting = remaining.len().min(target.len());
        let (now, rest) = target.split_at_mut(fitting);
        now.copy_from_slice(&remaining[..fitting]);
        self.target = rest;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

use super::progress::Progress;
use crate::{Context, Result};
use pteron_format::container::Blob;
use pteron_runtime::{DataLoader, Purpose};
use pteron_tensor::AlignedBuffer;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes read at a time.
const CHUNK: u64 = 1 << 20;

/// A function from byte ranges of a file to blobs that stream them: a blob is read chunk by chunk while it is written,
/// so that at most one chunk is in memory.
pub(crate) fn blob_source<'d>(
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

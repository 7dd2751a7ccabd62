//! What to call weights that leave a program.

use crate::file::Progress;
use crate::{Error, Result};
use format::container::Blob;
use format::ptd::{Builder, Entry, TensorLayout};
use format::pte::Tensor;
use names::Digest;
use runtime::{DataLoader, Purpose};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use tensor::AlignedBuffer;

/// Bytes that are hashed at a time.
const PIECE: u64 = 1 << 20;

/// The SHA-256 of a range of a file in lowercase hexadecimal: what the reference calls data that has no
/// name.
pub(crate) fn sha256(loader: &Arc<dyn DataLoader>, range: Range<u64>, progress: &Progress) -> Result<String> {
    let mut digest = Digest::default();
    let mut piece = AlignedBuffer::zeroed(range.end.saturating_sub(range.start).min(PIECE) as usize)?;
    let mut at = range.start;
    while at < range.end {
        let piece = &mut piece[..(range.end - at).min(PIECE) as usize];
        loader.load_into(at, piece, Purpose::Named)?;
        digest.update(piece);
        at += piece.len() as u64;
        progress.advance(piece.len() as u64);
    }
    Ok(digest.name())
}

/// The layout that a tensor's bytes must have outside the program.
pub(crate) fn layout_of(tensor: &Tensor) -> TensorLayout {
    TensorLayout {
        scalar_type: tensor.scalar_type,
        sizes: tensor.sizes.clone(),
        dim_order: tensor.dim_order.clone(),
    }
}

/// A `.ptd` file under construction: entries with unique keys; entries with equal bytes share one blob.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    entries: Vec<Entry<'static>>,
    /// By the SHA-256 of their bytes.
    blobs: HashMap<String, Blob<'static>>,
    /// What each key stands for: the SHA-256 of its bytes, and its layout.
    taken: HashMap<String, (String, Option<TensorLayout>)>,
    /// Keys that stand for something elsewhere.
    reserved: HashSet<String>,
}

impl Shelf {
    /// A shelf that gives nothing one of these keys.
    pub(crate) fn new(reserved: HashSet<String>) -> Self {
        Self { reserved, ..Self::default() }
    }

    /// Puts a tensor on the shelf and tells its key: its name in the model or, if it has none or another
    /// tensor took it, the SHA-256 of its bytes.
    pub(crate) fn tensor(
        &mut self,
        name: Option<&str>,
        sha256: &str,
        layout: TensorLayout,
        blob: impl FnOnce() -> Blob<'static>,
    ) -> String {
        let numbered = (2..).map(|n| format!("{sha256}.{n}"));
        let mut candidates = name
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .into_iter()
            .chain([sha256.to_owned()])
            .chain(numbered);
        loop {
            let Some(key) = candidates.next() else { unreachable!("there is always a further number") };
            match self.taken.get(&key) {
                Some((bytes, known)) if bytes == sha256 && known.as_ref() == Some(&layout) => return key,
                Some(_) => {}
                None if self.reserved.contains(&key) => {}
                None => {
                    self.taken.insert(key.clone(), (sha256.to_owned(), Some(layout.clone())));
                    self.push(key.clone(), sha256, Some(layout), blob);
                    return key;
                }
            }
        }
    }

    /// Puts a blob on the shelf under its own key, which nothing else on it may have. It may be one of those
    /// that are reserved.
    pub(crate) fn blob(
        &mut self,
        key: &str,
        sha256: &str,
        blob: impl FnOnce() -> Blob<'static>,
    ) -> Result<()> {
        match self.taken.get(key) {
            Some((bytes, None)) if bytes == sha256 => Ok(()),
            Some(_) => Err(Error::input(format!("the key `{key}` stands for two things"))),
            None => {
                self.taken.insert(key.to_owned(), (sha256.to_owned(), None));
                self.push(key.to_owned(), sha256, None, blob);
                Ok(())
            }
        }
    }

    fn push(
        &mut self,
        key: String,
        sha256: &str,
        layout: Option<TensorLayout>,
        blob: impl FnOnce() -> Blob<'static>,
    ) {
        let blob = self.blobs.entry(sha256.to_owned()).or_insert_with(blob).clone();
        self.entries.push(Entry { key, layout, blob, alignment: 1 });
    }

    /// The keys, in the order in which they came.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.key.as_str())
    }

    /// Bytes of the entries, each distinct run of bytes counted once.
    pub(crate) fn bytes(&self) -> u64 {
        self.blobs.values().map(Blob::len).sum()
    }

    /// The file. What is equal is shared already.
    pub(crate) fn into_builder(self) -> Builder<'static> {
        Builder { entries: self.entries, share: false, ..Builder::new() }
    }
}

//! Assigns keys to the weights that are moved out of programs.

use crate::file::Progress;
use crate::{Error, Result};
use pteron_format::Digest;
use pteron_format::container::Blob;
use pteron_format::ptd::{Builder, Entry, TensorLayout};
use pteron_format::pte::Tensor;
use pteron_runtime::{DataLoader, Purpose};
use pteron_tensor::AlignedBuffer;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Bytes hashed at a time.
const CHUNK: u64 = 1 << 20;

/// The SHA-256 of a range of a file in lowercase hexadecimal, which the reference uses as the key of unnamed
/// data.
pub(crate) fn sha256(loader: &Arc<dyn DataLoader>, range: Range<u64>, progress: &Progress) -> Result<String> {
    let mut digest = Digest::default();
    let mut piece = AlignedBuffer::zeroed(range.end.saturating_sub(range.start).min(CHUNK) as usize)?;
    let mut at = range.start;
    while at < range.end {
        let piece = &mut piece[..(range.end - at).min(CHUNK) as usize];
        loader.load_into(at, piece, Purpose::Named)?;
        digest.update(piece);
        at += piece.len() as u64;
        progress.advance(piece.len() as u64);
    }
    Ok(digest.into_hex())
}

/// The layout of a tensor as a `.ptd` entry.
pub(crate) fn layout_of(tensor: &Tensor) -> TensorLayout {
    TensorLayout {
        scalar_type: tensor.scalar_type,
        sizes: tensor.sizes.clone(),
        dim_order: tensor.dim_order.clone(),
    }
}

/// A `.ptd` file under construction: entries with unique keys; entries with equal bytes share one blob.
#[derive(Debug, Default)]
pub(crate) struct DedupBuilder {
    entries: Vec<Entry<'static>>,
    /// Blobs by the SHA-256 of their bytes.
    blobs: HashMap<String, Blob<'static>>,
    /// For each assigned key, the SHA-256 and the layout of its entry.
    assigned: HashMap<String, (String, Option<TensorLayout>)>,
    /// Keys that are in use elsewhere and are not assigned to tensors.
    reserved: HashSet<String>,
}

impl DedupBuilder {
    /// An empty builder that assigns none of the `reserved` keys to tensors.
    pub(crate) fn new(reserved: HashSet<String>) -> Self {
        Self { reserved, ..Self::default() }
    }

    /// Adds a tensor and returns its key: its name in the model or, if it has none or the name is taken or reserved, the
    /// SHA-256 of its bytes, if necessary with a number. A tensor with the same bytes and layout is added once per key.
    pub(crate) fn add_tensor(
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
            match self.assigned.get(&key) {
                Some((bytes, known)) if bytes == sha256 && known.as_ref() == Some(&layout) => return key,
                Some(_) => {}
                None if self.reserved.contains(&key) => {}
                None => {
                    self.assigned.insert(key.clone(), (sha256.to_owned(), Some(layout.clone())));
                    self.push(key.clone(), sha256, (Some(layout), 1), blob);
                    return key;
                }
            }
        }
    }

    /// Adds a blob with this alignment under the given key, which may be reserved. Fails if the key is taken by a tensor or
    /// by other bytes.
    pub(crate) fn add_blob(
        &mut self,
        key: &str,
        sha256: &str,
        alignment: u64,
        blob: impl FnOnce() -> Blob<'static>,
    ) -> Result<()> {
        match self.assigned.get(key) {
            Some((bytes, None)) if bytes == sha256 => Ok(()),
            Some(_) => Err(Error::input(format!("the key `{key}` stands for two things"))),
            None => {
                self.assigned.insert(key.to_owned(), (sha256.to_owned(), None));
                self.push(key.to_owned(), sha256, (None, alignment), blob);
                Ok(())
            }
        }
    }

    fn push(
        &mut self,
        key: String,
        sha256: &str,
        (layout, alignment): (Option<TensorLayout>, u64),
        blob: impl FnOnce() -> Blob<'static>,
    ) {
        let blob = self.blobs.entry(sha256.to_owned()).or_insert_with(blob).clone();
        self.entries.push(Entry { key, layout, blob, alignment });
    }

    /// The keys, in insertion order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.key.as_str())
    }

    /// Total bytes of the entries; equal contents count once.
    pub(crate) fn bytes(&self) -> u64 {
        self.blobs.values().map(Blob::len).sum()
    }

    /// The builder of the file. It need not compare entries, because those with equal bytes share a blob already.
    pub(crate) fn into_builder(self) -> Builder<'static> {
        Builder { entries: self.entries, share: false, ..Builder::new() }
    }
}

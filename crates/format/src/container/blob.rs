use super::align_up;
use crate::{Error, ErrorKind, Result};
use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

type Copy<'d> = dyn Fn(&mut dyn Write) -> io::Result<()> + Send + Sync + 'd;

/// Bytes to be written: in memory, or streamed from elsewhere when they are written, so that files much larger than
/// memory can be written.
#[derive(Clone)]
pub struct Blob<'d> {
    len: u64,
    source: Source<'d>,
    owner: Option<Arc<dyn Any + Send + Sync>>,
}

#[derive(Clone)]
enum Source<'d> {
    Bytes(Arc<Cow<'d, [u8]>>),
    Stream(Arc<Copy<'d>>),
    /// Blobs at ascending offsets, with zeros between them.
    Parts(Arc<Vec<(u64, Blob<'d>)>>),
}

/// A fingerprint of a blob's bytes, comparable within one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    len: u64,
    halves: [u64; 2],
}

impl<'d> Blob<'d> {
    /// Bytes in memory, owned or borrowed.
    pub fn bytes(bytes: impl Into<Cow<'d, [u8]>>) -> Self {
        let bytes = bytes.into();
        Self { len: bytes.len() as u64, source: Source::Bytes(Arc::new(bytes)), owner: None }
    }

    /// `len` bytes that `copy` writes, the same ones on each call. It is called once to write the blob, and once before
    /// that if the blob is compared with others.
    pub fn stream(len: u64, copy: impl Fn(&mut dyn Write) -> io::Result<()> + Send + Sync + 'd) -> Self {
        Self { len, source: Source::Stream(Arc::new(copy)), owner: None }
    }

    /// Blobs at these offsets, in ascending order and without overlap, with zeros between them. The length is the end
    /// of the last blob.
    pub fn parts(parts: Vec<(u64, Blob<'d>)>) -> Self {
        let len = parts.last().map_or(0, |(offset, blob)| offset.saturating_add(blob.len));
        Self { len, source: Source::Parts(Arc::new(parts)), owner: None }
    }

    /// The same blob, together with the object that owns its bytes. Code that knows the owner's type can get it from [`Self::owner`] and
    /// use the bytes in place, instead of writing the blob and reading it back.
    #[must_use]
    pub fn with_owner(self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { owner: Some(owner), ..self }
    }

    /// The owner of the bytes, if it has the type `T`.
    pub fn owner<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.owner.as_ref()?).downcast().ok()
    }

    /// Calls `visit` with each part of the blob and its offset, where `at` is the offset of the blob. Gaps are zeros.
    pub(crate) fn for_each_part(&self, at: u64, visit: &mut dyn FnMut(u64, &Blob<'d>)) {
        match &self.source {
            Source::Parts(parts) => {
                parts.iter().for_each(|(offset, part)| part.for_each_part(at.saturating_add(*offset), visit));
            }
            Source::Bytes(_) | Source::Stream(_) => visit(at, self),
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the blob has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes the bytes. Fails if the source yields more or fewer bytes than the blob's length.
    pub fn copy_to(&self, out: &mut dyn Write) -> Result<()> {
        match &self.source {
            Source::Bytes(bytes) => Ok(out.write_all(bytes)?),
            Source::Stream(copy) => {
                let mut counted = Counted { out, left: self.len, excess: false };
                let copied = copy(&mut counted);
                if counted.excess {
                    return Err(self.length_error("more"));
                }
                copied?;
                if counted.left > 0 {
                    return Err(self.length_error(&format!("{}", self.len - counted.left)));
                }
                Ok(())
            }
            Source::Parts(parts) => {
                let mut at = 0;
                for (offset, blob) in parts.iter() {
                    let Some(gap) = offset.checked_sub(at) else {
                        let actual = format!("one from {offset} on, behind one up to {at}");
                        return Err(Error::new(ErrorKind::Invalid, "", "parts that do not overlap", actual));
                    };
                    write_zeros(out, gap)?;
                    blob.copy_to(out)?;
                    at = offset + blob.len;
                }
                Ok(())
            }
        }
    }

    #[cold]
    fn length_error(&self, actual: &str) -> Error {
        Error::new(ErrorKind::Io, "", format!("{} bytes of data, as announced", self.len), actual)
    }

    /// An address that identifies the blob: all its clones share it, and no other blob has it as long as one of them lives.
    pub(crate) fn identity(&self) -> usize {
        match &self.source {
            Source::Bytes(bytes) => Arc::as_ptr(bytes).addr(),
            Source::Stream(copy) => Arc::as_ptr(copy).cast::<()>().addr(),
            Source::Parts(parts) => Arc::as_ptr(parts).addr(),
        }
    }

    /// Reads all bytes into memory; meant for blobs known to be small.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(len).map_err(std::io::Error::from)?;
        self.copy_to(&mut bytes)?;
        Ok(bytes)
    }

    /// A fingerprint for finding equal blobs: two independent keyed hashes, with keys drawn at random in each process,
    /// so that no file can be crafted to collide.
    pub fn digest(&self) -> Result<Digest> {
        static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
        let mut hash = Hash(KEYS.each_ref().map(BuildHasher::build_hasher));
        self.copy_to(&mut hash)?;
        Ok(Digest { len: self.len, halves: hash.0.each_ref().map(Hasher::finish) })
    }
}

impl Default for Blob<'_> {
    fn default() -> Self {
        Self::bytes(Vec::new())
    }
}

impl fmt::Debug for Blob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blob").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Deduplicates blobs: gives equal blobs the same index, so that they are written once.
#[derive(Debug)]
pub(crate) struct Sharing<'d> {
    by_bytes: bool,
    /// Blobs by length and alignment; only blobs that agree in both are compared.
    groups: HashMap<(u64, u64), Group<'d>>,
    by_identity: HashMap<(usize, u64), u32>,
}

/// Blobs of one length and alignment.
#[derive(Debug, Default)]
struct Group<'d> {
    /// The first blob and its index. It is not hashed until a second blob arrives.
    alone: Option<(Blob<'d>, u32)>,
    by_digest: HashMap<Digest, u32>,
}

impl<'d> Sharing<'d> {
    /// Clones of a blob are always shared; blobs with equal bytes only if `by_bytes`, which reads those that have the
    /// same length as another.
    pub(crate) fn new(by_bytes: bool) -> Self {
        Self { by_bytes, groups: HashMap::new(), by_identity: HashMap::new() }
    }

    /// The index of an earlier blob that is equal and has the same alignment; otherwise the index that `add` returns for a clone of the
    /// blob. `add` must keep the clone alive.
    pub(crate) fn index(
        &mut self,
        blob: &Blob<'d>,
        alignment: u64,
        add: impl FnOnce(Blob<'d>) -> u32,
    ) -> Result<u32> {
        let identity = (blob.identity(), alignment);
        if let Some(&index) = self.by_identity.get(&identity) {
            return Ok(index);
        }
        // Only a blob that is kept alive has an address that no later blob can reuse.
        let mut is_new = false;
        let add = |blob| {
            is_new = true;
            add(blob)
        };
        let index = match self.by_bytes {
            false => add(blob.clone()),
            true => self.groups.entry((blob.len, alignment)).or_default().index(blob, add)?,
        };
        if is_new {
            self.by_identity.insert(identity, index);
        }
        Ok(index)
    }
}

impl<'d> Group<'d> {
    fn index(&mut self, blob: &Blob<'d>, add: impl FnOnce(Blob<'d>) -> u32) -> Result<u32> {
        if let Some((first, index)) = self.alone.take() {
            self.by_digest.insert(first.digest()?, index);
        } else if self.by_digest.is_empty() {
            let index = add(blob.clone());
            self.alone = Some((blob.clone(), index));
            return Ok(index);
        }
        Ok(match self.by_digest.entry(blob.digest()?) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(add(blob.clone())),
        })
    }
}

/// Wraps a source of blobs so that it returns clones of one blob for the same range: entries that share bytes in a file
/// go on sharing them.
pub(crate) fn cache_blobs<'d>(source: impl Fn(Range<u64>) -> Blob<'d>) -> impl FnMut(Range<u64>) -> Blob<'d> {
    let mut known: HashMap<Range<u64>, Blob<'d>> = HashMap::new();
    move |range| known.entry(range).or_insert_with_key(|range| source(range.clone())).clone()
}

struct Hash<H>([H; 2]);

impl<H: Hasher> Write for Hash<H> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.iter_mut().for_each(|hasher| hasher.write(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer that forwards at most the announced number of bytes.
struct Counted<'o> {
    out: &'o mut dyn Write,
    left: u64,
    excess: bool,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            self.excess = true;
            return Err(io::Error::other("more bytes than announced"));
        }
        let written = self.out.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Whether all bytes of a blob are zero. Reading stops at the first nonzero byte.
pub(crate) fn is_zero(blob: &Blob<'_>) -> Result<bool> {
    struct Zeros(bool);
    impl Write for Zeros {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = bytes.iter().all(|&byte| byte == 0);
            if self.0 { Ok(bytes.len()) } else { Err(io::Error::other("a byte that is not zero")) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut zeros = Zeros(true);
    match blob.copy_to(&mut zeros) {
        Err(_) if !zeros.0 => Ok(false),
        copied => copied.map(|()| true),
    }
}

/// Writes `count` zero bytes.
pub(crate) fn write_zeros(out: &mut dyn Write, mut count: u64) -> Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    while count > 0 {
        let now = count.min(ZEROS.len() as u64);
        out.write_all(&ZEROS[..now as usize])?;
        count -= now;
    }
    Ok(())
}

/// Lays out blobs one after the other, each at a multiple of `alignment`; returns their offsets.
pub(crate) fn pack(blobs: &[Blob<'_>], alignment: u64) -> Result<Vec<u64>> {
    let mut end = 0u64;
    let mut offsets = Vec::with_capacity(blobs.len());
    for blob in blobs {
        let start = align_up(end, alignment).ok_or_else(too_long_error)?;
        end = start.checked_add(blob.len).ok_or_else(too_long_error)?;
        offsets.push(start);
    }
    Ok(offsets)
}

#[cold]
pub(crate) fn too_long_error() -> Error {
    Error::new(ErrorKind::Invalid, "segments", "lengths whose sum, aligned, does not overflow", "more")
        .hint("alignments must not be 0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_must_have_its_announced_length() {
        let of = |len| Blob::stream(len, |out| out.write_all(b"abc"));
        assert_eq!(of(3).to_vec().unwrap(), b"abc");
        assert!(of(4).to_vec().unwrap_err().to_string().contains("expected 4 bytes of data"));
        assert!(of(2).to_vec().unwrap_err().to_string().contains("found more"));
    }

    #[test]
    fn parts_are_padded_with_zeros() {
        let part = |text: &'static [u8]| Blob::bytes(text);
        let blob = Blob::parts(vec![(0, part(b"ab")), (4, part(b"c")), (5, part(b""))]);
        assert_eq!((blob.len(), blob.to_vec().unwrap()), (5, b"ab\0\0c".to_vec()));
        assert!(Blob::parts(vec![(0, part(b"ab")), (1, part(b"c"))]).to_vec().is_err());
    }

    #[test]
    fn clones_are_shared_without_being_read() {
        let unreadable = Blob::stream(4, |_| Err(io::Error::other("read")));
        let other = Blob::bytes(&b"abcd"[..]);
        let mut sharing = Sharing::new(false);
        let mut blobs = Vec::new();
        let mut index = |blob: &Blob<'static>, alignment| {
            let add = |blob| {
                blobs.push(blob);
                blobs.len() as u32
            };
            sharing.index(blob, alignment, add).unwrap()
        };
        assert_eq!([index(&unreadable, 1), index(&unreadable.clone(), 1), index(&unreadable, 2)], [1, 1, 2]);
        assert_eq!([index(&other, 1), index(&Blob::bytes(&b"abcd"[..]), 1)], [3, 4]);
    }

    #[test]
    fn equal_bytes_are_shared_and_unique_lengths_not_read() {
        let unreadable = Blob::stream(3, |_| Err(io::Error::other("read")));
        let mut sharing = Sharing::new(true);
        let mut count = 0;
        let mut index = |blob: &Blob<'static>, alignment| {
            let add = |_| {
                count += 1;
                count
            };
            sharing.index(blob, alignment, add)
        };
        let of = |bytes: &'static [u8]| Blob::bytes(bytes);
        assert_eq!(index(&unreadable, 1).unwrap(), 1);
        assert_eq!([of(b"ab"), of(b"cd"), of(b"ab"), of(b"cd")].map(|b| index(&b, 1).unwrap()), [2, 3, 2, 3]);
        assert_eq!(index(&of(b"ab"), 2).unwrap(), 4);
        assert!(index(&of(b"abc"), 1).is_err());
    }

    #[test]
    fn equal_bytes_have_equal_digests() {
        let stream = Blob::stream(4, |out| out.write_all(b"ab").and_then(|()| out.write_all(b"cd")));
        assert_eq!(stream.digest().unwrap(), Blob::bytes(&b"abcd"[..]).digest().unwrap());
        assert_ne!(stream.digest().unwrap(), Blob::bytes(&b"abce"[..]).digest().unwrap());
    }
}

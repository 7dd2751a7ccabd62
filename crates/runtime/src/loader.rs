//! Where the bytes of a program come from.

use crate::{Error, FreeableBuffer, Result};
use graph::SourceId;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensor::{AlignedBuffer, MappedFile, Unchanged};

/// What a range of bytes is for. A loader may place or cache ranges by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose<'a> {
    /// Header and flatbuffer.
    Program,
    /// A segment of constants.
    Constant,
    /// The payload of a delegate; the name is the backend's.
    Backend(&'a str),
    /// Initial values of mutable tensors.
    Mutable,
    /// Named data, of the program or of a `.ptd` file.
    Named,
}

/// Hands out ranges of a file, or of what stands for one.
pub trait DataLoader: Send + Sync {
    /// The size of the whole in bytes.
    fn size(&self) -> u64;

    /// The bytes from `offset` on. A range of no bytes can always be had.
    fn load(&self, offset: u64, len: u64, purpose: Purpose<'_>) -> Result<FreeableBuffer>;

    /// Reads the bytes from `offset` on into `target`.
    fn load_into(&self, offset: u64, target: &mut [u8], purpose: Purpose<'_>) -> Result<()> {
        let bytes = self.load(offset, target.len() as u64, purpose)?;
        target.copy_from_slice(&bytes);
        Ok(())
    }

    /// Bytes handed out so far. For a mapped file these are addresses, not yet reads.
    fn bytes_loaded(&self) -> u64;

    /// Whether bytes that are handed out take memory of their own: not those of a map, nor those that are in
    /// memory anyway.
    fn takes_memory(&self) -> bool {
        true
    }

    /// Which source it hands out, if another loader may hand out the same: what is made of its bytes is shared with
    /// whoever has that loader.
    fn source(&self) -> Option<SourceId> {
        None
    }

    /// What to call the source in messages.
    fn name(&self) -> &str;
}

/// `offset..offset + len` as indices, if it lies within `size`.
fn range(loader: &dyn DataLoader, offset: u64, len: u64) -> Result<std::ops::Range<usize>> {
    match offset.checked_add(len) {
        Some(end) if end <= loader.size() => {
            if let (Ok(start), Ok(end)) = (usize::try_from(offset), usize::try_from(end)) {
                return Ok(start..end);
            }
        }
        _ => {}
    }
    Err(Error::OutOfFile { file: loader.name().to_owned(), offset, len, size: loader.size() })
}

/// Bytes in memory.
pub struct BytesLoader {
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    name: String,
    source: SourceId,
    loaded: AtomicU64,
}

impl BytesLoader {
    /// Serves anything that holds bytes: a `Vec<u8>`, a `&'static [u8]` from `include_bytes!`, a map.
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::named("bytes in memory", bytes)
    }

    /// The same, with what to call the bytes in messages.
    pub fn named(name: impl Into<String>, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let source = SourceId::numbered();
        Self { bytes: Arc::new(bytes), name: name.into(), source, loaded: AtomicU64::new(0) }
    }
}

impl DataLoader for BytesLoader {
    fn size(&self) -> u64 {
        (*self.bytes).as_ref().len() as u64
    }

    fn load(&self, offset: u64, len: u64, _: Purpose<'_>) -> Result<FreeableBuffer> {
        let range = range(self, offset, len)?;
        self.loaded.fetch_add(len, Ordering::Relaxed);
        Ok(FreeableBuffer::shared(Arc::clone(&self.bytes), range))
    }

    fn takes_memory(&self) -> bool {
        false
    }

    fn bytes_loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    fn source(&self) -> Option<SourceId> {
        Some(self.source)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// A file of which ranges are read into aligned memory when they are asked for.
pub struct FileLoader {
    file: File,
    path: PathBuf,
    name: String,
    size: u64,
    source: SourceId,
    loaded: AtomicU64,
}

impl FileLoader {
    /// Opens a file to read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_owned();
        let (file, meta) = open(&path)?;
        let (name, size, source) = (path.display().to_string(), meta.len(), source(&meta));
        Ok(Self { file, path, name, size, source, loaded: AtomicU64::new(0) })
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.loaded.fetch_add(target.len() as u64, Ordering::Relaxed);
        read_exact_at(&self.file, target, offset).map_err(|source| Error::Io {
            path: self.path.clone(),
            action: "read",
            source,
        })
    }
}

impl DataLoader for FileLoader {
    fn size(&self) -> u64 {
        self.size
    }

    fn load(&self, offset: u64, len: u64, _: Purpose<'_>) -> Result<FreeableBuffer> {
        let range = range(self, offset, len)?;
        let mut buffer = AlignedBuffer::long_lived(range.len())?;
        self.read(offset, &mut buffer)?;
        Ok(FreeableBuffer::read(buffer))
    }

    fn load_into(&self, offset: u64, target: &mut [u8], _: Purpose<'_>) -> Result<()> {
        range(self, offset, target.len() as u64)?;
        self.read(offset, target)
    }

    fn bytes_loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    fn source(&self) -> Option<SourceId> {
        Some(self.source)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// A file mapped into memory: nothing is read before it is looked at, and what is read is shared
/// with every process that maps the same file. See [`Unchanged`] for what that asks of the file.
///
/// A file that has become shorter is an error when a range is asked for, not a signal; between that and the
/// use of the range, the promise has to hold.
pub struct MmapLoader {
    map: Arc<MappedFile>,
    file: File,
    path: PathBuf,
    name: String,
    source: SourceId,
    loaded: AtomicU64,
}

impl MmapLoader {
    /// Maps a file, which stays as it is for as long as anything of it is used.
    pub fn open(path: impl AsRef<Path>, unchanged: Unchanged) -> Result<Self> {
        let path = path.as_ref();
        let (file, meta) = open(path)?;
        if meta.len() > isize::MAX as u64 {
            return Err(Error::Io {
                path: path.to_owned(),
                action: "map",
                source: io::Error::from(io::ErrorKind::FileTooLarge),
            });
        }
        let map = MappedFile::new(&file, unchanged).map_err(|source| Error::Io {
            path: path.to_owned(),
            action: "map",
            source,
        })?;
        let (map, name) = (Arc::new(map), path.display().to_string());
        let (path, source) = (path.to_owned(), source(&meta));
        Ok(Self { map, file, path, name, source, loaded: AtomicU64::new(0) })
    }

    /// Fails if the file is shorter than it was when it was mapped.
    fn check_whole(&self) -> Result<()> {
        let fail = |source| Error::Io { path: self.path.clone(), action: "use the map of", source };
        let (now, then) = (self.file.metadata().map_err(fail)?.len(), self.size());
        if now >= then {
            return Ok(());
        }
        let problem = format!("it had {then} bytes when it was mapped, and has {now} now");
        Err(fail(io::Error::new(io::ErrorKind::UnexpectedEof, problem)))
    }
}

impl DataLoader for MmapLoader {
    fn size(&self) -> u64 {
        self.map.len() as u64
    }

    fn load(&self, offset: u64, len: u64, _: Purpose<'_>) -> Result<FreeableBuffer> {
        let range = range(self, offset, len)?;
        self.check_whole()?;
        self.loaded.fetch_add(len, Ordering::Relaxed);
        Ok(FreeableBuffer::mapped(Arc::clone(&self.map), range))
    }

    fn takes_memory(&self) -> bool {
        false
    }

    fn bytes_loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    fn source(&self) -> Option<SourceId> {
        Some(self.source)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

fn open(path: &Path) -> Result<(File, Metadata)> {
    let fail = |source| Error::Io { path: path.to_owned(), action: "open", source };
    let file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if meta.is_dir() {
        return Err(fail(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    Ok((file, meta))
}

/// Seconds after its last change from which on a file is told by what the system says of it: two changes within
/// what its clock can tell apart would look like one.
#[cfg(unix)]
const SETTLED: i64 = 3;

/// The source that a file is: the same for all that open it while it is as it is, unless it has just been changed.
#[cfg(unix)]
fn source(meta: &Metadata) -> SourceId {
    use std::os::unix::fs::MetadataExt;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let last = meta.mtime().max(meta.ctime());
    if i64::try_from(now.as_secs()).unwrap_or(i64::MAX).saturating_sub(last) < SETTLED {
        return SourceId::numbered();
    }
    let time = |seconds: i64, nanoseconds: i64| {
        (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(nanoseconds as u64)
    };
    let (contents, entry) = (time(meta.mtime(), meta.mtime_nsec()), time(meta.ctime(), meta.ctime_nsec()));
    SourceId::file([meta.dev(), meta.ino(), meta.len(), contents, entry])
}

/// Nothing that tells a file from others is known here.
#[cfg(not(unix))]
fn source(_: &Metadata) -> SourceId {
    SourceId::numbered()
}

#[cfg(unix)]
fn read_exact_at(file: &File, target: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, target, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut target: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !target.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, target, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                target = &mut target[n..];
                offset += n as u64;
            }
        }
    }
    Ok(())
}

/// Without a call that reads at an offset: the position of a handle is shared by its clones, so one reader at a time
/// moves it.
#[cfg(not(any(unix, windows)))]
fn read_exact_at(mut file: &File, target: &mut [u8], offset: u64) -> io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    static MOVING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = MOVING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(target)
}

/// What a loader serves, as a file that is read: for readers that look for their way in it, such as those of archives.
pub struct LoaderReader {
    loader: Arc<dyn DataLoader>,
    at: u64,
}

impl LoaderReader {
    /// From the first byte on.
    pub fn new(loader: &Arc<dyn DataLoader>) -> Self {
        Self { loader: Arc::clone(loader), at: 0 }
    }
}

impl Read for LoaderReader {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let len = self.loader.size().saturating_sub(self.at).min(target.len() as u64) as usize;
        self.loader.load_into(self.at, &mut target[..len], Purpose::Named).map_err(io::Error::other)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for LoaderReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.loader.size().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

impl fmt::Debug for dyn DataLoader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataLoader({}, {} bytes)", self.name(), self.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(loader: &dyn DataLoader) {
        assert_eq!(loader.size(), 5);
        assert_eq!(&*loader.load(1, 3, Purpose::Program).unwrap(), b"ell");
        assert_eq!(loader.load(5, 0, Purpose::Program).unwrap().len(), 0);
        assert!(loader.load(3, 3, Purpose::Program).is_err());
        assert!(loader.load(u64::MAX, 2, Purpose::Program).is_err());
        let mut target = [0; 2];
        loader.load_into(3, &mut target, Purpose::Constant).unwrap();
        assert_eq!(&target, b"lo");
        assert_eq!(loader.bytes_loaded(), 5);
    }

    #[test]
    fn every_loader_serves_the_same_ranges() {
        check(&BytesLoader::new(b"hello".as_slice()));
        let path = std::env::temp_dir().join(format!("pteron-loader-{}", std::process::id()));
        std::fs::write(&path, b"hello").unwrap();
        check(&FileLoader::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let e = FileLoader::open(&path).err().unwrap().to_string();
        assert!(e.contains("pteron-loader"), "{e}");
    }

    #[test]
    fn slices_share_and_free() {
        let loader = BytesLoader::new(vec![1u8, 2, 3, 4]);
        let mut all = loader.load(0, 4, Purpose::Constant).unwrap();
        let part = all.slice(1..3).unwrap();
        assert!(all.slice(3..5).is_none());
        all.free();
        assert!(all.is_empty());
        assert_eq!(&*part, [2, 3]);
    }
}

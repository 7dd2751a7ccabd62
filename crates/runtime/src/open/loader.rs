//! Data loaders: byte ranges of a program or data file, from memory, from a file or from a memory map.

use crate::{Error, FreeableBuffer, Result};
use pteron_engine::SourceId;
use pteron_tensor::{AlignedBuffer, MappedFile, Unchanged};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a byte range is used for. A loader may choose where to place the bytes, and whether to cache them, by their use.
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

/// Serves byte ranges of a file, or of another source of bytes.
pub trait DataLoader: Send + Sync {
    /// The size of the source in bytes.
    fn size(&self) -> u64;

    /// Loads `len` bytes at `offset`. An empty range within the source always loads.
    fn load(&self, offset: u64, len: u64, purpose: Purpose<'_>) -> Result<FreeableBuffer>;

    /// Reads `target.len()` bytes at `offset` into `target`.
    fn load_into(&self, offset: u64, target: &mut [u8], purpose: Purpose<'_>) -> Result<()> {
        let bytes = self.load(offset, target.len() as u64, purpose)?;
        target.copy_from_slice(&bytes);
        Ok(())
    }

    /// Bytes served so far. A mapped file counts the ranges it has handed out, whether or not their pages were read.
    fn bytes_loaded(&self) -> u64;

    /// Whether loading allocates memory. `false` for a memory map and for bytes that are already in memory.
    fn takes_memory(&self) -> bool {
        true
    }

    /// Identifies the source, if other loaders may serve the same one. Data derived from its bytes, such as packed
    /// weights, is shared among all loaders with the same source.
    fn source(&self) -> Option<SourceId> {
        None
    }

    /// If the bytes were compiled in memory from a file of another format, the size of that file in bytes. Header,
    /// segments and offsets then describe the compiled bytes, and no file.
    fn source_archive_bytes(&self) -> Option<u64> {
        None
    }

    /// The name of the source in error messages.
    fn name(&self) -> &str;
}

/// The name, size and identity of a loader's source, and the number of bytes that were loaded from it.
struct Source {
    name: String,
    size: u64,
    id: SourceId,
    loaded: AtomicU64,
}

impl Source {
    fn new(name: String, size: u64, id: SourceId) -> Self {
        Self { name, size, id, loaded: AtomicU64::new(0) }
    }

    /// The range `offset..offset + len`. Fails if it is out of bounds.
    fn range(&self, offset: u64, len: u64) -> Result<Range<usize>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => {
                if let (Ok(start), Ok(end)) = (usize::try_from(offset), usize::try_from(end)) {
                    return Ok(start..end);
                }
            }
            _ => {}
        }
        Err(Error::OutOfFile { file: self.name.clone(), offset, len, size: self.size })
    }

    fn count_loaded(&self, len: u64) {
        self.loaded.fetch_add(len, Ordering::Relaxed);
    }
}

/// Implements the methods of [`DataLoader`] that only use the loader's [`Source`].
macro_rules! answered_by_source {
    () => {
        fn size(&self) -> u64 {
            self.source.size
        }

        fn bytes_loaded(&self) -> u64 {
            self.source.loaded.load(Ordering::Relaxed)
        }

        fn source(&self) -> Option<SourceId> {
            Some(self.source.id)
        }

        fn name(&self) -> &str {
            &self.source.name
        }
    };
}

/// Serves bytes that are in memory.
pub struct BytesLoader {
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    source: Source,
}

impl BytesLoader {
    /// Serves any container of bytes: a `Vec<u8>`, a `&'static [u8]` from `include_bytes!`, a memory map.
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::named("bytes in memory", bytes)
    }

    /// Like [`Self::new`], with a name for error messages.
    pub fn named(name: impl Into<String>, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let source = Source::new(name.into(), bytes.as_ref().len() as u64, SourceId::unique());
        Self { bytes: Arc::new(bytes), source }
    }
}

impl DataLoader for BytesLoader {
    answered_by_source!();

    fn load(&self, offset: u64, len: u64, _: Purpose<'_>) -> Result<FreeableBuffer> {
        let range = self.source.range(offset, len)?;
        self.source.count_loaded(len);
        Ok(FreeableBuffer::of_shared(Arc::clone(&self.bytes), range))
    }

    fn takes_memory(&self) -> bool {
        false
    }
}

/// Reads ranges of a file into aligned memory on demand.
pub struct FileLoader {
    file: File,
    /// The path that error messages show.
    path: PathBuf,
    source: Source,
}

impl FileLoader {
    /// Opens a file for reading.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::new(path.as_ref(), path.as_ref())
    }

    /// Opens a file as [`Self::open`] does, with a name for error messages instead of the path.
    pub fn named(path: impl AsRef<Path>, name: impl Into<String>) -> Result<Self> {
        Self::new(path.as_ref(), Path::new(&name.into()))
    }

    fn new(path: &Path, shown: &Path) -> Result<Self> {
        let (file, meta) = open(path, shown)?;
        let source = Source::new(shown.display().to_string(), meta.len(), identify(&meta));
        Ok(Self { file, path: shown.to_owned(), source })
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        self.source.count_loaded(target.len() as u64);
        read_exact_at(&self.file, target, offset).map_err(|source| Error::Io {
            path: self.path.clone(),
            action: "read",
            source,
        })
    }
}

impl DataLoader for FileLoader {
    answered_by_source!();

    fn load(&self, offset: u64, len: u64, _: Purpose<'_>) -> Result<FreeableBuffer> {
        let range = self.source.range(offset, len)?;
        let mut buffer = AlignedBuffer::zeroed_long_lived(range.len())?;
        self.read(offset, &mut buffer)?;
        Ok(FreeableBuffer::owned(buffer))
    }

    fn load_into(&self, offset: u64, target: &mut [u8], _: Purpose<'_>) -> Result<()> {
        self.source.range(offset, target.len() as u64)?;
        self.read(offset, target)
    }
}

/// Serves a memory-mapped file: pages are read on first access and shared with every process that maps the
/// same file. See [`Unchanged`] for what the caller must promise about the file.
///
/// [`load`](DataLoader::load) fails if the file has been truncated. If it is truncated later, while a range is in
/// use, access may raise a signal: that is what the promise excludes.
pub struct MmapLoader {
    map: Arc<MappedFile>,
    file: File,
    path: PathBuf,
    source: Source,
}

impl MmapLoader {
    /// Maps a file. The file must not change while any of its bytes are in use.
    pub fn open(path: impl AsRef<Path>, unchanged: Unchanged) -> Result<Self> {
        let path = path.as_ref();
        let (file, meta) = open(path, path)?;
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
        let source = Source::new(path.display().to_string(), map.len() as u64, identify(&meta));
        Ok(Self { map: Arc::new(map), file, path: path.to_owned(), source })
    }

    /// Fails if the file is shorter than it was when it was mapped.
    fn check_not_truncated(&self) -> Result<()> {
        let fail = |source| Error::Io { path: self.path.clone(), action: "use the map of", source };
        let (now, then) = (self.file.metadata().map_err(fail)?.len(), self.source.size);
        if now >= then {
            return Ok(());
        }
        let problem = format!("it had {then} bytes when it was mapped, and has {now} now");
        Err(fail(io::Error::new(io::ErrorKind::UnexpectedEof, problem)))
    }
}

impl DataLoader for MmapLoader {
    answered_by_source!();

    fn load(&self, offset: u64, len: u64, _: Purpose<'_>) -> Result<FreeableBuffer> {
        let range = self.source.range(offset, len)?;
        self.check_not_truncated()?;
        self.source.count_loaded(len);
        Ok(FreeableBuffer::of_mapped(Arc::clone(&self.map), range))
    }

    fn takes_memory(&self) -> bool {
        false
    }
}

fn open(path: &Path, shown: &Path) -> Result<(File, Metadata)> {
    let fail = |source| Error::Io { path: shown.to_owned(), action: "open", source };
    let file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if meta.is_dir() {
        return Err(fail(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    Ok((file, meta))
}

/// Seconds since the last change after which timestamps identify a file's version. Two changes within the resolution
/// of the file system's clock would have the same timestamp.
#[cfg(unix)]
const SETTLED: i64 = 3;

/// Identifies a file by device, inode, length and timestamps: every loader that opens the unchanged file gets the same
/// source. A file that changed less than [`SETTLED`] seconds ago gets a source of its own.
#[cfg(unix)]
fn identify(meta: &Metadata) -> SourceId {
    use std::os::unix::fs::MetadataExt;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let last = meta.mtime().max(meta.ctime());
    if i64::try_from(now.as_secs()).unwrap_or(i64::MAX).saturating_sub(last) < SETTLED {
        return SourceId::unique();
    }
    let time = |seconds: i64, nanoseconds: i64| {
        (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(nanoseconds as u64)
    };
    let (contents, entry) = (time(meta.mtime(), meta.mtime_nsec()), time(meta.ctime(), meta.ctime_nsec()));
    SourceId::file([meta.dev(), meta.ino(), meta.len(), contents, entry])
}

/// A new source id. This platform does not identify files, so every loader gets a source of its own.
#[cfg(not(unix))]
fn identify(_: &Metadata) -> SourceId {
    SourceId::unique()
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

/// For platforms without a positioned read. Clones of a handle share one file position, so a lock serializes the
/// readers.
#[cfg(not(any(unix, windows)))]
fn read_exact_at(mut file: &File, target: &mut [u8], offset: u64) -> io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    static MOVING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = MOVING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(target)
}

/// Adapts a loader to [`Read`] and [`Seek`], for readers that seek, such as archive readers.
pub struct LoaderReader {
    loader: Arc<dyn DataLoader>,
    at: u64,
}

impl LoaderReader {
    /// A reader positioned at the first byte.
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

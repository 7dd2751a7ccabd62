//! A folder of programs that are compiled once per kind of machine.

use super::failure::compile_failure;
use super::{Compiled, OperatorTable, Options, from_loader, from_program, pt2, to_bef};
use crate::{DataLoader, Error as Failure, FileLoader, Isa, KernelRegistry, Limits, MergedDataMap};
use crate::{NamedDataMap, PtdDataMap, replace_entry};
use pteron_format::Digest;
use pteron_runtime::LoaderReader;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// The number of hexadecimal digits of each [`Digest`] in a file name.
const DIGITS: usize = 16;

/// The number of bytes at the start of a source file, and at its end, that its key depends on: the header of a program, and
/// the directory of an archive with the checksums of its entries.
const KEYED_BYTES: u64 = 64 << 10;

/// A folder of programs that are compiled for Pteron's own backend, with weights packed for one instruction set.
///
/// A cached program can be memory-mapped, and its weights are used in place: it opens without being compiled, and all
/// processes that map it share the pages. The key is the path of the source file with its size, modification time, inode,
/// first and last bytes, and the same of its data files: when one of them changes, the program is compiled again. Each
/// cached file has its checksum in its name. It is checked whenever the file is asked for; a damaged file is compiled again.
/// Machines with different instruction sets, and different versions of this crate, can share a folder. Links in the folder
/// are not followed.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use pteron::compile::Cache;
/// use pteron::{Isa, MmapLoader, Module, Unchanged};
/// use std::sync::Arc;
///
/// let options = pteron::load_options();
/// let program = Cache::new("cache", Isa::detect()).program("model.pte", &[], &options.kernels)?;
/// // SAFETY: files of a cache are replaced, and never written to.
/// let unchanged = unsafe { Unchanged::promise() };
/// let module = Module::load(Arc::new(MmapLoader::open(program, unchanged)?), options)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
    isa: Isa,
}

/// The parts of a cached program's file name that precede the checksum.
struct Name {
    /// The prefix shared by all versions of a source path, for one instruction set and crate version.
    path: String,
    /// The prefix of the current version of the source: `path` and a digest of the version.
    version: String,
}

impl Cache {
    /// The cache in a folder, for machines with the instruction set `isa`. The folder need not exist yet.
    pub fn new(folder: impl Into<PathBuf>, isa: Isa) -> Self {
        Self { folder: folder.into(), isa }
    }

    /// The path of the cached form of a program (`.pte`, `.pt2`). If it is not cached yet, one process compiles it while
    /// others wait. `data` are the files of the weights that the program stores outside; the cached program embeds them.
    ///
    /// # Errors
    /// A file cannot be read or written, or the program cannot be compiled (see [`retarget`](super::retarget)).
    pub fn program(
        &self,
        file: impl AsRef<Path>,
        data: &[PathBuf],
        kernels: &Arc<KernelRegistry>,
    ) -> crate::Result<PathBuf> {
        let file = file.as_ref();
        let name = self.name(file, data)?;
        if let Some(cached) = self.find_valid(&name) {
            return Ok(cached);
        }
        fs::create_dir_all(&self.folder).map_err(|e| io_error(&self.folder, "create", e))?;
        let lock = self.folder.join(format!("{}.lock", name.path));
        let lock_file = lock_file(&lock).map_err(|e| io_error(&lock, "create", e))?;
        lock_file.lock().map_err(|e| io_error(&lock, "lock", e))?;
        if let Some(cached) = self.find_valid(&name) {
            return Ok(cached);
        }
        let file: Arc<dyn DataLoader> = Arc::new(FileLoader::open(file)?);
        let compiled = self.compile(&file, data, kernels)?;
        let written = |e: pteron_format::Error| compile_failure(&*file, e.into());
        let mut checksum = Checksum::default();
        compiled.program.write_to(&mut checksum).map_err(written)?;
        let cached = self.folder.join(format!("{}-{}.pte", name.version, checksum.into_hex()));
        replace_entry(&cached, |out| compiled.program.write_to(out).map_err(written))?;
        self.remove_others(&name, &cached);
        Ok(cached)
    }

    /// Finds the cached program for the current version of a source. `None` if no file has the checksum that its name says.
    fn find_valid(&self, name: &Name) -> Option<PathBuf> {
        let version = format!("{}-", name.version);
        let mut valid = fs::read_dir(&self.folder).ok()?.flatten().filter_map(|entry| {
            let file_name = entry.file_name().into_string().ok()?;
            let checksum = file_name.strip_prefix(&version)?.strip_suffix(".pte")?;
            // The type is that of the entry itself, not of what a link leads to.
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            (is_file && Checksum::of_file(&entry.path()).ok()?.into_hex() == checksum).then(|| entry.path())
        });
        valid.next()
    }

    fn compile(
        &self,
        file: &Arc<dyn DataLoader>,
        data: &[PathBuf],
        kernels: &Arc<KernelRegistry>,
    ) -> crate::Result<Compiled> {
        let table = OperatorTable::all(kernels);
        let options = Options { delegation: vec![to_bef(kernels, Some(self.isa))], ..Options::default() };
        if pt2::is_archive(LoaderReader::new(file)) {
            return from_loader(file, &table, &options, &mut |_, _, _| {});
        }
        let mut maps: Vec<Arc<dyn NamedDataMap>> = Vec::new();
        for path in data {
            maps.push(Arc::new(PtdDataMap::load(Arc::new(FileLoader::open(path)?), &Limits::default())?));
        }
        let data: Option<Arc<dyn NamedDataMap>> =
            if maps.is_empty() { None } else { Some(Arc::new(MergedDataMap::new(maps)?)) };
        from_program(Arc::clone(file), data.as_ref(), (&table, &table), &options, &mut |_, _, _| {})
    }

    fn name(&self, file: &Path, data: &[PathBuf]) -> crate::Result<Name> {
        let (mut path, mut state) = (Digest::default(), Digest::default());
        path.update(format!("{} {:?}", env!("CARGO_PKG_VERSION"), self.isa).as_bytes());
        for part in std::iter::once(file).chain(data.iter().map(PathBuf::as_path)) {
            let absolute = part.canonicalize().map_err(|e| io_error(part, "open", e))?;
            path.update(format!(" {absolute:?}").as_bytes());
            add_state(part, &mut state).map_err(|e| io_error(part, "open", e))?;
        }
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let path = format!("{stem}-{}", &path.into_hex()[..DIGITS]);
        let version = format!("{path}-{}", &state.into_hex()[..DIGITS]);
        Ok(Name { path, version })
    }

    /// Removes the programs cached for other versions of the source, and damaged ones: all but `keep`.
    /// Processes that have mapped one of them can use it until they end.
    fn remove_others(&self, name: &Name, keep: &Path) {
        let older = format!("{}-", name.path);
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let file_name = entry.file_name();
            let file_name = file_name.to_string_lossy();
            if file_name.starts_with(&older) && file_name.ends_with(".pte") && entry.path() != keep {
                // Some systems refuse to remove a file that is in use; the next compilation tries again.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Adds to a digest what identifies a version of a file: length, modification time, inode, and the bytes at both ends.
fn add_state(path: &Path, state: &mut Digest) -> io::Result<()> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let inode = 0;
    let len = metadata.len();
    state.update(format!("{len} {:?} {inode} ", modified_nanos(&metadata)).as_bytes());
    for start in [0, len.saturating_sub(KEYED_BYTES).max(KEYED_BYTES)] {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        (&mut file).take(KEYED_BYTES).read_to_end(&mut bytes)?;
        state.update(&bytes);
    }
    Ok(())
}

/// Opens the file that is locked while a program is compiled, without changing it. What else is at its path is removed if it is
/// a link, and an error otherwise.
fn lock_file(path: &Path) -> io::Result<File> {
    loop {
        match File::options().read(true).write(true).create_new(true).open(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return opened,
        }
        let existing = match fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            existing => existing?,
        };
        if existing.is_symlink() {
            fs::remove_file(path)?;
            continue;
        }
        if !existing.is_file() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is something else at its place"));
        }
        let file = File::options().read(true).write(true).open(path)?;
        if is_same_file(&file.metadata()?, &existing) {
            return Ok(file);
        }
    }
}

/// Whether two files have the same device and inode number.
#[cfg(unix)]
fn is_same_file(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same_file(_: &Metadata, _: &Metadata) -> bool {
    true
}

/// A checksum of bytes that are written to it: CRC-32 and their number. It detects damage, not forgery: whoever can write to the
/// folder can also put another program there.
#[derive(Default)]
struct Checksum {
    crc: crc32fast::Hasher,
    len: u64,
}

impl Checksum {
    fn of_file(path: &Path) -> io::Result<Self> {
        let mut checksum = Self::default();
        let mut file = File::open(path)?;
        let mut buffer = vec![0; 1 << 18];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(checksum),
                n => checksum.write_all(&buffer[..n])?,
            }
        }
    }

    fn into_hex(self) -> String {
        format!("{:08x}{:08x}", self.crc.finalize(), self.len)
    }
}

impl Write for Checksum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.crc.update(bytes);
        self.len += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The modification time of a file in nanoseconds since 1970, if the system reports one.
fn modified_nanos(metadata: &Metadata) -> Option<u128> {
    Some(metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos())
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> Failure {
    Failure::Io { path: path.to_owned(), action, source }
}

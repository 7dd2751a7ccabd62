//! A folder of programs that are compiled once per kind of machine.

use super::{Compiled, OperatorTable, Options, failed, from_loader, from_program, pt2, to_bef};
use crate::{DataLoader, Error as Failure, FileLoader, Isa, KernelRegistry, Limits, MergedDataMap};
use crate::{NamedDataMap, PtdDataMap, replace_file};
use names::Digest;
use runtime::LoaderReader;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// The number of digits of each [`Digest`] in a file name.
const DIGITS: usize = 16;

/// A folder of programs that are compiled for Pteron's own backend, with weights packed for one instruction set.
///
/// A cached program can be memory-mapped, and its weights are used in place: it opens in milliseconds, and all processes
/// that map it share the pages. The key is the path of the source file; when the size or modification time of the file or
/// of one of its data files changes, the program is compiled again. Machines with different instruction sets, and
/// different versions of this crate, can share a folder.
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

/// The file name of a cached program.
struct Name {
    /// The prefix shared by all versions of the same source path, for the same instruction set and crate version.
    path: String,
    /// The whole file name, which identifies the current version of the source.
    whole: String,
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
        let kept = self.folder.join(&name.whole);
        if kept.is_file() {
            return Ok(kept);
        }
        let lock = self.folder.join(format!("{}.lock", name.path));
        let made = fs::create_dir_all(&self.folder).and_then(|()| File::create(&lock));
        let held = made.map_err(|e| io_error(&lock, "create", e))?;
        held.lock().map_err(|e| io_error(&lock, "lock", e))?;
        if !kept.is_file() {
            let file: Arc<dyn DataLoader> = Arc::new(FileLoader::open(file)?);
            let compiled = self.compile(&file, data, kernels)?;
            replace_file(&kept, |out| compiled.program.write_to(out).map_err(|e| failed(&*file, e.into())))?;
            self.remove_older(&name);
        }
        Ok(kept)
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
            let found = part.canonicalize().and_then(|whole| Ok((whole, fs::metadata(part)?)));
            let (whole, metadata) = found.map_err(|e| io_error(part, "open", e))?;
            path.update(format!(" {whole:?}").as_bytes());
            state.update(format!("{} {:?} ", metadata.len(), modified(&metadata)).as_bytes());
        }
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let path = format!("{stem}-{}", &path.name()[..DIGITS]);
        let whole = format!("{path}-{}.pte", &state.name()[..DIGITS]);
        Ok(Name { path, whole })
    }

    /// Removes older versions of the same program. Processes that have mapped one keep it until they end.
    fn remove_older(&self, name: &Name) {
        let older = format!("{}-", name.path);
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let found = entry.file_name();
            let found = found.to_string_lossy();
            if found.starts_with(&older) && found.ends_with(".pte") && found != name.whole {
                // Some systems refuse to remove a file that is in use; the next compilation tries again.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The modification time of a file in nanoseconds since 1970, if the system reports one.
fn modified(metadata: &Metadata) -> Option<u128> {
    Some(metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos())
}

fn io_error(path: &Path, action: &'static str, source: io::Error) -> Failure {
    Failure::Io { path: path.to_owned(), action, source }
}

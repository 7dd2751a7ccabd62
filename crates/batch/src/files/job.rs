use super::identity::Identity;
use super::lane::{Lane, in_file};
use super::mapper::{ERROR_COLUMN, Mapper, Mapping};
use super::origin::Origin;
use super::outputs::{MappedFile, Pair, pairs};
use super::reader::Reader;
use super::workers::work;
use arrow_array::Array as _;
use pteron_runtime::{LoadOptions, Module, Program};
use pteron_toolbox::{Error, Result};
use serde_json::Value;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

/// A run of a program over files.
pub struct Job<'j> {
    /// The program.
    pub program: Program,
    /// How it is loaded. Each worker has the threads of its pool.
    pub options: LoadOptions,
    /// The files of the program, which must stay the same.
    pub identity: &'j Identity,
    /// How rows become inputs, and outputs columns.
    pub mapping: Mapping,
    /// The number of tables that are executed at the same time.
    pub workers: usize,
    /// The number of rows that are read at a time; by default a few thousand, or fewer if they are large.
    pub rows: Option<usize>,
    /// Whether outputs that are there are made again.
    pub again: bool,
    /// Called with the number of rows that were added to an output, by several threads.
    pub progress: Option<&'j (dyn Fn(usize) + Sync)>,
}

impl Job<'_> {
    /// Makes the outputs of Parquet and Arrow files, and of those in folders, in the folder `folder`, which is created. Outputs
    /// that an earlier run has made of the same program, options and input stay.
    ///
    /// # Errors
    /// If the program cannot be run over rows, a file cannot be read or written or lacks a column, an output is there that was
    /// made of something else, another process writes to the folder, a row fails and
    /// [`OnError::Raise`](super::OnError::Raise) says so, or the program's file is replaced meanwhile. Outputs that are complete
    /// by then stay.
    pub fn run(&self, files: &[PathBuf], folder: &Path) -> Result<Vec<MappedFile>> {
        let mapper = Mapper::new(&self.program, &self.mapping)?;
        let options = mapper.described();
        let pairs = pairs(files, folder)?;
        std::fs::create_dir_all(folder).map_err(Error::write(folder))?;
        let _lock = FolderLock::take(folder)?;
        let mut made: Vec<Option<MappedFile>> = Vec::with_capacity(pairs.len());
        // Compare all files before any is made.
        for pair in &pairs {
            made.push(if self.again { None } else { self.made_before(pair, &options)? });
        }
        let todo: Vec<usize> = (0..pairs.len()).filter(|&i| made[i].is_none()).collect();
        for &i in &todo {
            let input = &pairs[i].input;
            Reader::open(input, 1, |names| mapper.needed(names)).map_err(|error| in_file(input, error))?;
        }
        if !todo.is_empty() {
            self.execute(&mapper, &options, &pairs, &todo, &mut made)?;
        }
        Ok(made.into_iter().flatten().collect())
    }

    /// What an earlier run has made; `None` if the output is not there.
    fn made_before(&self, pair: &Pair, options: &Value) -> Result<Option<MappedFile>> {
        if !pair.output.exists() {
            return Ok(None);
        }
        let mut reader = Reader::open(&pair.output, 1 << 16, |names| {
            Ok(names
                .iter()
                .position(|name| *name == ERROR_COLUMN)
                .or((!names.is_empty()).then_some(0))
                .into_iter()
                .collect())
        })?;
        let origin = Origin::of(&pair.input, self.identity.digest(), options)?;
        if let Some(difference) = origin.difference(reader.origin()) {
            return Err(Error::Input(format!(
                "{} {difference}: give another folder, or replace it (--again)",
                pair.output.display()
            )));
        }
        let has_reasons = reader.schema().fields().first().is_some_and(|field| field.name() == ERROR_COLUMN)
            && self.mapping.on_error == super::OnError::Null;
        let (mut rows, mut failed) = (0, 0);
        while let Some(batch) = reader.next()? {
            rows += batch.num_rows();
            failed += if has_reasons { batch.num_rows() - batch.column(0).null_count() } else { 0 };
        }
        let (input, output) = (pair.input.clone(), pair.output.clone());
        Ok(Some(MappedFile { input, output, rows, failed, seconds: 0.0, is_old: true }))
    }

    fn execute(
        &self,
        mapper: &Mapper,
        options: &Value,
        pairs: &[Pair],
        todo: &[usize],
        made: &mut [Option<MappedFile>],
    ) -> Result<()> {
        let workers = self.workers.max(1);
        let lanes = workers.min(todo.len());
        let mut modules = self.modules(&mapper.method, workers)?;
        let (tasks, waiting) = sync_channel(workers);
        let waiting = Mutex::new(waiting);
        let (stopped, next, failure) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(None));
        let finished = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for module in &mut modules {
                scope.spawn(|| work(&waiting, mapper, module));
            }
            for _ in 0..lanes {
                let lane = Lane {
                    mapper,
                    identity: self.identity,
                    options,
                    tasks: tasks.clone(),
                    window: (2 * workers).div_ceil(lanes) + 1,
                    rows: self.rows.unwrap_or_else(|| mapper.rows_at_a_time()),
                    progress: self.progress,
                    stopped: &stopped,
                };
                let (stopped, next, failure, finished) = (&stopped, &next, &failure, &finished);
                scope.spawn(move || {
                    while let Some(&i) = todo.get(next.fetch_add(1, Ordering::Relaxed))
                        && !stopped.load(Ordering::Acquire)
                    {
                        match lane.process(&pairs[i]) {
                            Ok(file) => {
                                finished.lock().unwrap_or_else(PoisonError::into_inner).push((i, file))
                            }
                            Err(error) => {
                                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                                stopped.store(true, Ordering::Release);
                            }
                        }
                    }
                });
            }
            // The workers end when the last lane has.
            drop(tasks);
        });
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        for (i, file) in finished.into_inner().unwrap_or_else(PoisonError::into_inner) {
            made[i] = Some(file);
        }
        Ok(())
    }

    /// A module for each worker, with the method loaded. They share its weights, if it can be forked.
    fn modules(&self, method: &str, count: usize) -> Result<Vec<Module>> {
        let mut first = Module::new(self.program.clone(), self.options.clone());
        first.load_method(method)?;
        let mut modules = Vec::with_capacity(count);
        for _ in 1..count {
            modules.push(first.fork().unwrap_or_else(|_| first.share()));
        }
        modules.push(first);
        Ok(modules)
    }
}

/// Keeps other processes from writing to a folder.
struct FolderLock {
    path: PathBuf,
    _file: File,
}

impl FolderLock {
    fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(".pteron-batch.lock");
        loop {
            let file = File::create(&path).map_err(Error::write(&path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::bad_file(folder, "another process is writing to this folder"));
                }
                // A file system without locks.
                Err(TryLockError::Error(_)) => return Ok(Self { path, _file: file }),
            }
            // The process that held the lock may have removed the file before this one has locked it.
            if is_at(&file, &path) {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |found: std::fs::Metadata| (found.dev(), found.ino());
    matches!((file.metadata(), std::fs::metadata(path)), (Ok(a), Ok(b)) if place(a.clone()) == place(b.clone()))
}

#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

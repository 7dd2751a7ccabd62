use super::folder::folder_of;
use super::stale;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

/// Paths of the named temporary files that this process is writing.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The registered callback, which runs before the first named temporary file is created.
static BEFORE: OnceLock<fn()> = OnceLock::new();

/// Registers a callback that runs once, before [`replace_file`](super::replace_file) creates the first named temporary
/// file, which would be left behind if the process were killed. A command can install signal handlers there that call
/// [`discard_unfinished_files`]; if temporary files have no names, it needs none. Only the first registration counts.
pub fn before_unfinished_files(prepare: fn()) {
    let _ = BEFORE.set(prepare);
}

fn call_registered_callback() {
    static PREPARED: Once = Once::new();
    if let Some(prepare) = BEFORE.get() {
        PREPARED.call_once(prepare);
    }
}

fn lock_unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files that [`replace_file`](super::replace_file) is writing in this process, and then calls
/// `end`. During `end`, no named temporary file is created or renamed. For use when a signal ends the process.
pub fn discard_unfinished_files<T>(end: impl FnOnce() -> T) -> T {
    let mut unfinished = lock_unfinished();
    for path in unfinished.drain(..) {
        let _ = fs::remove_file(path);
    }
    end()
}

/// A temporary file in the folder of its target, which it will replace.
pub(super) struct Part {
    file: File,
    /// The file's path, if the file has a name. The file is locked, so that other processes see that it is in use.
    path: Option<PathBuf>,
}

impl Part {
    /// Creates a temporary file for `target`, unnamed if the system supports it.
    pub(super) fn create(target: &Path) -> io::Result<Self> {
        stale::remove(target);
        match create_unnamed_file(folder_of(target)) {
            Some(file) => Ok(Self { file, path: None }),
            None => Self::create_named(target),
        }
    }

    /// Creates a named temporary file for `target`.
    pub(super) fn create_named(target: &Path) -> io::Result<Self> {
        call_registered_callback();
        loop {
            let path = fresh_name(target);
            let mut unfinished = lock_unfinished();
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    unfinished.push(path.clone());
                    drop(unfinished);
                    let part = Self { file, path: Some(path) };
                    // Not every file system has locks, so a failure is ignored. Before the lock was taken, another
                    // process may have removed the file as stale.
                    let _ = part.file.lock();
                    if part.path.as_ref().is_some_and(|path| path.exists()) {
                        return Ok(part);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The file to write to.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Syncs the file to disk and renames it to the target. `replaces` says whether the target exists.
    pub(super) fn commit(
        &mut self,
        target: &Path,
        replaces: bool,
        permissions: Option<Permissions>,
    ) -> io::Result<()> {
        if let Some(permissions) = permissions {
            self.file.set_permissions(permissions)?;
        }
        self.file.sync_all()?;
        let mut unfinished = lock_unfinished();
        if self.path.is_some() || replaces || !link(&self.file, target)? {
            let path = match &self.path {
                Some(path) => path,
                None => self.path.insert(link_under_fresh_name(&self.file, target, &mut unfinished)?),
            };
            fs::rename(path, target)?;
            unfinished.retain(|other| other != path);
            self.path = None;
        }
        drop(unfinished);
        // The rename is durable once the folder is synced. Not every system can open a folder.
        if let Ok(folder) = File::open(folder_of(target)) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
            lock_unfinished().retain(|other| other != path);
        }
    }
}

/// A path in the folder of the target that this process has not used before.
fn fresh_name(target: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}-{number}{}", process_id(), stale::END));
    target.with_file_name(name)
}

/// The id of this process; zero on `wasm32-unknown-unknown`, which has neither processes nor files.
fn process_id() -> u32 {
    if cfg!(all(target_family = "wasm", target_os = "unknown")) { 0 } else { std::process::id() }
}

/// Links an unnamed file under a fresh name in the folder of the target.
fn link_under_fresh_name(file: &File, target: &Path, unfinished: &mut Vec<PathBuf>) -> io::Result<PathBuf> {
    call_registered_callback();
    loop {
        let path = fresh_name(target);
        if link(file, &path)? {
            unfinished.push(path.clone());
            return Ok(path);
        }
    }
}

/// Creates an unnamed file (`O_TMPFILE`) in a folder. `None` if the system does not support it.
#[cfg(all(target_os = "linux", feature = "unnamed-files"))]
fn create_unnamed_file(folder: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(folder, flags, Mode::from_raw_mode(0o666)).ok()?);
    // The file is linked through its entry in `/proc/self/fd`, which a minimal container may lack.
    fs::metadata(fd_path(&file)).ok()?;
    let _ = file.lock();
    Some(file)
}

#[cfg(all(target_os = "linux", feature = "unnamed-files"))]
fn fd_path(file: &File) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Links an unnamed file at `path`. Returns `false` if the path exists.
#[cfg(all(target_os = "linux", feature = "unnamed-files"))]
fn link(file: &File, path: &Path) -> io::Result<bool> {
    use rustix::fs::{AtFlags, CWD};
    match rustix::fs::linkat(CWD, fd_path(file), CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(not(all(target_os = "linux", feature = "unnamed-files")))]
fn create_unnamed_file(_: &Path) -> Option<File> {
    None
}

#[cfg(not(all(target_os = "linux", feature = "unnamed-files")))]
fn link(_: &File, _: &Path) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

//! Atomic replacement of files.

mod folder;
mod lock;
mod part;
mod protect;
mod stale;

pub use lock::EditLock;
pub use part::{before_unfinished_files, discard_unfinished_files};
pub use protect::Protected;

use crate::{Error, Result};
use folder::folder_of;
use part::Part;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Size of the write buffer in bytes.
const BUFFER: usize = 1 << 16;
/// Maximum number of chained symbolic links that are followed, as on Linux.
const MAX_LINKS: usize = 40;

/// Writes a file atomically: whenever the process or the machine stops, the file has either the old or the new bytes.
/// `write` writes to a temporary file in the same folder, which is synced to disk and then renamed.
///
/// The file keeps its permissions, and a symbolic link to it stays a link. A protected file is not replaced: see
/// [`Protected`]. Anything but a regular file, such as `/dev/null` or a pipe, is written to directly. If `write` fails, the
/// file is unchanged. If writing to the file fails, the error says so and names the file.
///
/// With the feature `unnamed-files`, on Linux and if the file system supports it, the temporary file has no name until
/// it is complete, so that nothing is left behind however the process ends. Otherwise it is named
/// `.NAME.PROCESS-NUMBER.part`: [`discard_unfinished_files`] removes those of this process, and the next write of NAME
/// removes those of processes that have died.
pub fn replace_file<T, E: From<Error>>(
    path: impl AsRef<Path>,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    replace_file_with(path, Protected::Keep, write)
}

/// Replaces a file as [`replace_file`] does, with a choice of what happens to a protected file.
pub fn replace_file_with<T, E: From<Error>>(
    path: impl AsRef<Path>,
    protected: Protected,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let path = path.as_ref();
    let old = fs::metadata(path).ok();
    if old.as_ref().is_some_and(|old| !old.is_file() && !old.is_dir()) {
        let fail = |source| Error::Io { path: path.to_owned(), action: "write", source };
        return write_stream(path, OpenOptions::new().write(true).open(path).map_err(fail)?, write);
    }
    replace(path, &replaced_path(path), old, protected, write)
}

/// As [`replace_file`], but nothing that is at the path is followed or written to: a symbolic link, or anything else that is
/// no folder, is itself replaced by the file.
pub fn replace_entry<T, E: From<Error>>(
    path: impl AsRef<Path>,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let path = path.as_ref();
    replace(path, path, fs::symlink_metadata(path).ok(), Protected::Replace, write)
}

/// Writes a file next to `target` and renames it to `target`; `old` is what is there now. Errors name `path`.
fn replace<T, E: From<Error>>(
    path: &Path,
    target: &Path,
    old: Option<fs::Metadata>,
    protected: Protected,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let fail = |source| Error::Io { path: path.to_owned(), action: "write", source };
    if old.as_ref().is_some_and(fs::Metadata::is_dir) || target.file_name().is_none() {
        return Err(fail(io::ErrorKind::IsADirectory.into()).into());
    }
    let exists = old.is_some();
    let old = old.filter(fs::Metadata::is_file);
    let mut part = Part::create(target).map_err(fail)?;
    if let Some(old) = &old {
        protected.keep_owner(old, part.file()).map_err(|protection| protection.error(path.to_owned()))?;
    }
    let permissions = old.map(|old| old.permissions());
    let result = write_stream(path, part.file(), write)?;
    part.commit(target, exists, permissions).map_err(fail)?;
    Ok(result)
}

/// Calls `write` with a buffered writer to an open stream, such as stdout. If the stream fails, the error is that
/// failure and names the stream, whatever error `write` returns.
pub fn write_stream<T, E: From<Error>>(
    name: impl AsRef<Path>,
    out: impl Write,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let mut out = ErrorKeepingWriter::new(out);
    let result = write(&mut out);
    match out.finish() {
        Ok(()) => result,
        Err(source) => Err(Error::Io { path: name.as_ref().to_owned(), action: "write", source }.into()),
    }
}

/// The file that [`replace_file`] creates or replaces, with symbolic links resolved. Its folder need not exist.
pub fn replaced_path(path: impl AsRef<Path>) -> PathBuf {
    let mut path = path.as_ref().to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(link) = fs::read_link(&path) else { break };
        path = folder_of(&path).join(link);
    }
    let Some(name) = path.file_name() else { return path };
    fs::canonicalize(folder_of(&path)).map_or(path.clone(), |folder| folder.join(name))
}

/// A buffered writer that keeps its first error and reports it at the end, even if the caller has ignored it.
struct ErrorKeepingWriter<W: Write> {
    out: W,
    /// Bytes not yet written to `out`, at most [`BUFFER`]. The first write allocates the buffer, and fails if it cannot.
    buffer: Vec<u8>,
    error: Option<io::Error>,
}

impl<W: Write> ErrorKeepingWriter<W> {
    fn new(out: W) -> Self {
        Self { out, buffer: Vec::new(), error: None }
    }

    fn write_buffered(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.try_reserve_exact(BUFFER - self.buffer.len())?;
        if self.buffer.len() + bytes.len() > BUFFER {
            self.write_buffer()?;
        }
        if bytes.len() >= BUFFER {
            return self.out.write(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        let result = self.out.write_all(&self.buffer);
        self.buffer.clear();
        result
    }

    fn keep_error<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(e) = &result
            && e.kind() != io::ErrorKind::Interrupted
        {
            self.error.get_or_insert(match e.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(e.kind(), e.to_string()),
            });
        }
        result
    }

    /// Flushes the buffer. Fails with the first error, if any write has failed.
    fn finish(mut self) -> io::Result<()> {
        match self.error.take() {
            Some(e) => Err(e),
            None => self.flush(),
        }
    }
}

impl<W: Write> Write for ErrorKeepingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.write_buffered(bytes);
        self.keep_error(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.write_buffer().and_then(|()| self.out.flush());
        self.keep_error(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new empty folder for one test.
    pub(super) fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("pteron-replace-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn put(path: &Path, bytes: &[u8]) -> Result<()> {
        replace_file(path, |out| {
            out.write_all(bytes).unwrap();
            Ok(())
        })
    }

    #[test]
    fn a_file_is_created_and_replaced() {
        let folder = folder("made");
        let path = folder.join("data");
        put(&path, b"old").unwrap();
        put(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = folder("fails");
        let path = folder.join("data");
        put(&path, b"old").unwrap();
        let failed: Result<()> = replace_file(&path, |out| {
            out.write_all(b"half of it").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"old");
            Err(Error::NoSuchMethod { name: String::new(), available: Vec::new() })
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn named_temporary_files_are_discarded() {
        let folder = folder("signal");
        let path = folder.join("data");
        let part = Part::create_named(&path).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let left = discard_unfinished_files(|| fs::read_dir(&folder).unwrap().count());
        assert_eq!(left, 0);
        drop(part);
        // The temporary file of a dead process is removed by the next write.
        fs::write(folder.join(".data.4294967294-0.part"), "half of it").unwrap();
        put(&path, b"new").unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_named_temporary_file_replaces_the_target() {
        let folder = folder("named");
        let path = folder.join("data");
        for (bytes, permissions) in [(b"old", None), (b"new", Some(()))] {
            let mut part = Part::create_named(&path).unwrap();
            part.file().write_all(bytes).unwrap();
            let permissions = permissions.map(|()| fs::metadata(&path).unwrap().permissions());
            part.commit(&path, permissions.is_some(), permissions).unwrap();
            drop(part);
            assert_eq!(fs::read(&path).unwrap(), bytes);
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(all(target_os = "linux", feature = "unnamed-files"))]
    #[test]
    fn an_unfinished_file_has_no_name() {
        let folder = folder("unnamed");
        let path = folder.join("data");
        for old in 0..2 {
            replace_file(&path, |out| {
                out.write_all(b"new").unwrap();
                out.flush().unwrap();
                assert_eq!(fs::read_dir(&folder).unwrap().count(), old);
                Ok::<(), Error>(())
            })
            .unwrap();
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
            assert_eq!(fs::read(&path).unwrap(), b"new");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_is_refused() {
        let folder = folder("folder");
        assert!(put(&folder, b"").is_err());
        assert!(put(&folder.join("none").join("data"), b"").is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn links_permissions_and_devices_are_preserved() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = folder("stay");
        let (path, link) = (folder.join("data"), folder.join("link"));
        put(&path, b"old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("data", &link).unwrap();
        put(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        put(Path::new("/dev/null"), b"gone").unwrap();
        let (to_none, none) = (folder.join("to none"), folder.join("none"));
        symlink("none", &to_none).unwrap();
        assert_eq!(replaced_path(&to_none), fs::canonicalize(&folder).unwrap().join("none"));
        put(&to_none, b"new").unwrap();
        assert_eq!(fs::read(&none).unwrap(), b"new");
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn an_entry_is_replaced_and_not_followed() {
        let folder = folder("entry");
        let (target, link) = (folder.join("target"), folder.join("link"));
        put(&target, b"precious").unwrap();
        for to in ["target", "none"] {
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(to, &link).unwrap();
            replace_entry(&link, |out| {
                out.write_all(b"new").unwrap();
                Ok::<(), Error>(())
            })
            .unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_file());
            assert_eq!(
                (fs::read(&link).unwrap(), fs::read(&target).unwrap()),
                (b"new".into(), b"precious".into())
            );
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
        }
        assert!(replace_entry(&folder, |_| Ok::<(), Error>(())).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_error_of_a_full_disk_names_the_file() {
        for bytes in [1, 2 * BUFFER] {
            // The closure discards the I/O error and returns another one.
            let failed: Result<()> = replace_file("/dev/full", |out| {
                out.write_all(&vec![0; bytes])
                    .map_err(|_| Error::NoSuchMethod { name: String::new(), available: Vec::new() })
            });
            let e = failed.unwrap_err();
            assert_eq!(e.to_string(), "cannot write /dev/full");
            let cause = std::error::Error::source(&e).unwrap().to_string();
            assert!(cause.starts_with("No space left"), "{cause}");
        }
    }
}

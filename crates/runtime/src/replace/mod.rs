//! Files that are replaced as a whole.

mod part;
mod stale;

pub use part::{before_unfinished_files, discard_unfinished_files};

use crate::{Error, Result};
use part::Part;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes gathered before they go to the file.
const BUFFER: usize = 1 << 16;
/// Links to links that are followed, as many as Linux follows.
const LINKS: usize = 40;

/// Writes a file so that its name stands for the old bytes or the new ones, never for anything between,
/// whenever the process or the machine stops: what `write` writes goes to a file beside it, which is made
/// durable and then takes the name.
///
/// Permissions stay those of the file that is replaced, and a symbolic link goes on pointing at it. What is
/// no regular file, such as `/dev/null` or a pipe, is written to directly. If `write` fails, nothing has
/// happened. If it is the file that cannot be written, the error says so and names it.
///
/// With the feature `unnamed-files`, on Linux and where the file system can do it, the file beside has no
/// name until it is complete, so that nothing is left of it however the process ends. Otherwise its name is
/// `.NAME.PROCESS-NUMBER.part`: [`discard_unfinished_files`] removes those of this process, and the next
/// write of NAME those of processes that have died.
pub fn replace_file<T, E: From<Error>>(
    path: impl AsRef<Path>,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let path = path.as_ref();
    let fail = |source| Error::Io { path: path.to_owned(), action: "write", source };
    let old = fs::metadata(path).ok();
    if old.as_ref().is_some_and(|old| !old.is_file() && !old.is_dir()) {
        return write_stream(path, OpenOptions::new().write(true).open(path).map_err(fail)?, write);
    }
    let target = replaced_path(path);
    if old.as_ref().is_some_and(fs::Metadata::is_dir) || target.file_name().is_none() {
        return Err(fail(io::ErrorKind::IsADirectory.into()).into());
    }
    let mut part = Part::create(&target).map_err(fail)?;
    let result = write_stream(path, part.file(), write)?;
    part.take_place(&target, old.map(|old| old.permissions())).map_err(fail)?;
    Ok(result)
}

/// Writes what `write` writes to something that is open, such as stdout, through a buffer. If it is that which
/// fails, the error says so and names it, whatever `write` makes of it.
pub fn write_stream<T, E: From<Error>>(
    name: impl AsRef<Path>,
    out: impl Write,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let mut out = Noting::new(out);
    let result = write(&mut out);
    match out.finish() {
        Ok(()) => result,
        Err(source) => Err(Error::Io { path: name.as_ref().to_owned(), action: "write", source }.into()),
    }
}

/// The file that [`replace_file`] makes or replaces, which links lead to. Its folder need not be there.
pub fn replaced_path(path: impl AsRef<Path>) -> PathBuf {
    let mut path = path.as_ref().to_owned();
    for _ in 0..LINKS {
        let Ok(link) = fs::read_link(&path) else { break };
        path = folder_of(&path).join(link);
    }
    let Some(name) = path.file_name() else { return path };
    fs::canonicalize(folder_of(&path)).map_or(path.clone(), |folder| folder.join(name))
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A buffered file that keeps the first error, whatever becomes of it on its way up.
struct Noting<W: Write> {
    out: W,
    /// What has not gone to the file yet: never more than [`BUFFER`], allocated by the first write such that it can fail.
    buffer: Vec<u8>,
    error: Option<io::Error>,
}

impl<W: Write> Noting<W> {
    fn new(out: W) -> Self {
        Self { out, buffer: Vec::new(), error: None }
    }

    fn gather(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.try_reserve_exact(BUFFER - self.buffer.len())?;
        if self.buffer.len() + bytes.len() > BUFFER {
            self.empty()?;
        }
        if bytes.len() >= BUFFER {
            return self.out.write(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn empty(&mut self) -> io::Result<()> {
        let result = self.out.write_all(&self.buffer);
        self.buffer.clear();
        result
    }

    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
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

    /// Writes what is left; the first error, if there was one.
    fn finish(mut self) -> io::Result<()> {
        match self.error.take() {
            Some(e) => Err(e),
            None => self.flush(),
        }
    }
}

impl<W: Write> Write for Noting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.gather(bytes);
        self.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.empty().and_then(|()| self.out.flush());
        self.note(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty folder of this test's own.
    fn folder(name: &str) -> PathBuf {
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
    fn a_file_is_made_and_replaced() {
        let folder = folder("made");
        let path = folder.join("data");
        put(&path, b"old").unwrap();
        put(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_fails_leaves_the_old_file() {
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
    fn a_signal_removes_what_has_a_name() {
        let folder = folder("signal");
        let path = folder.join("data");
        let part = Part::create_named(&path).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let left = discard_unfinished_files(|| fs::read_dir(&folder).unwrap().count());
        assert_eq!(left, 0);
        drop(part);
        // A name that nobody removes when it ends is removed by the next write.
        fs::write(folder.join(".data.4294967294-0.part"), "half of it").unwrap();
        put(&path, b"new").unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_named_file_takes_its_place() {
        let folder = folder("named");
        let path = folder.join("data");
        for (bytes, permissions) in [(b"old", None), (b"new", Some(()))] {
            let mut part = Part::create_named(&path).unwrap();
            part.file().write_all(bytes).unwrap();
            let permissions = permissions.map(|()| fs::metadata(&path).unwrap().permissions());
            part.take_place(&path, permissions).unwrap();
            drop(part);
            assert_eq!(fs::read(&path).unwrap(), bytes);
            assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(all(target_os = "linux", feature = "unnamed-files"))]
    #[test]
    fn what_is_being_written_has_no_name() {
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
    fn links_permissions_and_devices_stay() {
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

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_named() {
        for bytes in [1, 2 * BUFFER] {
            // Whatever those who write make of the error.
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

//! Files that are replaced as a whole.

use crate::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes gathered before they go to the file.
const BUFFER: usize = 1 << 18;

/// Writes a file so that its name stands for the old bytes or the new ones, never for anything between,
/// whenever the process or the machine stops: what `write` writes goes to a file beside it, which is made
/// durable and then takes the name.
///
/// Permissions stay those of the file that is replaced, and a symbolic link goes on pointing at it. What is
/// no regular file, such as `/dev/null` or a pipe, is written to directly. If `write` fails, nothing has
/// happened.
pub fn replace_file<T, E: From<Error>>(
    path: impl AsRef<Path>,
    write: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let path = path.as_ref();
    let fail = |source| Error::Io { path: path.to_owned(), action: "write", source };
    let old = fs::metadata(path).ok();
    if old.as_ref().is_some_and(|old| !old.is_file() && !old.is_dir()) {
        let mut out = OpenOptions::new().write(true).open(path).map_err(fail)?;
        let result = write(&mut out)?;
        out.flush().map_err(fail)?;
        return Ok(result);
    }
    // The file itself, not a link to it.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if old.as_ref().is_some_and(fs::Metadata::is_dir) || target.file_name().is_none() {
        return Err(fail(io::ErrorKind::IsADirectory.into()).into());
    }
    let mut part = Part::create(&target).map_err(fail)?;
    let result = write(&mut part.out)?;
    part.take_place(&target, old.map(|old| old.permissions())).map_err(fail)?;
    Ok(result)
}

/// The file beside, removed unless it has taken its place.
struct Part {
    out: BufWriter<File>,
    path: PathBuf,
    placed: bool,
}

impl Part {
    fn create(target: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut name = std::ffi::OsString::from(".");
            name.push(target.file_name().unwrap_or_default());
            name.push(format!(".{}-{number}.part", std::process::id()));
            let path = target.with_file_name(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    return Ok(Self { out: BufWriter::with_capacity(BUFFER, file), path, placed: false });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn take_place(&mut self, target: &Path, permissions: Option<fs::Permissions>) -> io::Result<()> {
        self.out.flush()?;
        if let Some(permissions) = permissions {
            self.out.get_ref().set_permissions(permissions)?;
        }
        self.out.get_ref().sync_all()?;
        fs::rename(&self.path, target)?;
        self.placed = true;
        // The name is durable when the folder is. Not every system can open one.
        let folder = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if let Ok(folder) = File::open(folder) {
            let _ = folder.sync_all();
        }
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.placed {
            let _ = fs::remove_file(&self.path);
        }
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
        fs::remove_dir_all(folder).unwrap();
    }
}

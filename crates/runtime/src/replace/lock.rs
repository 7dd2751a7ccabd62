use super::replaced_path;
use std::fs::{self, File, Metadata, TryLockError};
use std::path::Path;

/// The right to edit a file: as long as it is held, no other edit that takes an `EditLock` reads or replaces the file.
///
/// Take it before the file is read and keep it until the file is replaced. Without it, the later of two edits at the same
/// time would replace the file that the earlier one has written with an edit of the old file.
#[derive(Debug)]
pub struct EditLock {
    /// The locked file. The lock ends when the file is closed.
    _file: File,
}

impl EditLock {
    /// Waits until no other edit of the file at `path` is under way; calls `waiting` first if it has to wait. `None` if
    /// there is no such file, or if the system or the file system has no advisory locks.
    pub fn take(path: impl AsRef<Path>, waiting: impl FnOnce()) -> Option<Self> {
        let path = replaced_path(path);
        let mut waiting = Some(waiting);
        // An edit replaces the file, so the lock that was waited for may be that of a file which is no longer at the path.
        while let Some(file) = open_lockable(&path) {
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    waiting.take().into_iter().for_each(|waiting| waiting());
                    file.lock().ok()?;
                }
                Err(TryLockError::Error(_)) => return None,
            }
            let at_path = fs::metadata(&path).ok()?;
            if same_file(&file.metadata().ok()?, &at_path) {
                return Some(Self { _file: file });
            }
        }
        None
    }
}

/// Opens the regular file at a path. `None` if there is none, or on systems where a lock would keep others from reading it.
fn open_lockable(path: &Path) -> Option<File> {
    let is_file = fs::metadata(path).is_ok_and(|meta| meta.is_file());
    if cfg!(unix) && is_file { File::open(path).ok() } else { None }
}

#[cfg(unix)]
fn same_file(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn same_file(_: &Metadata, _: &Metadata) -> bool {
    true
}

#[cfg(all(test, unix))]
mod tests {
    use super::super::{replace_file, tests::folder};
    use super::*;
    use crate::Error;
    use std::thread;

    #[test]
    fn no_edit_at_the_same_time_is_lost() {
        let folder = folder("lock");
        let path = folder.join("data");
        fs::write(&path, "").unwrap();
        let edit = |letter: u8| {
            let _lock = EditLock::take(&path, || ()).unwrap();
            let mut bytes = fs::read(&path).unwrap();
            thread::yield_now();
            bytes.push(letter);
            replace_file(&path, |out| {
                out.write_all(&bytes).unwrap();
                Ok::<(), Error>(())
            })
            .unwrap();
        };
        thread::scope(|scope| {
            for letter in b'a'..=b'h' {
                scope.spawn(move || edit(letter));
            }
        });
        let mut bytes = fs::read(&path).unwrap();
        bytes.sort_unstable();
        assert_eq!(bytes, b"abcdefgh");
        assert!(EditLock::take(folder.join("none"), || ()).is_none());
        fs::remove_dir_all(folder).unwrap();
    }
}

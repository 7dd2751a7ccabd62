//! Removal of temporary files whose process died while it was writing them.

use super::folder::folder_of;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::path::Path;

/// The suffix of temporary files.
pub(super) const END: &str = ".part";

/// Removes the temporary files for `target` that dead processes have left behind.
///
/// A process holds a lock on the temporary file that it writes, and the lock ends with the process. If the file system
/// has no locks, the process id in the name decides, if the system can tell whether that process exists.
pub(super) fn remove(target: &Path) {
    let Some(name) = target.file_name() else { return };
    for entry in fs::read_dir(folder_of(target)).into_iter().flatten().flatten() {
        if let Some(process) = process_of(&entry.file_name(), name)
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && let Ok(file) = File::open(entry.path())
        {
            let abandoned = match file.try_lock() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => false,
                Err(TryLockError::Error(_)) => has_ended(process),
            };
            if abandoned {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The process id in a file name of the form `.NAME.PROCESS-NUMBER.part`; `None` for other file names.
fn process_of(entry: &OsStr, name: &OsStr) -> Option<u32> {
    let numbers = entry.as_encoded_bytes().strip_prefix(b".")?.strip_prefix(name.as_encoded_bytes())?;
    let numbers = numbers.strip_prefix(b".")?.strip_suffix(END.as_bytes())?;
    let (process, number) = std::str::from_utf8(numbers).ok()?.split_once('-')?;
    number.parse::<u64>().ok()?;
    process.parse().ok()
}

/// Whether `/proc` exists and shows no process with this id.
fn has_ended(process: u32) -> bool {
    Path::new("/proc/self").exists() && !Path::new(&format!("/proc/{process}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_temporary_files_are_recognised() {
        let process = |entry: &str| process_of(entry.as_ref(), "a.pte".as_ref());
        assert_eq!(process(".a.pte.17-0.part"), Some(17));
        for other in
            [".a.pte.17.part", "a.pte.17-0.part", ".b.pte.17-0.part", ".a.pte.x-0.part", ".a.pte..17-0.part"]
        {
            assert_eq!(process(other), None, "{other}");
        }
    }

    #[test]
    fn temporary_files_of_dead_processes_are_removed() {
        let folder = std::env::temp_dir().join(format!("pteron-stale-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let names = [".a.pte.4294967294-0.part", ".a.pte.4294967294-1.part", ".b.pte.4294967294-0.part"];
        let [dead, living, other] = names.map(|name| folder.join(name));
        for path in [&dead, &living, &other] {
            fs::write(path, "half of it").unwrap();
        }
        let locked = File::open(&living).unwrap();
        locked.lock().unwrap();
        remove(&folder.join("a.pte"));
        assert!(!dead.exists());
        assert!(living.exists() && other.exists());
        drop(locked);
        remove(&folder.join("a.pte"));
        assert!(!living.exists());
        fs::remove_dir_all(folder).unwrap();
    }
}

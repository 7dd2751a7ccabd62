//! Which files a program was opened from, so that no row is of another one.

use pteron_format::Digest;
use pteron_toolbox::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

/// The files of a program, with their digest.
#[derive(Debug)]
pub struct Identity {
    paths: Vec<PathBuf>,
    digest: String,
    /// The states in which the files had this digest.
    states: Mutex<Vec<FileState>>,
}

/// What changes when a file is replaced or written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileState {
    pub(super) bytes: u64,
    pub(super) modified_ns: u64,
    /// The number of the file and its device, where there are such.
    inode: (u64, u64),
}

impl FileState {
    pub(super) fn of(path: &Path) -> Result<Self> {
        let found = std::fs::metadata(path).map_err(Error::read(path))?;
        let modified = found.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let nanoseconds = modified.map_or(0, |time| time.as_nanos());
        Ok(Self {
            bytes: found.len(),
            modified_ns: u64::try_from(nanoseconds).unwrap_or(u64::MAX),
            inode: inode(&found),
        })
    }
}

#[cfg(unix)]
fn inode(found: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (found.ino(), found.dev())
}

#[cfg(not(unix))]
fn inode(_: &std::fs::Metadata) -> (u64, u64) {
    (0, 0)
}

impl Identity {
    /// The identity of the files as they are now: take it before the program is opened, and [check](Self::check) it after
    /// that. The first file is the program, the others have its weights.
    ///
    /// # Errors
    /// If a file cannot be read, or changes meanwhile.
    pub fn of(paths: Vec<PathBuf>) -> Result<Self> {
        let states = states(&paths)?;
        let identity = Self { digest: digest(&paths)?, states: Mutex::new(states), paths };
        identity.check()?;
        Ok(identity)
    }

    /// The SHA-256 of the file or, if there are several, of their digests, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// # Errors
    /// If one of the files is another one now, or cannot be read.
    pub fn check(&self) -> Result<()> {
        let now = states(&self.paths)?;
        let mut known = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == now {
            return Ok(());
        }
        let found = digest(&self.paths)?;
        if found == self.digest {
            *known = now;
            return Ok(());
        }
        let names: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        Err(Error::bad_file(
            names.join(" and "),
            format!(
                "another file than the one with which the run began (SHA-256 {}…, not {}…): run a job with one file, and give a \
                 new file a new name",
                &found[..16],
                &self.digest[..16]
            ),
        ))
    }
}

fn states(paths: &[PathBuf]) -> Result<Vec<FileState>> {
    paths.iter().map(|path| FileState::of(path)).collect()
}

fn digest(paths: &[PathBuf]) -> Result<String> {
    match paths {
        [path] => digest_of(path),
        _ => {
            let each: Vec<String> = paths.iter().map(|path| digest_of(path)).collect::<Result<_>>()?;
            Ok(Digest::hex_digest(each.concat().as_bytes()))
        }
    }
}

fn digest_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(Error::read(path))?;
    let (mut digest, mut buffer) = (Digest::default(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(digest.into_hex()),
            Ok(count) => digest.update(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::read(path)(error)),
        }
    }
}

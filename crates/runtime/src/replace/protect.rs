use std::fs::{File, Metadata};
use std::io;
use std::path::PathBuf;

/// Why a file is protected, so that it is replaced only on request: see [`Protected`].
pub(super) enum Protection {
    /// The file is read-only.
    ReadOnly,
    /// The file belongs to another user, and the new file cannot be given to that user.
    Foreign,
}

/// What happens to an existing file that is read-only, or whose owner cannot be kept for the new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protected {
    /// The file stays, and the write fails with [`Error::Protected`](crate::Error::Protected).
    #[default]
    Keep,
    /// The file is replaced. The new file gets the permissions of the old one and, if possible, its owner.
    Replace,
}

impl Protected {
    /// Gives the new file to the owner of the old one. Fails if the old one is protected and is to be kept.
    pub(super) fn keep_owner(self, old: &Metadata, new: &File) -> Result<(), Protection> {
        let replace = self == Self::Replace;
        if old.permissions().readonly() && !replace {
            return Err(Protection::ReadOnly);
        }
        match keep_owner(old, new) {
            Err(_) if !replace => Err(Protection::Foreign),
            _ => Ok(()),
        }
    }
}

impl Protection {
    /// The error for the file at `path`.
    pub(super) fn error(self, path: PathBuf) -> crate::Error {
        let why = match self {
            Self::ReadOnly => "read-only",
            Self::Foreign => "another user's",
        };
        crate::Error::Protected { path, why }
    }
}

#[cfg(unix)]
fn keep_owner(old: &Metadata, new: &File) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, fchown};
    let created = new.metadata()?;
    // A group that is not the user's own cannot be kept, which is no reason to fail.
    if created.gid() != old.gid() {
        let _ = fchown(new, None, Some(old.gid()));
    }
    if created.uid() == old.uid() { Ok(()) } else { fchown(new, Some(old.uid()), None) }
}

#[cfg(not(unix))]
fn keep_owner(_: &Metadata, _: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::super::{replace_file_with, tests::folder};
    use super::*;
    use crate::{Error, Result};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_read_only_file_is_replaced_only_if_asked() {
        let folder = folder("protected");
        let path = folder.join("data");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        let put = |protected| {
            replace_file_with(&path, protected, |out| {
                out.write_all(b"new").unwrap();
                Ok(())
            })
        };
        let refused: Result<()> = put(Protected::Keep);
        assert!(matches!(refused, Err(Error::Protected { why: "read-only", .. })));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        put(Protected::Replace).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o444);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}

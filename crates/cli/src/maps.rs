//! The promise under which the command maps files: the command's only `unsafe` block.

use pteron::Unchanged;
use pteron_toolbox::run::LoadMode;

/// The default load mode: files are read, but large BEF programs, of which only small parts are accessed, are mapped.
pub(crate) fn map_large_bef() -> LoadMode {
    LoadMode::LargeBefMapped(promise_unchanged())
}

/// The load mode of `--load mmap`: every file is mapped.
pub(crate) fn map_all() -> LoadMode {
    LoadMode::Mmap(promise_unchanged())
}

/// Passes on the promise of the user: the help of `--load mmap`, and `docs/loading.md` for large BEF programs, say that a
/// mapped file must not change while the command runs.
fn promise_unchanged() -> Unchanged {
    // SAFETY: a process cannot keep others from writing to a file, so the condition of `promise` is passed on to
    // the user, in the help of `--load` and in `docs/loading.md`. The command itself writes files by renaming
    // (`replace_file`), which does not modify the mapped files.
    unsafe { Unchanged::promise() }
}

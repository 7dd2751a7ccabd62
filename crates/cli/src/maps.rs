//! The promise under which the command maps files: the one place of the command that needs `unsafe`.

use pteron::Unchanged;
use toolbox::run::LoadMode;

/// Files are read, but large BEF programs, of which little is looked at.
pub(crate) fn when_large() -> LoadMode {
    LoadMode::LargeBefMapped(promise())
}

/// Every file is mapped: `--load mmap`.
pub(crate) fn always() -> LoadMode {
    LoadMode::Mmap(promise())
}

/// Passes on the promise that the user of the command makes: `--load mmap`, and `docs/loading.md` for large BEF
/// programs, say that a file which is mapped must not change while the command runs.
fn promise() -> Unchanged {
    // SAFETY: a process cannot keep others from writing to a file, so the condition of `promise` is handed on to
    // the user, in the help of `--load` and in `docs/loading.md`. The command itself writes files by renaming
    // (`replace_file`), which leaves the mapped ones as they are.
    unsafe { Unchanged::promise() }
}

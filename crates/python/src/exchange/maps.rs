use pteron::Unchanged;

/// Passes on the promise that the user makes with `mmap=True`: `docs/python.md` and the function's help say that a
/// mapped file must not change while it is in use.
pub(crate) fn promise_unchanged() -> Unchanged {
    // SAFETY: a process cannot keep others from writing to a file, so the condition of `promise` is passed on to the user.
    // The functions of this package write files by renaming, which does not modify mapped files.
    unsafe { Unchanged::promise() }
}

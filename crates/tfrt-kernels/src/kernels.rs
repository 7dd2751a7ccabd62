//! How the kernels of this crate are written and registered.

use host::{Fault, Frame, KernelRegistry, Outcome, Value};
use std::fmt;

/// Ways to add kernels that this crate's families use.
pub(crate) trait RegistryExt {
    /// Adds a kernel that may fail.
    fn fallible<R: Outcome>(
        &mut self,
        name: &str,
        kernel: impl Fn(&mut Frame<'_>) -> Result<R, Fault> + Send + Sync + 'static,
    );
}

impl RegistryExt for KernelRegistry {
    fn fallible<R: Outcome>(
        &mut self,
        name: &str,
        kernel: impl Fn(&mut Frame<'_>) -> Result<R, Fault> + Send + Sync + 'static,
    ) {
        self.add(name, move |frame: &mut Frame<'_>| kernel(frame).deliver(frame));
    }
}

/// Prints to where the host's kernels print.
pub(crate) fn print(frame: &Frame<'_>, text: fmt::Arguments<'_>) {
    frame.context().host().print(|out| {
        out.write_fmt(text)?;
        out.flush()
    });
}

/// `print!` for kernels: the frame, then a format string.
macro_rules! out {
    ($frame:expr, $($arg:tt)*) => {
        $crate::kernels::print($frame, format_args!($($arg)*))
    };
}
pub(crate) use out;

/// An object as the only result.
pub(crate) fn object<T: std::any::Any + Send + Sync>(object: T) -> Value {
    Value::object(object)
}

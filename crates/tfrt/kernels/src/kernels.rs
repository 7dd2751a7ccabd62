//! Helpers to write and register the kernels of this crate.

use pteron_host::{Charge, Effect, ErrorCode, Fault, Frame, IntoKernel, KernelRegistry, Outcome, Value};
use std::fmt;
use std::ops::Deref;

/// Methods that add kernels to a registry together with their declared effects.
pub(crate) trait RegistryExt {
    /// Adds a kernel that may fail.
    fn add_fallible<R: Outcome>(
        &mut self,
        name: &str,
        kernel: impl Fn(&mut Frame<'_>) -> Result<R, Fault> + Send + Sync + 'static,
    );

    /// Adds a kernel that may fail, and declares `effect` as its observable side effects.
    fn add_fallible_with<R: Outcome>(
        &mut self,
        name: &str,
        effect: Effect,
        kernel: impl Fn(&mut Frame<'_>) -> Result<R, Fault> + Send + Sync + 'static,
    ) {
        self.add_fallible(name, kernel);
        self.declare_effect(name, effect);
    }

    /// Adds a kernel that may fail or have an observable side effect, which is complete when the kernel returns.
    fn add_immediate<R: Outcome>(
        &mut self,
        name: &str,
        kernel: impl Fn(&mut Frame<'_>) -> Result<R, Fault> + Send + Sync + 'static,
    ) {
        self.add_fallible_with(name, Effect::Immediate, kernel);
    }

    /// Adds a function without side effects that cannot fail.
    fn add_pure<P>(&mut self, name: &str, function: impl IntoKernel<P>);

    /// Declares the observable side effects of a kernel that was added before.
    fn declare_effect(&mut self, name: &str, effect: Effect);
}

impl RegistryExt for KernelRegistry {
    fn add_fallible<R: Outcome>(
        &mut self,
        name: &str,
        kernel: impl Fn(&mut Frame<'_>) -> Result<R, Fault> + Send + Sync + 'static,
    ) {
        self.add(name, move |frame: &mut Frame<'_>| kernel(frame).deliver(frame));
    }

    fn add_pure<P>(&mut self, name: &str, function: impl IntoKernel<P>) {
        self.add_typed(name, function);
        self.declare_effect(name, Effect::None);
    }

    fn declare_effect(&mut self, name: &str, effect: Effect) {
        let is_there = self.declare(name, effect);
        debug_assert!(is_there, "{name} was added just now");
    }
}

/// Prints to the host's output stream.
pub(crate) fn print(frame: &Frame<'_>, text: fmt::Arguments<'_>) {
    frame.context().host().print(|out| {
        out.write_fmt(text)?;
        out.flush()
    });
}

/// `print!` for kernels; takes the frame, then a format string.
macro_rules! out {
    ($frame:expr, $($arg:tt)*) => {
        $crate::kernels::print($frame, format_args!($($arg)*))
    };
}
pub(crate) use out;

/// An object as a result value.
pub(crate) fn object_value<T: std::any::Any + Send + Sync>(object: T) -> Value {
    Value::object(object)
}

/// A UTF-8 string as a value. Its memory is charged to the request.
pub(crate) struct Text {
    text: String,
    _charge: Charge,
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

/// Concatenates `parts` into a string value; fails if it exceeds [`pteron_host::Limits::value_bytes`], or the memory
/// that the request may use.
pub(crate) fn text_value(frame: &Frame<'_>, parts: &[&str]) -> Result<Value, Fault> {
    let bytes = parts.iter().map(|part| part.len() as u64).sum();
    let limit = frame.context().host().limits().value_bytes;
    if bytes > limit {
        let why = format!("a string of {bytes} bytes: the limit is {limit} (Limits::value_bytes)");
        return Err(Fault::new(ErrorCode::ResourceExhausted, why));
    }
    let _charge = frame.context().charge(bytes)?;
    Ok(object_value(Text { text: parts.concat(), _charge }))
}

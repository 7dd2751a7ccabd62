use crate::frame::Frame;
use crate::request::ExecutionContext;
use crate::value::{IntoValue, Value};
use std::sync::Arc;

/// The implementation of an operation: reads arguments and sets results.
pub trait Kernel: Send + Sync {
    /// Executes one call. It must set every result or call [`Frame::fail`].
    fn run(&self, frame: &mut Frame<'_>);

    /// A variant of the kernel that works directly on registers, for calls with these numbers of arguments and results.
    /// `None` unless the kernel takes and returns only scalars and chains. Kernels made by [`crate::typed`] have it.
    fn as_plain_kernel(self: Arc<Self>, arguments: usize, results: usize) -> Option<PlainKernel> {
        let _ = (arguments, results);
        None
    }
}

/// A kernel that works directly on a function's registers. It runs if the arguments are scalars and chains of the
/// expected types and the result registers hold no refcounted value; it then sets all results to scalars and chains.
/// Otherwise it changes nothing, and [`Kernel::run`] is called instead.
///
/// Only [`crate::typed`] creates one, so that it reads no registers but the call's arguments and writes none but its
/// results.
pub struct PlainKernel(Box<PlainFn>);

/// Takes all registers of a function, and the indices of the call's arguments and then of its results. Returns false
/// if the kernel did not run.
type PlainFn = dyn Fn(&mut [Value], &PlainOperands) -> bool + Send + Sync;

/// Register indices of a [`PlainKernel`]'s operands; unused entries are zero.
pub(crate) type PlainOperands = [u32; 4];

impl PlainKernel {
    /// `call` must access no registers but its operands: once other threads share an execution, they may use the other
    /// registers.
    #[inline(always)]
    pub(crate) fn new(call: impl Fn(&mut [Value], &PlainOperands) -> bool + Send + Sync + 'static) -> Self {
        Self(Box::new(call))
    }

    /// Runs the kernel if its operands have the expected types. Returns false and changes nothing otherwise.
    #[inline(always)]
    pub(crate) fn run(&self, registers: &mut [Value], operands: &PlainOperands) -> bool {
        (self.0)(registers, operands)
    }
}

/// The result registers of one call of a [`PlainKernel`].
pub struct PlainResults<'a> {
    registers: &'a mut [Value],
    results: &'a [u32],
}

impl<'a> PlainResults<'a> {
    #[inline(always)]
    pub(crate) fn new(registers: &'a mut [Value], results: &'a [u32]) -> Self {
        Self { registers, results }
    }

    /// Sets a result to a scalar or a chain. Values of other types and indices out of range are ignored.
    #[inline(always)]
    pub fn set<T: IntoValue>(&mut self, index: usize, value: T) {
        if T::PLAIN
            && let Some(&register) = self.results.get(index)
            && let Some(place) = self.registers.get_mut(register as usize)
        {
            value.assign_to(place);
        }
    }
}

/// The observable side effects of a kernel's calls. A registry declares them
/// ([`crate::KernelRegistry::declare`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Effect {
    /// No side effect. A call with arguments of the expected types does not fail, and its results are available when
    /// it returns.
    None,
    /// A side effect, such as output, a failure or the mutation of an argument, that is complete when the call returns.
    /// The results are available then.
    Immediate,
    /// Only the effects of one of the functions that it is given, which it calls once with arguments of the call. It
    /// returns the function's results.
    Call,
    /// No effects but those of the functions that the kernel is given, which it calls any number of times.
    Loop,
    /// Unknown: the kernel may have any effect.
    #[default]
    Any,
}

impl<F: Fn(&mut Frame<'_>) + Send + Sync> Kernel for F {
    #[inline]
    fn run(&self, frame: &mut Frame<'_>) {
        self(frame)
    }
}

/// A function written in Rust that programs can call by name. It takes the arguments and fills the slice of results,
/// whose length is that of the declaration in the program.
pub type NativeFunction = Arc<dyn Fn(&ExecutionContext, &[Value], &mut [Value]) + Send + Sync>;

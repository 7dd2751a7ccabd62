//! Kernels from plain Rust functions: `typed(|a: i32, b: i32| a + b)`.

use crate::attributes::AttributeValue;
use crate::function::Results;
use crate::kernel::{Fault, Frame, Kernel};
use crate::value::{FromValue, IntoValue, Value};
use std::marker::PhantomData;
use std::sync::Arc;

/// An attribute, as a parameter of a typed kernel.
#[derive(Debug, Clone, Copy)]
pub struct Attr<T>(pub T);

/// How far a typed kernel's parameters have used up what the call gives.
#[derive(Default, Clone, Copy)]
pub struct Cursor {
    argument: usize,
    attribute: usize,
}

/// A Rust type that can be a parameter of a typed kernel.
pub trait Parameter: Sized {
    /// Takes the next argument or attribute, if there is one and it is of this type.
    fn fetch(frame: &Frame<'_>, cursor: &mut Cursor) -> Option<Self>;

    /// Why the next argument or attribute could not be taken.
    fn fault(frame: &Frame<'_>, cursor: Cursor) -> Fault;
}

impl<T: FromValue> Parameter for T {
    #[inline(always)]
    fn fetch(frame: &Frame<'_>, cursor: &mut Cursor) -> Option<Self> {
        let index = cursor.argument;
        cursor.argument += 1;
        frame.try_get(index)
    }

    fn fault(frame: &Frame<'_>, cursor: Cursor) -> Fault {
        frame.wrong_argument(cursor.argument, T::expected())
    }
}

impl<T: for<'f> AttributeValue<'f>> Parameter for Attr<T> {
    #[inline(always)]
    fn fetch(frame: &Frame<'_>, cursor: &mut Cursor) -> Option<Self> {
        let index = cursor.attribute;
        cursor.attribute += 1;
        frame.attribute(index).ok().map(Attr)
    }

    fn fault(frame: &Frame<'_>, cursor: Cursor) -> Fault {
        match frame.attribute::<T>(cursor.attribute) {
            Err(fault) => fault,
            Ok(_) => Fault::invalid("an attribute could be read only now"),
        }
    }
}

/// What a typed kernel can give.
pub trait Outcome {
    /// Sets the results.
    fn deliver(self, frame: &mut Frame<'_>);
}

impl<T: IntoValue> Outcome for T {
    #[inline(always)]
    fn deliver(self, frame: &mut Frame<'_>) {
        frame.set(0, self);
    }
}

impl Outcome for () {
    #[inline(always)]
    fn deliver(self, _: &mut Frame<'_>) {}
}

impl<T: Outcome, E: Into<Fault>> Outcome for Result<T, E> {
    #[inline(always)]
    fn deliver(self, frame: &mut Frame<'_>) {
        match self {
            Ok(value) => value.deliver(frame),
            Err(fault) => frame.fail(fault),
        }
    }
}

macro_rules! tuples {
    ($($name:ident $index:tt),*) => {
        impl<$($name: IntoValue),*> Outcome for ($($name,)*) {
            #[inline(always)]
            fn deliver(self, frame: &mut Frame<'_>) {
                $(frame.set($index, self.$index);)*
            }
        }
    };
}
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);

impl Outcome for Vec<Value> {
    fn deliver(self, frame: &mut Frame<'_>) {
        frame.set_all(self);
    }
}

impl Outcome for Results {
    #[inline]
    fn deliver(self, frame: &mut Frame<'_>) {
        frame.set_all(self);
    }
}

/// A Rust function whose parameters and results are those of a kernel.
pub trait IntoKernel<P> {
    /// The kernel.
    fn into_kernel(self) -> Arc<dyn Kernel>;
}

struct Typed<F, P>(F, PhantomData<fn(P)>);

/// Fails because a parameter could not be fetched.
#[cold]
#[inline(never)]
fn refuse<P: Parameter>(frame: &mut Frame<'_>, cursor: Cursor) {
    let fault = P::fault(frame, cursor);
    frame.fail(fault);
}

macro_rules! functions {
    ($($name:ident),*) => {
        impl<F, R: Outcome, $($name: Parameter + 'static),*> Kernel for Typed<F, ($($name,)*)>
        where
            F: Fn($($name),*) -> R + Send + Sync,
        {
            #[inline]
            #[allow(non_snake_case, unused_variables, unused_mut, reason = "the macro also makes the case of no parameter")]
            fn run(&self, frame: &mut Frame<'_>) {
                let mut cursor = Cursor::default();
                $(
                    let before = cursor;
                    let Some($name) = $name::fetch(frame, &mut cursor) else {
                        return refuse::<$name>(frame, before);
                    };
                )*
                (self.0)($($name),*).deliver(frame);
            }
        }

        impl<F, R: Outcome, $($name: Parameter + 'static),*> IntoKernel<($($name,)*)> for F
        where
            F: Fn($($name),*) -> R + Send + Sync + 'static,
        {
            fn into_kernel(self) -> Arc<dyn Kernel> {
                Arc::new(Typed::<F, ($($name,)*)>(self, PhantomData))
            }
        }
    };
}

functions!();
functions!(A);
functions!(A, B);
functions!(A, B, C);
functions!(A, B, C, D);
functions!(A, B, C, D, E);
functions!(A, B, C, D, E, G);

/// The kernel that a Rust function is: its parameters are arguments, or attributes if they are
/// [`Attr`]; its result is one value, a tuple of values, nothing, or a `Result` of these.
pub fn typed<P>(function: impl IntoKernel<P>) -> Arc<dyn Kernel> {
    function.into_kernel()
}

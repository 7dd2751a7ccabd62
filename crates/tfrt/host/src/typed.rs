//! Kernels from plain Rust functions: `typed(|a: i32, b: i32| a + b)`.

use crate::attributes::AttributeValue;
use crate::error::Fault;
use crate::frame::Frame;
use crate::kernel::{Kernel, PlainKernel, PlainOperands, PlainResults};
use crate::value::{FromValue, IntoValue, Results, Value};
use std::marker::PhantomData;
use std::sync::Arc;

/// An attribute, as a parameter of a typed kernel.
#[derive(Debug, Clone, Copy)]
pub struct Attr<T>(pub T);

/// Positions of the next argument and the next attribute that a typed kernel's parameters have not taken yet.
#[derive(Default, Clone, Copy)]
pub struct Cursor {
    argument: usize,
    attribute: usize,
}

/// A Rust type that a typed kernel can have as a parameter: an argument, or an attribute as an [`Attr`].
pub trait Parameter: Sized {
    /// Whether the parameter is an argument of scalar or chain type.
    const PLAIN: bool = false;

    /// The value of an argument's register, if the parameter is an argument and the register holds this type.
    fn from_register(register: &Value) -> Option<Self> {
        let _ = register;
        None
    }

    /// Takes the next argument or attribute, if there is one and its type matches.
    fn fetch(frame: &Frame<'_>, cursor: &mut Cursor) -> Option<Self>;

    /// The fault that explains why [`Self::fetch`] returned `None`.
    fn fault(frame: &Frame<'_>, cursor: Cursor) -> Fault;
}

impl<T: FromValue> Parameter for T {
    const PLAIN: bool = T::PLAIN;

    #[inline(always)]
    fn from_register(register: &Value) -> Option<Self> {
        T::from_value(register)
    }

    #[inline(always)]
    fn fetch(frame: &Frame<'_>, cursor: &mut Cursor) -> Option<Self> {
        let index = cursor.argument;
        cursor.argument += 1;
        frame.try_get(index)
    }

    fn fault(frame: &Frame<'_>, cursor: Cursor) -> Fault {
        frame.wrong_argument(cursor.argument, T::type_name())
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
            Ok(_) => Fault::invalid("reading an attribute failed once and then succeeded"),
        }
    }
}

/// A Rust type that a typed kernel can return.
pub trait Outcome {
    /// The number of results, if it is fixed and all results are scalars or chains.
    const PLAIN: Option<usize> = None;

    /// Sets the results.
    fn deliver(self, frame: &mut Frame<'_>);

    /// Sets the results to scalars or chains. Called only if [`Self::PLAIN`] is not `None`.
    #[inline(always)]
    fn deliver_plain(self, results: PlainResults<'_>)
    where
        Self: Sized,
    {
        let _ = results;
    }
}

impl<T: IntoValue> Outcome for T {
    const PLAIN: Option<usize> = if T::PLAIN { Some(1) } else { None };

    #[inline(always)]
    fn deliver(self, frame: &mut Frame<'_>) {
        frame.set(0, self);
    }

    #[inline(always)]
    fn deliver_plain(self, mut results: PlainResults<'_>) {
        results.set(0, self);
    }
}

impl Outcome for () {
    const PLAIN: Option<usize> = Some(0);

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
    ($len:literal: $($name:ident $index:tt),*) => {
        impl<$($name: IntoValue),*> Outcome for ($($name,)*) {
            const PLAIN: Option<usize> = if $($name::PLAIN)&&* { Some($len) } else { None };

            #[inline(always)]
            fn deliver(self, frame: &mut Frame<'_>) {
                $(frame.set($index, self.$index);)*
            }

            #[inline(always)]
            fn deliver_plain(self, mut results: PlainResults<'_>) {
                $(results.set($index, self.$index);)*
            }
        }
    };
}
tuples!(2: A 0, B 1);
tuples!(3: A 0, B 1, C 2);
tuples!(4: A 0, B 1, C 2, D 3);

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

/// A Rust function that can be turned into a kernel.
pub trait IntoKernel<P> {
    /// Converts the function to a kernel.
    fn into_kernel(self) -> Arc<dyn Kernel>;
}

struct Typed<F, P>(F, PhantomData<fn(P)>);

/// Fails the kernel, and reports why a parameter could not be fetched.
#[cold]
#[inline(never)]
fn fail_parameter<P: Parameter>(frame: &mut Frame<'_>, cursor: Cursor) {
    let fault = P::fault(frame, cursor);
    frame.fail(fault);
}

/// Reads the next argument's register, if it holds this type.
#[inline(always)]
fn read_argument<P: Parameter>(registers: &[Value], arguments: &mut std::slice::Iter<'_, u32>) -> Option<P> {
    P::from_register(registers.get(*arguments.next()? as usize)?)
}

macro_rules! functions {
    ($len:literal: $($name:ident),*) => {
        impl<F, R: Outcome, $($name: Parameter + 'static),*> Kernel for Typed<F, ($($name,)*)>
        where
            F: Fn($($name),*) -> R + Send + Sync + 'static,
        {
            #[inline]
            #[allow(non_snake_case, unused_variables, unused_mut, reason = "the macro also makes the case of no parameter")]
            fn run(&self, frame: &mut Frame<'_>) {
                let mut cursor = Cursor::default();
                $(
                    let before = cursor;
                    let Some($name) = $name::fetch(frame, &mut cursor) else {
                        return fail_parameter::<$name>(frame, before);
                    };
                )*
                (self.0)($($name),*).deliver(frame);
            }

            fn as_plain_kernel(self: Arc<Self>, arguments: usize, results: usize) -> Option<PlainKernel> {
                let plain = true $(&& $name::PLAIN)*;
                if !plain || R::PLAIN != Some(results) || arguments != $len {
                    return None;
                }
                Some(PlainKernel::new(move |registers, operands| self.run_plain(registers, operands)))
            }
        }

        impl<F, R: Outcome, $($name: Parameter),*> Typed<F, ($($name,)*)>
        where
            F: Fn($($name),*) -> R,
        {
            #[inline(always)]
            #[allow(non_snake_case, unused_variables, unused_mut, reason = "the macro also makes the case of no parameter")]
            fn run_plain(&self, registers: &mut [Value], operands: &PlainOperands) -> bool {
                let results = $len..$len + R::PLAIN.unwrap_or(0);
                let (Some(arguments), Some(results)) = (operands.get(..$len), operands.get(results)) else {
                    return false;
                };
                let mut arguments = arguments.iter();
                $(
                    let Some($name) = read_argument::<$name>(registers, &mut arguments) else { return false };
                )*
                if !results.iter().all(|&r| registers.get(r as usize).is_some_and(Value::is_plain)) {
                    return false;
                }
                (self.0)($($name),*).deliver_plain(PlainResults::new(registers, results));
                true
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

functions!(0:);
functions!(1: A);
functions!(2: A, B);
functions!(3: A, B, C);
functions!(4: A, B, C, D);
functions!(5: A, B, C, D, E);
functions!(6: A, B, C, D, E, G);

/// Turns a Rust function into a kernel. Each parameter is an argument, or an attribute if its type is [`Attr`]. The
/// function returns one value, a tuple of values, nothing, or a `Result` of these.
pub fn typed<P>(function: impl IntoKernel<P>) -> Arc<dyn Kernel> {
    function.into_kernel()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Chain, Error, ExecutionContext, FunctionBuilder, HostContext, Interpreter};

    fn as_i32(value: &Value) -> i32 {
        if let Value::I32(v) = value { *v } else { panic!("{value:?} is no i32") }
    }

    #[test]
    fn scalars_are_read_from_and_written_to_registers() {
        let minus = typed(|a: i32, b: i32| a - b).as_plain_kernel(2, 1).unwrap();
        let mut registers = [Value::Empty, Value::I32(2), Value::I32(7)];
        assert!(minus.run(&mut registers, &[2, 1, 0, 0]));
        assert_eq!(as_i32(&registers[0]), 5);
        let both = typed(|a: i32, _: Chain| (a + 1, a + 2)).as_plain_kernel(2, 2).unwrap();
        let mut registers = [Value::Empty, Value::F64(1.0), Value::Chain, Value::I32(7)];
        assert!(both.run(&mut registers, &[3, 2, 1, 0]));
        assert_eq!((as_i32(&registers[1]), as_i32(&registers[0])), (8, 9));
        assert!(typed(|| 3).as_plain_kernel(0, 1).unwrap().run(&mut registers, &[2, 0, 0, 0]));
        assert_eq!(as_i32(&registers[2]), 3);
    }

    #[test]
    fn a_plain_kernel_changes_nothing_if_an_operand_has_another_type() {
        let minus = typed(|a: i32, b: i32| a - b).as_plain_kernel(2, 1).unwrap();
        let object = Arc::new(1u8);
        let shared = || Value::Object(Arc::clone(&object) as _);
        for mut registers in [
            [Value::I32(1), Value::F32(2.0), Value::I32(3)],
            [Value::Empty, Value::I32(2), Value::I32(3)],
            [shared(), Value::I32(2), Value::I32(3)],
            [Value::I32(1), Value::I32(2), shared()],
        ] {
            let before = format!("{registers:?}");
            assert!(!minus.run(&mut registers, &[0, 1, 2, 0]));
            assert_eq!(format!("{registers:?}"), before);
        }
        assert_eq!(Arc::strong_count(&object), 1);
        assert!(!minus.run(&mut [Value::I32(1), Value::I32(2)], &[0, 1, 2, 0]));
    }

    /// A return type that sets more results than its kernel calls have.
    struct Greedy;

    impl Outcome for Greedy {
        const PLAIN: Option<usize> = Some(1);

        fn deliver(self, frame: &mut Frame<'_>) {
            frame.set(0, 1);
        }

        fn deliver_plain(self, mut results: PlainResults<'_>) {
            (0..8).for_each(|i| results.set(i, 1));
            results.set(0, Value::object(1));
        }
    }

    #[test]
    fn plain_kernels_write_only_their_result_registers() {
        let greedy = typed(|_: i32| Greedy).as_plain_kernel(1, 1).unwrap();
        let mut registers = [Value::I32(7), Value::Empty, Value::Empty, Value::I32(9)];
        assert!(greedy.run(&mut registers, &[3, 1, 0, 0]));
        assert_eq!(format!("{registers:?}"), "[7i32, 1i32, Empty, 9i32]");
    }

    #[test]
    fn only_kernels_on_scalars_and_chains_are_plain() {
        let is_plain = |kernel: Arc<dyn Kernel>, arguments, results| {
            kernel.as_plain_kernel(arguments, results).is_some()
        };
        assert!(is_plain(typed(|_: i64| ()), 1, 0));
        assert!(!is_plain(typed(|a: i64| a), 2, 1));
        assert!(!is_plain(typed(|a: i64| a), 1, 2));
        assert!(!is_plain(typed(|a: Attr<i64>| a.0), 0, 1));
        assert!(!is_plain(typed(|a: Value| a), 1, 1));
        assert!(!is_plain(typed(|a: i64| Ok::<_, Fault>(a)), 1, 1));
        assert!(!is_plain(typed(|a: i64| Arc::new(a)), 1, 1));
    }

    #[test]
    fn calls_that_are_not_plain_fall_back_to_run() {
        let context = ExecutionContext::new(&HostContext::single_threaded());
        let add = typed(|a: i32, b: i32| a.wrapping_add(b));
        let all = typed(|a: i32, b: i32, c: i32, d: i32| a + b + c + d);
        let mut b = FunctionBuilder::new("sums", 2);
        let sum = b.kernel(&add, &[b.argument(0), b.argument(1)]);
        let sum = b.kernel(&all, &[sum, sum, b.argument(0), b.argument(1)]);
        b.returns(&[sum]);
        let mut interpreter = Interpreter::new(&b.in_order().build().unwrap()).unwrap();
        let mut results = [Value::Empty];
        interpreter.run(&context, [Value::I32(1), Value::I32(2)], &mut results).unwrap();
        assert_eq!(as_i32(&results[0]), 9);
        let error = interpreter.run(&context, [Value::I32(1), Value::F32(2.0)], &mut results).unwrap_err();
        let Error::Failed(error) = error else { panic!("{error}") };
        assert!(error.message().contains("argument 1 is an f32, expected an i32"), "{}", error.message());
    }
}

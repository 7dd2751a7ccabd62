use crate::attributes::{AttributeValue, SiteAttribute};
use crate::context::ExecutionContext;
use crate::error::{ErrorCode, ErrorValue, SourceLocation};
use crate::function::{FunctionRef, Results};
use crate::stack;
use crate::value::{FromValue, IntoValue, Value};
use std::any::Any;
use std::sync::Arc;

/// What runs at one place of a function: takes arguments, sets results.
pub trait Kernel: Send + Sync {
    /// Runs once. Every result must be set, or [`Frame::fail`] called.
    fn run(&self, frame: &mut Frame<'_>);

    /// The same kernel on its operands themselves, for calls of so many arguments and results, if it takes and
    /// gives nothing but numbers and chains. [`crate::typed`] makes such kernels.
    fn plain(self: Arc<Self>, arguments: usize, results: usize) -> Option<PlainKernel> {
        let _ = (arguments, results);
        None
    }
}

/// A kernel on the registers of a function themselves. It runs once if the arguments are numbers and chains of
/// the types that it takes, and the places of the results hold nothing that is shared; it then sets all results
/// to numbers and chains. Otherwise it changes nothing, and [`Kernel::run`] is called.
///
/// Only [`crate::typed`] makes one: of all registers, it reads the arguments and writes the results of its call.
pub struct PlainKernel(Box<PlainFn>);

/// Takes all registers of a function; `operands` are indices into them, of arguments and then results. False if
/// the kernel did not run.
type PlainFn = dyn Fn(&mut [Value], &PlainOperands) -> bool + Send + Sync;

/// The operands of a [`PlainKernel`]; those past the ones that it has are zero.
pub(crate) type PlainOperands = [u32; 4];

impl PlainKernel {
    /// A kernel that touches no registers but its operands. Other threads rely on that once they know of an
    /// execution: a register that is set belongs to them.
    #[inline(always)]
    pub(crate) fn new(call: impl Fn(&mut [Value], &PlainOperands) -> bool + Send + Sync + 'static) -> Self {
        Self(Box::new(call))
    }

    /// Runs the kernel if the operands are as it takes them. Otherwise gives false and changes nothing.
    #[inline(always)]
    pub(crate) fn run(&self, registers: &mut [Value], operands: &PlainOperands) -> bool {
        (self.0)(registers, operands)
    }
}

/// The places of the results of one call of a [`PlainKernel`].
pub struct PlainResults<'a> {
    registers: &'a mut [Value],
    results: &'a [u32],
}

impl<'a> PlainResults<'a> {
    #[inline(always)]
    pub(crate) fn new(registers: &'a mut [Value], results: &'a [u32]) -> Self {
        Self { registers, results }
    }

    /// Sets a result to a number or a chain. Values of other types, and results that the call does not have,
    /// are left out.
    #[inline(always)]
    pub fn set<T: IntoValue>(&mut self, index: usize, value: T) {
        if T::PLAIN
            && let Some(&register) = self.results.get(index)
            && let Some(place) = self.registers.get_mut(register as usize)
        {
            value.put_in(place);
        }
    }
}

/// The observable side effects of a kernel's calls. A registry declares them
/// ([`crate::KernelRegistry::declare`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing. A call on arguments of the kernel's types does not fail, and its results are available when it
    /// returns.
    None,
    /// Something, such as text, a failure or a change of an argument, that is over when the call returns. The
    /// results are available then.
    Immediate,
    /// What one of the functions it is given does, called once on arguments of the call; nothing else. The
    /// results are those of the function.
    Call,
    /// What the functions it is given do, called any number of times; nothing else.
    Loop,
    /// Anything.
    #[default]
    Any,
}

impl<F: Fn(&mut Frame<'_>) + Send + Sync> Kernel for F {
    #[inline]
    fn run(&self, frame: &mut Frame<'_>) {
        self(frame)
    }
}

/// Where in a function a kernel stands, and what it was given there once and for all.
pub(crate) struct Site {
    pub(crate) name: Arc<str>,
    pub(crate) attributes: Box<[SiteAttribute]>,
    pub(crate) functions: Box<[u32]>,
    pub(crate) location: Location,
}

/// A location, or where to find it.
pub(crate) enum Location {
    None,
    Given(SourceLocation),
    /// An offset of the file's Locations section.
    Recorded(u64),
}

/// A kernel's view of one call: its arguments, attributes and functions, and where its results go.
pub struct Frame<'a> {
    /// Registers, or copies of those that the kernel uses.
    pub(crate) values: &'a mut [Value],
    /// Indices into `values`.
    pub(crate) arguments: &'a [u32],
    /// Indices into `values`.
    pub(crate) results: &'a [u32],
    /// Whether `values` are this call's alone, and not the registers of a function.
    pub(crate) owned: bool,
    /// Whether a value that shares something has been set.
    pub(crate) shares: bool,
    pub(crate) site: &'a Site,
    pub(crate) function: FunctionRef<'a>,
    pub(crate) context: &'a ExecutionContext,
    /// Whether functions that the kernel calls may run in program order, see [`crate::effects`].
    pub(crate) in_order: bool,
    pub(crate) error: Option<ErrorValue>,
}

impl<'a> Frame<'a> {
    /// A frame for calls of a function's kernels on its registers, of no call yet.
    #[inline(always)]
    pub(crate) fn on_registers(
        registers: &'a mut [Value],
        shares: bool,
        site: &'a Site,
        function: FunctionRef<'a>,
        context: &'a ExecutionContext,
    ) -> Self {
        Self {
            values: registers,
            arguments: &[],
            results: &[],
            owned: false,
            shares,
            site,
            function,
            context,
            in_order: false,
            error: None,
        }
    }

    /// The number of arguments.
    #[inline]
    pub fn arguments(&self) -> usize {
        self.arguments.len()
    }

    /// The number of results.
    #[inline]
    pub fn results(&self) -> usize {
        self.results.len()
    }

    /// An argument: [`Value::Empty`] if there is none of that number.
    #[inline]
    pub fn argument(&self, index: usize) -> &Value {
        static NONE: Value = Value::Empty;
        self.arguments.get(index).and_then(|&r| self.values.get(r as usize)).unwrap_or(&NONE)
    }

    /// Copies of all arguments from number `from` on.
    pub fn arguments_from(&self, from: usize) -> Results {
        self.all_from(from).cloned().collect()
    }

    /// All arguments from number `from` on.
    #[inline]
    pub(crate) fn all_from(&self, from: usize) -> impl ExactSizeIterator<Item = &Value> {
        static NONE: Value = Value::Empty;
        let registers = self.arguments.get(from..).unwrap_or(&[]);
        registers.iter().map(|&r| self.values.get(r as usize).unwrap_or(&NONE))
    }

    /// Takes an argument out of the frame, so that the kernel may be the only one to hold it.
    ///
    /// Only an argument whose last use this is leaves its register; of others, this is a copy.
    pub fn take_argument(&mut self, index: usize) -> Value {
        if self.owned
            && let Some(slot) = self.arguments.get(index).and_then(|&r| self.values.get_mut(r as usize))
        {
            return std::mem::take(slot);
        }
        self.argument(index).clone()
    }

    /// An argument of Rust type `T`.
    ///
    /// # Errors
    /// A message for [`Frame::fail`] if the argument is of another type, or missing.
    #[inline(always)]
    pub fn get<T: FromValue>(&self, index: usize) -> Result<T, Fault> {
        self.try_get(index).ok_or_else(|| self.wrong_argument(index, T::expected()))
    }

    /// An argument, if there is one of this number and it is of Rust type `T`.
    #[inline(always)]
    pub(crate) fn try_get<T: FromValue>(&self, index: usize) -> Option<T> {
        T::from_value(self.values.get(*self.arguments.get(index)? as usize)?)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn wrong_argument(&self, index: usize, expected: &str) -> Fault {
        let found = self.argument(index).kind();
        Fault::invalid(format!("argument {index} is {found}, expected {expected}"))
    }

    /// The object of type `T` that an argument holds.
    ///
    /// # Errors
    /// A message for [`Frame::fail`] if the argument is of another type, or missing.
    pub fn object<T: Any>(&self, index: usize) -> Result<&T, Fault> {
        let object = self.argument(index).downcast_ref();
        object.ok_or_else(|| self.wrong_argument(index, std::any::type_name::<T>()))
    }

    /// Sets a result.
    #[inline(always)]
    pub fn set(&mut self, index: usize, value: impl IntoValue) {
        if let Some(&register) = self.results.get(index)
            && let Some(slot) = self.values.get_mut(register as usize)
        {
            self.shares |= value.put_in(slot);
        } else {
            self.no_such_result(index);
        }
    }

    /// Sets a result to what it takes from a place.
    #[inline]
    pub(crate) fn set_taken(&mut self, index: usize, value: &mut Value) {
        if let Some(&register) = self.results.get(index)
            && let Some(slot) = self.values.get_mut(register as usize)
        {
            if !value.is_plain() {
                self.shares = true;
            }
            slot.put_taken(value);
        } else {
            self.no_such_result(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn no_such_result(&mut self, index: usize) {
        self.fail(Fault::invalid(format!(
            "the kernel gives a result {index}, but its call has {}",
            self.results()
        )));
    }

    /// Sets all results, in order.
    pub fn set_all(&mut self, values: impl IntoIterator<Item = Value>) {
        values.into_iter().enumerate().for_each(|(i, v)| self.set(i, v));
    }

    /// Starts a function with the arguments from number `from` on, and sets the results to its results.
    #[inline]
    pub fn call(&mut self, function: FunctionRef<'_>, from: usize) {
        function.execute_in(self, from);
    }

    /// Reports a failure to the context's diagnostics handler, and makes every result this error.
    #[cold]
    pub fn fail(&mut self, fault: impl Into<Fault>) {
        let error = self.report(fault);
        self.error = Some(error);
    }

    /// Makes every result this error, without reporting it again.
    #[cold]
    pub fn fail_with(&mut self, error: ErrorValue) {
        self.error = Some(error);
    }

    /// Reports a failure at the kernel's place, and gives it as a value for some of the results.
    #[cold]
    pub fn report(&self, fault: impl Into<Fault>) -> ErrorValue {
        self.reporter().report(fault)
    }

    /// Something that can report a failure at the kernel's place when the call is over.
    pub fn reporter(&self) -> Reporter {
        Reporter {
            context: self.context.clone(),
            kernel: Arc::clone(&self.site.name),
            location: self.location(),
        }
    }

    /// Where in its source the kernel stands, if that is recorded.
    pub fn location(&self) -> Option<SourceLocation> {
        match &self.site.location {
            Location::None => None,
            Location::Given(location) => Some(location.clone()),
            Location::Recorded(offset) => self.function.module().location(*offset),
        }
    }

    /// Where in its source the kernel stands, with all that the file records about it.
    pub fn full_location(&self) -> Option<bef::Location<'static>> {
        match &self.site.location {
            Location::Recorded(offset) => self.function.module().full_location(*offset),
            _ => None,
        }
    }

    /// Where in the file's Locations section the kernel's location stands: a number of its own.
    pub fn location_offset(&self) -> Option<u64> {
        if let Location::Recorded(offset) = self.site.location { Some(offset) } else { None }
    }

    /// The kernel's name.
    pub fn name(&self) -> &'a str {
        &self.site.name
    }

    /// The function that the kernel stands in.
    pub fn caller(&self) -> FunctionRef<'a> {
        self.function
    }

    /// The request that this call belongs to.
    pub fn context(&self) -> &'a ExecutionContext {
        self.context
    }

    /// Runs tasks of the work queue until none is left.
    ///
    /// # Errors
    /// A message for [`Frame::fail`] if the kernel is part of a task of a pool, which would wait for itself, or
    /// of too many calls inside one another.
    pub fn quiesce(&self) -> Result<(), Fault> {
        let host = self.context.host();
        if !host.queue().can_quiesce() {
            return Err("a kernel cannot wait for the task that runs it: order kernels by chains".into());
        }
        if stack::is_deep() {
            return Err(Fault::new(ErrorCode::ResourceExhausted, "functions call each other too deeply"));
        }
        host.quiesce();
        Ok(())
    }

    /// The number of attributes, functions not among them.
    pub fn attributes(&self) -> usize {
        self.site.attributes.len()
    }

    /// An attribute of Rust type `T`. Attributes come by rising name.
    ///
    /// # Errors
    /// A message for [`Frame::fail`] if there is none, or it is of another type.
    pub fn attribute<T: AttributeValue<'a>>(&self, index: usize) -> Result<T, Fault> {
        let Some(attribute) = self.site.attributes.get(index) else {
            return Err(Fault::invalid(format!("attribute {index} is missing: {} expected", T::EXPECTED)));
        };
        attribute.get(self.function.module()).map_err(|e| Fault::invalid(format!("attribute {index}: {e}")))
    }

    /// The number of functions that the kernel is given.
    pub fn functions(&self) -> usize {
        self.site.functions.len()
    }

    /// A function that the kernel is given.
    ///
    /// # Errors
    /// A message for [`Frame::fail`] if there is none of that number.
    #[inline]
    pub fn function(&self, index: usize) -> Result<FunctionRef<'a>, Fault> {
        let id = self.site.functions.get(index).copied();
        id.and_then(|id| FunctionRef::new(self.function.module(), id as usize))
            .ok_or_else(|| Fault::invalid(format!("function {index} is missing")))
    }
}

/// Reports failures at the place of a kernel, also after its call is over.
#[derive(Clone)]
pub struct Reporter {
    context: ExecutionContext,
    kernel: Arc<str>,
    location: Option<SourceLocation>,
}

impl Reporter {
    /// Reports a failure to the context's diagnostics handler, and returns it as a value.
    pub fn report(&self, fault: impl Into<Fault>) -> ErrorValue {
        let Fault { code, message } = fault.into();
        let error = ErrorValue::at(code, message, &self.kernel, self.location.clone());
        self.context.host().diagnose(&error);
        error
    }
}

/// Why a kernel fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

impl Fault {
    /// A failure of a kind.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Something that the kernel cannot work with.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    /// What happened.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self::new(ErrorCode::Internal, message)
    }
}

impl From<&str> for Fault {
    fn from(message: &str) -> Self {
        Self::new(ErrorCode::Internal, message)
    }
}

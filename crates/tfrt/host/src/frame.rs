//! A kernel's view of one call, and the static properties of the call.

use crate::attributes::{AttributeValue, SiteAttribute};
use crate::context::HostContext;
use crate::error::{ErrorCode, ErrorValue, Fault, SourceLocation};
use crate::file::ProgramBytes;
use crate::function::FunctionRef;
use crate::request::ExecutionContext;
use crate::stack;
use crate::value::{FromValue, IntoValue, Results, Value};
use std::any::Any;
use std::sync::Arc;

/// The static properties of a kernel call: name, attributes, functions and source location.
pub(crate) struct Site {
    pub(crate) name: Arc<str>,
    pub(crate) attributes: Box<[SiteAttribute]>,
    pub(crate) functions: Box<[u32]>,
    pub(crate) location: Location,
}

impl Site {
    /// The source location of a kernel call of `function`, if it is recorded.
    pub(crate) fn location(&self, function: FunctionRef<'_>) -> Option<SourceLocation> {
        match &self.location {
            Location::None => None,
            Location::Given(location) => Some(location.clone()),
            Location::Recorded(offset) => function.module().location(*offset),
        }
    }

    /// A failure of this kernel call, which gets the call's name and location unless it has an origin already. If no kernel has reported
    /// it, it is passed to the host's diagnostics handler.
    #[cold]
    #[inline(never)]
    pub(crate) fn attach_origin(
        &self,
        error: ErrorValue,
        function: FunctionRef<'_>,
        host: &HostContext,
    ) -> ErrorValue {
        error.with_origin(&self.name, || self.location(function), |error| host.diagnose(error))
    }

    /// The error for a kernel call that did not set one of its results.
    #[cold]
    pub(crate) fn missing_result(&self, function: FunctionRef<'_>, host: &HostContext) -> ErrorValue {
        let message = format!("kernel `{}` did not set a result", self.name);
        self.attach_origin(ErrorValue::new_unreported(ErrorCode::Internal, message), function, host)
    }
}

/// The source location of a kernel call, if any: given directly, or as an offset in the file.
pub(crate) enum Location {
    None,
    Given(SourceLocation),
    /// Offset in the file's Locations section.
    Recorded(u64),
}

/// A kernel's view of one call: its arguments, attributes, functions and results.
pub struct Frame<'a> {
    /// The function's registers, or an operand buffer of this call.
    pub(crate) values: &'a mut [Value],
    /// The positions of the arguments in `values`.
    pub(crate) arguments: &'a [u32],
    /// The positions of the results in `values`.
    pub(crate) results: &'a [u32],
    /// Whether `values` is an operand buffer of this call only, as opposed to the function's registers.
    pub(crate) owned: bool,
    /// Whether a register in `values` may hold a refcounted value (object, asynchronous value or error); unused if
    /// `owned`.
    pub(crate) shares: bool,
    pub(crate) site: &'a Site,
    pub(crate) function: FunctionRef<'a>,
    pub(crate) context: &'a ExecutionContext,
    /// Whether functions that the kernel calls may run in program order: see [`crate::effects`].
    pub(crate) in_order: bool,
    pub(crate) error: Option<ErrorValue>,
}

impl<'a> Frame<'a> {
    /// A frame for a sequence of kernel calls on a function's registers; each call first sets its operands in the
    /// frame.
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

    /// An argument; [`Value::Empty`] if the index is out of range.
    #[inline]
    pub fn argument(&self, index: usize) -> &Value {
        static NONE: Value = Value::Empty;
        self.arguments.get(index).and_then(|&r| self.values.get(r as usize)).unwrap_or(&NONE)
    }

    /// Copies of all arguments from index `from` on.
    pub fn arguments_from(&self, from: usize) -> Results {
        self.argument_values_from(from).cloned().collect()
    }

    /// All arguments from index `from` on.
    #[inline]
    pub(crate) fn argument_values_from(&self, from: usize) -> impl ExactSizeIterator<Item = &Value> {
        static NONE: Value = Value::Empty;
        let registers = self.arguments.get(from..).unwrap_or(&[]);
        registers.iter().map(|&r| self.values.get(r as usize).unwrap_or(&NONE))
    }

    /// Takes an argument out of the frame, so that the kernel may become its only owner.
    ///
    /// Returns a copy if this is not the argument's last use, or if the kernel runs directly on the registers.
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
    /// A fault for [`Frame::fail`] if the argument is missing or of another type.
    #[inline(always)]
    pub fn get<T: FromValue>(&self, index: usize) -> Result<T, Fault> {
        self.try_get(index).ok_or_else(|| self.wrong_argument(index, T::type_name()))
    }

    /// An argument of Rust type `T`, if the index is in range and the type matches.
    #[inline(always)]
    pub(crate) fn try_get<T: FromValue>(&self, index: usize) -> Option<T> {
        T::from_value(self.values.get(*self.arguments.get(index)? as usize)?)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn wrong_argument(&self, index: usize, expected: &str) -> Fault {
        let actual = self.argument(index).kind();
        Fault::invalid(format!("argument {index} is {actual}, expected {expected}"))
    }

    /// The object of type `T` that an argument holds.
    ///
    /// # Errors
    /// A fault for [`Frame::fail`] if the argument is missing or of another type.
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
            self.shares |= value.assign_to(slot);
        } else {
            self.fail_no_such_result(index);
        }
    }

    /// Sets a result to `value`, which is moved out if it is refcounted.
    #[inline]
    pub(crate) fn set_moved(&mut self, index: usize, value: &mut Value) {
        if let Some(&register) = self.results.get(index)
            && let Some(slot) = self.values.get_mut(register as usize)
        {
            if !value.is_plain() {
                self.shares = true;
            }
            slot.put_moved(value);
        } else {
            self.fail_no_such_result(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn fail_no_such_result(&mut self, index: usize) {
        self.fail(Fault::invalid(format!(
            "the kernel sets result {index}, but its call has only {} results",
            self.results()
        )));
    }

    /// Sets all results, in order.
    pub fn set_all(&mut self, values: impl IntoIterator<Item = Value>) {
        values.into_iter().enumerate().for_each(|(i, v)| self.set(i, v));
    }

    /// Starts a function with the arguments from index `from` on, and sets the results to the function's results.
    #[inline]
    pub fn call(&mut self, function: FunctionRef<'_>, from: usize) {
        function.execute_in_frame(self, from);
    }

    /// Reports a failure to the host's diagnostics handler, and sets every result to this error.
    #[cold]
    pub fn fail(&mut self, fault: impl Into<Fault>) {
        let error = self.report(fault);
        self.error = Some(error);
    }

    /// Sets every result to this error, without reporting it.
    #[cold]
    pub fn fail_with(&mut self, error: ErrorValue) {
        self.error = Some(error);
    }

    /// Reports a failure at the kernel's location, and returns it as a value that some results can be set to.
    #[cold]
    pub fn report(&self, fault: impl Into<Fault>) -> ErrorValue {
        self.reporter().report(fault)
    }

    /// A reporter for failures of this kernel that happen after the call has returned.
    pub fn reporter(&self) -> Reporter {
        Reporter::for_site(self.context.host(), self.function, self.site)
    }

    /// The kernel's source location, if it is recorded.
    pub fn location(&self) -> Option<SourceLocation> {
        self.site.location(self.function)
    }

    /// The offset of the kernel's location in the file's Locations section, which can serve to identify the call.
    pub fn location_offset(&self) -> Option<u64> {
        if let Location::Recorded(offset) = self.site.location { Some(offset) } else { None }
    }

    /// The kernel's name.
    pub fn name(&self) -> &'a str {
        &self.site.name
    }

    /// The function that contains the kernel call.
    pub fn caller(&self) -> FunctionRef<'a> {
        self.function
    }

    /// The request that this call belongs to.
    pub fn context(&self) -> &'a ExecutionContext {
        self.context
    }

    /// Runs tasks of the work queue until none is waiting or running.
    ///
    /// # Errors
    /// A fault for [`Frame::fail`] if the kernel runs inside a task of a pool, which would wait for itself, or if calls
    /// are nested too deeply.
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

    /// The number of attributes, functions not included.
    pub fn attributes(&self) -> usize {
        self.site.attributes.len()
    }

    /// An attribute of Rust type `T`. Attributes are sorted by name, ascending. References borrow from the program's
    /// file, where the attribute lies; [`Self::program_bytes`] keeps what is needed after the call.
    ///
    /// # Errors
    /// A fault for [`Frame::fail`] if the attribute is missing or of another type.
    pub fn attribute<T: AttributeValue<'a>>(&self, index: usize) -> Result<T, Fault> {
        let Some(attribute) = self.site.attributes.get(index) else {
            return Err(Fault::invalid(format!("attribute {index} is missing: {} expected", T::EXPECTED)));
        };
        attribute
            .get(self.function.module().source())
            .map_err(|e| Fault::invalid(format!("attribute {index}: {e}")))
    }

    /// These bytes of an attribute with shared ownership of the program, for values that outlive the call. `None` if
    /// they do not lie in the program's file.
    pub fn program_bytes(&self, bytes: &[u8]) -> Option<ProgramBytes> {
        ProgramBytes::new(self.function.module().source()?.file(), bytes)
    }

    /// The number of functions that the kernel is given.
    pub fn functions(&self) -> usize {
        self.site.functions.len()
    }

    /// A function that the kernel is given.
    ///
    /// # Errors
    /// A fault for [`Frame::fail`] if the index is out of range.
    #[inline]
    pub fn function(&self, index: usize) -> Result<FunctionRef<'a>, Fault> {
        let id = self.site.functions.get(index).copied();
        id.and_then(|id| FunctionRef::new(self.function.module(), id as usize))
            .ok_or_else(|| Fault::invalid(format!("function {index} is missing")))
    }
}

/// Reports failures at a kernel's location, even after its call has returned.
#[derive(Clone)]
pub struct Reporter {
    host: HostContext,
    kernel: Arc<str>,
    location: Option<SourceLocation>,
}

impl Reporter {
    fn for_site(host: &HostContext, function: FunctionRef<'_>, site: &Site) -> Self {
        Self { host: host.clone(), kernel: Arc::clone(&site.name), location: site.location(function) }
    }

    /// Reports a failure to the host's diagnostics handler, and returns it as a value.
    pub fn report(&self, fault: impl Into<Fault>) -> ErrorValue {
        let Fault { code, message } = fault.into();
        let error = ErrorValue::in_kernel(code, message, &self.kernel, self.location.clone());
        self.host.diagnose(&error);
        error
    }
}

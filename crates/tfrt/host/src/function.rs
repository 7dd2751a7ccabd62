use crate::async_value::AsyncValue;
use crate::body::Body;
use crate::decode::Source;
use crate::error::{Error, ErrorCode, ErrorValue, Result, SourceLocation};
use crate::kernel::Frame;
use crate::registry::NativeFunction;
use crate::request::ExecutionContext;
use crate::sync::{caught, panic_message};
use crate::value::Value;
use crate::{dataflow, effects, ordered, stack};
use smallvec::SmallVec;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The results of a call.
pub type Results = SmallVec<[Value; 2]>;

/// How a function runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// Kernels run when their operands are available, on all threads of the work queue.
    Async,
    /// Kernels run one after another, in program order.
    Sync,
    /// The function is written in Rust.
    Native,
}

/// Functions that can call one another.
#[derive(Default)]
pub struct Module {
    pub(crate) functions: Vec<Entry>,
    pub(crate) source: Option<Source>,
}

pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: FunctionKind,
    pub(crate) arguments: u32,
    pub(crate) results: u32,
    /// Indices into the module's type names, of the arguments and then of the results; empty if the types are not
    /// known.
    pub(crate) types: SmallVec<[u32; 4]>,
    pub(crate) native: Option<NativeFunction>,
    /// Decoded from the file on first use.
    pub(crate) body: OnceLock<Result<Body, String>>,
    /// Whether its observable effects have the same order in every schedule; computed on first use.
    pub(crate) ordered: OnceLock<bool>,
}

impl Module {
    /// The functions, in order. Regions of kernels are included; their names are empty.
    pub fn functions(self: &Arc<Self>) -> impl ExactSizeIterator<Item = Function> {
        (0..self.functions.len()).map(|index| Function { module: Arc::clone(self), index: index as u32 })
    }

    /// The first function of this name.
    pub fn find(self: &Arc<Self>, name: &str) -> Option<Function> {
        let index = self.functions.iter().position(|f| f.name == name)?;
        Function::new(self, index)
    }

    /// The function of this name.
    ///
    /// # Errors
    /// [`Error::NoFunction`].
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        self.find(name).ok_or_else(|| Error::NoFunction(name.to_owned()))
    }

    pub(crate) fn location(&self, offset: u64) -> Option<SourceLocation> {
        self.source.as_ref()?.location(offset)
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.functions.iter().map(|e| &e.name)).finish()
    }
}

/// A function of a module. Kernels can be given functions and call them. Cloning shares the module.
#[derive(Clone)]
pub struct Function {
    module: Arc<Module>,
    index: u32,
}

/// A [`Function`] that borrows its module.
#[derive(Clone, Copy)]
pub struct FunctionRef<'a> {
    module: &'a Arc<Module>,
    index: u32,
}

impl Function {
    pub(crate) fn new(module: &Arc<Module>, index: usize) -> Option<Self> {
        FunctionRef::new(module, index).map(FunctionRef::to_function)
    }

    /// The same function, borrowing the module.
    #[inline]
    pub fn by_ref(&self) -> FunctionRef<'_> {
        FunctionRef { module: &self.module, index: self.index }
    }

    /// The module that the function belongs to.
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// The function's index in its module.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// The name; empty for a kernel's region.
    pub fn name(&self) -> &str {
        self.by_ref().name()
    }

    /// How the function runs.
    pub fn kind(&self) -> FunctionKind {
        self.by_ref().kind()
    }

    /// The number of arguments.
    pub fn arguments(&self) -> usize {
        self.by_ref().arguments()
    }

    /// The number of results.
    pub fn results(&self) -> usize {
        self.by_ref().results()
    }

    fn type_name(&self, index: usize) -> Option<&str> {
        let id = *self.by_ref().entry().types.get(index)?;
        self.module.source.as_ref()?.type_name(id)
    }

    /// The name of an argument's type, if the program records it.
    pub fn argument_type(&self, index: usize) -> Option<&str> {
        (index < self.arguments()).then(|| self.type_name(index)).flatten()
    }

    /// The name of a result's type, if the program records it.
    pub fn result_type(&self, index: usize) -> Option<&str> {
        self.type_name(self.arguments() + index)
    }

    /// The number of kernels.
    ///
    /// # Errors
    /// If the function's record cannot be decoded, or the function is native.
    pub fn kernels(&self) -> Result<usize> {
        self.body().map(|b| b.nodes.len())
    }

    /// The kernels, decoded from the file on first use.
    #[inline]
    pub(crate) fn body(&self) -> Result<&Body> {
        self.by_ref().body()
    }

    /// Starts the function and returns its results; some may not be available yet. Kernels that can run at once run on
    /// this thread before this returns; the others become tasks of the work queue. Failures are returned as
    /// [`Value::Error`] results.
    pub fn execute(&self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        self.by_ref().execute(context, arguments)
    }

    /// As [`Self::execute`], for callers that do nothing else with the request until the results are available.
    ///
    /// On a single thread, the kernels then run in program order if their execution order is not observable, that is if
    /// their effects ([`Effect`](crate::Effect)) have the same order in every schedule.
    pub fn execute_alone(&self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        let in_order = context.host().queue().parallelism() == 1 && self.is_ordered();
        self.by_ref().execute_in_order(context, arguments, in_order)
    }

    /// Whether an execution's observable effects have the same order in every schedule: see [`effects`].
    fn is_ordered(&self) -> bool {
        *self.by_ref().entry().ordered.get_or_init(|| effects::is_ordered(self.by_ref()))
    }

    /// As [`Self::execute`], but the whole execution is a task of the work queue.
    pub fn execute_later(&self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        if let Err(error) = self.by_ref().check_arguments(arguments.len()) {
            return self.by_ref().fail_all(invalid(&error));
        }
        dataflow::execute_later(self, context, arguments)
    }

    /// Runs the function and waits for its results on this thread, or until the request is cancelled. Kernels may call
    /// this, however many wait at the same time: a thread whose waits use up its stack leaves the rest to another.
    ///
    /// # Errors
    /// The first failure among the results.
    pub fn call(&self, context: &ExecutionContext, arguments: &[Value]) -> Result<Results> {
        self.by_ref().check_arguments(arguments.len())?;
        let results = context.wait(self.execute_alone(context, arguments));
        match results.iter().find_map(Value::as_error) {
            Some(error) => Err(Error::Failed(error.clone())),
            None => Ok(results),
        }
    }
}

impl<'a> FunctionRef<'a> {
    #[inline]
    pub(crate) fn new(module: &'a Arc<Module>, index: usize) -> Option<Self> {
        (index < module.functions.len()).then_some(Self { module, index: index as u32 })
    }

    /// The function with shared ownership of its module.
    pub fn to_function(self) -> Function {
        Function { module: Arc::clone(self.module), index: self.index }
    }

    #[inline]
    fn entry(self) -> &'a Entry {
        &self.module.functions[self.index as usize]
    }

    /// The module that the function belongs to.
    #[inline]
    pub fn module(self) -> &'a Arc<Module> {
        self.module
    }

    /// The function's index in its module.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// The name; empty for a kernel's region.
    pub fn name(self) -> &'a str {
        &self.entry().name
    }

    /// How the function runs.
    pub fn kind(self) -> FunctionKind {
        self.entry().kind
    }

    /// The number of arguments.
    #[inline]
    pub fn arguments(self) -> usize {
        self.entry().arguments as usize
    }

    /// The number of results.
    #[inline]
    pub fn results(self) -> usize {
        self.entry().results as usize
    }

    /// The kernels, decoded from the file on first use.
    #[inline]
    pub(crate) fn body(self) -> Result<&'a Body> {
        match self.entry().body.get() {
            Some(Ok(body)) => Ok(body),
            _ => self.read_body(),
        }
    }

    #[cold]
    fn read_body(self) -> Result<&'a Body> {
        let entry = self.entry();
        let body = entry.body.get_or_init(|| match &self.module.source {
            Some(source) => source.body(self.index, entry),
            None => Err("it is declared but not defined".into()),
        });
        body.as_ref()
            .map_err(|problem| Error::Malformed { function: entry.name.clone(), problem: problem.clone() })
    }

    fn check_arguments(self, found: usize) -> Result<()> {
        if found == self.arguments() {
            return Ok(());
        }
        Err(Error::WrongArguments { function: self.name().to_owned(), expected: self.arguments(), found })
    }

    /// As [`Function::execute`].
    pub fn execute(self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        self.execute_in_order(context, arguments, false)
    }

    fn execute_in_order(self, context: &ExecutionContext, arguments: &[Value], in_order: bool) -> Results {
        match self.body_if_startable(arguments.len()) {
            Some(body) => {
                let own = dataflow::prepare(body, arguments.iter());
                let mut results = Results::new();
                let set_result = &mut |_, value: &mut Value| results.push(std::mem::take(value));
                dataflow::execute(self, context, body, own, in_order, set_result);
                results
            }
            None => self.execute_slow(context, arguments),
        }
    }

    /// Starts the function with the frame's arguments from index `from` on; its results become the frame's results.
    #[inline]
    pub(crate) fn execute_in(self, frame: &mut Frame<'_>, from: usize) {
        let given = frame.arguments().saturating_sub(from);
        let Some(body) = self.body_if_startable(given) else {
            let arguments = frame.arguments_from(from);
            return frame.set_all(self.execute_slow(frame.context(), &arguments));
        };
        let own = dataflow::prepare(body, frame.all_from(from));
        let context = frame.context();
        let in_order = frame.in_order;
        dataflow::execute(self, context, body, own, in_order, &mut |i, value| frame.set_taken(i, value));
    }

    /// The kernels, if the function is asynchronous, takes this number of arguments, and the stack is not too deep to
    /// start it here.
    #[inline(always)]
    fn body_if_startable(self, arguments: usize) -> Option<&'a Body> {
        let entry = self.entry();
        if arguments != entry.arguments as usize || entry.kind != FunctionKind::Async || stack::is_deep() {
            return None;
        }
        self.body_if_read().or_else(|| self.read_body().ok())
    }

    /// The kernels, if they have been decoded.
    #[inline]
    pub(crate) fn body_if_read(self) -> Option<&'a Body> {
        self.entry().body.get()?.as_ref().ok()
    }

    /// Executes a function that is not asynchronous, that is nested too deeply, or that cannot be executed.
    #[inline(never)]
    fn execute_slow(self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        // Counted even if no kernel runs: the call may be in an endless loop.
        context.count_some_kernels(1);
        if let Err(error) = self.check_arguments(arguments.len()) {
            return self.fail_all(invalid(&error));
        }
        match self.kind() {
            FunctionKind::Native => self.execute_native(context, arguments),
            FunctionKind::Sync => self.execute_sync(context, arguments),
            FunctionKind::Async => match self.body() {
                Ok(_) => dataflow::execute_later(&self.to_function(), context, arguments),
                Err(error) => self.fail_all(invalid(&error)),
            },
        }
    }

    fn execute_native(self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        if let Some(pending) = arguments.iter().find_map(unavailable) {
            return self.execute_native_when(pending.clone(), context, arguments);
        }
        let arguments: Results = arguments.iter().map(|v| v.clone().settle()).collect();
        let mut results: Results = (0..self.results()).map(|_| Value::Empty).collect();
        if let Some(error) = arguments.iter().rev().find_map(Value::as_error) {
            results.fill(Value::Error(error.clone()));
        } else if let Some(native) = &self.entry().native
            && let Err(panic) = caught(|| native(context, &arguments, &mut results))
        {
            results.fill(self.unreported(&format!("panicked: {}", panic_message(&panic))));
        }
        for result in results.iter_mut().filter(|r| matches!(r, Value::Empty)) {
            *result = self.unreported("gave no result");
        }
        results.into_iter().map(|value| context.relayed(value)).collect()
    }

    /// A failure of this native function, which the kernel that calls it reports.
    fn unreported(self, problem: &str) -> Value {
        let message = format!("native function `{}` {problem}", self.name());
        Value::Error(ErrorValue::unreported(ErrorCode::Internal, message))
    }

    /// Continues when the argument `pending` has become available.
    fn execute_native_when(
        self,
        pending: AsyncValue,
        context: &ExecutionContext,
        arguments: &[Value],
    ) -> Results {
        let (promises, results): (Vec<_>, Results) = (0..self.results())
            .map(|_| context.promised())
            .map(|(promise, value)| (promise, Value::Async(value)))
            .unzip();
        let pending = context.relayed(Value::Async(pending));
        let (function, context, arguments) = (self.to_function(), context.clone(), arguments.to_vec());
        let go_on = move || {
            let values = match context.cancelled() {
                Some(error) => function.by_ref().fail_all(error.clone()),
                None => function.by_ref().execute_native(&context, &arguments),
            };
            promises.into_iter().zip(values).for_each(|(promise, value)| promise.set(value));
        };
        match pending {
            Value::Async(pending) => pending.and_then(go_on),
            _ => go_on(),
        }
        results
    }

    fn execute_sync(self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        let mut results: Results = (0..self.results()).map(|_| Value::Empty).collect();
        if stack::is_deep() {
            let message = "synchronous functions call each other too deeply: the limit of the stack";
            return self.fail_all(ErrorValue::unreported(ErrorCode::ResourceExhausted, message));
        }
        let outcome = stack::run_scoped(|| {
            let arguments = arguments.iter().cloned();
            ordered::run(self, &mut Vec::new(), context, arguments, &mut results)
        });
        match outcome {
            Ok(()) => results,
            Err(Error::Failed(error)) => self.fail_all(error),
            Err(error) => self.fail_all(invalid(&error)),
        }
    }

    /// This error as the value of every result.
    pub(crate) fn fail_all(self, error: ErrorValue) -> Results {
        (0..self.results()).map(|_| Value::Error(error.clone())).collect()
    }
}

/// The asynchronous value, if this is one that is not resolved yet.
fn unavailable(value: &Value) -> Option<&AsyncValue> {
    if let Value::Async(value) = value { Some(value).filter(|v| !v.is_available()) } else { None }
}

pub(crate) fn invalid(error: &Error) -> ErrorValue {
    ErrorValue::unreported(ErrorCode::InvalidArgument, error.to_string())
}

impl fmt::Debug for FunctionRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_function().fmt(f)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({} `{}`: {} -> {})", self.index, self.name(), self.arguments(), self.results())
    }
}

impl PartialEq for Function {
    /// Compares identity: whether both are the same function of the same module.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.module, &other.module) && self.index == other.index
    }
}

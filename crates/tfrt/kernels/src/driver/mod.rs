//! Runs a program like the reference executor: every function without arguments, in file order, with the same text on
//! standard output and standard error and the same exit code.

mod call;
mod diagnostics;
mod expected;

use crate::format::Exponent;
use call::Call;
use diagnostics::Diagnostics;
use pteron_clock::Instant;
use pteron_host::{
    Bytes, Error, ErrorValue, ExecutionContext, FunctionKind, HostContext, KernelRegistry, Limits, Module,
    Results, Value,
};
use pteron_pool::{Pool, WorkQueue};
use pteron_trace::{EventTracer, Place, SpanKind};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The work queue that tasks run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Queue {
    /// Tasks run first in, first out, on the thread that waits for results.
    #[default]
    SingleThreaded,
    /// Tasks run on this number of threads, not including the thread that waits for results.
    MultiThreaded(usize),
}

/// Options of a run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The functions to run, in this order; all if empty. Arguments are passed as in `f(1, 2.5)`: numbers, `true` and
    /// `false`, of the types that the program records or with a type suffix as in `5:i64`. Chains may be left out.
    pub functions: Vec<String>,
    /// The name of a function to run once, before the others; ignored if the program has no such function.
    pub init: Option<String>,
    /// The work queue that tasks run on.
    pub queue: Queue,
    /// Whether errors among results are printed with their codes.
    pub print_error_code: bool,
    /// The limits of each function's run.
    pub limits: Limits,
    /// Maximum time that each function may run; `None` for no limit.
    pub time: Option<Duration>,
    /// The instant at which the run as a whole ends; `None` for no deadline.
    pub deadline: Option<Instant>,
}

/// A writer with several owners.
struct Shared<W>(Arc<Mutex<W>>);

impl<W> Clone for Shared<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Write> Write for Shared<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).flush()
    }
}

/// Runs a program with this crate's kernels. Errors that the source file expects (`// expected-error`) are not
/// reported; source files are looked up relative to the current directory.
///
/// Returns the exit code: 0, or 1 if an unexpected error occurred or an expected one did not.
pub fn run(
    bytes: Bytes,
    options: &Options,
    stdout: impl Write + Send + 'static,
    stderr: impl Write + Send + 'static,
) -> i32 {
    run_with(bytes, options, crate::registry(), stdout, stderr)
}

/// As [`run`], but with the kernels of `registry` instead of all kernels of this crate.
pub fn run_with(
    bytes: Bytes,
    options: &Options,
    registry: KernelRegistry,
    stdout: impl Write + Send + 'static,
    stderr: impl Write + Send + 'static,
) -> i32 {
    let program = match OpenProgram::new(bytes, options, &registry, None, stdout, stderr) {
        Ok(program) => program,
        Err(status) => return status,
    };
    for call in program.init.iter().chain(&program.functions) {
        run_function(&program.host, call, options);
    }
    program.exit_code()
}

/// Runs a program with this crate's kernels under a tracer: the functions that [`run`] would run, `times` times each,
/// and [`Options::init`] once. The tracer records
///
/// - opening the program, as [`SpanKind::LoadProgram`];
/// - every run of a function, as [`SpanKind::Execute`], until its results are available and all its tasks have ended,
///   with the function's index as [`Place::chain`];
/// - kernels and tasks, see [`pteron_host::HostBuilder::tracer`].
///
/// After an unexpected error, a function is not run again. Only the output of kernels goes to `stdout`; `stderr` and
/// the exit code are as with [`run`].
pub fn run_traced(
    bytes: Bytes,
    options: &Options,
    times: usize,
    tracer: Arc<dyn EventTracer>,
    stdout: impl Write + Send + 'static,
    stderr: impl Write + Send + 'static,
) -> i32 {
    let program = match OpenProgram::new(bytes, options, &crate::registry(), Some(tracer), stdout, stderr) {
        Ok(program) => program,
        Err(status) => return status,
    };
    let init = program.init.iter().map(|call| (call, 1));
    let functions = program.functions.iter().map(|call| (call, times));
    for (call, times) in init.chain(functions).filter(|(call, _)| can_run(call)) {
        let errors = program.diagnostics.unexpected_count();
        for _ in 0..times {
            trace_function(&program.host, call, options);
            if program.diagnostics.unexpected_count() > errors {
                break;
            }
        }
    }
    program.exit_code()
}

/// An opened program, its host and the calls to run.
struct OpenProgram {
    host: HostContext,
    diagnostics: Arc<Diagnostics>,
    init: Option<Call>,
    /// The functions to run, except `init`.
    functions: Vec<Call>,
}

impl OpenProgram {
    /// Opens a program. Reports a failure and returns the exit code as the error.
    fn new(
        bytes: Bytes,
        options: &Options,
        registry: &KernelRegistry,
        tracer: Option<Arc<dyn EventTracer>>,
        stdout: impl Write + Send + 'static,
        stderr: impl Write + Send + 'static,
    ) -> Result<Self, i32> {
        let queue = match options.queue {
            Queue::SingleThreaded => WorkQueue::single_threaded(),
            // A pool includes the thread that waits, which must not count.
            Queue::MultiThreaded(threads) => WorkQueue::of_workers(&Pool::new(threads.saturating_add(1))),
        };
        let mut stderr = Shared(Arc::new(Mutex::new(stderr)));
        let diagnostics = Arc::new(Diagnostics::new(stderr.clone()));
        let listener = Arc::clone(&diagnostics);
        let mut host = HostContext::builder(queue)
            .output(stdout)
            .log(stderr.clone())
            .limits(options.limits)
            .on_error(move |error| listener.report(error.location(), error.message()));
        if let Some(tracer) = tracer {
            host = host.tracer(tracer);
        }
        let host = host.build();
        let start = host.tracer().start();
        let module = match Module::open(bytes, registry) {
            Ok(module) => module,
            Err(error) => {
                report_open_error(&diagnostics, &error, registry);
                return Err(i32::from(!diagnostics.report_missing_errors()));
            }
        };
        host.tracer().end(start, SpanKind::LoadProgram, "program", Place::default());
        let init = options.init.as_ref().and_then(|name| module.find(name)).map(Call::without_arguments);
        let mut functions = Vec::new();
        if options.functions.is_empty() {
            functions.extend(module.functions().map(Call::without_arguments));
        }
        for text in &options.functions {
            match Call::parse(&module, text) {
                Ok(call) => functions.push(call),
                Err(problem) => {
                    let _ = writeln!(stderr, "{problem}");
                    return Err(1);
                }
            }
        }
        functions.retain(|call| init.as_ref().is_none_or(|init| init.function != call.function));
        Ok(Self { host, diagnostics, init, functions })
    }

    /// Reports expected errors that have not occurred, and returns the run's exit code. Called after all functions ran.
    fn exit_code(&self) -> i32 {
        i32::from(!self.diagnostics.report_missing_errors())
    }
}

/// Maximum number of unknown kernels for which similar names are suggested.
const MAX_HINTS: usize = 20;

/// Reports why a file cannot be opened, with the reference's message if it has one.
fn report_open_error(diagnostics: &Diagnostics, error: &Error, registry: &KernelRegistry) {
    match error {
        Error::UnknownKernels(kernels) => {
            let known = registry.names();
            for (i, kernel) in kernels.iter().enumerate() {
                let location = kernel.location.as_ref();
                let candidates: &[&str] = if i < MAX_HINTS { &known } else { &[] };
                let hint = pteron_text::did_you_mean(&kernel.name, candidates.iter().copied());
                diagnostics.report(location, &format!("unknown kernel name '{}'{hint}", kernel.name));
            }
        }
        Error::UnknownNative { .. } => diagnostics.report(
            None,
            "invalid FunctionIndex section in BEF file: unable to find native function in global registry",
        ),
        other => diagnostics.report(None, &other.to_string()),
    }
}

fn run_function(host: &HostContext, call: &Call, options: &Options) {
    let (function, print_error_code) = (&call.function, options.print_error_code);
    let name = function.name();
    let print = |text: &str| {
        host.print(|out| {
            out.write_all(text.as_bytes())?;
            out.flush()
        });
    };
    if function.arguments() > call.arguments.len() {
        return print(&format!("--- Not running '{name}' because it has arguments.\n"));
    }
    if name.is_empty() {
        return;
    }
    print(&format!("--- Running '{name}':\n"));
    let context = new_request(host, options);
    let results = execute(call, &context);
    let failed_sync = function.kind() == FunctionKind::Sync && results.first().is_some_and(Value::is_error);
    let shown = if failed_sync { &results[..1] } else { &results[..] };
    let texts: Vec<String> = shown
        .iter()
        .enumerate()
        .map(|(i, value)| match value {
            Value::Error(error) => error_text(error, print_error_code && !failed_sync),
            value => value_text(value, function.result_type(i).unwrap_or("unknown")),
        })
        .collect();
    if !texts.is_empty() {
        print(&format!("'{name}' returned {}\n", texts.join(",")));
    }
    drop(results);
    host.quiesce();
    context.clear_resources();
}

/// Starts a request that ends at the earlier of the time limit for a function and the deadline of the run.
fn new_request(host: &HostContext, options: &Options) -> ExecutionContext {
    let own = options.time.and_then(|time| Instant::now().checked_add(time));
    match own.into_iter().chain(options.deadline).min() {
        Some(deadline) => ExecutionContext::with_deadline(host, deadline),
        None => ExecutionContext::new(host),
    }
}

/// Runs a function and records the run as a span.
fn trace_function(host: &HostContext, call: &Call, options: &Options) {
    let context = new_request(host, options);
    let start = host.tracer().start();
    drop(execute(call, &context));
    host.quiesce();
    let place = Place { chain: Some(call.function.index() as u32), ..Place::default() };
    host.tracer().end(start, SpanKind::Execute, call.function.name(), place);
    context.clear_resources();
}

/// Calls a function and waits for its results.
fn execute(call: &Call, context: &ExecutionContext) -> Results {
    context.wait(call.function.execute_alone(context, &call.arguments))
}

/// Whether a call has all arguments and its function is not a kernel's region.
fn can_run(call: &Call) -> bool {
    call.function.arguments() == call.arguments.len() && !call.function.name().is_empty()
}

fn error_text(error: &ErrorValue, with_code: bool) -> String {
    if with_code {
        format!("<<error: {}, code: {}>>", error.message(), error.code())
    } else {
        format!("<<error: {}>>", error.message())
    }
}

/// The text of a value if the driver can print its type, otherwise the type's name.
fn value_text(value: &Value, kind: &str) -> String {
    match (kind, value) {
        ("i1", Value::Bool(v)) => i32::from(*v).to_string(),
        ("i32", Value::I32(v)) => v.to_string(),
        ("i64", Value::I64(v)) => v.to_string(),
        ("f32", Value::F32(v)) => Exponent(f64::from(*v)).to_string(),
        ("f64", Value::F64(v)) => Exponent(*v).to_string(),
        _ => format!("{kind} value"),
    }
}

use crate::async_value::AsyncValue;
use crate::error::{ErrorCode, ErrorValue};
use crate::limits::{KERNELS_BETWEEN_CHECKS, Limits};
use crate::registry::KernelRegistry;
use crate::sync::lock;
use crate::timer::Timers;
use crate::value::Value;
use pool::{Task, WorkQueue};
use std::any::{Any, TypeId};
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use trace::{EventTracer, Place, SpanKind, Tracer};

type Shared = Arc<dyn Any + Send + Sync>;
type Diagnose = Box<dyn Fn(&ErrorValue) + Send + Sync>;

/// State that all programs of one host share: the work queue, the kernel registry, the output and log streams and the
/// error handler. Cloning shares it.
#[derive(Clone)]
pub struct HostContext(Arc<Host>);

struct Host {
    queue: WorkQueue,
    registry: KernelRegistry,
    diagnose: Diagnose,
    output: Mutex<Box<dyn Write + Send>>,
    log: Mutex<Box<dyn Write + Send>>,
    tracer: Option<Arc<dyn EventTracer>>,
    limits: Limits,
    shared: Mutex<HashMap<TypeId, Shared>>,
    timers: OnceLock<Timers>,
}

/// Builds a [`HostContext`].
pub struct HostBuilder {
    queue: WorkQueue,
    registry: KernelRegistry,
    diagnose: Diagnose,
    output: Box<dyn Write + Send>,
    log: Box<dyn Write + Send>,
    tracer: Option<Arc<dyn EventTracer>>,
    limits: Limits,
}

impl HostBuilder {
    /// Sets the diagnostics handler, which is called for every failure that a kernel reports.
    pub fn on_error(mut self, diagnose: impl Fn(&ErrorValue) + Send + Sync + 'static) -> Self {
        self.diagnose = Box::new(diagnose);
        self
    }

    /// Sets where kernels print; the default is standard output.
    pub fn output(mut self, output: impl Write + Send + 'static) -> Self {
        self.output = Box::new(output);
        self
    }

    /// Sets where kernels log; the default is standard error.
    pub fn log(mut self, log: impl Write + Send + 'static) -> Self {
        self.log = Box::new(log);
        self
    }

    /// Sets the tracer, which records every kernel that runs and every task that kernels add to the work queue.
    pub fn tracer(mut self, tracer: Arc<dyn EventTracer>) -> Self {
        self.tracer = Some(tracer);
        self
    }

    /// Sets the limits of each request.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Builds the context.
    pub fn build(self) -> HostContext {
        HostContext(Arc::new(Host {
            queue: self.queue,
            registry: self.registry,
            diagnose: self.diagnose,
            output: Mutex::new(self.output),
            log: Mutex::new(self.log),
            tracer: self.tracer,
            limits: self.limits,
            shared: Mutex::default(),
            timers: OnceLock::new(),
        }))
    }
}

impl HostContext {
    /// A builder of a context with these kernels, whose tasks run on `queue`.
    pub fn builder(registry: KernelRegistry, queue: WorkQueue) -> HostBuilder {
        HostBuilder {
            queue,
            registry,
            diagnose: Box::new(|_| ()),
            output: Box::new(io::stdout()),
            log: Box::new(io::stderr()),
            tracer: None,
            limits: Limits::DEFAULT,
        }
    }

    /// A context that runs all tasks on the thread that waits for their results.
    pub fn single_threaded(registry: KernelRegistry) -> Self {
        Self::builder(registry, WorkQueue::single_threaded()).build()
    }

    /// The work queue that tasks run on.
    pub fn queue(&self) -> &WorkQueue {
        &self.0.queue
    }

    /// The kernel registry.
    pub fn registry(&self) -> &KernelRegistry {
        &self.0.registry
    }

    /// The limits of each request.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// The tracer; [`Tracer::NONE`] if none was set.
    pub fn tracer(&self) -> Tracer<'_> {
        self.0.tracer.as_deref().map_or(Tracer::NONE, Tracer::new)
    }

    /// Writes to the output stream. The output of one `write` is not interleaved with others.
    pub fn print(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        let mut output = lock(&self.0.output);
        // A closed output stream is no reason for a program to fail.
        let _ = write(&mut **output);
    }

    /// Writes to the log. The output of one `write` is not interleaved with others.
    pub fn log(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        let mut log = lock(&self.0.log);
        // As in `print`.
        let _ = write(&mut **log);
    }

    /// Reports a failure to the diagnostics handler.
    pub fn diagnose(&self, error: &ErrorValue) {
        (self.0.diagnose)(error);
    }

    /// The host's single instance of `T`, created by `make` on first use.
    pub fn shared<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = lock(&self.0.shared);
        let entry = shared.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(make()));
        match Arc::clone(entry).downcast() {
            Ok(value) => value,
            Err(_) => unreachable!("the map's keys are the types of its values"),
        }
    }

    /// Runs `task` on the host's timer thread after `delay`.
    pub fn after(&self, delay: Duration, task: impl FnOnce() + Send + 'static) {
        self.0.timers.get_or_init(Timers::start).add(delay, Box::new(task));
    }

    /// Runs tasks on this thread until all the values are available.
    pub fn wait(&self, values: &[Value]) {
        let pending: Vec<_> = values
            .iter()
            .filter_map(|v| if let Value::Async(a) = v { Some(a) } else { None })
            .filter(|a| !a.is_available())
            .collect();
        if pending.is_empty() {
            return;
        }
        let remaining = Arc::new(AtomicUsize::new(pending.len()));
        for value in pending {
            let (remaining, queue) = (Arc::clone(&remaining), self.queue().clone());
            value.and_then(move || {
                if remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
                    queue.wake();
                }
            });
        }
        self.queue().wait_until(&|| remaining.load(Ordering::Acquire) == 0);
    }

    /// Runs tasks until none is waiting or running: see [`WorkQueue::quiesce`].
    pub fn quiesce(&self) {
        self.queue().quiesce();
    }
}

impl fmt::Debug for HostContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostContext({:?}, {:?})", self.queue(), self.registry())
    }
}

thread_local! {
    /// Kernels that ran on this thread, for any request, and are not charged to a request yet.
    static UNCOUNTED: Cell<u32> = const { Cell::new(0) };
}

/// One request: the state that all its executions share. Cloning shares it.
#[derive(Clone)]
pub struct ExecutionContext(Arc<Request>);

struct Request {
    host: HostContext,
    cancelled: AtomicBool,
    cancel: OnceLock<ErrorValue>,
    resources: Mutex<HashMap<String, Shared>>,
    kernels: AtomicU64,
}

impl ExecutionContext {
    /// Starts a new request.
    pub fn new(host: &HostContext) -> Self {
        Self(Arc::new(Request {
            host: host.clone(),
            cancelled: AtomicBool::new(false),
            cancel: OnceLock::new(),
            resources: Mutex::default(),
            kernels: AtomicU64::new(0),
        }))
    }

    /// The host.
    pub fn host(&self) -> &HostContext {
        &self.0.host
    }

    /// Cancels the request: kernels that have not begun return this error instead. Only the first call sets the error.
    pub fn cancel_with(&self, error: ErrorValue) {
        let _ = self.0.cancel.set(error.of_request());
        self.0.cancelled.store(true, Ordering::Release);
    }

    /// Cancels the request with [`ErrorCode::Cancelled`].
    pub fn cancel(&self) {
        self.cancel_with(ErrorValue::new(ErrorCode::Cancelled, "Cancelled"));
    }

    /// The error that the request was cancelled with; `None` if it was not.
    #[inline(always)]
    pub fn cancelled(&self) -> Option<&ErrorValue> {
        if self.0.cancelled.load(Ordering::Acquire) { self.0.cancel.get() } else { None }
    }

    /// The resource of this name, created by `make` on first use; `None` if it exists with another type.
    pub fn resource<T: Any + Send + Sync>(&self, name: &str, make: impl FnOnce() -> T) -> Option<Arc<T>> {
        let mut resources = lock(&self.0.resources);
        if let Some(resource) = resources.get(name) {
            return Arc::clone(resource).downcast().ok();
        }
        let resource = Arc::new(make());
        resources.insert(name.to_owned(), Arc::clone(&resource) as Shared);
        Some(resource)
    }

    /// Runs `work` as a task of the work queue, and returns an asynchronous value for its result.
    pub fn enqueue(&self, work: impl FnOnce() -> Value + Send + 'static) -> Value {
        let (promise, value) = AsyncValue::new();
        let task: Task = if self.host().tracer().is_enabled() {
            let host = self.host().clone();
            Task::from(Box::new(move || promise.set(traced(host.tracer(), work))))
        } else {
            Task::from(Box::new(move || promise.set(work())))
        };
        self.host().queue().add_task(task);
        Value::Async(value)
    }

    /// Drops all resources.
    pub fn clear_resources(&self) {
        let resources = std::mem::take(&mut *lock(&self.0.resources));
        drop(resources);
    }

    /// Counts kernels, or other steps of work, and cancels the request if it exceeds [`Limits::kernels`].
    pub fn count_kernels(&self, count: u64) {
        let before = self.0.kernels.fetch_add(count, Ordering::Relaxed);
        let limit = self.host().limits().kernels;
        if before.saturating_add(count) > limit {
            self.cancel_with(ErrorValue::new(
                ErrorCode::ResourceExhausted,
                format!("more than {limit} kernels ran (Limits::kernels)"),
            ));
        }
    }

    /// As [`Self::count_kernels`], for few kernels: counts are batched per thread.
    #[inline]
    pub(crate) fn count_some_kernels(&self, count: u32) {
        let sum = UNCOUNTED.get().saturating_add(count);
        if sum < KERNELS_BETWEEN_CHECKS {
            UNCOUNTED.set(sum);
        } else {
            UNCOUNTED.set(0);
            self.count_kernels(sum.into());
        }
    }

    /// A handle of the request for an execution that continues after its start returns. Cancels the request if more
    /// than [`Limits::executions`] are under way.
    pub(crate) fn for_execution(&self) -> Self {
        let limit = self.host().limits().executions;
        if Arc::strong_count(&self.0) > limit {
            self.cancel_with(ErrorValue::new(
                ErrorCode::ResourceExhausted,
                format!("more than {limit} function executions are under way (Limits::executions)"),
            ));
        }
        self.clone()
    }
}

/// Runs a task's work and records it as a span.
fn traced(tracer: Tracer<'_>, work: impl FnOnce() -> Value) -> Value {
    let start = tracer.start();
    let value = work();
    tracer.end(start, SpanKind::Task, "task", Place::default());
    value
}

impl fmt::Debug for ExecutionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExecutionContext(cancelled: {:?})", self.cancelled())
    }
}

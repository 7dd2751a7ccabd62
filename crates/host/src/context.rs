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

/// What all programs of one host share: the work queue, the kernels, where kernels print and report
/// to. Cloning shares it.
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

/// Makes a [`HostContext`].
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
    /// What is called for every failure that a kernel reports.
    pub fn on_error(mut self, diagnose: impl Fn(&ErrorValue) + Send + Sync + 'static) -> Self {
        self.diagnose = Box::new(diagnose);
        self
    }

    /// Where kernels print: standard output unless told.
    pub fn output(mut self, output: impl Write + Send + 'static) -> Self {
        self.output = Box::new(output);
        self
    }

    /// Where kernels log: standard error unless told.
    pub fn log(mut self, log: impl Write + Send + 'static) -> Self {
        self.log = Box::new(log);
        self
    }

    /// Who is told of every kernel that runs, and of the work that kernels hand to the work queue.
    pub fn tracer(mut self, tracer: Arc<dyn EventTracer>) -> Self {
        self.tracer = Some(tracer);
        self
    }

    /// What a request may use.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The context.
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
    /// Starts to make a context of these kernels, whose tasks go to `queue`.
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

    /// A context that runs everything on the thread that waits.
    pub fn single_threaded(registry: KernelRegistry) -> Self {
        Self::builder(registry, WorkQueue::single_threaded()).build()
    }

    /// Where tasks go.
    pub fn queue(&self) -> &WorkQueue {
        &self.0.queue
    }

    /// The kernels.
    pub fn registry(&self) -> &KernelRegistry {
        &self.0.registry
    }

    /// What a request may use.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Who is told of what runs.
    pub fn tracer(&self) -> Tracer<'_> {
        self.0.tracer.as_deref().map_or(Tracer::NONE, Tracer::new)
    }

    /// Writes to where kernels print. What `write` writes stays together.
    pub fn print(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        let mut output = lock(&self.0.output);
        // A reader that has gone away is no reason for a program to fail.
        let _ = write(&mut **output);
    }

    /// Writes to where kernels log. What `write` writes stays together.
    pub fn log(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        let mut log = lock(&self.0.log);
        // As with what kernels print.
        let _ = write(&mut **log);
    }

    /// Reports a failure to the diagnostics handler.
    pub fn diagnose(&self, error: &ErrorValue) {
        (self.0.diagnose)(error);
    }

    /// The one `T` of this host, made when first asked for.
    pub fn shared<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = lock(&self.0.shared);
        let entry = shared.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(make()));
        match Arc::clone(entry).downcast() {
            Ok(value) => value,
            Err(_) => unreachable!("the map's keys are the types of its values"),
        }
    }

    /// Runs `task` on a thread of its own kind once `delay` has passed.
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

    /// Runs tasks until none is left.
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
    /// Kernels that ran on this thread, of whichever request, and that no request has counted.
    static UNCOUNTED: Cell<u32> = const { Cell::new(0) };
}

/// One request: what the executions that answer it have in common. Cloning shares it.
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
    /// A new request.
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

    /// Stops the request: kernels that have not begun give this error instead. The first call counts.
    pub fn cancel_with(&self, error: ErrorValue) {
        let _ = self.0.cancel.set(error);
        self.0.cancelled.store(true, Ordering::Release);
    }

    /// Stops the request.
    pub fn cancel(&self) {
        self.cancel_with(ErrorValue::new(ErrorCode::Cancelled, "Cancelled"));
    }

    /// The error that the request was cancelled with.
    #[inline(always)]
    pub fn cancelled(&self) -> Option<&ErrorValue> {
        if self.0.cancelled.load(Ordering::Acquire) { self.0.cancel.get() } else { None }
    }

    /// The resource of this name, made when first asked for; `None` if it is of another type.
    pub fn resource<T: Any + Send + Sync>(&self, name: &str, make: impl FnOnce() -> T) -> Option<Arc<T>> {
        let mut resources = lock(&self.0.resources);
        if let Some(resource) = resources.get(name) {
            return Arc::clone(resource).downcast().ok();
        }
        let resource = Arc::new(make());
        resources.insert(name.to_owned(), Arc::clone(&resource) as Shared);
        Some(resource)
    }

    /// Does `work` as a task of the work queue: the value that will be its result.
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

    /// Counts kernels, or other steps of work, and cancels the request that takes too many.
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

    /// As [`Self::count_kernels`], for few kernels: they are counted when there are many of this thread.
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

    /// A share in the request for an execution that goes on after its start. The request of which too
    /// many do is cancelled.
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

/// The result of a task's work, reported to the tracer.
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

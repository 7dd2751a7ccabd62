use crate::error::ErrorValue;
use crate::instances::Instances;
use crate::limits::Limits;
use crate::nested;
use crate::stack;
use crate::sync::{Mutex, catch_panic, lock};
use crate::timer::{Timer, Timers};
use crate::value::Value;
use pteron_pool::WorkQueue;
use pteron_trace::{EventTracer, Tracer};
use std::any::{Any, TypeId};
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

type Diagnose = Box<dyn Fn(&ErrorValue) + Send + Sync>;

/// State that all programs of one host share, such as the work queue, the limits, the output and log streams and the diagnostics handler.
/// Clones share it.
#[derive(Clone)]
pub struct HostContext(Arc<Host>);

struct Host {
    queue: WorkQueue,
    diagnose: Diagnose,
    output: Mutex<Box<dyn Write + Send>>,
    log: Mutex<Box<dyn Write + Send>>,
    tracer: Option<Arc<dyn EventTracer>>,
    limits: Limits,
    shared: Instances<TypeId>,
    timers: OnceLock<Timers>,
}

/// Builds a [`HostContext`].
pub struct HostBuilder {
    queue: WorkQueue,
    diagnose: Diagnose,
    output: Box<dyn Write + Send>,
    log: Box<dyn Write + Send>,
    tracer: Option<Arc<dyn EventTracer>>,
    limits: Limits,
}

impl HostBuilder {
    /// Sets the diagnostics handler, which is called for every failure that a kernel or the executor reports.
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
            diagnose: self.diagnose,
            output: Mutex::new(self.output),
            log: Mutex::new(self.log),
            tracer: self.tracer,
            limits: self.limits,
            shared: Instances::default(),
            timers: OnceLock::new(),
        }))
    }
}

impl HostContext {
    /// A builder of a context whose tasks run on `queue`.
    pub fn builder(queue: WorkQueue) -> HostBuilder {
        HostBuilder {
            queue,
            diagnose: Box::new(|_| ()),
            output: Box::new(io::stdout()),
            log: Box::new(io::stderr()),
            tracer: None,
            limits: Limits::DEFAULT,
        }
    }

    /// A context that runs all tasks on the thread that waits for their results.
    pub fn single_threaded() -> Self {
        Self::builder(WorkQueue::single_threaded()).build()
    }

    /// The work queue that tasks run on.
    pub fn queue(&self) -> &WorkQueue {
        &self.0.queue
    }

    /// The limits of each request.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// The tracer; [`Tracer::NONE`] if none was set.
    pub fn tracer(&self) -> Tracer<'_> {
        self.0.tracer.as_deref().map_or(Tracer::NONE, Tracer::new)
    }

    /// Writes to the output stream. The output of one call of `write` is never interleaved with that of another.
    pub fn print(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        let mut output = lock(&self.0.output);
        // A closed output stream is no reason for a program to fail.
        let _ = write(&mut **output);
    }

    /// Writes to the log. The output of one call of `write` is never interleaved with that of another.
    pub fn log(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        let mut log = lock(&self.0.log);
        // As in `print`.
        let _ = write(&mut **log);
    }

    /// Reports a failure to the diagnostics handler.
    pub fn diagnose(&self, error: &ErrorValue) {
        // A panic of the handler is no failure of the program.
        let _ = catch_panic(|| (self.0.diagnose)(error));
    }

    /// The host's single instance of `T`, created by `make` on first use. `make` may ask for other instances.
    ///
    /// # Panics
    /// If `make` needs the instance that it creates, directly or by way of others.
    pub fn shared<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let name = std::any::type_name::<T>();
        let shared = self.0.shared.get(&TypeId::of::<T>(), || Arc::new(make()));
        let Ok(object) = shared else {
            panic!("the constructor of the shared {name} needs that object itself")
        };
        match object.downcast() {
            Ok(value) => value,
            Err(_) => unreachable!("the map's keys are the types of its values"),
        }
    }

    /// Runs `task` on the host's timer thread after `delay`; never if the clock cannot express that time. A panic of
    /// the task ends that task only. [`Timer::remove`] cancels it.
    ///
    /// A timer has no error of its own: if the task is to resolve a value, its [`Promise`](crate::Promise) does so also
    /// when the task is dropped.
    pub fn after(&self, delay: Duration, task: impl FnOnce() + Send + 'static) -> Timer {
        self.timers().add(delay, Box::new(task))
    }

    pub(crate) fn timers(&self) -> &Timers {
        self.0.timers.get_or_init(Timers::start)
    }

    /// Runs tasks on this thread until all the values are available, or, on a thread whose waits have used up its
    /// stack, lets another thread run them. Returns earlier, with values that are not available, only if the system has
    /// no such thread. [`ExecutionContext::wait`](crate::ExecutionContext::wait) also ends when a request is cancelled.
    pub fn wait(&self, values: &[Value]) {
        let _ = self.wait_or_until(values, &|| false);
    }

    /// As [`Self::wait`], but also ends when `ended` returns true. Code that makes it return true must wake the queue.
    pub(crate) fn wait_or_until(
        &self,
        values: &[Value],
        ended: &(dyn Fn() -> bool + Sync),
    ) -> io::Result<()> {
        let pending: Vec<_> = values
            .iter()
            .filter_map(|v| if let Value::Async(a) = v { Some(a) } else { None })
            .filter(|a| !a.is_available())
            .collect();
        if pending.is_empty() {
            return Ok(());
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
        self.wait_until(&|| remaining.load(Ordering::Acquire) == 0 || ended())
    }

    /// Waits until `done` returns true. Before each check, runs the work deferred on this thread, on which `done` may depend.
    fn wait_until(&self, done: &(dyn Fn() -> bool + Sync)) -> io::Result<()> {
        let wait = || {
            let done = || {
                stack::run_deferred();
                done()
            };
            // A panic ends only the task that panicked, not this wait, which may be another request's.
            while catch_panic(|| self.queue().wait_until(&done)).is_err() {}
        };
        if !stack::is_deep() {
            stack::run_scoped(wait);
            return Ok(());
        }
        stack::run_deferred();
        if done() {
            return Ok(());
        }
        nested::run_on_new_stack(self.queue(), wait)
    }

    /// Runs tasks until none is waiting or running: see [`WorkQueue::quiesce`].
    pub fn quiesce(&self) {
        let quiesce = || loop {
            // As in `wait_until`.
            while catch_panic(|| self.queue().quiesce()).is_err() {}
            if !stack::run_deferred() {
                break;
            }
        };
        stack::run_scoped(quiesce);
    }
}

impl fmt::Debug for HostContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostContext({:?})", self.queue())
    }
}

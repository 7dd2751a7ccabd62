use crate::async_value::{AsyncValue, Promise};
use crate::context::HostContext;
use crate::error::{ErrorCode, ErrorValue, Fault};
use crate::instances::Instances;
use crate::limits::KERNELS_BETWEEN_CHECKS;
use crate::memory::{Account, Charge};
use crate::pending::Pending;
use crate::sync::{Mutex, catch_panic, lock, panic_message};
use crate::timer::Timer;
use crate::value::{Results, Value};
use pteron_clock::Instant;
use pteron_pool::Task;
use pteron_trace::{Place, SpanKind, Tracer};
use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

thread_local! {
    /// Number of kernels that ran on this thread, for any request, and are not charged to a request yet.
    static UNCOUNTED: Cell<u32> = const { Cell::new(0) };
}

/// One request: the state that all its executions share. Cloning shares it.
///
/// It ends early when it is cancelled, when its deadline passes, or when it exceeds one of its
/// [`Limits`](crate::Limits): then kernels that have not begun return the error instead, and everything that waits for
/// its values is woken.
#[derive(Clone)]
pub struct ExecutionContext(Arc<Request>);

struct Request {
    /// Identifies the request in the values that its cancellation resolves ([`AsyncValue::with_request`]).
    id: u64,
    host: HostContext,
    cancelled: AtomicBool,
    cancel: OnceLock<ErrorValue>,
    pending: Pending,
    deadline: Mutex<Option<Deadline>>,
    /// Whether counting kernels also checks the deadline, because there is no thread that ends the request.
    polled: AtomicBool,
    resources: Instances<String>,
    kernels: AtomicU64,
    memory: Arc<Account>,
}

struct Deadline {
    at: Instant,
    /// Ends the request; absent on targets without threads.
    timer: Option<Timer>,
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            timer.remove();
        }
    }
}

impl ExecutionContext {
    /// Starts a new request.
    pub fn new(host: &HostContext) -> Self {
        static REQUESTS: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Request {
            id: REQUESTS.fetch_add(1, Ordering::Relaxed),
            host: host.clone(),
            cancelled: AtomicBool::new(false),
            cancel: OnceLock::new(),
            pending: Pending::default(),
            deadline: Mutex::new(None),
            polled: AtomicBool::new(false),
            resources: Instances::default(),
            kernels: AtomicU64::new(0),
            memory: Arc::default(),
        }))
    }

    /// Starts a new request that ends with [`ErrorCode::DeadlineExceeded`] at `deadline`.
    pub fn with_deadline(host: &HostContext, deadline: Instant) -> Self {
        let context = Self::new(host);
        context.set_deadline(deadline);
        context
    }

    /// The host that the request runs on.
    pub fn host(&self) -> &HostContext {
        &self.0.host
    }

    /// Sets when the request ends with [`ErrorCode::DeadlineExceeded`], in place of an earlier setting.
    pub fn set_deadline(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let timers = self.host().timers();
        let request = Arc::downgrade(&self.0);
        let expire = move || {
            if let Some(request) = request.upgrade() {
                Self(request).expire();
            }
        };
        let timer = timers.has_thread().then(|| timers.add(left, Box::new(expire)));
        self.0.polled.store(timer.is_none(), Ordering::Relaxed);
        let before = lock(&self.0.deadline).replace(Deadline { at: deadline, timer });
        drop(before);
        if left == Duration::ZERO {
            self.expire();
        }
    }

    /// The deadline of the request, if it has one.
    pub fn deadline(&self) -> Option<Instant> {
        lock(&self.0.deadline).as_ref().map(|deadline| deadline.at)
    }

    fn expire(&self) {
        self.end_with_error(ErrorCode::DeadlineExceeded, || "the request's deadline has passed".into());
    }

    /// Ends the request with a new error, and reports the error, unless the request has ended before.
    fn end_with_error(&self, code: ErrorCode, message: impl FnOnce() -> String) {
        if self.cancellation_error().is_none()
            && self.set_cancelled(ErrorValue::new(code, message()).into_request_failure())
        {
            self.cancellation_error().into_iter().for_each(|error| self.host().diagnose(error));
            self.wake_all();
        }
    }

    /// Cancels the request: kernels that have not begun return this error instead, and values that are waited for
    /// become this error. Only the first call sets the error.
    pub fn cancel_with(&self, error: ErrorValue) {
        if self.set_cancelled(error.into_request_failure()) {
            self.wake_all();
        }
    }

    /// Ends the request with `error`. Returns false if it has ended before: then its earlier error is kept.
    fn set_cancelled(&self, error: ErrorValue) -> bool {
        let first = self.0.cancel.set(error).is_ok();
        self.0.cancelled.store(true, Ordering::Release);
        first
    }

    fn wake_all(&self) {
        if let Some(error) = self.cancellation_error() {
            self.0.pending.cancel(error);
        }
        self.host().queue().wake();
    }

    /// Cancels the request with [`ErrorCode::Cancelled`].
    pub fn cancel(&self) {
        self.cancel_with(ErrorValue::new(ErrorCode::Cancelled, "Cancelled"));
    }

    /// The error that the request was cancelled with; `None` if it was not.
    #[inline(always)]
    pub fn cancellation_error(&self) -> Option<&ErrorValue> {
        if self.0.cancelled.load(Ordering::Acquire) { self.0.cancel.get() } else { None }
    }

    /// The resource of this name, created by `make` on first use; `None` if it exists with another type. `make` may ask
    /// for other resources; also `None` if `make` needs the resource that it creates, directly or by way of others.
    pub fn resource<T: Any + Send + Sync>(&self, name: &str, make: impl FnOnce() -> T) -> Option<Arc<T>> {
        let resource = self.0.resources.get(&name.to_owned(), || Arc::new(make()));
        resource.ok()?.downcast().ok()
    }

    /// Runs `work` as a task of the work queue, and returns an asynchronous value for its result. If `work` panics, the
    /// value is an error.
    pub fn enqueue(&self, work: impl FnOnce() -> Value + Send + 'static) -> Value {
        let (promise, value) = AsyncValue::new();
        let work = move || match catch_panic(work) {
            Ok(value) => value,
            Err(panic) => Value::Error(ErrorValue::new_unreported(
                ErrorCode::Internal,
                format!("a task panicked: {}", panic_message(&panic)),
            )),
        };
        let task: Task = if self.host().tracer().is_enabled() {
            let host = self.host().clone();
            Task::from(Box::new(move || promise.set(run_traced(host.tracer(), work))))
        } else {
            Task::from(Box::new(move || promise.set(work())))
        };
        self.host().queue().add_task(task);
        Value::Async(value)
    }

    /// Waits until all the values are available or the request is cancelled; then a value that is not available is the
    /// error that the request was cancelled with. Runs tasks meanwhile, as [`HostContext::wait`].
    pub fn wait(&self, values: impl IntoIterator<Item = Value>) -> Results {
        let values: Results = values.into_iter().map(Value::settle).collect();
        let waited = self.host().wait_or_until(&values, &|| self.cancellation_error().is_some());
        let settled = values.into_iter().map(|value| match (value.settle(), &waited) {
            (Value::Async(_), Err(error)) => {
                Value::Error(ErrorValue::new(ErrorCode::ResourceExhausted, error.to_string()))
            }
            (Value::Async(value), Ok(())) => {
                self.cancellation_error().cloned().map_or(Value::Async(value), Value::Error)
            }
            (Value::Error(error), _) => {
                Value::Error(error.report_if_unreported(|error| self.host().diagnose(error)))
            }
            (value, _) => value,
        });
        settled.collect()
    }

    /// An unresolved value that is resolved soon after the request is cancelled, because it depends on kernels of the
    /// request only, and its promise.
    pub(crate) fn new_promise(&self) -> (Promise, AsyncValue) {
        AsyncValue::with_request(self.0.id)
    }

    /// A value that becomes available when `source` does or the request is cancelled.
    fn relay_async(&self, source: AsyncValue) -> Value {
        if source.request() == self.0.id {
            return Value::Async(source);
        }
        self.0.pending.relay(self.new_promise(), source)
    }

    /// As [`Self::relay_async`] for a value that is not available; other values are returned unchanged.
    pub(crate) fn relay_value(&self, value: Value) -> Value {
        match value.settle() {
            Value::Async(source) => self.relay_async(source),
            value => value,
        }
    }

    /// Drops all resources of the request, except any that are being created.
    pub fn clear_resources(&self) {
        drop(self.0.resources.take_ready());
    }

    /// Charges memory to the request, until the returned value is dropped: kernels charge what their values hold beyond
    /// a few words, and keep the charge with it.
    ///
    /// # Errors
    /// A fault with [`ErrorCode::ResourceExhausted`] if the request's values would take more than
    /// [`Limits::memory`](crate::Limits::memory).
    pub fn charge(&self, bytes: u64) -> Result<Charge, Fault> {
        let limit = self.host().limits().memory;
        self.0.memory.charge(bytes, limit).ok_or_else(|| {
            let used = self.0.memory.charged_bytes();
            let message = format!(
                "{bytes} bytes of memory, beside {used} that are in use, are beyond the limit of {limit} \
                 (Limits::memory)"
            );
            Fault::new(ErrorCode::ResourceExhausted, message)
        })
    }

    /// The number of bytes that are currently charged to the request.
    pub fn charged_bytes(&self) -> u64 {
        self.0.memory.charged_bytes()
    }

    /// Counts kernels, or other steps of work, and ends the request if it exceeds
    /// [`Limits::kernels`](crate::Limits::kernels).
    pub fn count_kernels(&self, count: u64) {
        let before = self.0.kernels.fetch_add(count, Ordering::Relaxed);
        let limit = self.host().limits().kernels;
        if before.saturating_add(count) > limit {
            self.end_with_error(ErrorCode::ResourceExhausted, || {
                format!("more than {limit} kernels ran: the limit (Limits::kernels)")
            });
        }
        if self.0.polled.load(Ordering::Relaxed)
            && self.deadline().is_some_and(|deadline| deadline <= Instant::now())
        {
            self.expire();
        }
    }

    /// As [`Self::count_kernels`], for few kernels: they are counted per thread first and charged about 1,000 at a
    /// time.
    #[inline]
    pub(crate) fn count_kernels_batched(&self, count: u32) {
        let sum = UNCOUNTED.get().saturating_add(count);
        if sum < KERNELS_BETWEEN_CHECKS {
            UNCOUNTED.set(sum);
        } else {
            UNCOUNTED.set(0);
            self.count_kernels(sum.into());
        }
    }

    /// A handle of the request for an execution of this size that continues after its start returns, and the charge of
    /// its memory. Ends the request if more than [`Limits::executions`](crate::Limits::executions) are under way, or if
    /// they take too much memory.
    pub(crate) fn begin_execution(&self, bytes: usize) -> (Self, Option<Charge>) {
        let limit = self.host().limits().executions;
        if Arc::strong_count(&self.0) > limit {
            self.end_with_error(ErrorCode::ResourceExhausted, || {
                format!("more than {limit} function executions are under way: the limit (Limits::executions)")
            });
        }
        let charge = self.charge(bytes as u64);
        if let Err(fault) = &charge {
            self.end_with_error(ErrorCode::ResourceExhausted, || {
                format!("function executions take {}", fault.message())
            });
        }
        (self.clone(), charge.ok())
    }
}

/// Runs a task's work and records it as a span.
fn run_traced(tracer: Tracer<'_>, work: impl FnOnce() -> Value) -> Value {
    let start = tracer.start();
    let value = work();
    tracer.end(start, SpanKind::Task, "task", Place::default());
    value
}

impl fmt::Debug for ExecutionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExecutionContext(cancelled: {:?})", self.cancellation_error())
    }
}

//! The request queue, and the workers: dedicated threads that execute batches, none of them a thread of an async
//! runtime.

use crate::budget::Budget;
use crate::execute::{self, Inputs, Outputs};
use crate::generation::Generation;
use crate::refusal::{Reason, Refusal, Result};
use crate::request::Timing;
use pteron::Interrupt;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Receives the result of a request: its outputs, or the reason why there are none.
pub(crate) type Reply = Box<dyn FnOnce(Result<(Outputs, Timing)>) + Send>;

/// A checked request, ready to be executed.
pub(crate) struct Job {
    pub(crate) generation: Arc<Generation>,
    pub(crate) inputs: Inputs,
    /// The indices of the requested outputs.
    pub(crate) wanted: Vec<usize>,
    pub(crate) deadline: Instant,
    pub(crate) reply: Reply,
}

struct QueuedRequest {
    id: u64,
    entered: Instant,
    /// The number of rows of the request; `None` if it cannot be batched with others.
    rows: Option<usize>,
    job: Job,
}

/// The limits of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The maximum number of waiting requests in each lane.
    pub(crate) lane: usize,
    /// The maximum number of waiting and running requests.
    pub(crate) all: usize,
    /// How long a request waits for others to join its batch while a worker is idle.
    pub(crate) delay: Duration,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    idle: Condvar,
    bounds: Bounds,
    /// The memory budget to which outputs are charged.
    budget: Arc<Budget>,
}

#[derive(Default)]
struct State {
    /// The waiting requests, in one lane per version of a model; empty lanes are removed.
    lanes: BTreeMap<u64, VecDeque<QueuedRequest>>,
    /// The number of waiting requests.
    waiting: usize,
    /// The running batches; a batch is listed under the id of each of its requests.
    running: BTreeMap<u64, Arc<RunningBatch>>,
    /// The id of the lane that was served last.
    last: u64,
    next_id: u64,
    /// Whether requests are executed at once, without waiting for others to join their batch.
    no_delay: bool,
    stopping: bool,
}

struct RunningBatch {
    interrupt: Interrupt,
    /// The number of the batch's requests whose clients still wait for a result.
    alive: AtomicUsize,
}

/// How many requests of a queue are waiting and how many are running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) waiting: usize,
    pub(crate) running: usize,
}

impl Queue {
    pub(crate) fn new(bounds: Bounds, budget: Arc<Budget>) -> Arc<Self> {
        let (wake, idle) = (Condvar::new(), Condvar::new());
        Arc::new(Self { state: Mutex::default(), wake, idle, bounds, budget })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a request to the lane of its model's version; fails if a limit is reached or the queue is stopped.
    pub(crate) fn push(self: &Arc<Self>, lane: u64, job: Job) -> Result<Ticket> {
        let mut state = self.lock();
        let busy = |what: String| Err(Refusal::new(Reason::Busy, what));
        if state.stopping {
            return Err(Refusal::new(Reason::Unavailable, "the server is stopping"));
        }
        if state.waiting + state.running.len() >= self.bounds.all {
            return busy(format!(
                "the server has {} requests, which is its limit; try again later",
                self.bounds.all
            ));
        }
        if state.lanes.get(&lane).map_or(0, VecDeque::len) >= self.bounds.lane {
            return busy(format!(
                "{} requests wait for this model, which is the limit; try again later",
                self.bounds.lane
            ));
        }
        let id = state.next_id;
        state.next_id += 1;
        state.waiting += 1;
        let rows = job.inputs.rows().filter(|&rows| rows > 0 && rows <= job.generation.max_batch());
        let rows = rows.filter(|_| job.generation.max_batch() > 1);
        state.lanes.entry(lane).or_default().push_back(QueuedRequest {
            id,
            entered: Instant::now(),
            rows,
            job,
        });
        drop(state);
        self.wake.notify_one();
        Ok(Ticket { queue: Arc::clone(self), lane, id })
    }

    /// How many requests are waiting and how many are running.
    pub(crate) fn load(&self) -> Load {
        let state = self.lock();
        Load { waiting: state.waiting, running: state.running.len() }
    }

    /// Executes requests until the queue is stopped and empty.
    pub(crate) fn run_worker(&self) {
        while let Some((batch, running)) = self.next_batch() {
            let ids: Vec<u64> = batch.iter().map(|waiting| waiting.id).collect();
            // A reply that panics costs its request, and must not end the worker.
            let _ = catch_unwind(AssertUnwindSafe(|| run_batch(batch, &running, &self.budget)));
            let mut state = self.lock();
            ids.iter().for_each(|id| drop(state.running.remove(id)));
            if state.running.is_empty() && state.waiting == 0 {
                self.idle.notify_all();
            }
        }
    }

    /// Waits until a batch is due and takes it; `None` once the queue is stopped and empty.
    fn next_batch(&self) -> Option<(Vec<QueuedRequest>, Arc<RunningBatch>)> {
        let mut state = self.lock();
        loop {
            let delay = if state.no_delay { Duration::ZERO } else { self.bounds.delay };
            let earliest = match state.take_due_batch(delay) {
                Ok(batch) => {
                    let running = state.start_batch(&batch);
                    // Wake another worker for the remaining requests: this one may have been the only one to time them.
                    if state.waiting > 0 {
                        self.wake.notify_one();
                    }
                    return Some((batch, running));
                }
                Err(earliest) => earliest,
            };
            state = match earliest {
                _ if state.stopping && state.waiting == 0 => return None,
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let time = at.saturating_duration_since(Instant::now());
                    self.wake.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// From now on, executes requests at once, without waiting for others to join their batch.
    pub(crate) fn disable_delay(&self) {
        self.lock().no_delay = true;
        self.wake.notify_all();
    }

    /// Accepts no more requests, and waits until the accepted ones have been answered. At `end` the remaining ones are
    /// cancelled.
    pub(crate) fn drain(&self, end: Instant) {
        let mut state = self.lock();
        (state.stopping, state.no_delay) = (true, true);
        self.wake.notify_all();
        while state.waiting > 0 || !state.running.is_empty() {
            let now = Instant::now();
            if now >= end {
                break;
            }
            state = self.idle.wait_timeout(state, end - now).unwrap_or_else(PoisonError::into_inner).0;
        }
        let left = state.cancel_all();
        drop(state);
        for waiting in left {
            (waiting.job.reply)(Err(Refusal::new(Reason::Unavailable, "the server is stopping")));
        }
    }
}

impl State {
    /// Takes the next due batch, round-robin over lanes. If none is due, `Err` is when the first will be, if any is
    /// waiting.
    fn take_due_batch(&mut self, delay: Duration) -> Result<Vec<QueuedRequest>, Option<Instant>> {
        let now = Instant::now();
        let mut earliest: Option<Instant> = None;
        let turn: Vec<u64> =
            self.lanes.range(self.last + 1..).chain(self.lanes.range(..=self.last)).map(|l| *l.0).collect();
        for id in turn {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            let Some(first) = lane.front() else { continue };
            let due = first.entered + delay;
            let is_due = first.rows.is_none()
                || due <= now
                || choose_batch(lane).1 >= first.job.generation.max_batch();
            if !is_due {
                earliest = Some(earliest.map_or(due, |at| at.min(due)));
                continue;
            }
            let chosen = choose_batch(lane).0;
            let mut batch = Vec::with_capacity(chosen.len());
            for index in chosen.into_iter().rev() {
                batch.extend(lane.remove(index));
            }
            batch.reverse();
            if lane.is_empty() {
                self.lanes.remove(&id);
            }
            self.waiting -= batch.len();
            self.last = id;
            return Ok(batch);
        }
        Err(earliest)
    }

    fn start_batch(&mut self, batch: &[QueuedRequest]) -> Arc<RunningBatch> {
        let end = batch.iter().map(|waiting| waiting.job.deadline).max();
        let interrupt = Interrupt::new();
        let interrupt = end.map_or(interrupt.clone(), |end| interrupt.until(end));
        let running = Arc::new(RunningBatch { interrupt, alive: AtomicUsize::new(batch.len()) });
        for waiting in batch {
            self.running.insert(waiting.id, Arc::clone(&running));
        }
        running
    }

    /// Removes and returns the waiting requests, and cancels the running batches.
    fn cancel_all(&mut self) -> Vec<QueuedRequest> {
        self.running.values().for_each(|running| running.interrupt.cancel());
        self.waiting = 0;
        std::mem::take(&mut self.lanes).into_values().flatten().collect()
    }
}

/// The positions in a lane of the first request and those executed with it, and their total number of rows, which is 0
/// if the first cannot be batched.
fn choose_batch(lane: &VecDeque<QueuedRequest>) -> (Vec<usize>, usize) {
    let mut chosen = vec![0];
    let Some((first, mut rows)) = lane.front().and_then(|first| Some((first, first.rows?))) else {
        return (chosen, 0);
    };
    let most = first.job.generation.max_batch();
    for (i, other) in lane.iter().enumerate().skip(1) {
        if rows >= most {
            break;
        }
        let Some(more) = other.rows.filter(|more| rows + more <= most) else { continue };
        if Arc::ptr_eq(&first.job.generation, &other.job.generation)
            && first.job.inputs.can_join(&other.job.inputs)
        {
            rows += more;
            chosen.push(i);
        }
    }
    (chosen, rows)
}

/// Executes a batch and answers its requests.
fn run_batch(batch: Vec<QueuedRequest>, running: &RunningBatch, budget: &Arc<Budget>) {
    let begin = Instant::now();
    let expired = |waiting: &QueuedRequest| waiting.job.deadline <= begin;
    let (expired, batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(expired);
    for waiting in expired {
        (waiting.job.reply)(Err(Refusal::new(
            Reason::Deadline,
            "the request's deadline passed before it was executed",
        )));
    }
    if batch.is_empty() {
        return;
    }
    let mut results = execute_batch(&batch, &running.interrupt, budget).map(Vec::into_iter);
    // One request may make the execution fail, for example by an index out of range. Execute each one alone, so that the
    // others succeed.
    let again = batch.len() > 1 && results.as_ref().is_err_and(|refusal| refusal.reason != Reason::Cancelled);
    let rows: usize = batch.iter().filter_map(|waiting| waiting.rows).sum();
    let batch_rows = if batch.len() > 1 && !again { rows } else { 0 };
    for (i, waiting) in batch.into_iter().enumerate() {
        let mut own = match &mut results {
            _ if again => {
                let alone = execute_batch(std::slice::from_ref(&waiting), &running.interrupt, budget);
                alone.map(|mut all| all.remove(0))
            }
            Ok(all) => all.next().ok_or_else(|| Refusal::new(Reason::Failed, "a batch has too few results")),
            Err(refusal) => Err(refusal.clone()),
        };
        if Instant::now() > waiting.job.deadline {
            own = Err(Refusal::new(Reason::Deadline, "the request's deadline has passed"));
        }
        let (queued, is_first) = (begin.duration_since(waiting.entered), again || i == 0);
        let timing = Timing { queued, computed: begin.elapsed(), batch_rows, is_first };
        let Job { generation, inputs, reply, .. } = waiting.job;
        // Whoever gets the reply finds the model no longer in use by this request.
        drop((generation, inputs));
        reply(own.map(|outputs| (outputs, timing)));
    }
}

/// Executes one or more requests as one batch, and returns a result for each.
fn execute_batch(
    batch: &[QueuedRequest],
    interrupt: &Interrupt,
    budget: &Arc<Budget>,
) -> Result<Vec<Outputs>> {
    let generation = &batch[0].job.generation;
    let rows: Option<usize> = batch.iter().map(|waiting| waiting.rows).sum();
    let padded = rows.map(|rows| if batch.len() > 1 { generation.padded_rows(rows) } else { rows });
    let parts: Vec<&Inputs> = batch.iter().map(|waiting| &waiting.job.inputs).collect();
    let wanted: Vec<&[usize]> = batch.iter().map(|waiting| &waiting.job.wanted[..]).collect();
    let body = || execute::execute_batch(generation, &parts, padded, &wanted, interrupt, budget);
    let panicked = |_| Err(Refusal::new(Reason::Failed, "the execution panicked"));
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(panicked)
}

/// A handle of a pending request. Dropping it cancels the request: a waiting request leaves the queue, and a running
/// batch is interrupted once no request of it has a ticket.
#[must_use]
pub struct Ticket {
    queue: Arc<Queue>,
    lane: u64,
    id: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        if let Some(running) = state.running.remove(&self.id) {
            if running.alive.fetch_sub(1, Ordering::Relaxed) == 1 {
                running.interrupt.cancel();
            }
            return;
        }
        let Some(lane) = state.lanes.get_mut(&self.lane) else { return };
        let Some(place) = lane.iter().position(|waiting| waiting.id == self.id) else { return };
        let left = lane.remove(place);
        if lane.is_empty() {
            state.lanes.remove(&self.lane);
        }
        state.waiting -= 1;
        if state.waiting == 0 && state.running.is_empty() {
            self.queue.idle.notify_all();
        }
        drop(state);
        // Free the inputs, which may be large, after releasing the lock.
        drop(left);
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({:?})", self.load())
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({})", self.id)
    }
}

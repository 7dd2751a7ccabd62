//! An event tracer that keeps all events.

use crate::Result;
use pteron_clock::Instant;
use pteron_tensor::{DimOrder, ScalarType, Tensor, TensorMeta};
use pteron_trace::{EventTracer, Place, SpanKind, Tracer};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// The recorded events, in blocks: loading, then each execution.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// The blocks of events, in chronological order.
    pub blocks: Vec<Block>,
    /// For a BEF program, the names of its functions. [`Place::chain`] is an index into them.
    pub functions: Vec<String>,
    /// The number of spans beyond the recorder's limit, which were dropped.
    pub left_out: usize,
    /// The end of the first dropped span, in nanoseconds. The recording is complete up to then. `None` if none was dropped.
    pub complete_until: Option<u64>,
    /// The size in bytes of the first value that could not be recorded for lack of memory; `None` if all were recorded.
    pub lost_value: Option<usize>,
}

impl Recording {
    /// Checks that all values were recorded.
    ///
    /// # Errors
    /// If there was no memory for a value.
    pub(crate) fn expect_values(&self) -> Result<()> {
        match self.lost_value {
            Some(bytes) => Err(pteron_tensor::Error::OutOfMemory(bytes).into()),
            None => Ok(()),
        }
    }
}

/// A block of events.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// The block's name, as in ETDumps: `Default` for loading, `Execute` for an execution.
    pub name: String,
    /// The spans, in the order in which they ended.
    pub spans: Vec<Span>,
    pub allocations: Vec<Allocation>,
    /// The computed values, if the recorder records values.
    pub values: Vec<Value>,
}

/// A span of time. Times are in nanoseconds since the recorder was created.
#[derive(Debug, Clone)]
pub struct Span {
    /// The kind of work.
    pub kind: SpanKind,
    /// The method, operator or backend.
    pub name: Arc<str>,
    /// The place of the instruction.
    pub place: Place,
    /// The time at which the span began, in nanoseconds.
    pub start: u64,
    /// The time at which the span ended, in nanoseconds.
    pub end: u64,
    /// The thread's number. Threads are numbered from 1, in the order of their first spans.
    pub thread: usize,
}

impl Span {
    /// The duration in nanoseconds.
    pub fn nanoseconds(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

#[derive(Debug, Clone)]
pub struct Allocation {
    /// The name of the arena or allocator.
    pub owner: String,
    /// The size of the allocation in bytes.
    pub bytes: usize,
}

/// A tensor that an instruction wrote, or an output of the method.
#[derive(Debug, Clone)]
pub struct Value {
    /// The operator or backend that wrote the tensor; empty for an output of the method.
    pub name: String,
    /// The place of the instruction; empty for an output of the method.
    pub place: Place,
    /// The index of the tensor among the outputs of the instruction or method.
    pub output: usize,
    /// The computed tensor, in row-major order.
    pub tensor: Tensor,
}

/// An [`EventTracer`] that keeps every event.
pub struct Recorder {
    /// A number that identifies the recorder in this process.
    id: u64,
    zero: Instant,
    values: bool,
    limit: usize,
    /// The number of recorded executions, and the number of all other recorded spans.
    counts: [AtomicUsize; 2],
    complete_until: AtomicU64,
    threads: Mutex<HashMap<ThreadId, Arc<Mutex<Spans>>>>,
    recorded: Mutex<RecordedValue>,
}

#[derive(Default)]
struct RecordedValue {
    block: Block,
    done: Vec<Block>,
    lost_value: Option<usize>,
}

/// The spans of one thread in the current block. Only that thread adds to them, so that their lock is uncontended.
struct Spans {
    thread: usize,
    spans: Vec<Span>,
    names: HashSet<Arc<str>>,
}

thread_local! {
    /// This thread's spans in the recorder with this id, which saves a lookup in the recorder's map.
    static MINE: RefCell<Option<(u64, Arc<Mutex<Spans>>)>> = const { RefCell::new(None) };
}

impl Recorder {
    /// A recorder of events and, with `values`, of computed values.
    pub fn new(values: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            zero: Instant::now(),
            values,
            limit: usize::MAX,
            counts: Default::default(),
            complete_until: AtomicU64::new(u64::MAX),
            threads: Mutex::default(),
            recorded: Mutex::default(),
        }
    }

    /// A recorder that keeps at most `limit` executions and `limit` other spans, and drops later ones.
    pub fn with_limit(limit: usize) -> Self {
        Self { limit, ..Self::new(false) }
    }

    /// The overhead of recording a span in nanoseconds: the best of several measurements.
    pub fn nanoseconds_per_span() -> f64 {
        const SPANS: u32 = 500;
        let recorder = Self::new(false);
        let tracer = Tracer::new(&recorder);
        let attempt = |_| {
            let start = Instant::now();
            for i in 0..SPANS {
                tracer.end(tracer.start(), SpanKind::Kernel, "kernel", Place::instruction(0, i));
            }
            start.elapsed().as_nanos() as f64 / f64::from(SPANS)
        };
        (0..20).map(attempt).fold(f64::INFINITY, f64::min)
    }

    /// Ends the current block, which holds all events since the previous one, and names it.
    pub fn end_block(&self, name: &str) {
        let mut threads: Vec<_> = lock(&self.threads).values().map(Arc::clone).collect();
        threads.sort_by_key(|spans| lock(spans).thread);
        let mut spans: Vec<Span> = Vec::new();
        for thread in threads {
            match spans.is_empty() {
                true => spans = std::mem::take(&mut lock(&thread).spans),
                false => spans.append(&mut lock(&thread).spans),
            }
        }
        // The sort is stable: spans of one thread, already in order, stay so.
        spans.sort_by_key(|span| span.end);
        let mut recorded = lock(&self.recorded);
        let block = std::mem::take(&mut recorded.block);
        recorded.done.push(Block { name: name.to_owned(), spans, ..block });
    }

    /// Records an output of the method.
    pub fn output(&self, output: usize, tensor: &Tensor) -> Result<()> {
        let tensor = tensor.to_dim_order(DimOrder::contiguous(tensor.rank()))?;
        let value = Value { name: String::new(), place: Place::default(), output, tensor };
        lock(&self.recorded).block.values.push(value);
        Ok(())
    }

    /// Takes the blocks recorded so far and resets the recorder.
    pub fn finish(&self) -> Recording {
        let left_out = |count: &AtomicUsize| count.swap(0, Ordering::Relaxed).saturating_sub(self.limit);
        let complete_until = self.complete_until.swap(u64::MAX, Ordering::Relaxed);
        let mut recorded = lock(&self.recorded);
        Recording {
            blocks: std::mem::take(&mut recorded.done),
            lost_value: recorded.lost_value.take(),
            functions: Vec::new(),
            left_out: self.counts.iter().map(left_out).sum(),
            complete_until: (complete_until < u64::MAX).then_some(complete_until),
        }
    }

    fn nanoseconds_since_start(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.zero).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The buffer of this thread's spans, created on first use.
    fn spans_of_this_thread(&self) -> Arc<Mutex<Spans>> {
        let mut threads = lock(&self.threads);
        let thread = threads.len() + 1;
        let new = || Arc::new(Mutex::new(Spans { thread, spans: Vec::new(), names: HashSet::new() }));
        Arc::clone(threads.entry(thread::current().id()).or_insert_with(new))
    }
}

impl Spans {
    fn push(&mut self, span: &pteron_trace::Span<'_>, start: u64, end: u64) {
        let name = match self.names.get(span.name) {
            Some(name) => Arc::clone(name),
            None => {
                let name: Arc<str> = span.name.into();
                self.names.insert(Arc::clone(&name));
                name
            }
        };
        let (kind, place, thread) = (span.kind, span.place, self.thread);
        self.spans.push(Span { kind, name, place, start, end, thread });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EventTracer for Recorder {
    fn span(&self, span: &pteron_trace::Span<'_>) {
        let (start, end) = (self.nanoseconds_since_start(span.start), self.nanoseconds_since_start(span.end));
        let count = &self.counts[usize::from(span.kind != SpanKind::Execute)];
        if count.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.complete_until.fetch_min(end, Ordering::Relaxed);
            return;
        }
        let recorded = MINE.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            if mine.as_ref().is_none_or(|(id, _)| *id != self.id) {
                *mine = Some((self.id, self.spans_of_this_thread()));
            }
            if let Some((_, spans)) = &*mine {
                lock(spans).push(span, start, end);
            }
        });
        if recorded.is_err() {
            // The thread is exiting: its thread-local storage is already destroyed.
            lock(&self.spans_of_this_thread()).push(span, start, end);
        }
    }

    fn allocation(&self, owner: &str, bytes: usize) {
        lock(&self.recorded).block.allocations.push(Allocation { owner: owner.to_owned(), bytes });
    }

    fn wants_values(&self) -> bool {
        self.values
    }

    fn value(&self, name: &str, place: Place, output: usize, dtype: &str, sizes: &[usize], bytes: &[u8]) {
        let meta = ScalarType::parse(dtype).and_then(|dtype| TensorMeta::contiguous(dtype, sizes).ok());
        let Some(meta) = meta else { return };
        let mut recorded = lock(&self.recorded);
        match Tensor::from_bytes(meta, bytes) {
            Ok(tensor) => recorded.block.values.push(Value { name: name.to_owned(), place, output, tensor }),
            Err(_) => _ = recorded.lost_value.get_or_insert(bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(recorder: &Recorder, name: &str) {
        let tracer = Tracer::new(recorder);
        tracer.end(tracer.start(), SpanKind::Kernel, name, Place::default());
    }

    fn names(block: &Block) -> Vec<(&str, usize)> {
        block.spans.iter().map(|s| (&*s.name, s.thread)).collect()
    }

    #[test]
    fn spans_of_all_threads_are_in_order_of_their_ends() {
        let recorder = Recorder::new(false);
        record(&recorder, "a");
        thread::scope(|scope| scope.spawn(|| record(&recorder, "b")).join()).unwrap();
        // Another recorder replaces the thread's cache in between; the thread keeps its number.
        record(&Recorder::new(false), "x");
        record(&recorder, "c");
        recorder.end_block("first");
        record(&recorder, "d");
        recorder.end_block("second");
        let recording = recorder.finish();
        assert_eq!(names(&recording.blocks[0]), [("a", 1), ("b", 2), ("c", 1)]);
        assert_eq!(names(&recording.blocks[1]), [("d", 1)]);
        assert_eq!((recording.left_out, recording.complete_until), (0, None));
    }

    #[test]
    fn spans_beyond_the_limit_are_dropped_and_counted() {
        let recorder = Recorder::with_limit(2);
        ["a", "b", "c", "d"].iter().for_each(|name| record(&recorder, name));
        let tracer = Tracer::new(&recorder);
        tracer.end(tracer.start(), SpanKind::Execute, "run", Place::default());
        recorder.end_block("");
        let recording = recorder.finish();
        assert_eq!(names(&recording.blocks[0]), [("a", 1), ("b", 1), ("run", 1)]);
        assert_eq!(recording.left_out, 2);
        let [_, b, run] = &*recording.blocks[0].spans else { panic!("three spans") };
        let until = recording.complete_until.unwrap();
        assert!(b.end <= until && until <= run.end);
    }
}

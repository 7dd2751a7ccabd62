//! The listener that keeps what it hears.

use crate::Result;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;
use tensor::{DimOrder, ScalarType, Tensor};
use trace::{EventTracer, Place, SpanKind};

/// What happened, in blocks: loading, then each execution.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    /// The blocks, in order.
    pub blocks: Vec<Block>,
}

/// A block of events.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// As ETDumps name them: `Default` for loading, `Execute`.
    pub name: String,
    /// What took time, in the order in which it ended.
    pub spans: Vec<Span>,
    /// What memory was taken.
    pub allocations: Vec<Allocation>,
    /// What was computed, if that was asked for.
    pub values: Vec<Value>,
}

/// A span of time. Times are nanoseconds since the recorder was made.
#[derive(Debug, Clone)]
pub struct Span {
    /// What it was spent on.
    pub kind: SpanKind,
    /// The method, operator or backend.
    pub name: String,
    /// The instruction.
    pub place: Place,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// The thread, counted from 1 in the order in which they were heard of.
    pub thread: usize,
}

impl Span {
    /// Nanoseconds from start to end.
    pub fn nanoseconds(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Memory that was taken.
#[derive(Debug, Clone)]
pub struct Allocation {
    /// The arena or allocator.
    pub owner: String,
    /// How much.
    pub bytes: usize,
}

/// A tensor that an instruction wrote, or an output of the method.
#[derive(Debug, Clone)]
pub struct Value {
    /// The operator or backend that wrote it; empty for an output of the method.
    pub name: String,
    /// The instruction; none for an output of the method.
    pub place: Place,
    /// Which of its outputs.
    pub output: usize,
    /// The tensor, row-major.
    pub tensor: Tensor,
}

/// Keeps every event that it is told of.
pub struct Recorder {
    zero: Instant,
    values: bool,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    block: Block,
    done: Vec<Block>,
    threads: HashMap<ThreadId, usize>,
}

impl Recorder {
    /// A recorder, of values too if they are wanted.
    pub fn new(values: bool) -> Self {
        Self { zero: Instant::now(), values, kept: Mutex::default() }
    }

    /// Ends a block of this name: what was recorded since the last one.
    pub fn block(&self, name: &str) {
        let mut kept = self.kept();
        let block = std::mem::take(&mut kept.block);
        kept.done.push(Block { name: name.to_owned(), ..block });
    }

    /// Records an output of the method.
    pub fn output(&self, output: usize, tensor: &Tensor) -> Result<()> {
        let tensor = tensor.to_dim_order(DimOrder::contiguous(tensor.rank()))?;
        self.kept().block.values.push(Value { name: String::new(), place: Place::default(), output, tensor });
        Ok(())
    }

    /// The blocks so far; the recorder starts anew.
    pub fn finish(&self) -> Recording {
        Recording { blocks: std::mem::take(&mut self.kept().done) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn since_zero(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.zero).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl EventTracer for Recorder {
    fn span(&self, span: &trace::Span<'_>) {
        let (start, end) = (self.since_zero(span.start), self.since_zero(span.end));
        let mut kept = self.kept();
        let next = kept.threads.len() + 1;
        let thread = *kept.threads.entry(std::thread::current().id()).or_insert(next);
        let name = span.name.to_owned();
        kept.block.spans.push(Span { kind: span.kind, name, place: span.place, start, end, thread });
    }

    fn allocation(&self, owner: &str, bytes: usize) {
        self.kept().block.allocations.push(Allocation { owner: owner.to_owned(), bytes });
    }

    fn wants_values(&self) -> bool {
        self.values
    }

    fn value(&self, name: &str, place: Place, output: usize, dtype: &str, sizes: &[usize], bytes: &[u8]) {
        let tensor = ScalarType::parse(dtype)
            .and_then(|dtype| tensor::TensorMeta::contiguous(dtype, sizes).ok())
            .and_then(|meta| Tensor::from_bytes(meta, bytes).ok());
        let Some(tensor) = tensor else { return };
        self.kept().block.values.push(Value { name: name.to_owned(), place, output, tensor });
    }
}

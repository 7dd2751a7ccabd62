//! Steps that run for a part of the batch at a time, so that the values between them stay in the caches.

use super::placed::PlacedStep;
use super::steps::{Steps, check_counts, check_input};
use pteron_operator::{Error, Generator, KernelContext, Result, Scratch};
use pteron_pool::Pool;
use pteron_tensor::{AlignedBuffer, Tensor, TensorMeta, TensorView, TensorViewMut};
use pteron_trace::{EventTracer, Place, Span, SpanKind, Tracer};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The most runs of parts that a thread takes one after another.
const RUNS_PER_THREAD: usize = 4;

/// The steps of a graph whose values all have the batch as dimension 0, outermost in memory, and whose rows do not
/// depend on each other. Threads share the parts; within a part, steps run on one thread.
pub(crate) struct Parts {
    /// The size of the batch.
    rows: usize,
    /// The rows of each part but the last, which may have fewer.
    part: usize,
    /// At least one, and at most one for each thread.
    workers: Vec<Mutex<Worker>>,
    /// The steps of each part.
    steps: Arc<[PlacedStep]>,
    /// The limit, in bytes, of the temporary memory of each worker.
    scratch_limit: usize,
    /// The instruction at which the last run failed.
    failed: Mutex<Option<Place>>,
}

/// What one thread needs to run parts.
struct Worker {
    /// The steps for a whole part.
    steps: Steps,
    /// The steps for the last part; `None` if it is a whole one.
    last: Option<Steps>,
    scratch: Scratch,
    generator: Generator,
}

/// Successive parts, and the bytes of the outputs that they compute.
struct Run<'a> {
    first: usize,
    outputs: SmallVec<[&'a mut [u8]; 2]>,
}

impl Worker {
    fn new(steps: Steps, last: Option<Steps>, scratch_limit: usize) -> Self {
        Self { steps, last, scratch: Scratch::new(scratch_limit), generator: Generator::default() }
    }

    fn fork(&self, scratch_limit: usize) -> Result<Self> {
        let last = self.last.as_ref().map(Steps::fork).transpose()?;
        Ok(Self::new(self.steps.fork()?, last, scratch_limit))
    }
}

impl Parts {
    /// The batch of `rows` rows in parts of `part`, computed by `steps`, and the rest by `last`.
    pub(crate) fn new(
        (rows, part): (usize, usize),
        steps: Steps,
        last: Option<Steps>,
        ctx: &KernelContext<'_>,
    ) -> Result<Self> {
        let (scratch_limit, shared) = (ctx.scratch_limit(), Arc::clone(&steps.steps));
        let first = Worker::new(steps, last, scratch_limit);
        let mut workers = Vec::new();
        for _ in 1..ctx.pool().threads().min(rows.div_ceil(part)) {
            workers.push(Mutex::new(first.fork(scratch_limit)?));
        }
        workers.push(Mutex::new(first));
        Ok(Self { rows, part, workers, steps: shared, scratch_limit, failed: Mutex::default() })
    }

    pub(crate) fn fork(&self) -> Result<Self> {
        let workers = self.workers.iter().map(|w| Ok(Mutex::new(locked(w).fork(self.scratch_limit)?)));
        Ok(Self {
            workers: workers.collect::<Result<_>>()?,
            steps: Arc::clone(&self.steps),
            failed: Mutex::default(),
            ..*self
        })
    }

    pub(crate) fn trace_as(&mut self, kind: SpanKind) {
        for worker in &mut self.workers {
            let worker = worker.get_mut().unwrap_or_else(PoisonError::into_inner);
            worker.steps.kind = kind;
            worker.last.iter_mut().for_each(|last| last.kind = kind);
        }
    }

    pub(crate) fn workspace_bytes(&self) -> usize {
        let bytes = |w: &Worker| w.steps.workspace + w.last.as_ref().map_or(0, |last| last.workspace);
        self.workers.iter().map(|w| bytes(&locked(w))).sum()
    }

    /// The steps of a part.
    pub(crate) fn steps(&self) -> &Arc<[PlacedStep]> {
        &self.steps
    }

    pub(crate) fn failed_at(&self) -> Place {
        locked(&self.failed).unwrap_or_else(|| locked(&self.workers[0]).steps.failed)
    }

    /// Runs all parts, as [`Steps::run`] does for whole tensors.
    pub(crate) fn run(
        &mut self,
        ctx: &KernelContext<'_>,
        tracer: Tracer<'_>,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<()> {
        *locked(&self.failed) = None;
        let (reads, writes) = {
            let worker = locked(&self.workers[0]);
            (worker.steps.input_metas(), worker.steps.output_metas())
        };
        check_counts([inputs.len(), outputs.len()], [reads.len(), writes.len()])?;
        for (view, meta) in inputs.iter().zip(&reads) {
            check_input(view.meta(), &self.whole(meta)?)?;
        }
        // Outputs of another layout are computed in the graph's, and converted at the end.
        let mut converted: SmallVec<[Option<(TensorMeta, AlignedBuffer)>; 2]> = SmallVec::new();
        for (out, meta) in outputs.iter_mut().zip(&writes) {
            let whole = self.whole(meta)?;
            out.resize(whole.sizes())?;
            let fits =
                out.dtype() == whole.dtype() && whole.dim_order().same_layout(out.dim_order(), whole.sizes());
            converted.push(if fits { None } else { Some(Tensor::zeros(whole)?.into_parts()) });
        }
        let bytes = outputs.iter_mut().zip(&mut converted).map(|(out, own)| match own {
            Some((meta, own)) => &mut own[..meta.nbytes()],
            None => out.bytes_mut(),
        });
        let result = match tracer.get() {
            Some(listener) => self.run_traced(ctx, listener, inputs, bytes.collect()),
            None => self.run_on_threads(ctx, inputs, bytes.collect()),
        };
        result?;
        for (out, own) in outputs.iter_mut().zip(converted) {
            if let Some((meta, own)) = own {
                TensorView::new(&meta, &own)?.relayout(out)?;
            }
        }
        Ok(())
    }

    /// The meta of a tensor of all rows; `of` is that of a part.
    fn whole(&self, of: &TensorMeta) -> Result<TensorMeta> {
        let (mut whole, mut sizes) = (of.clone(), *of.sizes());
        sizes[0] = self.rows;
        whole.reshape(&sizes)?;
        Ok(whole)
    }

    /// Runs the parts in order on this thread, and reports their events.
    fn run_traced(
        &self,
        ctx: &KernelContext<'_>,
        listener: &dyn EventTracer,
        inputs: &[TensorView<'_>],
        outputs: SmallVec<[&mut [u8]; 2]>,
    ) -> Result<()> {
        let gather = Gather { listener, values: Mutex::default() };
        let run = Run { first: 0, outputs };
        let Worker { steps, last, .. } = &mut *locked(&self.workers[0]);
        self.run_parts((steps, last.as_mut()), ctx, Tracer::new(&gather), inputs, run)?;
        gather.report();
        Ok(())
    }

    fn run_on_threads(
        &self,
        ctx: &KernelContext<'_>,
        inputs: &[TensorView<'_>],
        outputs: SmallVec<[&mut [u8]; 2]>,
    ) -> Result<()> {
        let (parts, threads) = (self.rows.div_ceil(self.part), self.workers.len());
        let count = if threads == 1 { 1 } else { parts.min(threads * RUNS_PER_THREAD) };
        let mut runs: SmallVec<[Option<Run<'_>>; 8]> = SmallVec::new();
        let mut rest = outputs;
        for i in 0..count {
            let (first, end) = (parts * i / count, parts * (i + 1) / count);
            let rows = (end * self.part).min(self.rows) - first * self.part;
            let rows_left = self.rows - first * self.part;
            let outputs = rest.iter_mut().map(|rest| {
                let bytes = rest.len() / rows_left * rows;
                let (own, others) = std::mem::take(rest).split_at_mut(bytes);
                *rest = others;
                own
            });
            runs.push(Some(Run { first, outputs: outputs.collect() }));
        }
        let error: Mutex<Option<(usize, Error)>> = Mutex::default();
        let isa = ctx.isa();
        ctx.pool().parallel_chunks_mut(&mut runs, 1, 1, &|i, run| {
            let Some(run) = run.iter_mut().find_map(Option::take) else { return };
            let mut worker = self.idle_worker();
            let Worker { steps, last, scratch, generator } = &mut *worker;
            let own = KernelContext::new(Pool::alone(), scratch, generator).with_isa(isa);
            if let Err(new) = self.run_parts((&mut *steps, last.as_mut()), &own, Tracer::NONE, inputs, run) {
                let mut error = locked(&error);
                if error.as_ref().is_none_or(|(of, _)| i < *of) {
                    *error = Some((i, new));
                }
            }
        });
        error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Runs successive parts, until the outputs of `run` are computed.
    fn run_parts(
        &self,
        (steps, mut last): (&mut Steps, Option<&mut Steps>),
        ctx: &KernelContext<'_>,
        tracer: Tracer<'_>,
        inputs: &[TensorView<'_>],
        run: Run<'_>,
    ) -> Result<()> {
        let (mut row, mut rest) = (run.first * self.part, run.outputs);
        while rest.iter().any(|rest| !rest.is_empty()) {
            let rows = self.part.min(self.rows - row);
            let steps = match &mut last {
                Some(last) if rows < self.part => &mut **last,
                _ => &mut *steps,
            };
            let (reads, mut metas) = (steps.input_metas(), steps.output_metas());
            let mut views: SmallVec<[TensorView<'_>; 4]> = SmallVec::new();
            for (input, meta) in inputs.iter().zip(&reads) {
                let of_row = input.nbytes() / self.rows;
                let bytes = input.bytes().get(row * of_row..(row + rows) * of_row);
                views.push(TensorView::new(meta, bytes.unwrap_or_default())?);
            }
            let mut outs: SmallVec<[TensorViewMut<'_>; 2]> = SmallVec::new();
            for (rest, meta) in rest.iter_mut().zip(&mut metas) {
                let (own, others) = std::mem::take(rest).split_at_mut(meta.nbytes());
                *rest = others;
                outs.push(TensorViewMut::new(meta, own)?);
            }
            if let Err(error) = steps.run(ctx, tracer, &views, &mut outs) {
                *locked(&self.failed) = Some(steps.failed);
                return Err(error);
            }
            row += rows;
        }
        Ok(())
    }

    /// A worker that no thread has: there are as many workers as threads.
    fn idle_worker(&self) -> MutexGuard<'_, Worker> {
        let free = self.workers.iter().find_map(|worker| match worker.try_lock() {
            Ok(worker) => Some(worker),
            Err(TryLockError::Poisoned(worker)) => Some(worker.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
        free.unwrap_or_else(|| locked(&self.workers[0]))
    }
}

/// Locks; a run that was interrupted leaves nothing that the next one reads.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forwards the spans of all parts, and keeps the values of the parts until they are whole.
struct Gather<'a> {
    listener: &'a dyn EventTracer,
    values: Mutex<BTreeMap<(u32, Option<u32>, usize), Gathered>>,
}

/// A value of the parts that have run.
struct Gathered {
    name: String,
    place: Place,
    dtype: String,
    sizes: Vec<usize>,
    bytes: Vec<u8>,
}

impl Gather<'_> {
    /// Reports the values, in the order of the instructions.
    fn report(self) {
        for ((.., output), value) in self.values.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let Gathered { name, place, dtype, sizes, bytes } = value;
            self.listener.value(&name, place, output, &dtype, &sizes, &bytes);
        }
    }
}

impl EventTracer for Gather<'_> {
    fn span(&self, span: &Span<'_>) {
        self.listener.span(span);
    }

    fn allocation(&self, owner: &str, bytes: usize) {
        self.listener.allocation(owner, bytes);
    }

    fn wants_values(&self) -> bool {
        self.listener.wants_values()
    }

    fn value(&self, name: &str, place: Place, output: usize, dtype: &str, sizes: &[usize], bytes: &[u8]) {
        let key = (place.instruction.unwrap_or_default(), place.node, output);
        match locked(&self.values).entry(key) {
            Entry::Vacant(entry) => {
                let (name, dtype, sizes) = (name.into(), dtype.into(), sizes.into());
                entry.insert(Gathered { name, place, dtype, sizes, bytes: bytes.into() });
            }
            Entry::Occupied(mut entry) => {
                let value = entry.get_mut();
                value.sizes[0] += sizes[0];
                value.bytes.extend(bytes);
            }
        }
    }
}

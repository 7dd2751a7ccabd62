use crate::kernels::RegistryExt;
use pteron_clock::Instant;
use pteron_host::{
    AsyncValue, ExecutionContext, Fault, Frame, Function, FunctionKind, Interpreter, KernelRegistry, Promise,
    Results, Value,
};
use std::time::Duration;

/// The settings and the measured times of a benchmark.
struct Stats {
    name: String,
    warm_up: usize,
    max_count: usize,
    duration: Duration,
    runs: usize,
    total: Duration,
    times: Vec<Duration>,
}

/// Maximum number of recorded runs.
const MAX_RUNS: usize = 1 << 24;

impl Stats {
    fn new(name: String, duration: i32, max_count: i32, warm_up: i32) -> Self {
        let count = |n: i32| usize::try_from(n).unwrap_or(0);
        Self {
            name,
            warm_up: count(warm_up),
            max_count: count(max_count).min(MAX_RUNS),
            duration: Duration::from_secs(count(duration) as u64),
            runs: 0,
            total: Duration::ZERO,
            times: Vec::new(),
        }
    }

    fn needs_more_runs(&self) -> bool {
        self.times.len() < self.max_count && self.total < self.duration
    }

    fn add(&mut self, time: Duration) {
        self.runs += 1;
        if self.runs > self.warm_up {
            self.total += time;
            self.times.push(time);
        }
    }

    fn summarize(mut self, context: &ExecutionContext) {
        self.times.sort_unstable();
        let at = |p: f64| {
            let index = (self.times.len() as f64 * p) as usize;
            self.times.get(index).map_or(0, Duration::as_nanos)
        };
        let lines = [
            ("Duration(ns)", self.total.as_nanos()),
            ("Count", self.times.len() as u128),
            ("Time Min(ns)", at(0.0)),
            ("Time 50%(ns)", at(0.5)),
            ("Time 95%(ns)", at(0.95)),
            ("Time 99%(ns)", at(0.99)),
            // A run does not wait, so its CPU time equals its wall time.
            ("CPU Min(ns)", at(0.0)),
            ("CPU 50%(ns)", at(0.5)),
            ("CPU 95%(ns)", at(0.95)),
            ("CPU 99%(ns)", at(0.99)),
            ("CPU utilization(percent)", 100),
        ];
        context.host().print(|out| {
            lines.iter().try_for_each(|(what, n)| writeln!(out, "BM:{}:{what}: {n}", self.name))?;
            out.flush()
        });
    }
}

/// The state of a running benchmark, whose runs are sequential.
struct Runner {
    stats: Stats,
    function: Function,
    arguments: Results,
    context: ExecutionContext,
    promise: Promise,
}

impl Runner {
    fn run(mut self) {
        let start = Instant::now();
        let result = self.function.execute_alone(&self.context, &self.arguments).pop().unwrap_or_default();
        let ended = move || {
            self.stats.add(start.elapsed());
            if self.context.cancellation_error().is_none() && self.stats.needs_more_runs() {
                self.start();
            } else {
                self.stats.summarize(&self.context);
                self.promise.set(Value::Chain);
            }
        };
        match result {
            Value::Async(value) => value.and_then(ended),
            _ => ended(),
        }
    }

    fn start(self) {
        let queue = self.context.host().queue().clone();
        queue.add_task(Box::new(move || self.run()));
    }
}

/// The kernel's attributes: duration in seconds, maximum number of runs, name, number of warm-up runs.
fn benchmark(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let function = frame.function(0)?.to_function();
    if function.results() != 1 {
        return Err("Benchmark op requires the input function have exactly one return value".into());
    }
    let (duration, max_count) = (frame.attribute(0)?, frame.attribute(1)?);
    let stats = Stats::new(frame.attribute(2)?, duration, max_count, frame.attribute(3)?);
    let (promise, value) = AsyncValue::new();
    let arguments = frame.arguments_from(0);
    Runner { stats, function, arguments, context: frame.context().clone(), promise }.start();
    Ok(Value::Async(value))
}

/// The kernel's attributes: duration in seconds, maximum number of runs, number of warm-up runs.
fn sync_benchmark(frame: &mut Frame<'_>) -> Result<(), Fault> {
    let function = frame.function(0)?.to_function();
    if function.kind() != FunctionKind::Sync {
        return Err("SyncBenchmark op requires the input function be a sync function".into());
    }
    if function.results() != 0 {
        return Err("SyncBenchmark op requires the input function have zero return value".into());
    }
    if function.arguments() != frame.arguments() {
        return Err("Incorrect number of arguments for the target function for the SyncBenchmark op".into());
    }
    let (duration, max_count) = (frame.attribute(0)?, frame.attribute(1)?);
    let mut stats = Stats::new(function.name().to_owned(), duration, max_count, frame.attribute(2)?);
    let mut interpreter = Interpreter::new(&function).map_err(|e| e.to_string())?;
    let arguments = frame.arguments_from(0);
    while stats.needs_more_runs() {
        let start = Instant::now();
        interpreter.run(frame.context(), arguments.iter().cloned(), &mut []).map_err(|e| e.to_string())?;
        stats.add(start.elapsed());
    }
    stats.summarize(frame.context());
    Ok(())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("tfrt_test.benchmark", benchmark);
    registry.add_fallible("tfrt_test.sync_benchmark", sync_benchmark);
}

//! Profiles of BEF programs: runs their functions and reports the time by kernel.
//!
//! A kernel that calls functions runs them before it returns, up to the point where they wait for a value; its span
//! contains the spans of their kernels. Its *self time* is its duration without those.

mod report;

pub use report::{CallTime, FunctionTime, InitTime, KernelTime, PlaceTime, Report};

use super::nesting::{self_times, union_length};
use super::{Recorder, Recording, Span};
use crate::bef::RunOptions;
use crate::{Context, Result};
use pteron_bef::section::functions::FunctionRecord;
use pteron_bef::{FunctionId, Location, Verified};
use pteron_runtime::FreeableBuffer;
use pteron_tfrt_kernels::driver;
use pteron_trace::SpanKind;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of runs, and of other spans, that a profile records, 64 bytes each; later ones are dropped.
pub const MAX_SPANS: usize = 4_000_000;

/// Maximum number of levels of nested regions that are searched for the enclosing function that has a name.
const MAX_NESTING: usize = 64;

/// The name of the row for tasks that kernels enqueued on the work queue.
const TASKS: &str = "(tasks)";

/// The recorded runs of a BEF program.
#[derive(Debug)]
pub struct Profile {
    /// The events of opening the program, then of all runs.
    pub recording: Recording,
    /// The exit code of [`crate::bef::run`]: 0 if exactly the expected errors occurred, otherwise 1.
    pub exit_code: i32,
    program: Arc<FreeableBuffer>,
    options: RunOptions,
    /// By function index, the nearest enclosing function that has a name: the function itself, if it has one.
    owners: Vec<u32>,
    /// The overhead of recording one span, in nanoseconds.
    cost: f64,
}

/// Runs the functions of a BEF program: each once to warm up, because a first run decodes the function and takes page
/// faults, then `repeat` times. [`RunOptions::init`] runs first, and once. A function with an unexpected error is not run
/// again.
///
/// The output of kernels goes to `stdout`, errors with their locations to `stderr`.
pub fn profile(
    program: FreeableBuffer,
    options: RunOptions,
    repeat: usize,
    stdout: impl Write + Send + 'static,
    stderr: impl Write + Send + 'static,
) -> Profile {
    let cost = Recorder::nanoseconds_per_span();
    let recorder = Arc::new(Recorder::with_limit(MAX_SPANS));
    let program = Arc::new(program);
    let (bytes, tracer) = (Arc::clone(&program), Arc::clone(&recorder));
    let times = repeat.max(1).saturating_add(1);
    let exit_code = driver::run_traced(bytes, &options, times, tracer, stdout, stderr);
    recorder.end_block("Execute");
    let mut recording = recorder.finish();
    let verified = pteron_bef::File::open(&program).and_then(|file| file.verify());
    // An invalid program has not run; it needs no labels.
    let labels = verified.and_then(|p| labels(&p)).unwrap_or_default();
    let owners;
    (owners, recording.functions) = labels.into_iter().unzip();
    Profile { recording, exit_code, program, options, owners, cost }
}

/// For each function, its index and name; for a region, the index of the enclosing function and a label.
pub fn labels(program: &Verified<'_>) -> pteron_bef::Result<Vec<(u32, String)>> {
    let index = program.functions();
    let mut outer = HashMap::new();
    for function in 0..index.len() as u32 {
        let Some(record) = program.function(FunctionId(function))? else { continue };
        for kernel in record.kernels().skip(1) {
            kernel?.functions().iter().for_each(|inner| {
                outer.entry(inner).or_insert(function);
            });
        }
    }
    let names: Vec<&str> = index.iter().map(|f| f.name).collect();
    let name = |function: u32| names.get(function as usize).copied().unwrap_or_default();
    let label = |function: u32| {
        let outward = std::iter::successors(Some(function), |f| outer.get(f).copied());
        match outward.take(MAX_NESTING).find(|f| !name(*f).is_empty()) {
            Some(owner) if owner == function => (owner, name(owner).to_owned()),
            Some(owner) => (owner, format!("{} (region {function})", name(owner))),
            None => (function, format!("(region {function})")),
        }
    };
    Ok((0..names.len() as u32).map(label).collect())
}

/// The spans of kernels and tasks, in the order in which they ended, and their self times.
struct Work<'a> {
    spans: Vec<&'a Span>,
    self_times: Vec<u64>,
}

impl Work<'_> {
    /// The indices of the spans of one run. Runs do not overlap.
    fn spans_of_run(&self, run: &Span) -> Range<usize> {
        let start = self.spans.partition_point(|s| s.end < run.start);
        start..start.max(self.spans.partition_point(|s| s.end <= run.end))
    }
}

impl Profile {
    /// Whether any function has run.
    pub fn has_runs(&self) -> bool {
        self.spans().any(|s| s.kind == SpanKind::Execute)
    }

    fn spans(&self) -> impl Iterator<Item = &Span> {
        self.recording.blocks.iter().flat_map(|block| &block.spans)
    }

    /// The report; `name` is the name of the program.
    ///
    /// # Errors
    /// If the program is not a valid BEF file; nothing has run then.
    pub fn report(&self, name: &str) -> Result<Report> {
        let context = || format!("{name} is not a valid BEF file");
        let program =
            pteron_bef::File::open(&self.program).and_then(|file| file.verify()).context(context)?;
        let find = |name: &str| program.functions().iter().position(|f| f.name == name);
        let init = self.options.init.as_deref().and_then(find).map(|i| i as u32);
        let spans: Vec<&Span> =
            self.spans().filter(|s| matches!(s.kind, SpanKind::Kernel | SpanKind::Task)).collect();
        let work = Work { self_times: self_times(&spans), spans };

        let mut functions: Vec<Vec<&Span>> = Vec::new();
        let mut by_index = HashMap::new();
        let mut first = None;
        for run in self.spans().filter(|s| s.kind == SpanKind::Execute) {
            let Some(function) = run.place.chain else { continue };
            if Some(function) == init {
                first = Some(InitTime { name: run.name.to_string(), run_us: run.nanoseconds() as f64 / 1e3 });
                continue;
            }
            let at = *by_index.entry(function).or_insert(functions.len());
            if at == functions.len() {
                functions.push(Vec::new());
            }
            functions[at].push(run);
        }
        let named = |name: &String| find(name).and_then(|i| program.functions().get(FunctionId(i as u32)));
        let takes_arguments = |name: &&String| named(name).is_some_and(|f| !f.arguments.is_empty());
        Ok(Report {
            program: name.to_owned(),
            load_us: self
                .spans()
                .filter(|s| s.kind == SpanKind::LoadProgram)
                .map(|s| s.nanoseconds() as f64 / 1e3)
                .sum(),
            init: first,
            functions: functions.iter().map(|runs| self.function_time(&program, runs, &work)).collect(),
            not_run: self.options.functions.iter().filter(takes_arguments).cloned().collect(),
            spans_left_out: self.recording.left_out,
        })
    }

    /// The times of a function, averaged over its completely recorded runs without the warm-up run.
    fn function_time(&self, program: &Verified<'_>, runs: &[&Span], work: &Work<'_>) -> FunctionTime {
        let until = self.recording.complete_until.unwrap_or(u64::MAX);
        let complete = &runs[..runs.partition_point(|run| run.end < until)];
        let (runs, cut) = match complete {
            [_, others @ ..] if !others.is_empty() => (others, false),
            _ => (&runs[..1], complete.is_empty()),
        };

        let mut kernels: BTreeMap<&str, CallTime> = BTreeMap::new();
        let mut places: BTreeMap<(u32, u32), (&str, CallTime)> = BTreeMap::new();
        let (mut total, mut inside, mut recorded) = (0, 0, 0);
        for run in runs {
            let range = work.spans_of_run(run);
            for i in range.clone() {
                let (span, own) = (work.spans[i], work.self_times[i]);
                let name = if span.kind == SpanKind::Task { TASKS } else { &*span.name };
                kernels.entry(name).or_default().add(span.nanoseconds(), own);
                if let (Some(function), Some(kernel)) = (span.place.chain, span.place.instruction) {
                    let (_, time) = places.entry((function, kernel)).or_insert((name, CallTime::default()));
                    time.add(span.nanoseconds(), own);
                }
            }
            total += run.nanoseconds();
            inside += union_length(&work.spans[range.clone()]);
            recorded += range.len();
        }

        let per_run = |ns: f64| ns / 1e3 / runs.len() as f64;
        let run_us = per_run(total as f64);
        let mut kernels: Vec<KernelTime> =
            kernels.into_iter().map(|(name, time)| KernelTime { name: name.to_owned(), time }).collect();
        kernels.iter_mut().for_each(|k| k.time.average_over(runs.len(), run_us));
        kernels.sort_by(|a, b| b.time.self_us.total_cmp(&a.time.self_us));
        // Regions follow the function that they belong to.
        let mut places: Vec<_> = places.into_iter().collect();
        places.sort_by_key(|&((function, _), _)| {
            let owner = self.owners.get(function as usize).copied().unwrap_or(function);
            (owner, owner != function)
        });
        let mut sources = Sources::new(program);
        let place = |((function, kernel), (name, mut time)): ((u32, u32), (&str, CallTime))| {
            time.average_over(runs.len(), run_us);
            PlaceTime {
                function: self.recording.functions.get(function as usize).cloned().unwrap_or_default(),
                kernel,
                name: name.to_owned(),
                location: sources.location(function, kernel),
                time,
            }
        };
        FunctionTime {
            name: runs[0].name.to_string(),
            runs: runs.len(),
            cut,
            run_us,
            fastest_run_us: runs.iter().map(|r| r.nanoseconds()).min().unwrap_or(0) as f64 / 1e3,
            outside_us: per_run(total.saturating_sub(inside) as f64),
            recording_us: per_run(self.cost * recorded as f64),
            kernels,
            places: places.into_iter().map(place).collect(),
        }
    }
}

/// Looks up the source locations of kernels.
struct Sources<'a> {
    program: &'a Verified<'a>,
    /// The function that was looked up last, with its index.
    last: Option<(u32, FunctionRecord<'a>)>,
}

impl<'a> Sources<'a> {
    fn new(program: &'a Verified<'a>) -> Self {
        Self { program, last: None }
    }

    fn location(&mut self, function: u32, kernel: u32) -> Option<String> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != function) {
            let record = self.program.function(FunctionId(function)).ok()??;
            self.last = Some((function, record));
        }
        let (_, record) = self.last.as_ref()?;
        // Kernel 0 of the record is the pseudo kernel that defines the arguments.
        let kernel = record.kernel(kernel as usize + 1).ok()?;
        let location = self.program.location(kernel.location()).ok()??;
        (location != Location::Unknown).then(|| location.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bef::{Queue, Translation, to_bef};
    use std::io;
    use std::sync::Mutex;

    const PROGRAM: &str = r#"
func.func @double(%a: i32) -> i32 {
  %s = tfrt.add.i32 %a, %a
  tfrt.return %s : i32
}

func.func @setup() -> i32 {
  %one = tfrt.constant.i32 1
  tfrt.return %one : i32
}

func.func @main() -> i32 {
  %ch = tfrt.new.chain
  %one = tfrt.constant.i32 1
  %yes = tfrt.constant.i1 true
  %two = tfrt.call @double(%one) : (i32) -> i32
  %four = tfrt.if %yes, %two : (i32) -> (i32) {
    %d = tfrt.call @double(%two) : (i32) -> i32
    tfrt.return %d : i32
  } else {
    tfrt.return %two : i32
  }
  %done = tfrt.print.i32 %four, %ch
  tfrt.return %four : i32
}

func.func @fails() -> i32 {
  %ch = tfrt.new.chain
  %x = "tfrt_test.fail"(%ch) : (!tfrt.chain) -> i32
  tfrt.return %x : i32
}
"#;

    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);

    impl Write for Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Text {
        fn get(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn profiled(options: RunOptions) -> (Profile, String, String) {
        let Translation::Done(bytes) = to_bef(PROGRAM.as_bytes(), "t.mlir", pteron_mlir::Options::default())
        else {
            panic!("the program is not translated")
        };
        let (stdout, stderr) = (Text::default(), Text::default());
        let program = FreeableBuffer::from_bytes(&bytes).unwrap();
        let profile = profile(program, options, 3, stdout.clone(), stderr.clone());
        (profile, stdout.get(), stderr.get())
    }

    fn calls(function: &FunctionTime) -> Vec<(&str, f64)> {
        let mut all: Vec<_> = function.kernels.iter().map(|k| (&*k.name, k.time.calls)).collect();
        all.sort_by(|a, b| a.0.cmp(b.0));
        all
    }

    #[test]
    fn kernels_of_called_functions_and_regions_are_counted_by_place() {
        for queue in [Queue::SingleThreaded, Queue::MultiThreaded(2)] {
            let options = RunOptions {
                init: Some("setup".into()),
                functions: vec!["main".into()],
                queue,
                ..RunOptions::default()
            };
            let (profile, stdout, stderr) = profiled(options);
            assert_eq!((profile.exit_code, &*stdout, &*stderr), (0, "int32 = 4\n".repeat(4).as_str(), ""));
            let report = profile.report("t.mlir").unwrap();
            assert_eq!(report.init.as_ref().unwrap().name, "setup");
            let [main] = &*report.functions else { panic!("{report:?}") };
            assert_eq!((&*main.name, main.runs, main.cut), ("main", 3, false));
            let expected = [
                ("tfrt.add.i32", 2.0),
                ("tfrt.call", 2.0),
                ("tfrt.constant.i1", 1.0),
                ("tfrt.constant.i32", 1.0),
                ("tfrt.if", 1.0),
                ("tfrt.new.chain", 1.0),
                ("tfrt.print.i32", 1.0),
            ];
            assert_eq!(calls(main), expected);
            let places: Vec<_> = main
                .places
                .iter()
                .map(|p| (&*p.function, p.kernel, &*p.name, p.location.as_deref()))
                .collect();
            assert!(places.contains(&("double", 0, "tfrt.add.i32", Some("t.mlir:3:8"))), "{places:?}");
            assert!(
                places.contains(&("main (region 2)", 0, "tfrt.call", Some("t.mlir:18:10"))),
                "{places:?}"
            );
            // The call is nested in the `if`, and the addition in the call.
            let total = |name: &str| main.kernels.iter().find(|k| k.name == name).unwrap().time;
            assert!(total("tfrt.if").self_us < total("tfrt.if").total_us);
            let inside: f64 = main.kernels.iter().map(|k| k.time.self_us).sum();
            if queue == Queue::SingleThreaded {
                assert!((inside + main.outside_us - main.run_us).abs() < 1e-6 * main.run_us, "{main:?}");
            }
        }
    }

    #[test]
    fn failing_functions_run_once() {
        let (profile, _, stderr) = profiled(RunOptions::default());
        assert_eq!((profile.exit_code, stderr.matches(": error: ").count()), (1, 1));
        let report = profile.report("t.mlir").unwrap();
        let runs: Vec<_> = report.functions.iter().map(|f| (&*f.name, f.runs)).collect();
        assert_eq!(runs, [("setup", 3), ("main", 3), ("fails", 1)]);
    }

    #[test]
    fn functions_that_take_arguments_are_reported_as_not_run() {
        let options = RunOptions { functions: vec!["double".into()], ..RunOptions::default() };
        let (profile, ..) = profiled(options);
        let report = profile.report("t.mlir").unwrap();
        assert!(!profile.has_runs() && report.not_run == ["double"], "{report:?}");
    }
}

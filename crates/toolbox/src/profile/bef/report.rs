//! The report on a BEF program.

use super::MAX_SPANS;
use crate::profile::report::{calls_text, percent_text, time_text};
use crate::show::{count, line, name, table};
use serde::Serialize;
use std::fmt::Write;

/// The profile of a BEF program. Times are in microseconds; the times of kernels include the overhead of
/// recording.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub program: String,
    /// The time to open the program: to verify it and look up its kernels.
    pub load_us: f64,
    /// The initialization function, if any, which ran first and once.
    pub init: Option<InitTime>,
    /// The functions that ran, in execution order.
    pub functions: Vec<FunctionTime>,
    /// Functions that were requested but did not run, because they take arguments.
    pub not_run: Vec<String>,
    /// The number of spans beyond [`MAX_SPANS`], which were not recorded.
    pub spans_left_out: usize,
}

/// The run of the initialization function.
#[derive(Debug, Clone, Serialize)]
pub struct InitTime {
    pub name: String,
    /// The duration of the run.
    pub run_us: f64,
}

/// The times of one run of a function: the mean over all completely recorded runs, without the very first if there are
/// others.
#[derive(Debug, Clone, Serialize)]
pub struct FunctionTime {
    /// The name of the function.
    pub name: String,
    /// The number of runs.
    pub runs: usize,
    /// Whether recording stopped during the only run, so that later spans of the run are missing.
    pub cut: bool,
    /// The duration of a run, until its results were available and all its tasks were done.
    pub run_us: f64,
    /// The duration of the fastest run.
    pub fastest_run_us: f64,
    /// The time in which no thread was in a kernel or task.
    pub outside_us: f64,
    /// The estimated overhead of recording.
    pub recording_us: f64,
    /// The kernels by name, by descending self time.
    pub kernels: Vec<KernelTime>,
    /// The kernels by place, in the order of the file; the kernels of regions follow those of the enclosing function.
    pub places: Vec<PlaceTime>,
}

/// The calls of one kernel at all places.
#[derive(Debug, Clone, Serialize)]
pub struct KernelTime {
    /// The name of the kernel; `(tasks)` for tasks that kernels enqueued on the work queue.
    pub name: String,
    /// The times of the calls.
    #[serde(flatten)]
    pub time: CallTime,
}

/// The calls of one kernel at one place.
#[derive(Debug, Clone, Serialize)]
pub struct PlaceTime {
    /// The function of the call; for a region, the enclosing function and the region's index.
    pub function: String,
    /// The index of the call in the function.
    pub kernel: u32,
    /// The name of the kernel.
    pub name: String,
    /// The source location as text, such as `file:line:column`, if the program records it.
    pub location: Option<String>,
    /// The times of the calls.
    #[serde(flatten)]
    pub time: CallTime,
}

/// The times of a group of calls in one run.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct CallTime {
    /// The number of calls.
    pub calls: f64,
    /// The total time of the calls, including nested spans on the same thread.
    pub total_us: f64,
    /// The self time of the calls, without nested spans.
    pub self_us: f64,
    /// The self time as a percentage of the run. With several threads, the sum of all shares can exceed 100.
    pub share: f64,
}

impl CallTime {
    /// Adds a call.
    pub(super) fn add(&mut self, nanoseconds: u64, own: u64) {
        self.calls += 1.0;
        self.total_us += nanoseconds as f64 / 1e3;
        self.self_us += own as f64 / 1e3;
    }

    /// Converts sums over `runs` runs to the mean of one run, and computes the share.
    pub(super) fn average_over(&mut self, runs: usize, run_us: f64) {
        let runs = runs.max(1) as f64;
        self.calls /= runs;
        self.total_us /= runs;
        self.self_us /= runs;
        self.share = if run_us > 0.0 { 100.0 * self.self_us / run_us } else { 0.0 };
    }
}

impl Report {
    /// The report as text. With `places`, it lists the kernels by place as well as by name.
    pub fn text(&self, places: bool) -> String {
        let mut out = format!("{}: opened in {}", line(&self.program), time_text(self.load_us));
        if let Some(init) = &self.init {
            let _ = write!(out, "; {}, which ran before, took {}", name(&init.name), time_text(init.run_us));
        }
        out.push('\n');
        if self.spans_left_out > 0 {
            let _ = writeln!(
                out,
                "recording stopped after {MAX_SPANS} spans, {} were left out: take fewer runs, or fewer functions",
                self.spans_left_out
            );
        }
        for function in &self.not_run {
            let function = name(function);
            let _ = writeln!(
                out,
                "{function}: not run, because it takes arguments; name them, as in `{function}(1)`"
            );
        }
        if self.functions.is_empty() && self.not_run.is_empty() {
            out.push_str("nothing was run: there is no function without arguments\n");
        }
        for function in &self.functions {
            out.push('\n');
            function.write(places, &mut out);
        }
        out
    }
}

impl FunctionTime {
    fn write(&self, places: bool, out: &mut String) {
        let runs = count(self.runs, "run");
        let (mean, fastest, recording) =
            (time_text(self.run_us), time_text(self.fastest_run_us), time_text(self.recording_us));
        let _ = writeln!(
            out,
            "{}: {runs}, {mean} each, the fastest {fastest}; about {recording} of it recording",
            name(&self.name)
        );
        if self.cut {
            out.push_str("what follows is about the part of the run before recording stopped\n");
        }
        let head = ["kernel", "calls", "total", "self", "share", "a call"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        let row = |name: &str, t: &CallTime| {
            vec![
                name.to_owned(),
                calls_text(t.calls),
                time_text(t.total_us),
                time_text(t.self_us),
                percent_text(t.share),
            ]
        };
        for k in &self.kernels {
            let mut row = row(&k.name, &k.time);
            row.push(time_text(k.time.self_us / k.time.calls));
            rows.push(row);
        }
        let outside = if self.run_us > 0.0 { 100.0 * self.outside_us / self.run_us } else { 0.0 };
        let between = ["(between)", "", "", &time_text(self.outside_us), &percent_text(outside)];
        rows.push(between.map(str::to_owned).to_vec());
        let _ = write!(out, "\n{}", table(rows, "<>>>>>", 0));
        if !places || self.places.is_empty() {
            return;
        }
        let head = ["in", "at", "kernel", "calls", "total", "self", "share", "source"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for p in &self.places {
            let mut cells = vec![p.function.clone(), p.kernel.to_string()];
            cells.extend(row(&p.name, &p.time));
            cells.push(p.location.clone().unwrap_or_default());
            rows.push(cells);
        }
        let _ = write!(out, "\n{}", table(rows, "<><>>>><", 0));
    }
}

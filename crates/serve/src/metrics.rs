//! Metrics in Prometheus' text format.

use crate::refusal::Reason;
use crate::request::Timing;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The upper bounds of a histogram's buckets, in seconds.
const SECONDS: [f64; 12] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0];

/// A histogram of durations.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; SECONDS.len()],
    number: AtomicU64,
    microseconds: AtomicU64,
}

impl Histogram {
    fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(first) = SECONDS.iter().position(|&bound| seconds <= bound) {
            self.counts[first].fetch_add(1, Ordering::Relaxed);
        }
        self.number.fetch_add(1, Ordering::Relaxed);
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
    }

    fn write(&self, out: &mut impl Write, name: &str, labels: &str) {
        let mut sum = 0;
        for (bound, count) in SECONDS.iter().zip(&self.counts) {
            sum += count.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {sum}");
        }
        let number = self.number.load(Ordering::Relaxed);
        let seconds = self.microseconds.load(Ordering::Relaxed) as f64 * 1e-6;
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {number}");
        let _ = writeln!(out, "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {number}");
    }
}

/// Metrics of one version of a model.
#[derive(Debug, Default)]
pub(crate) struct ModelMetrics {
    successes: AtomicU64,
    failures: [AtomicU64; Reason::ALL.len()],
    queued: Histogram,
    computed: Histogram,
    /// The number of successful requests that were executed in a batch with others.
    joined: AtomicU64,
    loads: AtomicU64,
    /// The number of executions whose first request succeeded.
    executions: AtomicU64,
    /// The time of the last success, in milliseconds since 1970.
    last_success: AtomicU64,
}

/// Sums over all requests of a version of a model.
#[cfg(feature = "net")]
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) successes: u64,
    pub(crate) failures: u64,
    /// The number of executions whose first request succeeded; fewer than successes if requests were joined.
    pub(crate) executions: u64,
    /// The time of the last success, in milliseconds since 1970; 0 if there was none.
    pub(crate) last_success: u64,
    /// The time that successful requests waited, in microseconds.
    pub(crate) queued: u64,
    /// The execution time of successful requests, in microseconds. An execution counts once for each of its requests.
    pub(crate) computed: u64,
}

impl ModelMetrics {
    pub(crate) fn count_success(&self, timing: &Timing) {
        self.successes.fetch_add(1, Ordering::Relaxed);
        self.queued.add(timing.queued);
        self.computed.add(timing.computed);
        self.joined.fetch_add(u64::from(timing.batch_rows > 0), Ordering::Relaxed);
        self.executions.fetch_add(u64::from(timing.is_first), Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.last_success.fetch_max(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn count_failure(&self, reason: Reason) {
        self.failures[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_load(&self) {
        self.loads.fetch_add(1, Ordering::Relaxed);
    }

    /// Sums over all requests so far.
    #[cfg(feature = "net")]
    pub(crate) fn totals(&self) -> Totals {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            successes: self.successes(),
            failures: self.failures.iter().map(load).sum(),
            executions: load(&self.executions),
            last_success: load(&self.last_success),
            queued: load(&self.queued.microseconds),
            computed: load(&self.computed.microseconds),
        }
    }

    /// The number of successful requests.
    pub(crate) fn successes(&self) -> u64 {
        self.successes.load(Ordering::Relaxed)
    }
}

/// A metric family: its name, help text and type.
struct Family(&'static str, &'static str, &'static str);

const REQUESTS: Family = Family("pteron_requests_total", "Inference requests, by how they ended.", "counter");
const JOINED: Family =
    Family("pteron_joined_requests_total", "Requests that were executed in a batch with others.", "counter");
const LOADS: Family =
    Family("pteron_model_loads_total", "Loads and swaps of a version of a model.", "counter");
const QUEUED: Family =
    Family("pteron_queue_seconds", "Time that requests waited for a worker and for others.", "histogram");
const COMPUTED: Family =
    Family("pteron_compute_seconds", "Time of the executions that requests were part of.", "histogram");

impl Family {
    fn write_head(&self, out: &mut impl Write) {
        let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {}", self.0, self.1, self.0, self.2);
    }
}

/// Writes the metrics of all models; each comes with the text of its labels.
pub(crate) fn write_models(out: &mut impl Write, models: &[(String, &ModelMetrics)]) {
    REQUESTS.write_head(out);
    for (labels, metrics) in models {
        let _ = writeln!(out, "{}{{{labels},outcome=\"ok\"}} {}", REQUESTS.0, metrics.successes());
        for (reason, count) in Reason::ALL.iter().zip(&metrics.failures) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                let _ = writeln!(out, "{}{{{labels},outcome=\"{}\"}} {count}", REQUESTS.0, reason.name());
            }
        }
    }
    for (family, get) in [(JOINED, (|m| &m.joined) as fn(&ModelMetrics) -> &AtomicU64), (LOADS, |m| &m.loads)]
    {
        family.write_head(out);
        for (labels, metrics) in models {
            let _ = writeln!(out, "{}{{{labels}}} {}", family.0, get(metrics).load(Ordering::Relaxed));
        }
    }
    for (family, get) in
        [(QUEUED, (|m| &m.queued) as fn(&ModelMetrics) -> &Histogram), (COMPUTED, |m| &m.computed)]
    {
        family.write_head(out);
        models.iter().for_each(|(labels, metrics)| get(metrics).write(out, family.0, labels));
    }
}

/// Writes a gauge or a counter.
pub(crate) fn write_number(
    out: &mut impl Write,
    (name, help, kind): (&'static str, &'static str, &'static str),
    value: u64,
) {
    Family(name, help, kind).write_head(out);
    let _ = writeln!(out, "{name} {value}");
}

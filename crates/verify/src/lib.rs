//! Conformance tests: runs recorded cases and compares the outputs.
// Items whose names say everything have no doc comments.
#![allow(missing_docs)]
#![forbid(unsafe_code)]

mod case;
mod check;
mod setting;

pub use case::{Case, Entry, Number, Recorded, Run, SetAside, Values, archive_cases, find, read};
pub use check::{Convert, Observe, Options, Outcome, WithData, check, digest};
pub use pteron_toolbox::tolerance::{Difference, Scope, Tolerance, compare};
pub use setting::Setting;

use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// The number of cases by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The number of cases that passed: see [`Outcome::Passed`].
    pub passed: usize,
    /// The number of cases that failed: see [`Outcome::Failed`].
    pub failed: usize,
    /// The number of cases that were set aside: see [`Outcome::SetAside`].
    pub set_aside: usize,
    /// The number of cases that were skipped: see [`Outcome::Skipped`].
    pub skipped: usize,
}

impl Counts {
    /// Adds the counts `other` to these counts.
    pub fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.set_aside += other.set_aside;
        self.skipped += other.skipped;
    }

    /// Counts an outcome.
    pub fn add(&mut self, outcome: &Outcome) {
        *match outcome {
            Outcome::Passed => &mut self.passed,
            Outcome::Failed(_) => &mut self.failed,
            Outcome::SetAside(_) => &mut self.set_aside,
            Outcome::Skipped => &mut self.skipped,
        } += 1;
    }
}

/// Checks cases on several threads, or on the calling thread, and passes each outcome to `report` in the order of the cases.
pub fn check_all(
    cases: &[Case],
    options: &Options,
    threads: usize,
    mut report: impl FnMut(&Case, &Outcome),
) -> Counts {
    let mut counts = Counts::default();
    if threads <= 1 || cases.len() <= 1 {
        for case in cases {
            let outcome = check(case, options);
            counts.add(&outcome);
            report(case, &outcome);
        }
        return counts;
    }
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        let mut started = 0;
        for _ in 0..threads.min(cases.len()) {
            let (sender, next) = (sender.clone(), &next);
            let work = move || {
                while let Some((i, case)) = {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(i).map(|c| (i, c))
                } {
                    if sender.send((i, check(case, options))).is_err() {
                        break;
                    }
                }
            };
            // If the system refuses threads, continue with fewer, or with the calling thread.
            match std::thread::Builder::new().spawn_scoped(scope, work.clone()) {
                Ok(_) => started += 1,
                Err(_) if started == 0 => work(),
                Err(_) => break,
            }
        }
        drop(sender);
        let mut waiting: Vec<Option<Outcome>> = vec![None; cases.len()];
        let mut reported = 0;
        for (i, outcome) in receiver {
            counts.add(&outcome);
            waiting[i] = Some(outcome);
            while let Some(outcome) = waiting.get_mut(reported).and_then(Option::take) {
                report(&cases[reported], &outcome);
                reported += 1;
            }
        }
    });
    counts
}

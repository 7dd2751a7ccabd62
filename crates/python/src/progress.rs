//! Progress callbacks.

use pteron_toolbox::file::{Listener, Progress};
use pyo3::prelude::*;
use std::sync::Mutex;

/// The minimum number of bytes between two calls of the progress function.
const STEP: u64 = 1 << 20;

/// A Python function that is called with the name of the operation, the bytes done and the total bytes.
struct Callback {
    function: Py<PyAny>,
    /// The name of the operation, its total bytes, the bytes done, and the bytes done at the last report.
    state: Mutex<(&'static str, u64, u64, u64)>,
}

impl Callback {
    /// Calls the Python function. An exception that it raises is printed by `sys.unraisablehook`.
    fn report(&self, what: &'static str, done: u64, total: u64) {
        Python::attach(|py| {
            if let Err(error) = self.function.call1(py, (what, done, total)) {
                error.write_unraisable(py, Some(self.function.bind(py)));
            }
        });
    }

    /// Reports the bytes done, if there are any since the last report, as when an operation ends before its estimated
    /// total.
    fn report_rest(&self) {
        let (what, total, done, reported) = *crate::opened::lock(&self.state);
        if done > reported {
            self.report(what, done.min(total), total);
        }
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        self.report_rest();
    }
}

impl Listener for Callback {
    fn begin(&self, what: &'static str, bytes: u64) {
        self.report_rest();
        *crate::opened::lock(&self.state) = (what, bytes, 0, 0);
        self.report(what, 0, bytes);
    }

    fn advance(&self, bytes: u64) {
        let (what, total, done) = {
            let mut state = crate::opened::lock(&self.state);
            state.2 = state.2.saturating_add(bytes);
            if state.2 < state.3.saturating_add(STEP) && state.2 < state.1 {
                return;
            }
            state.3 = state.2;
            (state.0, state.1, state.2)
        };
        self.report(what, done.min(total), total);
    }
}

/// Progress that is reported to a function, if there is one.
pub(crate) fn progress(function: Option<Py<PyAny>>) -> Progress {
    let callback = |function| Callback { function, state: Mutex::new(("", 0, 0, 0)) };
    function.map_or_else(Progress::default, |function| Progress::new(callback(function)))
}

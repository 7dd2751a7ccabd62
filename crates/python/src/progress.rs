//! Progress, told to a function of Python's.

use pyo3::prelude::*;
use std::sync::Mutex;
use toolbox::file::{Listener, Progress};

/// Bytes after which the function is called again.
const STEP: u64 = 1 << 20;

/// A function that is called with what is being done, the bytes that are done and how many there are.
struct Callback {
    function: Py<PyAny>,
    /// What is being done, bytes in all, bytes done, bytes that were told of.
    state: Mutex<(&'static str, u64, u64, u64)>,
}

impl Callback {
    /// What goes wrong in the function is shown as Python shows what nobody can catch.
    fn tell(&self, what: &'static str, done: u64, total: u64) {
        Python::attach(|py| {
            if let Err(error) = self.function.call1(py, (what, done, total)) {
                error.write_unraisable(py, Some(self.function.bind(py)));
            }
        });
    }

    /// Tells of what was done since it last told. Totals are estimates, which the bytes that are done may not reach.
    fn tell_rest(&self) {
        let (what, total, done, told) = *crate::opened::lock(&self.state);
        if done > told {
            self.tell(what, done.min(total), total);
        }
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        self.tell_rest();
    }
}

impl Listener for Callback {
    fn begin(&self, what: &'static str, bytes: u64) {
        self.tell_rest();
        *crate::opened::lock(&self.state) = (what, bytes, 0, 0);
        self.tell(what, 0, bytes);
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
        self.tell(what, done.min(total), total);
    }
}

/// Progress that a function hears of, or nobody.
pub(crate) fn progress(function: Option<Py<PyAny>>) -> Progress {
    let callback = |function| Callback { function, state: Mutex::new(("", 0, 0, 0)) };
    function.map_or_else(Progress::default, |function| Progress::new(callback(function)))
}

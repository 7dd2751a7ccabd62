//! Ctrl-C during long executions: Python delivers signals only to its main thread, while that runs Python code.

use crate::errors::Result;
use pteron::Interrupt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// An execution after one shorter than this gets no thread of its own: Ctrl-C is delivered when it has ended.
const QUICK: Duration = Duration::from_millis(20);

/// How often the main thread looks for signals.
const INTERVAL: Duration = Duration::from_millis(50);

/// How long the last execution took, in nanoseconds; the maximum if there was none.
pub(crate) struct LastTime(AtomicU64);

impl Default for LastTime {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl LastTime {
    fn is_quick(&self) -> bool {
        self.0.load(Ordering::Relaxed) < QUICK.as_nanos() as u64
    }

    fn set(&self, time: Duration) {
        self.0.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    static MAIN: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    let (current, main) = MAIN.get_or_try_init(py, || {
        let threading = py.import("threading")?;
        Ok::<_, PyErr>((
            threading.getattr("current_thread")?.unbind(),
            threading.getattr("main_thread")?.unbind(),
        ))
    })?;
    Ok(current.bind(py).call0()?.is(&main.bind(py).call0()?))
}

/// Runs `body` without the GIL. On Python's main thread, a signal whose handler raises an exception, as Ctrl-C does,
/// cancels the handle that `body` gets, and that exception is the result.
pub(crate) fn run_interruptible<T: Send>(
    py: Python<'_>,
    last: &LastTime,
    body: impl FnOnce(Option<&Interrupt>) -> Result<T> + Send,
) -> PyResult<T> {
    let start = Instant::now();
    let result = match last.is_quick() || !is_main_thread(py)? {
        true => py.detach(|| body(None)).map_err(PyErr::from),
        false => run_watched(py, body),
    };
    last.set(start.elapsed());
    result
}

fn run_watched<T: Send>(
    py: Python<'_>,
    body: impl FnOnce(Option<&Interrupt>) -> Result<T> + Send,
) -> PyResult<T> {
    let handle = Interrupt::new();
    py.detach(|| {
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            let worker = &handle;
            scope.spawn(move || sender.send(body(Some(worker))));
            let mut raised = None;
            loop {
                match receiver.recv_timeout(INTERVAL) {
                    Ok(result) => return raised.map_or_else(|| result.map_err(PyErr::from), Err),
                    // The thread has panicked: the scope passes the panic on.
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(pyo3::exceptions::PyRuntimeError::new_err("the execution panicked"));
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(error) = Python::attach(|py| py.check_signals()) {
                            handle.cancel();
                            raised = Some(error);
                        }
                    }
                }
            }
        })
    })
}

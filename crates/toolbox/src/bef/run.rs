use pteron_runtime::FreeableBuffer;
use pteron_tfrt_kernels::driver;
pub use pteron_tfrt_kernels::driver::{Options as RunOptions, Queue};
use serde::Serialize;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs the functions of a BEF program as the reference executor does: prints `--- Running 'f':` and the values that `f`
/// returned to `stdout`, errors with their locations to `stderr`. Returns the exit code, 0 or 1.
pub fn run(
    program: FreeableBuffer,
    options: &RunOptions,
    stdout: impl Write + Send + 'static,
    stderr: impl Write + Send + 'static,
) -> i32 {
    driver::run(Arc::new(program), options, stdout, stderr)
}

/// What a run printed, and its exit code.
#[derive(Debug, Clone, Serialize)]
pub struct CapturedRun {
    /// 0, or 1 if an unexpected error occurred or an expected one did not.
    pub exit_code: i32,
    /// The names of the functions and the values that they returned, and what their kernels printed.
    pub output: String,
    /// The errors with their locations.
    pub errors: String,
}

/// As [`run`], with the printed text in the result.
pub fn run_captured(program: FreeableBuffer, options: &RunOptions) -> CapturedRun {
    let (output, errors) = (SharedText::default(), SharedText::default());
    let exit_code = run(program, options, output.clone(), errors.clone());
    CapturedRun { exit_code, output: output.read(), errors: errors.read() }
}

/// A text that several owners write.
#[derive(Clone, Default)]
struct SharedText(Arc<Mutex<Vec<u8>>>);

impl SharedText {
    fn read(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for SharedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

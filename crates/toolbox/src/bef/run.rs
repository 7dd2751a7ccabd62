use pteron_runtime::FreeableBuffer;
use pteron_tfrt_kernels::driver;
pub use pteron_tfrt_kernels::driver::{Options as RunOptions, Queue};
use std::io::Write;
use std::sync::Arc;

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

//! Profiles: runs a method and reports the time by operator, or the functions of a BEF program and
//! reports the time by kernel.
//!
//! ```text
//! run ─► Recorder ─► Recording ─► Report         a table, or JSON
//!        spans,      blocks of    chrome::trace  for Chrome or Perfetto
//!        values      events       etdump::dump   for the reference's Inspector
//! ```

#[cfg(feature = "bef")]
pub mod bef;
pub mod chrome;
pub mod etdump;
mod nesting;
mod record;
mod report;

pub use record::{Allocation, Block, Recorder, Recording, Span, Value};
pub use report::{OperatorTime, Report, StepTime, time_text};

use crate::Result;
use crate::run::{DefaultInputs, Request, ResolvedCall, run_once};
use pteron_operator::EValue;
use pteron_runtime::{AsWritten, LoadOptions, Program};
use std::sync::Arc;

/// The recorded runs of a method.
#[derive(Debug)]
pub struct Profile {
    pub method: String,
    /// The inputs that were used because none were given.
    pub default_inputs: Option<DefaultInputs>,
    /// The recorded events of loading, then of each run.
    pub recording: Recording,
    /// The instructions that run unprepared, because preparing them would exceed the memory limit.
    pub as_written: Vec<AsWritten>,
}

/// Loads a method and runs it [`Request::repeat`] times, at least once, recording all events. With
/// `values`, every tensor that an instruction computes is recorded as well. Without, an unrecorded warm-up run comes
/// first, which takes the page faults.
pub fn profile(program: &Program, request: &Request, values: bool, options: LoadOptions) -> Result<Profile> {
    record(program, request, values, !values, options)
}

/// As [`profile`]; with `warm`, an unrecorded run comes first. It lowers the regions with dynamic shapes, so that the
/// recorded runs show their steady state.
pub(crate) fn record(
    program: &Program,
    request: &Request,
    values: bool,
    warm: bool,
    mut options: LoadOptions,
) -> Result<Profile> {
    let ResolvedCall { method: name, inputs, default_inputs } = request.resolve(program)?;
    let recorder = Arc::new(Recorder::new(values));
    options.tracer = Some(Arc::clone(&recorder) as _);
    let mut method = program.load_method(&name, options)?;
    recorder.end_block("Default");
    if warm {
        method.set_tracer(None);
        run_once(&mut method, &inputs)?;
        method.set_tracer(Some(Arc::clone(&recorder) as _));
    }
    for _ in 0..request.repeat.max(1) {
        run_once(&mut method, &inputs)?;
        if values {
            for i in 0..method.num_outputs() {
                if let EValue::Tensor(tensor) = method.output(i)? {
                    recorder.output(i, &tensor)?;
                }
            }
        }
        recorder.end_block("Execute");
    }
    let as_written = method.as_written().to_vec();
    Ok(Profile { method: name, default_inputs, recording: recorder.finish(), as_written })
}

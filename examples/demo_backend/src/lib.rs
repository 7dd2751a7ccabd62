//! A minimal delegate backend: the runtime half of the reference's `BackendWithCompilerDemo`.
//!
//! The ahead-of-time half belongs to the reference. It lowers a partition of `mm`, `add` and `sin` over
//! float tensors to a text:
//!
//! ```text
//! 2version:0#op:demo::aten.mm.default, numel:4, dtype:torch.float32<debug_handle>1#op:…<debug_handle>2#
//! ```
//!
//! The text has the number of instructions, the version, and the instructions, separated by `#`. Instructions have no
//! operands: `mm` is `z = a · x` of 2×2 matrices, `add` is `z = z + b` for the call `(a, x, b, z)`, and
//! `sin` is `y = x - x³/6` for the call `(x, y)`. The compile spec `max_value` is the largest size
//! that the program uses; the backend accepts up to 4.
//!
//! ```
//! use pteron_demo_backend::DemoBackend;
//! use pteron_runtime::BackendRegistry;
//!
//! let mut backends = BackendRegistry::new();
//! backends.register(DemoBackend)?;
//! # Ok::<(), pteron_runtime::DuplicateBackend>(())
//! ```
#![forbid(unsafe_code)]

use pteron_operator::{Arg, Out};
use pteron_runtime::{
    Backend, BackendError, BackendExecutionContext, BackendInitContext, CompileSpec, Delegate, FreeableBuffer,
};

/// The id of this backend in programs.
pub const BACKEND_ID: &str = "BackendWithCompilerDemo";

const VERSION: u32 = 0;
const MAX_VALUE: i32 = 4;
const MAX_INSTRUCTIONS: usize = 1000;

/// The backend. It is stateless: each payload becomes a separate delegate.
pub struct DemoBackend;

impl Backend for DemoBackend {
    fn id(&self) -> &str {
        BACKEND_ID
    }

    fn init(
        &self,
        _: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        compile_specs: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        let max_value = compile_specs.iter().find(|s| s.key == "max_value");
        if let Some(value) = max_value.and_then(|s| s.value.first_chunk().copied()).map(i32::from_le_bytes)
            && value > MAX_VALUE
        {
            return fail(format!("max_value is {value}, this backend takes up to {MAX_VALUE}"));
        }
        let text = std::str::from_utf8(&processed)
            .map_err(|e| BackendError::new(format!("the payload is not text: {e}")))?;
        Ok(Box::new(DemoDelegate { program: parse(text)? }))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Mm,
    Add,
    Sin,
}

fn fail<T>(message: impl Into<String>) -> Result<T, BackendError> {
    Err(BackendError::new(message))
}

/// Parses a payload: `<count>version:<version>#<instruction>#…#`.
fn parse(text: &str) -> Result<Vec<Operation>, BackendError> {
    let text = text.trim_end_matches('\0');
    let (head, body) = text.split_once('#').ok_or_else(|| BackendError::new("the payload has no `#`"))?;
    let (count, version) =
        head.split_once("version:").ok_or_else(|| BackendError::new("the payload has no `version:`"))?;
    if version.trim().parse() != Ok(VERSION) {
        return fail(format!("the payload has version {version:?}, this backend reads {VERSION}"));
    }
    let count: usize = count
        .trim()
        .parse()
        .map_err(|_| BackendError::new(format!("{count:?} is no number of instructions")))?;
    let program = body
        .split_terminator('#')
        .take(MAX_INSTRUCTIONS + 1)
        .map(parse_instruction)
        .collect::<Result<Vec<_>, _>>()?;
    if program.len() != count {
        return fail(format!("the payload says {count} instructions and has {}", program.len()));
    }
    Ok(program)
}

/// Parses `op:<name>, numel:<n>, dtype:<type><debug_handle><n>`.
fn parse_instruction(text: &str) -> Result<Operation, BackendError> {
    let field = |key: &str| {
        let (_, rest) = text.split_once(key)?;
        Some(rest.split([',', '<']).next().unwrap_or(rest).trim())
    };
    match field("dtype:") {
        Some("torch.float32") => {}
        other => return fail(format!("the instruction `{text}` has type {other:?}, not torch.float32")),
    }
    match field("op:") {
        Some("demo::aten.mm.default") => Ok(Operation::Mm),
        Some("demo::aten.add.Tensor") => Ok(Operation::Add),
        Some("demo::aten.sin.default") => Ok(Operation::Sin),
        other => fail(format!("the operation {other:?} is not mm, add or sin")),
    }
}

struct DemoDelegate {
    program: Vec<Operation>,
}

impl Delegate for DemoDelegate {
    fn fork(&self) -> Option<Box<dyn Delegate>> {
        Some(Box::new(DemoDelegate { program: self.program.clone() }))
    }

    fn num_inputs(&self) -> usize {
        if self.program.contains(&Operation::Sin) { 1 } else { 3 }
    }

    fn execute(
        &mut self,
        _: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        let input = |i: usize| match inputs.get(i) {
            Some(Arg::Tensor(t)) => Ok(t.storage::<f32>()?),
            other => fail(format!("input {i} is {other:?}, not a tensor")),
        };
        let [Out::Tensor(out)] = outputs else { return fail("the call has not exactly one output") };
        let z = out.storage_mut::<f32>()?;
        for operation in &self.program {
            match operation {
                Operation::Mm => match (input(0)?, input(1)?, &mut *z) {
                    (&[a, b, c, d], &[p, q, r, s], [z0, z1, z2, z3]) => {
                        (*z0, *z1) = (a * p + b * r, a * q + b * s);
                        (*z2, *z3) = (c * p + d * r, c * q + d * s);
                    }
                    _ => return fail("this backend multiplies 2x2 matrices only"),
                },
                Operation::Add => z.iter_mut().zip(input(2)?).for_each(|(z, b)| *z += b),
                Operation::Sin => z.iter_mut().zip(input(0)?).for_each(|(y, x)| *y = x - x * x * x / 6.0),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_parsed() {
        let text = "2version:0#op:demo::aten.mm.default, numel:4, dtype:torch.float32<debug_handle>1#\
                    op:demo::aten.add.Tensor, numel:4, dtype:torch.float32<debug_handle>2#";
        assert_eq!(parse(text).unwrap(), [Operation::Mm, Operation::Add]);
    }

    #[test]
    fn bad_payloads_are_explained() {
        for (text, part) in [
            ("", "no `#`"),
            ("1version:1#", "version"),
            ("2version:0#op:demo::aten.sin.default, numel:4, dtype:torch.float32<debug_handle>1#", "says 2"),
            ("1version:0#op:demo::aten.cos.default, numel:4, dtype:torch.float32<debug_handle>1#", "cos"),
            ("1version:0#op:demo::aten.sin.default, numel:4, dtype:torch.int8<debug_handle>1#", "int8"),
        ] {
            let e = parse(text).unwrap_err().to_string();
            assert!(e.contains(part), "{e}");
        }
    }
}

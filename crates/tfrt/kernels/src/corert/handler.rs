use super::{OpAttrs, ops};
use crate::kernels::{RegistryExt, object_value};
use crate::tensor::Tensor;
use pteron_host::{Chain, Fault, Frame, KernelRegistry};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// An op handler: finds operators by name and runs them.
#[derive(Clone)]
pub(crate) enum OpHandler {
    /// A handler without operators.
    Null,
    /// A handler with the operators of this crate, which delegates other operators to a fallback.
    Cpu(Arc<OpHandler>),
    /// A handler that logs to standard error the operators that its fallback runs.
    Logging(Arc<Logging>),
}

pub(crate) struct Logging {
    fallback: OpHandler,
    results: bool,
    count: AtomicU32,
}

/// Maximum length of a chain of fallback handlers.
const MAX_DEPTH: usize = 64;

impl OpHandler {
    /// Runs an operator.
    pub(crate) fn execute(
        &self,
        name: &str,
        frame: &Frame<'_>,
        arguments: &[&Tensor],
        attrs: &OpAttrs<'_>,
        results: usize,
    ) -> Result<Vec<Tensor>, Fault> {
        match self.find(name, MAX_DEPTH)? {
            Lookup::Op(op) => op.run(frame, arguments, attrs),
            Lookup::Logged(logging, op) => logging.execute(name, op, frame, arguments, attrs, results),
        }
    }

    fn find(&self, name: &str, depth: usize) -> Result<Lookup<'_>, Fault> {
        match self {
            _ if depth == 0 => Err("op handlers are nested too deeply".into()),
            Self::Null => Err(format!("{name} was not supported by NullOpHandler.").into()),
            Self::Cpu(fallback) => match ops::find(name) {
                Some(op) => Ok(Lookup::Op(op)),
                None => fallback.find(name, depth - 1),
            },
            Self::Logging(logging) => match logging.fallback.find(name, depth - 1)? {
                Lookup::Op(op) | Lookup::Logged(_, op) => Ok(Lookup::Logged(logging, op)),
            },
        }
    }
}

enum Lookup<'h> {
    Op(ops::Entry),
    Logged(&'h Logging, ops::Entry),
}

impl Logging {
    fn execute(
        &self,
        name: &str,
        op: ops::Entry,
        frame: &Frame<'_>,
        arguments: &[&Tensor],
        attrs: &OpAttrs<'_>,
        results: usize,
    ) -> Result<Vec<Tensor>, Fault> {
        let id = self.count.fetch_add(1, Ordering::Relaxed);
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        let count = arguments.len();
        let mut text = format!("[{id}] dispatch '{name}' {count} argument{}, ", plural(count));
        text += &format!("{results} result{}, ", plural(results));
        text += &if attrs.is_empty() { "no attributes\n".to_owned() } else { attrs.to_string() };
        log_tensors(&mut text, "Input", id, name, arguments.iter().copied());
        eprint!("{text}");
        let outputs = op.run(frame, arguments, attrs)?;
        if self.results && !outputs.is_empty() {
            let mut text = String::new();
            log_tensors(&mut text, "Output", id, name, outputs.iter());
            eprint!("{text}");
        }
        Ok(outputs)
    }
}

fn log_tensors<'t>(
    text: &mut String,
    what: &str,
    id: u32,
    name: &str,
    tensors: impl Iterator<Item = &'t Tensor>,
) {
    let _ = writeln!(text, "{what}s for [{id}]: '{name}':");
    for (i, tensor) in tensors.enumerate() {
        let _ = writeln!(text, "  {what} for [{id}] tensor {i}: {tensor}");
    }
    text.push('\n');
}

/// The handlers that programs have registered, by name.
type Handlers = Mutex<HashMap<String, OpHandler>>;

fn find(frame: &mut Frame<'_>) -> Result<pteron_host::Value, Fault> {
    let name: &str = frame.attribute(0)?;
    let handlers = frame.context().host().shared(Handlers::default);
    let handler = handlers.lock().unwrap_or_else(|e| e.into_inner()).get(name).cloned();
    handler.map(object_value).ok_or_else(|| format!("op_handler not found: {name}").into())
}

fn register_handler(frame: &mut Frame<'_>) -> Result<Chain, Fault> {
    let (name, handler) = (frame.attribute(0)?, frame.object::<OpHandler>(0)?.clone());
    let handlers = frame.context().host().shared(Handlers::default);
    handlers.lock().unwrap_or_else(|e| e.into_inner()).insert(name, handler);
    Ok(Chain)
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_typed("corert.create_null_op_handler", || object_value(OpHandler::Null));
    registry.add_fallible("corert.create_cpu_op_handler", |frame: &mut Frame<'_>| {
        Ok(object_value(OpHandler::Cpu(Arc::new(frame.object::<OpHandler>(0)?.clone()))))
    });
    registry.add_fallible("corert.create_logging_op_handler", |frame: &mut Frame<'_>| {
        let fallback = frame.object::<OpHandler>(0)?.clone();
        let results = frame.attribute::<bool>(0).or_else(|_| frame.attribute::<i64>(0).map(|v| v != 0))?;
        Ok(object_value(OpHandler::Logging(Arc::new(Logging {
            fallback,
            results,
            count: AtomicU32::new(0),
        }))))
    });
    for dialect in ["corert", "corert_sync"] {
        registry.add_fallible(&format!("{dialect}.get_op_handler"), find);
        registry.add_fallible(&format!("{dialect}.register_op_handler"), register_handler);
    }
}

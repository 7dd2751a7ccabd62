use super::{TensorHandle, ops};
use crate::kernels::RegistryExt;
use crate::tensor::Tensor;
use pteron_bef::DType;
use pteron_host::{
    AsyncValue, ErrorValue, ExecutionContext, Fault, Frame, Function, KernelRegistry, Promise, Reporter,
    Results, Value,
};

/// The truth value of a tensor: its only element is not zero, or its first string is not empty. Fails if the elements are floating-point,
/// and if there are several numbers.
fn is_true(frame: &Frame<'_>, tensor: &Tensor) -> Result<bool, Fault> {
    if let Tensor::Strings(tensor) = tensor {
        return Ok(tensor.strings.first().is_some_and(|s| !s.is_empty()));
    }
    number_is_true(&ops::to_dense(frame, tensor)?)
}

fn number_is_true(dense: &crate::tensor::Dense) -> Result<bool, Fault> {
    if dense.shape.element_count() != 1 {
        return Err(Fault::invalid(format!("a condition of shape {}, expected one element", dense.shape)));
    }
    match dense.dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
            Err("tensor predicate does not support type f32".into())
        }
        _ => Ok(dense.buffer.bytes().iter().any(|&b| b != 0)),
    }
}

/// Takes `(condition, chain, arguments...)`: calls the first function if the condition is true, otherwise the second.
fn cond(frame: &mut Frame<'_>) -> Result<(), Fault> {
    let truth = is_true(frame, super::tensor_argument(frame, 0)?)?;
    let function = frame.function(usize::from(!truth))?;
    if (function.arguments() + 1, function.results()) != (frame.arguments(), frame.results()) {
        return Err(Fault::invalid("the branch has other arguments or results than the call"));
    }
    frame.call(function, 1);
    Ok(())
}

/// The state of a running `corert.while`.
struct While {
    context: ExecutionContext,
    condition: Function,
    body: Function,
    promises: Vec<Promise>,
    reporter: Reporter,
}

impl While {
    fn resolve(self, values: impl IntoIterator<Item = Value>) {
        self.promises.into_iter().zip(values).for_each(|(promise, value)| promise.set(value));
    }

    fn fail(self, error: ErrorValue) {
        let count = self.promises.len();
        self.resolve(vec![Value::Error(error); count]);
    }

    /// Evaluates the condition function, and continues when its results are available.
    fn evaluate_condition(self, arguments: Results) {
        let results = self.condition.execute(&self.context, &arguments);
        self.wait_for_condition(results, arguments);
    }

    fn wait_for_condition(self, results: Results, arguments: Results) {
        let results: Results = results.into_iter().map(Value::settle).collect();
        if let Some(Value::Async(pending)) = results.iter().find(|v| matches!(v, Value::Async(_))) {
            return pending.clone().and_then(move || self.wait_for_condition(results, arguments));
        }
        let failed = results.iter().position(Value::is_error).unwrap_or(results.len().saturating_sub(1));
        let condition = results.into_iter().nth(failed).unwrap_or_default();
        self.continue_if(condition, arguments);
    }

    fn continue_if(self, condition: Value, arguments: Results) {
        if let Some(error) = condition.as_error().or(self.context.cancellation_error()).cloned() {
            return self.fail(error);
        }
        let truth = match condition.downcast_ref::<TensorHandle>() {
            Some(TensorHandle(Tensor::Strings(t))) => Ok(t.strings.first().is_some_and(|s| !s.is_empty())),
            Some(TensorHandle(Tensor::Dense(dense))) => number_is_true(dense),
            Some(TensorHandle(Tensor::Scalar(_, _, bytes))) => Ok(bytes.iter().any(|&b| b != 0)),
            _ => Err(Fault::invalid("the condition is not a dense, scalar or string tensor")),
        };
        match truth {
            Err(fault) => {
                let error = self.reporter.report(fault);
                self.fail(error);
            }
            Ok(false) => self.resolve(arguments),
            Ok(true) => {
                let next = self.body.execute(&self.context, &arguments);
                let queue = self.context.host().queue().clone();
                queue.add_task(Box::new(move || self.evaluate_condition(next)));
            }
        }
    }
}

/// Takes `(chain, arguments...)`: while the first function returns true, calls the second on its own previous results.
fn while_kernel(frame: &mut Frame<'_>) -> Result<Results, Fault> {
    let (condition, body, count) = (frame.function(0)?, frame.function(1)?, frame.arguments());
    let fits = condition.arguments() == count && condition.results() == 2;
    if !fits || (body.arguments(), body.results(), frame.results()) != (count, count, count) {
        return Err(Fault::invalid("the functions have other arguments or results than the loop"));
    }
    let (promises, values): (Vec<_>, Results) =
        (0..count).map(|_| AsyncValue::new()).map(|(promise, value)| (promise, Value::Async(value))).unzip();
    let context = frame.context().clone();
    let (condition, body) = (condition.to_function(), body.to_function());
    let state = While { context, condition, body, promises, reporter: frame.reporter() };
    state.evaluate_condition(frame.arguments_from(0));
    Ok(values)
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("corert.cond", cond);
    registry.add_fallible("corert.while", while_kernel);
}

use crate::kernels::RegistryExt;
use pteron_host::{
    AsyncValue, Chain, ErrorCode, ErrorValue, ExecutionContext, Fault, Frame, Function, KernelRegistry,
    Promise, Results, Value,
};
use std::sync::{Arc, Mutex};

/// The state of a running parallel loop, whose range is split into blocks.
struct Blocks {
    context: ExecutionContext,
    body: Function,
    arguments: Results,
    start: i32,
    total: u64,
    block: u64,
    /// The number of unfinished blocks, the error of a failed block, and the promise of the loop's result.
    state: Mutex<(u64, Option<ErrorValue>, Option<Promise>)>,
}

impl Blocks {
    /// Runs the first of a range of blocks on this thread, and spawns tasks for halves of the rest. Once the request is
    /// cancelled, blocks end at once. Each block counts as a kernel, even if its function has none.
    fn run(self: &Arc<Self>, first: u64, mut end: u64) {
        if let Some(error) = self.context.cancellation_error() {
            return self.record_completion(end - first, Some(error));
        }
        while end - first > 1 {
            let middle = first + (end - first) / 2;
            let this = Arc::clone(self);
            self.context.host().queue().add_task(Box::new(move || this.run(middle, end)));
            end = middle;
        }
        self.context.count_kernels(1);
        let index = |block: u64| self.start.wrapping_add((block * self.block).min(self.total) as i32);
        let mut arguments = vec![Value::I32(index(first)), Value::I32(index(end))];
        arguments.extend(self.arguments.iter().cloned());
        let results = self.body.execute(&self.context, &arguments);
        match results.into_iter().next().map(Value::settle) {
            Some(Value::Async(value)) => {
                let (this, source) = (Arc::clone(self), value.clone());
                value.and_then(move || this.record_completion(1, source.get().and_then(Value::as_error)));
            }
            value => self.record_completion(1, value.as_ref().and_then(Value::as_error)),
        }
    }

    /// Records that `blocks` blocks have ended, with `error` if it is given. The last block resolves the loop's result.
    fn record_completion(&self, blocks: u64, error: Option<&ErrorValue>) {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        state.0 -= blocks;
        if let Some(error) = error {
            state.1.get_or_insert_with(|| error.clone());
        }
        if state.0 == 0 {
            let value = state.1.take().map_or(Value::Chain, Value::Error);
            let promise = state.2.take();
            drop(state);
            if let Some(promise) = promise {
                promise.set(value);
            }
        }
    }
}

/// Takes `(start, end, block size, arguments...)`: calls the function with the bounds of each block of the range.
fn parallel_for(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let (start, end, block) = (frame.get::<i32>(0)?, frame.get::<i32>(1)?, frame.get::<i32>(2)?);
    let body = frame.function(0)?;
    if body.results() > 1 {
        let message = "Invalid parallel body function result types";
        return Ok(Value::Error(ErrorValue::new(ErrorCode::Internal, message)));
    }
    super::control_flow::check_signature(frame, body, frame.arguments() - 1, body.results())?;
    let total = (i64::from(end) - i64::from(start)).max(0) as u64;
    if total == 0 {
        return Ok(Chain.into());
    }
    let block = u64::try_from(block)
        .ok()
        .filter(|&b| b > 0)
        .ok_or_else(|| Fault::invalid(format!("blocks of {block} indices: at least 1 expected")))?;
    let count = total.div_ceil(block);
    let (promise, value) = AsyncValue::new();
    let blocks = Arc::new(Blocks {
        context: frame.context().clone(),
        body: body.to_function(),
        arguments: frame.arguments_from(3),
        start,
        total,
        block,
        state: Mutex::new((count, None, Some(promise))),
    });
    blocks.run(0, count);
    Ok(Value::Async(value))
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("tfrt.parallel_for.i32", parallel_for);
    registry.add_fallible("tfrt.parallel_call.i32", parallel_for);
}

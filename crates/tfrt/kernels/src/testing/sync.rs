use crate::kernels::RegistryExt;
use pteron_host::{Fault, Frame, KernelRegistry};

fn sum(frame: &mut Frame<'_>) -> Result<i32, Fault> {
    (0..frame.arguments()).try_fold(0i32, |sum, i| Ok(sum.wrapping_add(frame.get::<i32>(i)?)))
}

/// Calls a synchronous function. A failure of the function was reported where it occurred, and is not reported again.
fn invoke(frame: &mut Frame<'_>) -> Result<(), Fault> {
    let function = frame.function(0)?;
    if (function.arguments(), function.results()) != (frame.arguments(), frame.results()) {
        return Err(Fault::invalid("the function has other arguments or results than the call"));
    }
    frame.call(function, 0);
    Ok(())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("tfrt_test.sync_sum", sum);
    registry.add_fallible("tfrt_test.sync_sum2", sum);
    registry.add_fallible("tfrt_test.sync_sum_attributes", |frame: &mut Frame<'_>| {
        (0..frame.attributes())
            .try_fold(0i32, |sum, i| Ok::<_, Fault>(sum.wrapping_add(frame.attribute::<i32>(i)?)))
    });
    for results in ["i32", "i32_i32"] {
        registry.add_fallible(&format!("tfrt_test.invoke_sync_function.i32_i32.{results}"), invoke);
        registry.add_fallible(&format!("tfrt_test.sync_function_runner.i32_i32.{results}"), invoke);
    }
}

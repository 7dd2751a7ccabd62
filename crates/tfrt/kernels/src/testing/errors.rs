use crate::kernels::RegistryExt;
use pteron_host::{Chain, Fault, Frame, KernelRegistry, Value};

pub(super) fn register(registry: &mut KernelRegistry) {
    for name in ["tfrt_test.fail", "tfrt_test.fail_s", "tfrt_test.error_s"] {
        registry.add_fallible(name, |_: &mut Frame<'_>| Err::<(), _>(Fault::from("something bad happened")));
    }
    registry.add_fallible("tfrt_test.partial_fail", |frame: &mut Frame<'_>| {
        Ok((1i32, Value::Error(frame.report("something bad happened"))))
    });
    registry
        .add_fallible("tfrt_test.error_chain", |_: &mut Frame<'_>| Err::<(), _>(Fault::from("error chain")));
    registry.add_fallible("tfrt_test.cancel", |frame: &mut Frame<'_>| {
        frame.context().cancel();
        Ok((0i32, Chain))
    });
}

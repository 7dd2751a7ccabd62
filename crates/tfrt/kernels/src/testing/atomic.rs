use crate::kernels::{RegistryExt, object_value};
use pteron_host::{Chain, Frame, KernelRegistry};
use std::sync::atomic::{AtomicI32, Ordering};

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_pure("tfrt_test.atomic.create.i32", || object_value(AtomicI32::new(0)));
    registry.add_immediate("tfrt_test.atomic.inc.i32", |frame: &mut Frame<'_>| {
        frame.object::<AtomicI32>(0)?.fetch_add(1, Ordering::SeqCst);
        Ok(Chain)
    });
    registry.add_immediate("tfrt_test.atomic.add.i32", |frame: &mut Frame<'_>| {
        let value = frame.get::<i32>(1)?;
        frame.object::<AtomicI32>(0)?.fetch_add(value, Ordering::SeqCst);
        Ok(Chain)
    });
    registry.add_immediate("tfrt_test.atomic.get.i32", |frame: &mut Frame<'_>| {
        Ok((frame.object::<AtomicI32>(0)?.load(Ordering::SeqCst), Chain))
    });
}

//! Kernels and native functions of test programs: `tfrt_test.*`, `vt.*`, `tfrt_tutorial.*`.

mod asynchronous;
mod atomic;
mod attributes;
mod benchmark;
mod errors;
mod native;
mod resources;
mod simple;
mod strings;
mod sync;
mod tutorial;
mod value_tracking;

use pteron_host::KernelRegistry;

pub(crate) fn register(registry: &mut KernelRegistry) {
    asynchronous::register(registry);
    atomic::register(registry);
    attributes::register(registry);
    benchmark::register(registry);
    errors::register(registry);
    native::register(registry);
    resources::register(registry);
    simple::register(registry);
    strings::register(registry);
    sync::register(registry);
    tutorial::register(registry);
    value_tracking::register(registry);
}

//! `tfrt_test.*`, `vt.*`, `tfrt_tutorial.*` and native functions: what test programs use.

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

use host::KernelRegistry;

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

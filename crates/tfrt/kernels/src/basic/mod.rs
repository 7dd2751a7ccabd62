//! The `tfrt.*` kernels.

mod boolean;
mod control_flow;
mod device;
mod float;
mod integer;
mod parallel;

use pteron_host::KernelRegistry;

pub(crate) fn register(registry: &mut KernelRegistry) {
    boolean::register(registry);
    control_flow::register(registry);
    device::register(registry);
    float::register(registry);
    integer::register(registry);
    parallel::register(registry);
}

//! The kernels that BEF programs call, and a driver that runs a program like the reference executor.
//!
//! | module | kernels |
//! | --- | --- |
//! | `basic` | `tfrt.*`: constants, arithmetic, printing, chains, calls, control flow, loops |
//! | `corert` | `corert.*`: operators dispatched by name through op handlers, on tensor handles |
//! | `tensor` | `ts.*`, `tfrt_dht.*`, `tfrt_sht.*`, `coo.*`: shapes; dense, string and sparse tensors |
//! | `testing` | `tfrt_test.*`, `vt.*`, `tfrt_tutorial.*` and the native functions of test programs |
#![forbid(unsafe_code)]

mod basic;
mod corert;
pub mod driver;
mod format;
mod kernels;
mod tensor;
mod testing;

use pteron_host::KernelRegistry;

/// A registry of all kernels of this crate.
pub fn registry() -> KernelRegistry {
    let mut registry = KernelRegistry::new();
    register(&mut registry);
    registry
}

/// Adds all kernels of this crate to a registry.
pub fn register(registry: &mut KernelRegistry) {
    basic::register(registry);
    corert::register(registry);
    tensor::register(registry);
    testing::register(registry);
}

//! Any bytes are verified as a BEF file or refused; the functions of a verified file terminate within limits.
#![no_main]

use pteron_host::{ExecutionContext, Frame, HostContext, KernelRegistry, Limits, Module, Value};
use libfuzzer_sys::fuzz_target;
use pteron_pool::WorkQueue;
use std::sync::{Arc, LazyLock};

const LIMITS: Limits = Limits { kernels: 10_000, executions: 1_000, value_bytes: 1 << 20, memory: 1 << 24 };

/// All kernels; those that wait for time to pass are replaced by ones that return at once.
static REGISTRY: LazyLock<KernelRegistry> = LazyLock::new(|| {
    let mut registry = pteron_tfrt_kernels::registry();
    let timed: Vec<String> = registry
        .names()
        .into_iter()
        .filter(|name| ["sleep", "delay", "benchmark"].iter().any(|part| name.contains(part)))
        .map(str::to_owned)
        .collect();
    for name in timed {
        registry.add(&name, |frame: &mut Frame<'_>| {
            (0..frame.results()).for_each(|i| frame.set(i, Value::Chain));
        });
    }
    registry
});

fuzz_target!(|file: &[u8]| {
    let bytes: pteron_host::Bytes = Arc::new(file.to_vec());
    let Ok(module) = Module::open(bytes, &REGISTRY) else { return };
    let host = HostContext::builder(WorkQueue::single_threaded())
        .limits(LIMITS)
        .output(std::io::sink())
        .log(std::io::sink())
        .build();
    for function in module.functions().filter(|f| f.arguments() == 0).take(16) {
        let context = ExecutionContext::new(&host);
        let results = function.execute_alone(&context, &[]);
        host.wait(&results);
        drop(results);
        host.quiesce();
        context.clear_resources();
    }
});

//! Listings of graphs: a text is refused, or its graph is listed as a text that gives the same graph again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pteron_ir::Graph;
use pteron_operator::KernelRegistry;
use std::sync::LazyLock;

static KERNELS: LazyLock<KernelRegistry> = LazyLock::new(pteron_kernels::registry);

fuzz_target!(|text: &str| {
    let Ok(graph) = Graph::parse(text, &KERNELS) else { return };
    if graph.verify().is_err() {
        return;
    }
    let listed = graph.to_string();
    if let Ok(again) = Graph::parse(&listed, &KERNELS) {
        assert_eq!(again.to_string(), listed);
    }
});

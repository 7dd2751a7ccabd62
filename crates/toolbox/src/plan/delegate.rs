//! The memory of a method's delegates, which the memory plan does not cover.

use crate::Result;
use crate::delegates;
use pteron_format::pte::ExecutionPlan;
use pteron_runtime::{BackendRegistry, PayloadContents, PayloadRole, PayloadValue, Program};
use serde::Serialize;

/// The memory of a delegate, computed from its payload. The backend may use less, if it fuses nodes, or more, if it
/// packs weights.
#[derive(Debug, Serialize)]
pub struct DelegatePlan {
    /// The delegate's index in the method's delegate table.
    pub index: usize,
    /// The backend's id.
    pub backend: String,
    /// The number of nodes in the payload.
    pub nodes: usize,
    /// Bytes of the constants, each counted once.
    pub constants: u64,
    /// Bytes of all intermediate tensors, at the sizes of the export.
    pub intermediates: u64,
    /// The largest number of bytes of intermediate tensors that are live at the same time.
    pub peak: u64,
    /// The first node at which the peak is reached; `None` if the peak is 0.
    pub peak_at: Option<String>,
}

/// The delegates of a method whose payloads their backends can read.
pub(super) fn delegates_of(
    program: &Program,
    plan: &ExecutionPlan,
    backends: &BackendRegistry,
) -> Result<Vec<DelegatePlan>> {
    let mut all = Vec::new();
    for (index, delegate) in plan.delegates.iter().enumerate() {
        let Some(backend) = backends.get(&delegate.id) else { continue };
        let Some(Ok(contents)) = backend.contents(&delegates::read_payload(program, delegate)?) else {
            continue;
        };
        let (peak, at) = peak_bytes(&contents);
        all.push(DelegatePlan {
            index,
            backend: delegate.id.clone(),
            nodes: contents.nodes.len(),
            constants: constant_bytes(&contents),
            intermediates: contents
                .values
                .iter()
                .filter(|v| is_internal(v))
                .fold(0, |n, v| n.saturating_add(value_bytes(v))),
            peak,
            peak_at: (peak > 0).then(|| format!("node {at} {}", contents.nodes[at].kind)),
        });
    }
    Ok(all)
}

fn is_internal(value: &PayloadValue) -> bool {
    value.role == PayloadRole::Internal
}

fn value_bytes(value: &PayloadValue) -> u64 {
    let elements = value.sizes.iter().fold(1u64, |n, &size| n.saturating_mul(size as u64));
    elements.saturating_mul(u64::from(value.bits)).div_ceil(8)
}

fn constant_bytes(contents: &PayloadContents) -> u64 {
    let data = contents.values.iter().flat_map(|value| {
        let own = match &value.role {
            PayloadRole::Constant(bytes) => Some(bytes),
            _ => None,
        };
        own.into_iter().chain(&value.scales)
    });
    let distinct: std::collections::HashSet<_> = data.collect();
    distinct.into_iter().fold(0, |n, bytes| n.saturating_add(bytes.len()))
}

/// The peak of the bytes of live intermediate tensors, and the first node at which it is reached.
fn peak_bytes(contents: &PayloadContents) -> (u64, usize) {
    let mut last_use = vec![0; contents.values.len()];
    for (index, node) in contents.nodes.iter().enumerate() {
        node.inputs.iter().chain(&node.outputs).for_each(|&v| last_use[v] = index);
    }
    let mut ending: Vec<u64> = vec![0; contents.nodes.len()];
    let (mut now, mut peak, mut at) = (0u64, 0, 0);
    for (index, node) in contents.nodes.iter().enumerate() {
        for &v in node.outputs.iter().filter(|&&v| is_internal(&contents.values[v])) {
            let size = value_bytes(&contents.values[v]);
            now = now.saturating_add(size);
            ending[last_use[v]] = ending[last_use[v]].saturating_add(size);
        }
        if now > peak {
            (peak, at) = (now, index);
        }
        now = now.saturating_sub(ending[index]);
    }
    (peak, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_runtime::PayloadNode;

    #[test]
    fn the_peak_counts_live_tensors_only() {
        let value = |elements: usize| PayloadValue {
            name: String::new(),
            dtype: "fp32".to_owned(),
            bits: 32,
            scalar_type: None,
            sizes: vec![elements],
            quantization: String::new(),
            scales: None,
            role: PayloadRole::Internal,
        };
        let node = |inputs: &[usize], output: usize| PayloadNode {
            kind: "Copy".to_owned(),
            inputs: inputs.to_vec(),
            outputs: vec![output],
            attributes: String::new(),
            debug_handle: None,
        };
        // Value 0 is read by the last node; value 1 is dead when value 3 is written.
        let contents = PayloadContents {
            format: String::new(),
            values: vec![value(1), value(10), value(2), value(4)],
            nodes: vec![node(&[], 0), node(&[0], 1), node(&[1], 2), node(&[0, 2], 3)],
        };
        assert_eq!(peak_bytes(&contents), (4 * (1 + 10 + 2), 2));
    }
}

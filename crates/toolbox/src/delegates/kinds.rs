use crate::Result;
use pteron_format::pte::Instruction;
use pteron_runtime::{BackendRegistry, DebugHandle, DelegateSources, Program};
use pteron_trace::Place;
use std::collections::HashMap;

/// The kinds of the nodes in the payloads of a method's delegates.
#[derive(Debug, Clone, Default)]
pub struct NodeKinds {
    /// For each delegate, the kind of each node.
    kinds: Vec<Vec<String>>,
    /// For each delegate, the debug handle of each node.
    handles: Vec<Vec<Option<u32>>>,
    are_quantized: bool,
    /// The source nodes from which the delegates were compiled, if the program records them.
    sources: DelegateSources,
    /// The index of the called delegate, by chain and instruction of the call.
    called: HashMap<(u32, u32), usize>,
}

impl NodeKinds {
    /// Reads the payloads of a method. Payloads that no registered backend can read contribute no kinds.
    pub fn read(program: &Program, method: &str, backends: &BackendRegistry) -> Result<Self> {
        let plan = program.method_meta(method)?.plan();
        // The sources are only displayed, so that those that cannot be read are treated as absent.
        let sources = program.method_meta(method)?.delegate_sources().ok().flatten().unwrap_or_default();
        let mut kinds = Self { sources, ..Self::default() };
        for delegate in &plan.delegates {
            let Some(backend) = backends.get(&delegate.id) else {
                kinds.kinds.push(Vec::new());
                kinds.handles.push(Vec::new());
                continue;
            };
            let bytes = super::read_payload(program, delegate)?;
            let contents = backend.contents(&bytes).and_then(|read| read.ok()).unwrap_or_default();
            kinds.are_quantized |= contents.values.iter().any(|value| !value.quantization.is_empty());
            kinds.handles.push(contents.nodes.iter().map(|node| node.debug_handle).collect());
            kinds.kinds.push(contents.nodes.into_iter().map(|node| node.kind).collect());
        }
        for (c, chain) in plan.chains.iter().enumerate() {
            for (i, instruction) in chain.instructions.iter().enumerate() {
                if let Instruction::DelegateCall { delegate_index, .. } = instruction {
                    kinds.called.insert((c as u32, i as u32), *delegate_index as usize);
                }
            }
        }
        Ok(kinds)
    }

    /// Whether any payload has quantized values.
    pub(crate) fn has_quantized_values(&self) -> bool {
        self.are_quantized
    }

    /// The kind of the node at a place; `None` if there is no node, or if its kind is not known.
    pub fn get(&self, place: Place) -> Option<&str> {
        let delegate = *self.called.get(&(place.chain?, place.instruction?))?;
        let kind = self.kinds.get(delegate)?.get(usize::try_from(place.node?).ok()?)?;
        Some(kind.as_str())
    }

    /// The source nodes behind a step that a delegate reports, with their lines and modules: those of the debug handle
    /// that is the step's name or the number of its node.
    pub fn source(&self, place: Place, name: &str) -> Option<String> {
        let delegate = *self.called.get(&(place.chain?, place.instruction?))?;
        let source = self.sources.delegates.get(delegate)?;
        let by_name = source.describe_handle(&DebugHandle::Str(name.to_owned()));
        by_name
            .or_else(|| source.describe_handle(&DebugHandle::Int(self.debug_handle(delegate, place.node?))))
    }

    /// The debug handle that the payload records for the node at a place; `None` if there is no node, or no handle.
    pub(crate) fn handle(&self, place: Place) -> Option<u32> {
        let delegate = *self.called.get(&(place.chain?, place.instruction?))?;
        *self.handles.get(delegate)?.get(usize::try_from(place.node?).ok()?)?
    }

    /// The debug handle of a payload's node: the one that its backend lists, or else the number of the node.
    fn debug_handle(&self, delegate: usize, node: u32) -> u32 {
        let listed = self.handles.get(delegate).and_then(|nodes| nodes.get(usize::try_from(node).ok()?));
        listed.copied().flatten().unwrap_or(node)
    }

    /// The node at a place as text, `node 3 Conv2d`; `None` if there is no node.
    pub fn text(&self, place: Place) -> Option<String> {
        let node = place.node?;
        Some(match self.get(place) {
            Some(kind) => format!("node {node} {kind}"),
            None => format!("node {node}"),
        })
    }
}

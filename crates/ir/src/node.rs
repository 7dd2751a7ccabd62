use crate::{BlockId, Call, Effect, Kind, NodeId, ValueId};
use pteron_trace::Place;
use smallvec::SmallVec;
use std::sync::Arc;

/// The gap between the order numbers of appended nodes. Nodes that are inserted later get numbers in the gap.
pub(crate) const GAP: u64 = 1 << 40;

/// Which neighbour's order number a new node's order number is close to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Near {
    Previous,
    Next,
}

/// A node: its kind, the values that it reads and the values that it defines.
#[derive(Clone)]
pub struct Node {
    pub(crate) kind: Arc<dyn Kind>,
    pub(crate) inputs: SmallVec<[ValueId; 4]>,
    /// For each input, the index of its entry in the use list of the input's value.
    pub(crate) use_at: SmallVec<[u32; 4]>,
    pub(crate) outputs: SmallVec<[ValueId; 2]>,
    pub(crate) origins: SmallVec<[Place; 1]>,
    /// Whether the origins are in program order without duplicates.
    pub(crate) origins_sorted: bool,
    pub(crate) effects: SmallVec<[Effect; 1]>,
    /// The block that contains the node; `None` once the node is removed.
    pub(crate) block: Option<BlockId>,
    pub(crate) previous: Option<NodeId>,
    pub(crate) next: Option<NodeId>,
    /// The order number, which increases along the block.
    pub(crate) order: u64,
}

impl Node {
    /// The kind of the node: what it computes.
    pub fn kind(&self) -> &Arc<dyn Kind> {
        &self.kind
    }

    /// The kind of the node as a `T`; `None` if it is of another type.
    pub fn kind_as<T: Kind>(&self) -> Option<&T> {
        self.kind.downcast_ref()
    }

    /// The operator call that the node computes; `None` if its kind is not a call.
    pub fn call(&self) -> Option<&Call> {
        self.kind_as()
    }

    /// The name of the node's kind.
    pub fn name(&self) -> &str {
        self.kind.name()
    }

    /// The values that the node reads.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// The values that the node defines.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The instructions that the node implements; its results are those of the last one. Empty if the graph's builder
    /// set none.
    pub fn origins(&self) -> &[Place] {
        &self.origins
    }

    /// The instruction whose result the node computes: the last of [`Self::origins`].
    pub fn origin(&self) -> Place {
        self.origins.last().copied().unwrap_or_default()
    }

    /// The effects of the node's kind, and those that were added to the node itself.
    pub fn effects(&self) -> impl Iterator<Item = Effect> + '_ {
        self.kind.effects().iter().chain(&self.effects).copied()
    }

    /// Whether dead-code elimination has to keep the node even if its results are unused.
    pub fn is_kept(&self) -> bool {
        self.effects().any(|e| !matches!(e, Effect::Read(_)))
    }

    /// The block that contains the node; `None` once the node is removed.
    pub fn block(&self) -> Option<BlockId> {
        self.block
    }
}

use crate::{BlockId, Call, NodeId, ValueId};
use pteron_trace::Place;
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Memory whose contents are not SSA values, such as locations of a memory plan that overlap partially.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Memory(pub u32);

/// A side effect: what a node does or depends on besides its inputs and results.
///
/// Nodes with effects keep their order, and are kept when their results are unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It draws from the random number generator.
    Random,
    /// It has an effect outside the graph, such as a delegate that keeps state.
    External,
    /// It reads memory. Such a node may be removed when its results are unused.
    Read(Memory),
    /// It writes memory.
    Write(Memory),
}

/// What a node computes: an operator call, or a kind that a dependent crate defines.
pub trait Kind: Any + fmt::Debug + Send + Sync {
    /// A name for listings, events and errors: the operator's full name, or the kind's.
    fn name(&self) -> &str;

    /// Writes the attributes for listings, in the form `key: value, key: value`.
    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = f;
        Ok(())
    }

    /// The effects that every node of this kind has.
    fn effects(&self) -> &[Effect] {
        &[]
    }

    /// Checks the numbers of inputs and outputs of a node of this kind. The error says what is wrong.
    fn check(&self, inputs: usize, outputs: usize) -> Result<(), String> {
        let _ = (inputs, outputs);
        Ok(())
    }
}

/// A kind by value or in an `Arc`: the argument type of [`crate::Graph`]'s methods.
pub trait IntoKind {
    /// The kind in an `Arc`.
    fn into_kind(self) -> Arc<dyn Kind>;
}

impl<K: Kind> IntoKind for K {
    fn into_kind(self) -> Arc<dyn Kind> {
        Arc::new(self)
    }
}

impl IntoKind for Arc<dyn Kind> {
    fn into_kind(self) -> Arc<dyn Kind> {
        self
    }
}

impl dyn Kind {
    /// The kind as a `T`, if it is one.
    pub fn downcast_ref<T: Kind>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }

    /// Whether the kind is a `T`.
    pub fn is<T: Kind>(&self) -> bool {
        (self as &dyn Any).is::<T>()
    }
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
    /// The block that contains it; `None` once it is removed.
    pub(crate) block: Option<BlockId>,
    pub(crate) previous: Option<NodeId>,
    pub(crate) next: Option<NodeId>,
    /// The order number: increases along the block.
    pub(crate) order: u64,
}

impl Node {
    /// What it computes.
    pub fn kind(&self) -> &Arc<dyn Kind> {
        &self.kind
    }

    /// The kind as a `T`, if it is one.
    pub fn kind_as<T: Kind>(&self) -> Option<&T> {
        self.kind.downcast_ref()
    }

    /// The operator call, if it is one.
    pub fn call(&self) -> Option<&Call> {
        self.kind_as()
    }

    /// The name of its kind.
    pub fn name(&self) -> &str {
        self.kind.name()
    }

    /// The values that it reads.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// The values that it defines.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The instructions that it implements; its results are those of the last. Empty if the graph's builder set
    /// none.
    pub fn origins(&self) -> &[Place] {
        &self.origins
    }

    /// The instruction whose result it computes: the last of [`Self::origins`].
    pub fn origin(&self) -> Place {
        self.origins.last().copied().unwrap_or_default()
    }

    /// The effects of its kind and its own.
    pub fn effects(&self) -> impl Iterator<Item = Effect> + '_ {
        self.kind.effects().iter().chain(&self.effects).copied()
    }

    /// Whether dead-code elimination has to keep it even if its results are unused.
    pub fn is_kept(&self) -> bool {
        self.effects().any(|e| !matches!(e, Effect::Read(_)))
    }

    /// The block that contains it; `None` once it is removed.
    pub fn block(&self) -> Option<BlockId> {
        self.block
    }
}

/// The kind of a node that was removed.
#[derive(Debug)]
pub(crate) struct Removed;

impl Kind for Removed {
    fn name(&self) -> &str {
        "removed"
    }
}

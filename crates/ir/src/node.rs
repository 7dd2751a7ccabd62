use crate::{BlockId, Call, NodeId, ValueId};
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use trace::Place;

/// Memory whose contents are no value of the graph: places of a plan that overlap in part, say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Memory(pub u32);

/// A side effect: what a node does or depends on beside its inputs and results.
///
/// Nodes with effects stay in the order in which they stand, and stay when nothing uses their results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It draws from the generator.
    Random,
    /// It does something that this graph cannot see: a delegate that keeps a state.
    External,
    /// It reads memory. Such a node may be removed when nothing uses its results.
    Read(Memory),
    /// It writes memory.
    Write(Memory),
}

/// What a node does: an operator call, or a kind that a crate above brings.
pub trait Kind: Any + fmt::Debug + Send + Sync {
    /// A name for listings, events and errors: the operator's full name, or the kind's.
    fn name(&self) -> &str;

    /// Writes the attributes for listings, as `key: value, key: value`.
    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = f;
        Ok(())
    }

    /// The effects that every node of this kind has.
    fn effects(&self) -> &[Effect] {
        &[]
    }

    /// What is wrong with a node of this kind that has so many inputs and outputs.
    fn check(&self, inputs: usize, outputs: usize) -> Result<(), String> {
        let _ = (inputs, outputs);
        Ok(())
    }
}

/// A kind, shared or not: what [`crate::Graph`]'s methods take.
pub trait IntoKind {
    /// The kind, shared.
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
    /// The kind as a type, if it is that one.
    pub fn downcast_ref<T: Kind>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }

    /// Whether the kind is of a type.
    pub fn is<T: Kind>(&self) -> bool {
        (self as &dyn Any).is::<T>()
    }
}

/// A node: its kind, what it reads and what it defines.
#[derive(Clone)]
pub struct Node {
    pub(crate) kind: Arc<dyn Kind>,
    pub(crate) inputs: SmallVec<[ValueId; 4]>,
    /// Where each input stands in the uses of its value.
    pub(crate) use_at: SmallVec<[u32; 4]>,
    pub(crate) outputs: SmallVec<[ValueId; 2]>,
    pub(crate) origins: SmallVec<[Place; 1]>,
    /// Whether the origins come in the order of the program, each once.
    pub(crate) origins_rise: bool,
    pub(crate) effects: SmallVec<[Effect; 1]>,
    /// The block in which it stands; none once it is removed.
    pub(crate) block: Option<BlockId>,
    pub(crate) previous: Option<NodeId>,
    pub(crate) next: Option<NodeId>,
    /// Rises along the block.
    pub(crate) order: u64,
}

impl Node {
    /// What it does.
    pub fn kind(&self) -> &Arc<dyn Kind> {
        &self.kind
    }

    /// What it does, if that is of this type.
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

    /// What it reads.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// What it defines.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The instructions that it stands for; the last one's result is its result. Empty if the graph's
    /// maker named none.
    pub fn origins(&self) -> &[Place] {
        &self.origins
    }

    /// The instruction whose result it computes.
    pub fn origin(&self) -> Place {
        self.origins.last().copied().unwrap_or_default()
    }

    /// Its effects.
    pub fn effects(&self) -> impl Iterator<Item = Effect> + '_ {
        self.kind.effects().iter().chain(&self.effects).copied()
    }

    /// Whether it has to stay although nothing uses its results.
    pub fn is_kept(&self) -> bool {
        self.effects().any(|e| !matches!(e, Effect::Read(_)))
    }

    /// The block in which it stands; none once it is removed.
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

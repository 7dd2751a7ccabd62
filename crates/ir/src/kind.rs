use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Memory whose contents are not SSA values, such as locations of a memory plan that overlap partially.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Memory(pub u32);

/// A side effect: what a node does or depends on besides its inputs and results.
///
/// Nodes with effects keep their order. If their results are unused, they are kept all the same, unless they only read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The node draws from the random number generator.
    Random,
    /// The node has an effect outside the graph, such as a delegate that keeps state.
    External,
    /// The node reads memory. Such a node may be removed when its results are unused.
    Read(Memory),
    /// The node writes memory.
    Write(Memory),
}

/// What a node computes: an operator call, or a kind that a dependent crate defines.
pub trait Kind: Any + fmt::Debug + Send + Sync {
    /// A name for listings, events and errors: the operator's full name for a call, otherwise the name of the kind.
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

/// The kind of a node that was removed.
#[derive(Debug)]
pub(crate) struct Removed;

impl Kind for Removed {
    fn name(&self) -> &str {
        "removed"
    }
}

//! The graph that every program is raised to: values in SSA form, the nodes that compute them, blocks.
//!
//! ```text
//! method, payload, archive ─► Graph ─► passes ─► steps that run, a payload, a program file, a report
//! ```
//!
//! A [`Graph`] has *values* (tensors and numbers), each defined once: by a node, as a parameter of a block, or
//! as a constant. *Nodes* stand in *blocks*, in an order in which they can run. A block ends in a
//! [`Terminator`]: a jump or a branch, which pass values to the parameters of the next block, or a return.
//! The parameters of the entry block are the graph's inputs; what a return passes are its results, of the
//! kinds that [`Graph::results`] lists.
//!
//! Definitions, users and order are kept as the graph changes: [`Graph::producer`], [`Graph::uses`] and
//! [`Graph::comes_before`] cost the same in a graph of any size. No pass computes them.
//!
//! What a node does is its [`Kind`]: an operator call ([`Call`], a kernel with its arguments), or any type
//! that a crate above brings, such as a fused convolution. A pass looks for the kinds it knows with
//! [`Node::kind_as`] and rewrites in place: [`Graph::rewrite`] gives a node another kind and inputs and keeps
//! its results, so that a fused node takes the place of the *last* node that it computes and writes the same
//! values. [`Graph::absorb`] notes which instructions a node stands for.
//!
//! ```
//! use pteron_ir::{Graph, Kind};
//! use tensor::{ScalarType, TensorMeta};
//!
//! #[derive(Debug)]
//! struct Double;
//! impl Kind for Double {
//!     fn name(&self) -> &str {
//!         "double"
//!     }
//! }
//!
//! let meta = TensorMeta::contiguous(ScalarType::Float, &[2, 3])?;
//! let mut graph = Graph::new();
//! let x = graph.input(meta.clone());
//! let node = graph.append(Double, &[x], [meta]);
//! graph.output(graph.node(node).outputs()[0]);
//! graph.verify()?;
//! assert_eq!(graph.uses(x).len(), 1);
//! assert!(graph.to_string().contains("%1: float32[2, 3] = double(%0)"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How a method maps onto a graph
//!
//! A method's plan gives values places in memory, not names. Raising it keeps a map from places to
//! the values that they hold, and adds:
//!
//! | in the method | in the graph |
//! | --- | --- |
//! | an input | [`Graph::input`]: a parameter of the entry block |
//! | a constant tensor | [`Graph::constant`]; one for each segment and meta |
//! | a number of the plan that nothing writes | an attribute of the calls that read it ([`CallArg::Scalar`]), or [`Graph::scalar`] |
//! | a number that an instruction computes | a result with [`Type::Scalar`]; calls read it as [`CallArg::Value`] |
//! | `KernelCall` | [`Graph::append`] of a [`Call`], with [`Graph::set_cursor`] and [`Graph::set_origin`] saying where and for which instruction |
//! | a view (`et_view`, elided views) | a `Call`, or whatever reshape kind the raiser uses; no bytes move |
//! | a call that changes an argument (`add_`) | a `Call` that reads the value at that place and defines the next |
//! | `DelegateCall` | a node of the runtime's own kind, with [`Effect::External`] |
//! | `MoveCall` | nothing: the target's place holds the same value from then on |
//! | `JumpFalseCall` | the block ends in [`Terminator::branch`]; both targets have a parameter for each place that differs |
//! | `FreeCall` | nothing: lifetimes follow from uses |
//! | memory that an execution finds (mutable state) | [`Graph::state`]: a parameter of the entry block |
//! | what it leaves there, under a name or for the next execution | a result of kind [`Live::State`] |
//! | an output | a result of kind [`Live::Output`] |
//! | places that overlap in part | a [`Memory`]: calls that touch it have [`Effect::Read`] and [`Effect::Write`] and keep their order |
//! | draws from the generator | [`Effect::Random`], which [`Kind::effects`] of a [`Call`] gives |
//!
//! A tensor whose sizes may change has a meta whose dynamism says so, with the upper bound as its sizes;
//! [`Graph::specialize_to_bounds`] takes the bounds of all values for their sizes.
//!
//! [`Graph::verify`] checks all that stands here and is run after every pass in tests and debug builds.
#![forbid(unsafe_code)]

mod block;
mod call;
mod derivation;
mod edit;
pub mod exported;
mod graph;
mod identity;
mod node;
mod print;
mod value;
mod verify;

pub use block::{Block, Terminator};
pub use call::{Call, CallArg, CallOut};
pub use derivation::Derivation;
pub use graph::{Graph, Live, Mark};
pub use identity::{Identity, SourceId};
pub use node::{Effect, IntoKind, Kind, Memory, Node};
pub use print::Listing;
pub use value::{Bytes, Constant, Def, SharedBytes, Type, Use, User, Value};
pub use verify::Malformed;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The index, counted in the order of creation.
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The id of the `index`th one made. Graphs hold fewer than 2^32.
            pub(crate) fn new(index: usize) -> Self {
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }
        }
    };
}

id! {
    /// A value of a [`Graph`]. Ids are those of one graph; with another's, methods may panic.
    ValueId
}
id! {
    /// A node of a [`Graph`].
    NodeId
}
id! {
    /// A block of a [`Graph`].
    BlockId
}

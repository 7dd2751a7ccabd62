//! The graph that every program is raised to: values in SSA form, the nodes that compute them, blocks.
//!
//! ```text
//! method, payload, archive ─► Graph ─► passes ─► steps that run, a payload, a program file, a report
//! ```
//!
//! A [`Graph`] has SSA *values* (tensors and scalars), each defined once: by a node, as a block parameter, or as a
//! constant. *Nodes* are listed in *blocks*, in an order in which they can run. A block ends in a [`Terminator`]: a
//! jump or a branch, which pass values to the parameters of the next block, or a return. The parameters of the entry
//! block are the graph's inputs; the values that a return passes are its results, and [`Graph::results`] lists what
//! kind each of them is.
//!
//! Every edit maintains definitions, use lists and node order: [`Graph::producer`], [`Graph::uses`] and
//! [`Graph::comes_before`] take constant time, and passes need not compute def-use chains themselves.
//!
//! The [`Kind`] of a node is what it computes: an operator call ([`Call`], a kernel with its arguments), or any type
//! that a dependent crate defines, such as a fused convolution. A pass looks for the kinds it knows with
//! [`Node::kind_as`] and rewrites in place: [`Graph::rewrite`] gives a node another kind and inputs and keeps
//! its results, so that a fused node replaces the *last* node of the pattern and defines the same values.
//! [`Graph::absorb`] records which instructions the fused node implements.
//!
//! ```
//! use pteron_ir::{Graph, Kind};
//! use pteron_tensor::{ScalarType, TensorMeta};
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
//! A method's memory plan gives values memory locations, not names. Raising a method keeps a map from locations to
//! the values that they hold, and adds:
//!
//! | in the method | in the graph |
//! | --- | --- |
//! | an input | [`Graph::input`]: a parameter of the entry block |
//! | a constant tensor | [`Graph::constant`]; one for each pair of segment and meta |
//! | a scalar of the plan that no instruction writes | an attribute of the calls that read it ([`CallArg::Scalar`]), or [`Graph::scalar`] |
//! | a scalar that an instruction computes | a result with [`Type::Scalar`]; calls read it as [`CallArg::Value`] |
//! | `KernelCall` | [`Graph::append`] of a [`Call`], with [`Graph::set_cursor`] for its block and [`Graph::set_origin`] for its instruction |
//! | a view (`et_view`, elided views) | a `Call`, or the raiser's own reshape kind; no bytes move |
//! | a call that changes an argument (`add_`) | a `Call` that reads the value at that location and defines the new one |
//! | `DelegateCall` | a node of the runtime's own kind, with [`Effect::External`] |
//! | `MoveCall` | nothing: the target location holds the same value from then on |
//! | `JumpFalseCall` | the block ends in [`Terminator::branch`]; both targets have a parameter for each location whose value differs |
//! | `FreeCall` | nothing: lifetimes follow from uses |
//! | memory that persists between executions (mutable state) | [`Graph::state`]: a parameter of the entry block |
//! | its contents after an execution, under a name or for the next execution | a result of kind [`Live::State`] |
//! | an output | a result of kind [`Live::Output`] |
//! | locations that overlap partially | a [`Memory`]: calls that touch it have [`Effect::Read`] and [`Effect::Write`] and keep their order |
//! | a draw from the random number generator | [`Effect::Random`], from the [`Kind::effects`] of the [`Call`] |
//!
//! The meta of a dynamically sized tensor has [`pteron_tensor::ShapeDynamism::DynamicBound`] and the upper bounds as its
//! sizes; [`Graph::specialize_to_bounds`] turns the bounds of all values into static sizes.
//!
//! [`Graph::verify`] checks these rules and runs after every pass in tests and debug builds. A graph's text can be read
//! back, as far as it tells the graph: see [`parse`].
#![forbid(unsafe_code)]

mod block;
mod call;
mod derivation;
mod edit;
mod graph;
mod identity;
mod kind;
mod node;
pub mod parse;
mod print;
mod value;
mod verify;

pub use block::{Block, Terminator};
pub use call::{Call, CallArg, CallOut};
pub use derivation::Derivation;
pub use graph::{Graph, Live, Mark};
pub use identity::{Identity, SourceId};
pub use kind::{Effect, IntoKind, Kind, Memory};
pub use node::Node;
pub use parse::ParseError;
pub use print::Listing;
pub use value::{Bytes, Constant, Def, SharedBytes, Type, Use, User, Value, reopen_or_share};
pub use verify::Malformed;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The index, in order of creation.
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The id with this index. A graph holds fewer than 2^32 values, nodes and blocks each.
            pub(crate) fn new(index: usize) -> Self {
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }
        }
    };
}

id! {
    /// A value of a [`Graph`]. An id belongs to one graph; methods may panic if it is used with another.
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

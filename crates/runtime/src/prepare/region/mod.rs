//! Regions: sequences of calls that are lowered together as one graph. A kernel call becomes a node of the graph; a
//! call of a delegate that exposes a graph becomes that graph's nodes.
//!
//! A region is built from the def-use information of the raised method ([`crate::prepare::raise`]). A read that no definition of
//! the region reaches is an input; the outputs are the definitions that something after the region can read. A region
//! ends before a read of several partial definitions of its own, and before a write that clobbers a definition of
//! its own that is still needed.
//!
//! A region with static sizes is lowered when the method is loaded. A region with dynamic sizes is specialized at run
//! time for the sizes that it gets: see [`dynamic`]. Overlaps are judged by the capacity of tensors, the bytes of their
//! upper bounds.

mod builder;
mod delegate;
mod dynamic;
mod lowered;
mod partition;
mod run;
mod shapes;

pub(crate) use dynamic::{DynamicRegion, LoweringContext, RunMode};
pub(crate) use lowered::Lowered;
pub(crate) use partition::{lower_static_regions, make_dynamic_regions, remove_all_regions};

use pteron_engine::Graph;

/// A region of a method.
pub(crate) enum Region {
    Fixed(Box<Lowered>),
    Dynamic(Box<DynamicRegion>),
}

impl Region {
    /// The graph before any pass; `None` unless graphs are kept.
    pub(crate) fn graph(&self) -> Option<&Graph> {
        match self {
            Self::Fixed(lowered) => lowered.graph.as_deref(),
            Self::Dynamic(region) => region.graph.as_deref(),
        }
    }
}

impl Region {
    /// The same region for another instance of the method.
    pub(crate) fn fork(&self) -> crate::Result<Self> {
        Ok(match self {
            Self::Fixed(lowered) => Self::Fixed(Box::new(lowered.fork()?)),
            Self::Dynamic(region) => Self::Dynamic(Box::new(region.fork()?)),
        })
    }
}

//! What is done to a graph between its calls as a program has them and the steps that run.
//!
//! | pass | what it does |
//! | --- | --- |
//! | [`normalize`] | computes what depends on constants alone; known operators become nodes of the graph's own kinds |
//! | [`fuse`] | batch norms go into convolutions; biases, residuals and clamps into what they follow |
//! | [`layout`] | images along convolutions become channels-last |
//! | [`join`] | chains of elementwise nodes become one |

mod fuse;
mod join;
mod layout;
mod normalize;

use crate::Graph;
use operator::KernelContext;

/// Runs every pass.
pub(crate) fn run(graph: &mut Graph, ctx: &KernelContext<'_>) {
    normalize::run(graph, ctx);
    fuse::run(graph);
    layout::run(graph);
    join::run(graph);
    graph.drop_unused_nodes();
}

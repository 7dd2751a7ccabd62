//! What is done to a graph between its calls as a program has them and the steps that run.
//!
//! | pass | what it does |
//! | --- | --- |
//! | [`widen`] | what computes in half precision computes in f32, and is rounded as in half precision |
//! | [`normalize`] | computes what depends on constants alone; known operators become nodes of the graph's own kinds |
//! | [`quantized`] | products and convolutions of dequantized numbers become those of the numbers |
//! | [`attention`] | attention becomes one node |
//! | [`activation`] | activations that are spelled out become one function |
//! | [`fuse`] | batch norms go into convolutions; residuals and activations into what they follow |
//! | [`norm`] | group norms become factors and an elementwise node |
//! | [`layout`] | images along convolutions become channels-last |
//! | [`pool`] | poolings of such images become nodes |
//! | [`join`] | chains of elementwise nodes become one |

mod activation;
mod attention;
mod fuse;
mod join;
mod layout;
mod norm;
mod normalize;
mod pool;
mod quantized;
mod twins;
mod widen;

use crate::Graph;
use operator::KernelContext;

/// Runs every pass.
pub(crate) fn run(graph: &mut Graph, ctx: &KernelContext<'_>) {
    widen::run(graph);
    let weights = quantized::weights(graph);
    normalize::run(graph, ctx);
    quantized::run(graph, &weights);
    attention::run(graph, ctx.isa());
    activation::run(graph);
    fuse::run(graph);
    quantized::outputs(graph);
    norm::run(graph);
    layout::run(graph);
    pool::run(graph);
    join::run(graph);
    graph.drop_unused_nodes();
}

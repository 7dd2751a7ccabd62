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
mod links;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Constant, scans};
    use crate::node::{Linear, Op};
    use crate::pointwise::Program;
    use ::pool::Pool;
    use kernels::compute::{Activation, Binary, Isa, Unary};
    use operator::{Generator, Scratch};
    use std::sync::Arc;
    use tensor::{ScalarType, Tensor, TensorMeta};

    /// Products with an activation and an addition each, and a reshape.
    fn chain(len: usize) -> Graph {
        let meta = TensorMeta::contiguous(ScalarType::Float, &[4, 4]).unwrap();
        let weights = Arc::new(Tensor::zeros(meta.clone()).unwrap());
        let mut graph = Graph::new();
        let mut x = graph.input(meta.clone());
        let linear =
            Linear { out_major: true, bias: false, residual: false, activation: Activation::Identity };
        for _ in 0..len {
            let w = graph.constant(meta.clone(), Constant::Computed(Arc::clone(&weights)));
            let [y, shaped, relu, tanh, sum] = [(); 5].map(|()| graph.value(meta.clone()));
            graph.node(Op::Linear(linear), vec![x, w], vec![y]);
            graph.node(Op::Reshape, vec![y], vec![shaped]);
            graph.node(Op::Pointwise(Program::clamp(0.0, f32::INFINITY)), vec![shaped], vec![relu]);
            graph.node(Op::Pointwise(Program::unary(Unary::Tanh)), vec![relu], vec![tanh]);
            graph.node(Op::Pointwise(Program::binary(Binary::Add)), vec![tanh, x], vec![sum]);
            x = sum;
        }
        graph.output(x);
        graph
    }

    #[test]
    fn passes_look_at_the_whole_graph_no_more_often_if_it_is_longer() {
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::new(0));
        let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(Isa::default());
        let scans = |len| {
            let mut graph = chain(len);
            let scans = scans::of(|| run(&mut graph, &ctx));
            assert!(graph.nodes().len() <= 3 * len, "{graph}");
            scans
        };
        assert_eq!(scans(20), scans(2000));
    }
}

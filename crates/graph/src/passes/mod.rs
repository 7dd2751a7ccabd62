//! What is done to a graph between its calls as a program has them and the steps that run.
//!
//! A pass is a function over the graph; [`PASSES`] lists them in their order. Each does work in proportion to the
//! graph, and leaves a graph that [`Graph::verify`] accepts. Passes work on graphs of one block.

mod activation;
mod attention;
mod chain;
mod convolution;
mod forms;
mod fuse;
mod join;
mod layout;
mod norm;
mod normalize;
mod pattern;
mod pool;
mod product;
mod quantized;
mod row_norm;
mod shuffle;
mod tables;
mod tail;
mod widen;

use crate::graph::Graph;
use operator::KernelContext;

/// A pass.
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    run: fn(&mut Graph, &KernelContext<'_>),
}

/// The passes, in the order in which they run.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "widen",
        about: "what computes in half precision computes in f32, and results are rounded",
        run: |graph, _| widen::run(graph),
    },
    Pass {
        name: "normalize",
        about: "computes what depends on constants alone; calls of known meaning become nodes of the graph's own",
        run: normalize::run,
    },
    Pass {
        name: "quantized",
        about: "products and convolutions of dequantized values become those of the quantized values",
        run: |graph, _| quantized::run(graph),
    },
    Pass {
        name: "attention",
        about: "attention becomes one node",
        run: |graph, ctx| attention::run(graph, ctx.isa()),
    },
    Pass {
        name: "activation",
        about: "activations that are spelled out become one function",
        run: |graph, _| activation::run(graph),
    },
    Pass {
        name: "row-norm",
        about: "layer norms and RMS norms become nodes, those too that are spelled out",
        run: |graph, _| row_norm::run(graph),
    },
    Pass {
        name: "fuse",
        about: "batch norms go into convolutions; residuals and activations into what they follow",
        run: |graph, _| fuse::run(graph),
    },
    Pass {
        name: "quantized-outputs",
        about: "quantizations go into the products and convolutions before them",
        run: |graph, _| quantized::outputs(graph),
    },
    Pass {
        name: "tables",
        about: "what is computed of one tensor of 8-bit values by itself, and quantized, is looked up",
        run: |graph, ctx| tables::run(graph, ctx.isa()),
    },
    Pass {
        name: "norm",
        about: "group norms become factors and an elementwise node",
        run: |graph, _| norm::run(graph),
    },
    Pass {
        name: "shuffle",
        about: "channels that change places between groups are moved by one node",
        run: |graph, _| shuffle::run(graph),
    },
    Pass {
        name: "layout",
        about: "images along convolutions become channels-last",
        run: |graph, _| layout::run(graph),
    },
    Pass { name: "pool", about: "poolings of such images become nodes", run: |graph, _| pool::run(graph) },
    Pass { name: "join", about: "chains of elementwise nodes become one", run: |graph, _| join::run(graph) },
    Pass {
        name: "tail",
        about: "elementwise nodes go into the channels-last convolutions before them",
        run: |graph, _| tail::run(graph),
    },
    Pass {
        name: "chain",
        about: "pointwise and depthwise convolutions with large images between them are computed strip by strip",
        run: |graph, ctx| chain::run(graph, ctx.pool().threads()),
    },
];

/// How many of the passes, from the first on, do the same on every machine: the others know its caches and threads.
pub const PORTABLE: usize = PASSES.len() - 1;

/// Runs every pass.
pub fn run(graph: &mut Graph, ctx: &KernelContext<'_>) {
    run_until(graph, ctx, PASSES.len());
}

/// Runs the first passes, so many of them: what a listing of the graph after one of them shows.
pub fn run_until(graph: &mut Graph, ctx: &KernelContext<'_>, count: usize) {
    // Passes sweep what they leave dead, not what they find dead.
    graph.sweep();
    PASSES.iter().take(count).for_each(|pass| pass.run(graph, ctx));
}

impl Pass {
    /// Runs this pass alone, and takes away what is dead then.
    pub fn run(&self, graph: &mut Graph, ctx: &KernelContext<'_>) {
        // Whatever a caller was adding, what passes add belongs to instructions that they name.
        graph.set_origin(Default::default());
        let before = graph.work();
        (self.run)(graph, ctx);
        // Nothing has died where nothing was changed.
        if graph.work() != before {
            graph.sweep();
        }
        if cfg!(debug_assertions)
            && let Err(e) = graph.verify()
        {
            panic!("after the pass {}: {e}\n{graph}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ValueId;
    use crate::operation::Fused;
    use crate::steps::linear::Linear;
    use crate::steps::pointwise::Pointwise;
    use crate::steps::relayout::Reshape;
    use crate::{Constant, Executable};
    use ::pool::Pool;
    use kernels::compute::{Activation, Isa};
    use operator::{Binary, Expression, Generator, Scratch, Unary};
    use std::sync::Arc;
    use tensor::{ScalarType, Tensor, TensorMeta};

    /// Products with an activation and an addition each, and a reshape.
    fn chain(len: usize) -> Graph {
        let meta = TensorMeta::contiguous(ScalarType::Float, &[4, 4]).unwrap();
        let weights = Constant::from(Tensor::zeros(meta.clone()).unwrap());
        let mut graph = Graph::new();
        let mut x = graph.input(meta.clone());
        let linear =
            Linear { out_major: true, bias: false, residual: false, activation: Activation::Identity };
        for _ in 0..len {
            let w = graph.constant(meta.clone(), weights.clone());
            let mut add = |kind: Arc<dyn crate::Kind>, inputs: &[ValueId]| {
                let node = graph.append(kind, inputs, [meta.clone()]);
                graph.node(node).outputs()[0]
            };
            let y = add(Fused::kind(linear), &[x, w]);
            let shaped = add(Fused::kind(Reshape), &[y]);
            let relu = add(Fused::kind(Pointwise(Expression::clamp(0.0, f32::INFINITY))), &[shaped]);
            let tanh = add(Fused::kind(Pointwise(Expression::unary(Unary::Tanh))), &[relu]);
            x = add(Fused::kind(Pointwise(Expression::binary(Binary::Add))), &[tanh, x]);
        }
        graph.output(x);
        graph
    }

    #[test]
    fn work_grows_with_the_graph() {
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::new(0));
        let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(Isa::default());
        let work = |len| {
            let mut graph = chain(len);
            let before = graph.work();
            run(&mut graph, &ctx);
            assert!(graph.num_nodes() <= 3 * len, "{graph}");
            let work = graph.work() - before;
            assert_eq!(Executable::new(chain(len), &ctx).unwrap().num_steps(), graph.num_nodes());
            work
        };
        let (small, large) = (work(20), work(160));
        assert!(large <= 9 * small, "{small} edits for 20 layers, {large} for 160");
    }

    #[test]
    fn a_step_names_the_instructions_that_it_stands_for() {
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::new(0));
        let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(Isa::default());
        let mut graph = chain(1);
        for (i, node) in graph.order().into_iter().enumerate() {
            let place = trace::Place::instruction(0, i as u32);
            graph.set_origins(node, &[place]);
            graph.set_value_origin(graph.node(node).outputs()[0], place);
        }
        let executable = Executable::new(graph, &ctx).unwrap();
        let steps: Vec<(&str, Vec<u32>)> = executable
            .steps()
            .map(|(name, places)| (name, places.iter().filter_map(|p| p.instruction).collect()))
            .collect();
        // The reshape to the same sizes is bypassed.
        assert_eq!(steps, [("linear", vec![0, 2]), ("pointwise", vec![3, 4])]);
    }
}

//! The optimization passes between the calls of a program and lowering.
//!
//! A pass is a function over the graph; [`PASSES`] lists them in order. Each is linear in the size of the graph and
//! leaves a graph that [`Graph::verify`] accepts. Passes work on graphs of one block.

mod activation;
mod attention;
mod chain;
mod converted;
mod convolution;
mod fuse;
mod join;
mod layout;
mod matmul;
mod norm;
mod normalize;
mod pool;
mod quantized;
mod quantized_input;
mod quantized_product;
mod row_norm;
mod rule;
mod shuffle;
mod tables;
mod tail;
mod views;
mod widen;

use crate::graph::Graph;
use pteron_operator::KernelContext;

/// A graph pass.
pub struct Pass {
    /// The name of the pass.
    pub name: &'static str,
    /// A description of what the pass does, in one line.
    pub about: &'static str,
    run: fn(&mut Graph, &KernelContext<'_>),
}

/// The passes, in the order in which they run.
pub const PASSES: &[Pass] = &[
    Pass {
        name: "widen",
        about: "half-precision calls compute in f32, and their results are rounded",
        run: |graph, _| widen::run(graph),
    },
    Pass {
        name: "normalize",
        about: "folds constants, and rewrites calls with a known meaning to operations",
        run: normalize::run,
    },
    Pass {
        name: "quantized",
        about: "matrix multiplications and convolutions of dequantized values run on the quantized values",
        run: |graph, _| quantized::run(graph),
    },
    Pass { name: "attention", about: "fuses attention into one node", run: |graph, _| attention::run(graph) },
    Pass {
        name: "activation",
        about: "recognizes activations that are decomposed into several operators",
        run: |graph, _| activation::run(graph),
    },
    Pass {
        name: "row-norm",
        about: "fuses layer norms and RMS norms, decomposed ones included",
        run: |graph, _| row_norm::run(graph),
    },
    Pass {
        name: "fuse",
        about: "folds batch norms into convolutions, and fuses residuals and activations into their producers",
        run: |graph, _| fuse::run(graph),
    },
    Pass {
        name: "quantized-outputs",
        about: "fuses quantization into the matrix multiplication or convolution before it",
        run: |graph, _| quantized::quantize_outputs(graph),
    },
    Pass {
        name: "tables",
        about: "replaces elementwise chains between 8-bit quantized values by table lookups",
        run: |graph, ctx| tables::run(graph, ctx.isa()),
    },
    Pass {
        name: "norm",
        about: "splits group norms into per-channel factors and an elementwise node",
        run: |graph, _| norm::run(graph),
    },
    Pass { name: "shuffle", about: "recognizes channel shuffles", run: |graph, _| shuffle::run(graph) },
    Pass {
        name: "layout",
        about: "makes images around convolutions channels-last",
        run: |graph, _| layout::run(graph),
    },
    Pass {
        name: "pool",
        about: "rewrites pooling of channels-last images",
        run: |graph, _| pool::run(graph),
    },
    Pass { name: "join", about: "fuses chains of elementwise nodes", run: |graph, _| join::run(graph) },
    Pass {
        name: "tail",
        about: "fuses elementwise nodes into the channels-last convolution before them",
        run: |graph, _| tail::run(graph),
    },
    Pass {
        name: "chain",
        about: "chains pointwise and depthwise convolutions with large images between them, to compute them in strips",
        run: |graph, ctx| chain::run(graph, ctx.pool().threads()),
    },
    Pass {
        name: "views",
        about: "lets elementwise nodes read slices, selections and permutations in place",
        run: |graph, _| views::run(graph),
    },
];

/// How many of the first passes run before a graph is written to a file. The others depend on the number of threads, or
/// make nodes that files cannot store.
pub const PORTABLE: usize = PASSES.len() - 2;

/// Runs every pass.
pub fn run(graph: &mut Graph, ctx: &KernelContext<'_>) {
    run_until(graph, ctx, PASSES.len());
}

/// Runs the first `count` passes, for listings of the graph after a pass.
pub fn run_until(graph: &mut Graph, ctx: &KernelContext<'_>, count: usize) {
    // Each pass removes only the nodes that it leaves dead itself.
    graph.sweep();
    PASSES.iter().take(count).for_each(|pass| pass.run(graph, ctx));
}

impl Pass {
    /// Runs this pass and then eliminates dead nodes.
    pub fn run(&self, graph: &mut Graph, ctx: &KernelContext<'_>) {
        // New nodes must not get the origin that the graph's builder set last: passes set origins themselves.
        graph.set_origin(Default::default());
        let before = graph.work();
        (self.run)(graph, ctx);
        // A pass that changed nothing left nothing dead.
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
    use crate::operation::OpKind;
    use crate::ops::linear::Linear;
    use crate::ops::pointwise::Pointwise;
    use crate::ops::relayout::Reshape;
    use crate::{Constant, Executable};
    use pteron_kernels::compute::{Activation, Isa};
    use pteron_operator::{Binary, Expression, Generator, Scratch, Unary};
    use pteron_pool::Pool;
    use pteron_tensor::{ScalarType, Tensor, TensorMeta};
    use std::sync::Arc;

    /// Layers of a matrix multiplication, a reshape, two activations and a residual addition.
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
            let y = add(OpKind::arc(linear), &[x, w]);
            let shaped = add(OpKind::arc(Reshape), &[y]);
            let relu = add(OpKind::arc(Pointwise(Expression::clamp(0.0, f32::INFINITY))), &[shaped]);
            let tanh = add(OpKind::arc(Pointwise(Expression::unary(Unary::Tanh))), &[relu]);
            x = add(OpKind::arc(Pointwise(Expression::binary(Binary::Add))), &[tanh, x]);
        }
        graph.output(x);
        graph
    }

    #[test]
    fn passes_are_linear_in_the_graph() {
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
    fn steps_name_the_instructions_that_they_implement() {
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::new(0));
        let ctx = KernelContext::new(&pool, &scratch, &generator).with_isa(Isa::default());
        let mut graph = chain(1);
        for (i, node) in graph.order().into_iter().enumerate() {
            let place = pteron_trace::Place::instruction(0, i as u32);
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

//! Constants of any size are folded, as long as nothing needs the result to be in memory.

use pteron_engine::{Bytes, Call, CallArg, CallOut, Constant, Graph, ValueId, passes};
use pteron_operator::{Generator, KernelContext, Scratch};
use pteron_pool::Pool;
use pteron_tensor::{Scalar, ScalarType, TensorMeta};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of the weights: with two columns of f32, they have 512 MiB.
const ROWS: usize = 64 << 20;

/// Weights that cannot be read, and count the attempts.
#[derive(Default)]
struct Unread(AtomicUsize);

impl Bytes for Unread {
    fn bytes(&self) -> &[u8] {
        self.0.fetch_add(1, Ordering::Relaxed);
        &[]
    }

    fn len(&self) -> usize {
        2 * ROWS * size_of::<f32>()
    }
}

/// A product with the transpose of large weights, as exporters write it.
fn product(weights: Arc<Unread>) -> Graph {
    let registry = pteron_kernels::registry();
    let meta = |sizes: &[usize]| TensorMeta::contiguous(ScalarType::Float, sizes).unwrap();
    let mut graph = Graph::new();
    let call = |graph: &mut Graph, name: &str, args, inputs: &[ValueId], sizes: &[usize]| {
        let call = Call::new(registry.get(name).unwrap(), args, vec![CallOut::Tensor]);
        let node = graph.append(call, inputs, [meta(sizes)]);
        graph.node(node).outputs()[0]
    };
    let x = graph.input(meta(&[1, ROWS]));
    let w = graph.constant(meta(&[2, ROWS]), Constant::Shared(weights));
    let bias = graph.input(meta(&[1, 2]));
    let args = vec![CallArg::Tensor, CallArg::Ints(vec![1, 0]), CallArg::Out(0)];
    let turned = call(&mut graph, "aten::permute_copy.out", args, &[w], &[ROWS, 2]);
    let args = vec![CallArg::Tensor, CallArg::Tensor, CallArg::Out(0)];
    let y = call(&mut graph, "aten::mm.out", args, &[x, turned], &[1, 2]);
    let one = CallArg::Scalar(Scalar::Int(1));
    let args = vec![CallArg::Tensor, CallArg::Tensor, one, CallArg::Out(0)];
    let sum = call(&mut graph, "aten::add.out", args, &[y, bias], &[1, 2]);
    graph.output(sum);
    graph
}

#[test]
fn the_transpose_of_large_weights_is_never_computed() {
    let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::default());
    let ctx = KernelContext::new(&pool, &scratch, &generator);
    let weights = Arc::new(Unread::default());
    let mut graph = product(Arc::clone(&weights));
    passes::run(&mut graph, &ctx);
    let names: Vec<&str> = graph.order().iter().map(|&node| graph.node(node).name()).collect();
    assert_eq!(names, ["linear"], "{graph}");
    assert_eq!(weights.0.load(Ordering::Relaxed), 0);
}

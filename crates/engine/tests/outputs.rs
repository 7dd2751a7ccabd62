//! Outputs of a graph that are also read by other steps, are returned twice, are inputs, or have another layout.

use pteron_engine::{Call, CallArg, CallOut, Executable, Graph, ValueId};
use pteron_operator::{Generator, KernelContext, Scratch};
use pteron_pool::Pool;
use pteron_tensor::{DimOrder, Scalar, ScalarType, Tensor, TensorMeta};
use pteron_trace::Tracer;

/// Computes cumulative sums of `x` down its columns, and of those along the rows. `choose` selects the outputs from `x`
/// and both sums; `orders` are the dim orders of the results. Runs twice, since one execution must not affect the next.
fn run(choose: impl Fn([ValueId; 3]) -> Vec<ValueId>, orders: &[[u8; 2]]) -> Vec<Vec<f32>> {
    let registry = pteron_kernels::registry();
    let meta = TensorMeta::contiguous(ScalarType::Float, &[2, 3]).unwrap();
    let mut graph = Graph::new();
    let x = graph.input(meta.clone());
    let mut sums = |of: ValueId, dim: i64| {
        let args = vec![CallArg::Tensor, CallArg::Scalar(Scalar::Int(dim)), CallArg::None, CallArg::Out(0)];
        let call = Call::new(registry.get("aten::cumsum.out").unwrap(), args, vec![CallOut::Tensor]);
        let node = graph.append(call, &[of], [meta.clone()]);
        graph.node(node).outputs()[0]
    };
    let down = sums(x, 0);
    let along = sums(down, 1);
    choose([x, down, along]).into_iter().for_each(|v| graph.output(v));
    let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::default());
    let ctx = KernelContext::new(&pool, &scratch, &generator);
    let mut executable = Executable::new(graph, &ctx).unwrap();
    let input = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let new = |order: &[u8; 2]| {
        let order = DimOrder::new(order).unwrap();
        Tensor::zeros(TensorMeta::new(ScalarType::Float, &[2, 3], order).unwrap()).unwrap()
    };
    let mut results: Vec<Tensor> = orders.iter().map(new).collect();
    for _ in 0..2 {
        let mut outputs: Vec<_> = results.iter_mut().map(Tensor::view_mut).collect();
        executable.run(&ctx, Tracer::NONE, &[input.view()], &mut outputs).unwrap();
    }
    results.iter().map(|result| result.to_vec().unwrap()).collect()
}

const X: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
const DOWN: [f32; 6] = [1.0, 2.0, 3.0, 5.0, 7.0, 9.0];
const ALONG: [f32; 6] = [1.0, 3.0, 6.0, 5.0, 12.0, 21.0];
const ROWS: [u8; 2] = [0, 1];
const COLUMNS: [u8; 2] = [1, 0];

#[test]
fn an_output_may_be_read_by_another_step() {
    assert_eq!(run(|[_, down, along]| vec![down, along], &[ROWS, ROWS]), [DOWN, ALONG]);
    assert_eq!(run(|[_, down, along]| vec![along, down], &[ROWS, ROWS]), [ALONG, DOWN]);
}

#[test]
fn a_value_may_be_returned_twice() {
    assert_eq!(run(|[_, down, along]| vec![along, down, along], &[ROWS; 3]), [ALONG, DOWN, ALONG]);
}

#[test]
fn an_input_may_be_an_output() {
    assert_eq!(run(|[x, _, along]| vec![x, along], &[ROWS, ROWS]), [X, ALONG]);
}

#[test]
fn results_may_have_another_layout() {
    for orders in [[ROWS, COLUMNS], [COLUMNS, ROWS], [COLUMNS, COLUMNS]] {
        assert_eq!(run(|[_, down, along]| vec![down, along], &orders), [DOWN, ALONG], "{orders:?}");
    }
}

//! Updates of a part of a value are written into its memory if nothing reads the old value afterwards.

use pteron_engine::{Call, CallArg, CallOut, Executable, Graph, ValueId};
use pteron_operator::{Generator, KernelContext, Scratch};
use pteron_pool::Pool;
use pteron_tensor::{Scalar, ScalarType, Tensor, TensorMeta};
use pteron_trace::Tracer;

/// The size, in bytes, of a value of the graph in the workspace.
const VALUE: usize = 64;

/// A graph of calls on `[4, 4]` tensors.
struct Calls {
    registry: pteron_operator::KernelRegistry,
    graph: Graph,
}

impl Calls {
    fn meta(sizes: &[usize]) -> TensorMeta {
        TensorMeta::contiguous(ScalarType::Float, sizes).unwrap()
    }

    fn new() -> (Self, ValueId, ValueId) {
        let mut graph = Graph::new();
        let (x, row) = (graph.input(Self::meta(&[4, 4])), graph.input(Self::meta(&[1, 4])));
        (Self { registry: pteron_kernels::registry(), graph }, x, row)
    }

    fn call(&mut self, name: &str, args: Vec<CallArg>, inputs: &[ValueId]) -> ValueId {
        let call = Call::new(self.registry.get(name).unwrap(), args, vec![CallOut::Tensor]);
        let node = self.graph.append(call, inputs, [Self::meta(&[4, 4])]);
        self.graph.node(node).outputs()[0]
    }

    /// Cumulative sums along dimension 0, which a step of their own computes.
    fn sums(&mut self, x: ValueId) -> ValueId {
        let args = vec![CallArg::Tensor, CallArg::Scalar(Scalar::Int(0)), CallArg::None, CallArg::Out(0)];
        self.call("aten::cumsum.out", args, &[x])
    }

    /// `x` with `row` in place of row `at`.
    fn with_row(&mut self, x: ValueId, row: ValueId, at: i64) -> ValueId {
        let int = |v| CallArg::Scalar(Scalar::Int(v));
        let args =
            vec![CallArg::Tensor, CallArg::Tensor, int(0), int(at), int(at + 1), int(1), CallArg::Out(0)];
        self.call("aten::slice_scatter.out", args, &[x, row])
    }

    /// Runs the graph twice. Returns the output of the second run, and the size of the workspace.
    fn run(self) -> (Vec<f32>, usize) {
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::default());
        let ctx = KernelContext::new(&pool, &scratch, &generator);
        let mut executable = Executable::new(self.graph, &ctx).unwrap();
        let x = Tensor::from_slice(&[4, 4], &[1f32; 16]).unwrap();
        let row = Tensor::from_slice(&[1, 4], &[9f32; 4]).unwrap();
        let mut result = Tensor::zeros(Self::meta(&[4, 4])).unwrap();
        for _ in 0..2 {
            let mut outputs = [result.view_mut()];
            executable.run(&ctx, Tracer::NONE, &[x.view(), row.view()], &mut outputs).unwrap();
        }
        (result.to_vec().unwrap(), executable.workspace_bytes())
    }
}

#[test]
fn a_chain_of_updates_shares_one_block() {
    let (mut calls, x, row) = Calls::new();
    let mut value = calls.sums(x);
    for at in [0, 2, 3] {
        value = calls.with_row(value, row, at);
    }
    let sums = calls.sums(value);
    calls.graph.output(sums);
    let (result, workspace) = calls.run();
    assert_eq!(result.iter().step_by(4).copied().collect::<Vec<_>>(), [9.0, 11.0, 20.0, 29.0]);
    assert!(workspace <= 2 * VALUE, "{workspace}");
}

#[test]
fn a_value_that_is_read_later_is_not_overwritten() {
    let (mut calls, x, row) = Calls::new();
    let old = calls.sums(x);
    let new = calls.with_row(old, row, 0);
    let newer = calls.with_row(new, row, 1);
    // Reads the oldest value after both updates.
    let args = vec![CallArg::Tensor, CallArg::Tensor, CallArg::Scalar(Scalar::Int(1)), CallArg::Out(0)];
    let difference = calls.call("aten::sub.out", args, &[newer, old]);
    let sums = calls.sums(difference);
    calls.graph.output(sums);
    let (result, _) = calls.run();
    assert_eq!(result.iter().step_by(4).copied().collect::<Vec<_>>(), [8.0, 15.0, 15.0, 15.0]);
}

#[test]
fn inputs_and_outputs_of_the_graph_are_not_overwritten() {
    let (mut calls, x, row) = Calls::new();
    let once = calls.with_row(x, row, 0);
    let sums = calls.sums(once);
    calls.graph.output(sums);
    // A second run reads the same input.
    let (result, _) = calls.run();
    assert_eq!(result.iter().step_by(4).copied().collect::<Vec<_>>(), [9.0, 10.0, 11.0, 12.0]);
}

//! Kernels without a declared meaning are called; kernels that declare the meaning of their calls are fused.

use pteron_engine::{Call, CallArg, CallOut, Constant, Executable, Graph};
use pteron_operator::{Args, Generator, Kernel, KernelContext, Meaning, Outs, Schema, Scratch};
use pteron_operator::{Expression, Unary};
use pteron_pool::Pool;
use pteron_tensor::{Scalar, ScalarType, Tensor, TensorMeta};
use pteron_trace::Tracer;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Wraps a kernel of the library and counts its calls.
struct Counted {
    inner: Arc<dyn Kernel>,
    calls: Arc<AtomicUsize>,
    meaning: Option<Meaning>,
}

impl Kernel for Counted {
    fn schema(&self) -> &Schema {
        self.inner.schema()
    }

    fn meaning(&self, _: &Args<'_>) -> Option<Meaning> {
        self.meaning.clone()
    }

    fn execute(
        &self,
        ctx: &KernelContext<'_>,
        args: &Args<'_>,
        outs: &mut Outs<'_>,
    ) -> pteron_operator::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.inner.execute(ctx, args, outs)
    }
}

/// Runs `relu(linear(x) + x)` with one of the kernels replaced. Returns the names of the steps, and how often the
/// replacement was called in one run.
fn run(replaced: &str, meaning: Option<Meaning>) -> (Vec<String>, usize) {
    let calls = Arc::new(AtomicUsize::new(0));
    let mut registry = pteron_kernels::registry();
    let inner = registry.get(replaced).unwrap();
    registry.replace(Counted { inner, calls: Arc::clone(&calls), meaning });
    let meta = TensorMeta::contiguous(ScalarType::Float, &[3, 3]).unwrap();
    let weights = Tensor::from_slice(&[3, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]).unwrap();
    let mut graph = Graph::new();
    let x = graph.input(meta.clone());
    let w = graph.constant(meta.clone(), Constant::from(weights));
    let mut call = |name: &str, inputs: &[_], args: Vec<CallArg>| {
        let call = Call::new(registry.get(name).unwrap(), args, vec![CallOut::Tensor]);
        let node = graph.append(call, inputs, [meta.clone()]);
        graph.node(node).outputs()[0]
    };
    let tensor = || CallArg::Tensor;
    let y = call("aten::linear.out", &[x, w], vec![tensor(), tensor(), CallArg::None, CallArg::Out(0)]);
    let one = CallArg::Scalar(Scalar::Int(1));
    let sum = call("aten::add.out", &[y, x], vec![tensor(), tensor(), one, CallArg::Out(0)]);
    let out = call("aten::relu.out", &[sum], vec![tensor(), CallArg::Out(0)]);
    graph.output(out);
    let (pool, scratch, generator) = (Pool::serial(), Scratch::new(1 << 20), Generator::default());
    let ctx = KernelContext::new(&pool, &scratch, &generator);
    let mut executable = Executable::new(graph, &ctx).unwrap();
    let input = Tensor::from_slice(&[3, 3], &[1f32; 9]).unwrap();
    let mut result = Tensor::zeros(meta).unwrap();
    executable.run(&ctx, Tracer::NONE, &[input.view()], &mut [result.view_mut()]).unwrap();
    assert_eq!(result.as_slice::<f32>().unwrap()[..3], [7.0, 16.0, 25.0]);
    let names = executable.steps().map(|(name, _)| name.to_owned()).collect();
    (names, calls.load(Ordering::Relaxed))
}

#[test]
fn a_kernel_without_a_meaning_is_called() {
    assert_eq!(run("aten::gelu.out", None), (vec!["linear".into()], 0));
    let (steps, calls) = run("aten::add.out", None);
    assert_eq!((steps, calls), (["linear", "aten::add.out", "pointwise"].map(String::from).into(), 1));
    let (steps, calls) = run("aten::linear.out", None);
    assert_eq!((steps, calls), (["aten::linear.out", "pointwise"].map(String::from).into(), 1));
}

#[test]
fn a_kernel_with_a_declared_meaning_is_fused() {
    let relu = Meaning::Elementwise(Expression::clamp(0.0, f32::INFINITY));
    assert_eq!(run("aten::relu.out", Some(relu)), (vec!["linear".into()], 0));
    let absolute = Meaning::Elementwise(Expression::unary(Unary::Abs));
    assert_eq!(run("aten::relu.out", Some(absolute)), (vec!["linear".into()], 0));
}

//! Delegates that give a graph are inlined into the regions around them. The results are those of calling each delegate by
//! itself.

mod support;

use pteron::backend::{
    Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, BackendRegistry, Call, CallArg,
    CallOut, CompileSpec, Delegate, DelegateGraph, Graph, GraphDelegate, GraphRequest, Out, Place, ValueId,
};
use pteron::format::pte::{EValue as Value, Instruction, TensorShapeDynamism};
use pteron::{
    BytesLoader, EValue, FreeableBuffer, KernelRegistry, Limits, LoadOptions, Method, Program, Tensor,
};
use std::sync::{Arc, OnceLock};
use support::{Plan, Random};

/// A backend whose payloads name one of the computations below, on tensors of any sizes.
struct TestBackend;

/// `neg(relu(a))`.
const CHAIN: &[u8] = b"chain";
/// Three results: `a + b`, `a` and `relu(a + b)`.
const SEVERAL: &[u8] = b"several";
/// `a` plus the number of previous calls, by an opaque delegate.
const COUNTER: &[u8] = b"counter";
/// `a + c` with a constant that `DelegateGraph::graph` computes, by a delegate that allocates memory for itself.
const HOLDS: &[u8] = b"holds";
/// The bytes that a `HOLDS` delegate allocates.
const HELD: usize = 1 << 16;
/// Selects an element of `a` out of bounds: fails when it runs.
const FAILS: &[u8] = b"fails";

impl Backend for TestBackend {
    fn id(&self) -> &str {
        "TestBackend"
    }

    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        payload: FreeableBuffer,
        _: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        if &*payload == HOLDS {
            ctx.allocate(HELD)?;
        }
        Ok(match &*payload {
            COUNTER => Box::new(Counter(0.0)),
            known => Box::new(GraphDelegate::new(Payload(known.to_vec()))),
        })
    }
}

struct Counter(f32);

impl Delegate for Counter {
    fn num_inputs(&self) -> usize {
        1
    }

    fn execute(
        &mut self,
        _: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        let ([Arg::Tensor(a)], [Out::Tensor(out)]) = (inputs, outputs) else {
            return Err(BackendError::new("a call has an input and an output"));
        };
        for (out, a) in out.storage_mut::<f32>()?.iter_mut().zip(a.to_vec::<f32>()?) {
            *out = a + self.0;
        }
        self.0 += 1.0;
        Ok(())
    }
}

/// The kernel registry, built once.
fn kernels() -> Arc<KernelRegistry> {
    static KERNELS: OnceLock<Arc<KernelRegistry>> = OnceLock::new();
    Arc::clone(KERNELS.get_or_init(|| Arc::new(pteron::kernel_registry())))
}

struct Payload(Vec<u8>);

impl Payload {
    /// Appends a call of an operator whose result has the dtype and sizes of its first input.
    fn call(graph: &mut Graph, name: &str, args: Vec<CallArg>, inputs: &[ValueId]) -> ValueId {
        let kernel = kernels().get(name).unwrap();
        let meta = graph.meta(inputs[0]).clone();
        let node = graph.append(Call::new(kernel, args, vec![CallOut::Tensor]), inputs, [meta]);
        graph.node(node).outputs()[0]
    }

    fn unary(graph: &mut Graph, name: &str, x: ValueId) -> ValueId {
        Self::call(graph, name, vec![CallArg::Tensor, CallArg::Out(0)], &[x])
    }
}

impl DelegateGraph for Payload {
    fn num_inputs(&self) -> usize {
        if self.0 == SEVERAL { 2 } else { 1 }
    }

    fn graph(&self, request: &GraphRequest<'_>) -> Result<Graph, BackendError> {
        let mut graph = Graph::new();
        let inputs: Vec<ValueId> = request.inputs.iter().map(|meta| graph.input(meta.clone())).collect();
        graph.set_origin(Place::node(0));
        let outputs = match &*self.0 {
            CHAIN => {
                let x = Self::unary(&mut graph, "aten::relu.out", inputs[0]);
                graph.set_origin(Place::node(1));
                vec![Self::unary(&mut graph, "aten::neg.out", x)]
            }
            SEVERAL => {
                let alpha = CallArg::Scalar(1i64.into());
                let args = vec![CallArg::Tensor, CallArg::Tensor, alpha, CallArg::Out(0)];
                let sum = Self::call(&mut graph, "aten::add.out", args, &inputs);
                graph.set_origin(Place::node(1));
                vec![sum, inputs[0], Self::unary(&mut graph, "aten::relu.out", sum)]
            }
            HOLDS => {
                graph.set_budget(request.budget.clone());
                let c = graph.computed_constant(Tensor::from_slice(&[4], &[1.0f32; 4])?)?;
                let alpha = CallArg::Scalar(1i64.into());
                let args = vec![CallArg::Tensor, CallArg::Tensor, alpha, CallArg::Out(0)];
                vec![Self::call(&mut graph, "aten::add.out", args, &[inputs[0], c])]
            }
            _ => {
                graph.set_origin(Place::node(7));
                let index = CallArg::Scalar(9i64.into());
                let args = vec![CallArg::Tensor, CallArg::Scalar(0i64.into()), index, CallArg::Out(0)];
                vec![Self::call(&mut graph, "aten::select_copy.int_out", args, &inputs)]
            }
        };
        outputs.into_iter().for_each(|v| graph.output(v));
        Ok(graph)
    }
}

fn load(file: &[u8], no_prepare: bool) -> Method {
    load_within(file, no_prepare, Limits::default()).unwrap()
}

fn load_within(file: &[u8], no_prepare: bool, limits: Limits) -> pteron::Result<Method> {
    let program = Program::load(Arc::new(BytesLoader::new(file.to_vec())), &Limits::default()).unwrap();
    let mut backends = BackendRegistry::new();
    backends.register(TestBackend).unwrap();
    let options = LoadOptions::new(kernels()).backends(backends);
    program.load_method("forward", LoadOptions { no_prepare, keep_graphs: true, limits, ..options })
}

fn delegate(plan: &mut Plan, payload: &'static [u8], args: &[i32]) {
    plan.delegates.push(("TestBackend", payload));
    let delegate_index = plan.delegates.len() as i32 - 1;
    plan.instructions.push(Instruction::DelegateCall { delegate_index, args: args.to_vec() });
}

fn bytes(outputs: &[EValue]) -> Vec<Vec<u8>> {
    outputs.iter().map(|value| value.as_tensor().unwrap().bytes().to_vec()).collect()
}

#[test]
fn delegates_and_the_calls_around_them_form_one_graph() {
    let mut plan = Plan::default();
    let t: Vec<i32> = (0..8).map(|i| plan.tensor(4, 16 * i)).collect();
    plan.call(1, &[t[0], t[1], t[1]]);
    delegate(&mut plan, CHAIN, &[t[1], t[2]]);
    plan.call(0, &[t[2], t[3], t[3]]);
    delegate(&mut plan, SEVERAL, &[t[1], t[3], t[4], t[5], t[6]]);
    let file = plan.file(&[t[0]], &[t[4], t[5], t[6]]);
    let [mut prepared, mut written] = [false, true].map(|no_prepare| load(&file, no_prepare));
    {
        let graphs = prepared.graphs();
        let [graph] = &graphs[..] else { panic!("{} graphs", graphs.len()) };
        assert_eq!(graph.instructions, 0..4);
        let listing = graph.graph.to_string();
        assert!(listing.contains("// 0:1.0") && listing.contains("// 0:3.1"), "{listing}");
    }
    let input = [Random(1).tensor(4)];
    assert_eq!(bytes(&prepared.execute(&input).unwrap()), bytes(&written.execute(&input).unwrap()));
    // A fork runs the same graph.
    let mut fork = prepared.fork().unwrap();
    assert_eq!(bytes(&fork.execute(&input).unwrap()), bytes(&written.execute(&input).unwrap()));
}

#[test]
fn errors_name_the_failing_node_of_a_payload() {
    let mut plan = Plan::default();
    let (x, y, z) = (plan.tensor(4, 0), plan.tensor(4, 16), plan.tensor(4, 32));
    plan.call(1, &[x, y, y]);
    delegate(&mut plan, FAILS, &[y, z]);
    let file = plan.file(&[x], &[z]);
    for no_prepare in [false, true] {
        let error = load(&file, no_prepare).execute(&[Random(1).tensor(4)]).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        let place = error.to_string();
        assert!(place.contains("forward") && place.contains("1 (delegate 0 of `TestBackend`)"), "{place}");
        assert!(cause.contains("node 7"), "{cause}");
    }
}

#[test]
fn memory_held_by_delegates_counts_for_the_method() {
    let [without, file] = [false, true].map(|holds| {
        let mut plan = Plan::default();
        let [x, y, z] = [0, 16, 32].map(|offset| plan.tensor(4, offset));
        plan.call(1, &[x, y, y]);
        if holds {
            delegate(&mut plan, HOLDS, &[y, z]);
        }
        plan.file(&[x], &[if holds { z } else { y }])
    });
    let without = load(&without, true).memory();
    for no_prepare in [false, true] {
        let mut method = load(&file, no_prepare);
        let loaded = method.memory();
        assert!(loaded >= without + HELD as u64, "{loaded} bytes, {without} without the delegate");
        let outputs = method.execute(&[Tensor::from_slice(&[4], &[1.0f32; 4]).unwrap().into()]).unwrap();
        assert_eq!(outputs[0].to_vec::<f32>().unwrap(), [0.0; 4]);
        // The constant's 16 bytes are in the region's graph, or in the delegate's graph, which is built on the first call.
        assert!(method.memory() >= without + HELD as u64 + 16);
    }
    let limits = Limits { memory: without + HELD as u64 - 1, ..Limits::default() };
    let e = load_within(&file, true, limits).unwrap_err();
    let cause = std::error::Error::source(&e).unwrap().to_string();
    assert!(cause.contains("its backends"), "{e}: {cause}");
}

/// A random program of kernel and delegate calls on tensors of 4 elements at random offsets.
fn any_program(random: &mut Random) -> Vec<u8> {
    let mut plan = Plan::default();
    let places = 4 + random.below(12);
    let step = [8, 16, 16][random.below(3)];
    let tensors: Vec<i32> =
        (0..4 + random.below(10)).map(|_| plan.tensor(4, (step * random.below(places)) as u64)).collect();
    let one = plan.value(Value::Int(1));
    for _ in 0..2 + random.below(16) {
        // No delegate may write the input of the method, which is the first tensor.
        let mut any = |from: usize| tensors[from + random.below(tensors.len() - from)];
        let [a, b, c, d, e] = [any(0), any(1), any(1), any(1), any(1)];
        match random.below(8) {
            0 | 1 => delegate(&mut plan, CHAIN, &[a, b]),
            2 | 3 => delegate(&mut plan, SEVERAL, &[a, b, c, d, e]),
            4 => delegate(&mut plan, COUNTER, &[a, b]),
            5 => plan.call(0, &[a, b, b]),
            _ => plan.call(2, &[a, b, one, c, c]),
        }
    }
    let outputs: Vec<i32> = (0..1 + random.below(3)).map(|_| tensors[random.below(tensors.len())]).collect();
    plan.file(&tensors[..1], &outputs)
}

#[test]
fn random_plans_with_delegates_agree_prepared_and_as_written() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let file = any_program(&mut random);
        let [mut prepared, mut written] = [false, true].map(|no_prepare| load(&file, no_prepare));
        for run in 0..3 {
            let inputs = [random.tensor(4)];
            let [a, b] = [&mut prepared, &mut written].map(|m| m.execute(&inputs).map_err(|e| e.to_string()));
            match (a, b) {
                (Ok(a), Ok(b)) => assert_eq!(bytes(&a), bytes(&b), "plan {seed}, run {run}"),
                (a, b) => {
                    assert_eq!(a.is_ok(), b.is_ok(), "plan {seed}, run {run}: {a:?} {b:?}");
                    break;
                }
            }
        }
    }
}

#[test]
fn sizes_of_dynamic_results_follow_from_the_graph() {
    let mut plan = Plan::default();
    let [x, y, z] = [0, 16, 32].map(|offset| plan.tensor(4, offset));
    for value in &mut plan.values {
        if let Value::Tensor(tensor) = value {
            tensor.shape_dynamism = TensorShapeDynamism::DynamicBound;
        }
    }
    delegate(&mut plan, CHAIN, &[x, y]);
    delegate(&mut plan, CHAIN, &[y, z]);
    let file = plan.file(&[x], &[z]);
    for no_prepare in [false, true] {
        let mut method = load(&file, no_prepare);
        for len in [1, 4, 2, 0, 3, 4, 1, 2] {
            let x: Vec<f32> = (0..len).map(|i| 1.0 - i as f32).collect();
            let outputs = method.execute(&[Tensor::from_slice(&[len], &x).unwrap().into()]).unwrap();
            assert_eq!(outputs[0].to_vec::<f32>().unwrap(), vec![0.0; len]);
        }
    }
}

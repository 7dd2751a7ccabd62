//! A graph lowered to steps over a planned workspace.

use crate::attention::AttentionStep;
use crate::bind;
use crate::graph::{Constant, Graph, ValueId};
use crate::group_factors::GroupFactorsStep;
use crate::node::{Call, Convolution, Linear, Node, Op, Pool, image_layout};
use crate::packs::{MatrixForm, Packs};
use crate::plan::{Lifetime, place};
use crate::pointwise::Pass;
use crate::quantized::QuantizedStep;
use crate::relayout::RelayoutStep;
use host::{
    Env, ExecutionContext, Fault, FunctionBuilder, HostContext, Interpreter, KernelRegistry, Register, Steps,
};
use kernels::compute::Isa;
use kernels::compute::{Bias, Epilogue, PackedB, gemm};
use kernels::compute::{Conv, ConvEpilogue, ConvFrame, Layout};
use kernels::compute::{MatMut, MatRef, pool_windows};
use operator::{Error, KernelContext, Result};
use pool::WorkQueue;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::Arc;
use tensor::{AlignedBuffer, Arenas, DimOrder, Extent, TensorMeta, TensorView, TensorViewMut};
use trace::{EventTracer, Place, SpanKind, Tracer};

/// Elements below which a pass over memory stays on one thread.
const PARALLEL_ELEMENTS: usize = 1 << 13;

/// A graph ready to run: a function whose kernels are steps, weights packed, a workspace with a place for
/// every value.
pub struct Executable {
    /// The steps in order, and which of them uses what of which.
    function: Interpreter,
    request: ExecutionContext,
    steps: Vec<Step>,
    values: Vec<Slot>,
    inputs: Vec<TensorMeta>,
    outputs: Vec<usize>,
    arena: Arenas,
    workspace: usize,
    failed: Place,
}

/// A value at run time.
struct Slot {
    meta: TensorMeta,
    source: Source,
}

/// Where a step finds a value.
enum Source {
    /// In the workspace.
    Workspace(Extent),
    /// A constant that a step reads as it is.
    Constant(Constant),
    /// The caller's input.
    Input(usize),
    /// Nowhere: packed away, or not used.
    None,
}

struct Step {
    /// The operator's name, or the node kind's.
    name: Box<str>,
    /// The instruction whose result it computes.
    origin: Place,
    action: Action,
    inputs: SmallVec<[usize; 4]>,
    outputs: SmallVec<[usize; 2]>,
}

enum Action {
    Call(Box<Call>),
    Relayout(RelayoutStep),
    Pool(Box<PoolStep>),
    Conv(Box<ConvStep>),
    Linear(Box<LinearStep>),
    Pointwise(Box<Pass>),
    GlobalMean { pixels: usize, channels: usize, last: bool },
    GroupFactors(GroupFactorsStep),
    Attention(Box<AttentionStep>),
    Quantized(Box<QuantizedStep>),
}

struct ConvStep {
    conv: Arc<Conv>,
    frame: ConvFrame,
    bias: Option<Vec<f32>>,
    spec: Convolution,
}

struct PoolStep {
    spec: Pool,
    frame: ConvFrame,
    channels: usize,
    isa: Isa,
}

struct LinearStep {
    weights: Arc<PackedB>,
    bias: Option<Vec<f32>>,
    spec: Linear,
    isa: Isa,
}

impl Executable {
    /// Lowers a graph: runs the passes, packs weights, plans the workspace. What comes of it works with
    /// the instructions of `ctx`, whatever those of later contexts.
    pub fn new(graph: Graph, ctx: &KernelContext<'_>) -> Result<Self> {
        Self::with_packs(graph, ctx, &mut Packs::default())
    }

    /// As [`Self::new`], with the weights that others have packed.
    pub fn with_packs(mut graph: Graph, ctx: &KernelContext<'_>, packs: &mut Packs) -> Result<Self> {
        crate::passes::run(&mut graph, ctx);
        lower(&graph, ctx.isa(), packs)
    }

    /// Bytes of the workspace.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace
    }

    /// The number of steps.
    pub fn num_steps(&self) -> usize {
        self.steps.len()
    }

    /// The instruction whose result the step computes that failed last, where the graph's maker named
    /// instructions.
    pub fn failed_at(&self) -> Place {
        self.failed
    }

    /// Runs the steps. Inputs and outputs are those of the graph, in its order and of its metas.
    pub fn run(
        &mut self,
        ctx: &KernelContext<'_>,
        tracer: Tracer<'_>,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<()> {
        if inputs.len() != self.inputs.len() || outputs.len() != self.outputs.len() {
            return Err(Error::invalid("a graph is run with other inputs or outputs than it has"));
        }
        for (given, expected) in inputs.iter().zip(&self.inputs) {
            if given.meta().sizes() != expected.sizes() || given.dtype() != expected.dtype() {
                let given = given.meta();
                return Err(Error::invalid(format!("an input {given} of a graph lowered for {expected}")));
            }
        }
        let run = Run {
            ctx,
            tracer,
            steps: &self.steps,
            values: &self.values,
            arena: RefCell::new(&mut self.arena),
            inputs,
            failed: Cell::new(None),
        };
        let arguments = inputs.iter().map(|_| host::Value::Chain);
        if let Err(e) = self.function.run_with(&self.request, Env::Steps(&run), arguments, &mut []) {
            let Some((step, error)) = run.failed.take() else { return Err(Error::invalid(e.to_string())) };
            self.failed = self.steps[step].origin;
            return Err(self.steps[step].named(error));
        }
        for (&v, out) in self.outputs.iter().zip(outputs) {
            let slot = &self.values[v];
            let bytes = match &slot.source {
                Source::Workspace(extent) => self.arena.bytes(*extent)?,
                Source::Constant(c) => constant_bytes(c, &slot.meta)?,
                Source::Input(i) => inputs[*i].bytes(),
                Source::None => return Err(Error::invalid("a result of a graph that nothing computes")),
            };
            out.resize(slot.meta.sizes())?;
            TensorView::new(&slot.meta, bytes)?.relayout(out)?;
        }
        Ok(())
    }
}

fn constant_bytes<'a>(constant: &'a Constant, meta: &TensorMeta) -> Result<&'a [u8]> {
    let bytes = constant.bytes();
    bytes
        .get(..meta.nbytes())
        .ok_or_else(|| Error::invalid("a constant with fewer bytes than its shape asks for"))
}

/// One run: what the steps of a function work on.
struct Run<'a> {
    ctx: &'a KernelContext<'a>,
    tracer: Tracer<'a>,
    steps: &'a [Step],
    values: &'a [Slot],
    arena: RefCell<&'a mut Arenas>,
    inputs: &'a [TensorView<'a>],
    /// The step that has failed, and why.
    failed: Cell<Option<(usize, Error)>>,
}

impl Steps for Run<'_> {
    fn step(&self, index: usize) -> Result<(), Fault> {
        let (step, arena) = (&self.steps[index], &mut *self.arena.borrow_mut());
        let started = self.tracer.start();
        let mut outcome = step.run(self.ctx, self.values, arena, self.inputs);
        if outcome.is_ok() {
            self.tracer.end(started, SpanKind::Kernel, &step.name, step.origin);
            if let Some(listener) = self.tracer.get().filter(|t| t.wants_values()) {
                outcome = step.report(listener, self.values, arena);
            }
        }
        outcome.map_err(|error| {
            let fault = Fault::invalid(error.to_string());
            self.failed.set(Some((index, error)));
            fault
        })
    }
}

impl Step {
    /// An error with the name of the step it comes from.
    #[cold]
    fn named(&self, error: Error) -> Error {
        Error::invalid(format!("{}: {error}", self.name))
    }

    /// Tells a listener what the step has computed of an instruction's result.
    #[cold]
    fn report(&self, listener: &dyn EventTracer, values: &[Slot], arena: &Arenas) -> Result<()> {
        if self.origin == Place::default() {
            return Ok(());
        }
        for (output, &v) in self.outputs.iter().enumerate() {
            let Slot { meta, source: Source::Workspace(extent) } = &values[v] else { continue };
            let tensor = TensorView::new(meta, arena.bytes(*extent)?)?.to_tensor()?;
            let tensor = tensor.to_dim_order(DimOrder::contiguous(meta.rank()))?;
            let (dtype, sizes) = (tensor.dtype().name(), tensor.sizes());
            listener.value(&self.name, self.origin, output, dtype, sizes, tensor.bytes());
        }
        Ok(())
    }

    fn run(
        &self,
        ctx: &KernelContext<'_>,
        values: &[Slot],
        arena: &mut Arenas,
        inputs: &[TensorView<'_>],
    ) -> Result<()> {
        let mut loan = arena.lend();
        let mut reads: SmallVec<[TensorView<'_>; 4]> = SmallVec::new();
        for &v in &self.inputs {
            let slot = &values[v];
            let bytes = match &slot.source {
                Source::Workspace(extent) => loan.shared(*extent)?,
                Source::Constant(c) => constant_bytes(c, &slot.meta)?,
                Source::Input(i) => inputs[*i].bytes(),
                Source::None => return Err(Error::invalid("a step reads a value that nothing computes")),
            };
            reads.push(TensorView::new(&slot.meta, bytes)?);
        }
        // A call may resize what it writes; here all sizes are known and stay.
        let mut metas: SmallVec<[TensorMeta; 2]> =
            self.outputs.iter().map(|&v| values[v].meta.clone()).collect();
        let mut writes: SmallVec<[TensorViewMut<'_>; 2]> = SmallVec::new();
        for (&v, meta) in self.outputs.iter().zip(&mut metas) {
            let Source::Workspace(extent) = values[v].source else {
                return Err(Error::invalid("a step writes a value that has no place"));
            };
            writes.push(TensorViewMut::new(meta, loan.exclusive(extent)?)?);
        }
        if let Action::Call(call) = &self.action {
            return bind::execute(call, ctx, &reads, writes);
        }
        if let Action::GroupFactors(step) = &self.action {
            return step.run(ctx, &reads, &mut writes);
        }
        let [out] = &mut writes[..] else { return Err(Error::invalid("a node without its one output")) };
        match &self.action {
            Action::Call(_) | Action::GroupFactors(_) => {}
            Action::Relayout(step) => step.run(ctx, &reads[0], out)?,
            Action::Pool(step) => {
                let PoolStep { spec, frame, channels, isa } = &**step;
                let (x, out) = (reads[0].as_slice()?, out.as_mut_slice()?);
                pool_windows(ctx.pool(), *isa, spec.pooling, &spec.windows, frame, *channels, x, out);
            }
            Action::Conv(step) => step.run(ctx, &reads, out)?,
            Action::Linear(step) => step.run(ctx, &reads, out)?,
            Action::Attention(step) => step.run(ctx, &reads, out)?,
            Action::Quantized(step) => step.run(ctx, &reads[0], out)?,
            Action::Pointwise(pass) => run_pass(pass, ctx, &reads, out)?,
            Action::GlobalMean { pixels, channels, last } => {
                global_mean(reads[0].as_slice()?, out.as_mut_slice()?, *pixels, *channels, *last);
            }
        }
        Ok(())
    }
}

impl ConvStep {
    fn run(
        &self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'_>],
        out: &mut TensorViewMut<'_>,
    ) -> Result<()> {
        let residual = match self.spec.residual {
            true => Some(reads[reads.len() - 1].as_slice::<f32>()?),
            false => None,
        };
        let epilogue =
            ConvEpilogue { bias: self.bias.as_deref(), residual, activation: self.spec.activation };
        let (x, out) = (reads[0].as_slice::<f32>()?, out.as_mut_slice::<f32>()?);
        self.conv.run(ctx.pool(), &self.frame, x, out, &epilogue);
        Ok(())
    }
}

impl LinearStep {
    fn run(
        &self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'_>],
        out: &mut TensorViewMut<'_>,
    ) -> Result<()> {
        let (k, n) = (self.weights.rows(), self.weights.cols());
        let x = reads[0].as_slice::<f32>()?;
        let out = out.as_mut_slice::<f32>()?;
        let m = out.len() / n.max(1);
        let residual = match self.spec.residual {
            true => Some((1.0, MatRef::new(reads[reads.len() - 1].as_slice::<f32>()?, m, n))),
            false => None,
        };
        let epilogue = Epilogue {
            bias: Bias::per_col(self.bias.as_deref()),
            residual,
            activation: self.spec.activation,
            ..Epilogue::NONE
        };
        gemm(ctx.pool(), self.isa, MatRef::new(x, m, k), &*self.weights, MatMut::new(out, m, n), &epilogue);
        Ok(())
    }
}

fn run_pass(
    pass: &Pass,
    ctx: &KernelContext<'_>,
    reads: &[TensorView<'_>],
    out: &mut TensorViewMut<'_>,
) -> Result<()> {
    let inputs = reads.iter().map(|r| r.as_slice::<f32>()).collect::<Result<SmallVec<[&[f32]; 4]>, _>>()?;
    let out = out.as_mut_slice::<f32>()?;
    if ctx.pool().threads() == 1 || out.len() < 2 * PARALLEL_ELEMENTS {
        pass.run(&inputs, 0, out, &mut ctx.scratch(pass.scratch())?);
        return Ok(());
    }
    let inputs = &inputs;
    ctx.pool().parallel_chunks_mut(out, PARALLEL_ELEMENTS, 1, &|i, chunk| {
        pass.run(inputs, i * PARALLEL_ELEMENTS, chunk, &mut vec![0.0; pass.scratch()]);
    });
    Ok(())
}

/// The mean over the pixels of each channel of each image.
fn global_mean(x: &[f32], out: &mut [f32], pixels: usize, channels: usize, last: bool) {
    let factor = 1.0 / pixels as f32;
    if last {
        for (image, sums) in x.chunks_exact(pixels * channels).zip(out.chunks_exact_mut(channels)) {
            sums.fill(0.0);
            for pixel in image.chunks_exact(channels) {
                sums.iter_mut().zip(pixel).for_each(|(s, p)| *s += p);
            }
            sums.iter_mut().for_each(|s| *s *= factor);
        }
    } else {
        for (plane, mean) in x.chunks_exact(pixels).zip(out) {
            *mean = plane.iter().sum::<f32>() * factor;
        }
    }
}

/// Makes steps of nodes, packs what is constant, and plans the workspace.
fn lower(graph: &Graph, isa: Isa, packs: &mut Packs) -> Result<Executable> {
    // A reshape, or a change of layout that moves nothing, makes no step: its output is its input.
    let mut alias: Vec<usize> = (0..graph.values.len()).collect();
    let mut steps = Vec::new();
    for node in &graph.nodes {
        let free = match node.op {
            Op::Reshape => true,
            Op::Relayout => {
                let (from, to) = (graph.meta(node.inputs[0]), graph.meta(node.outputs[0]));
                from.dim_order().same_layout(to.dim_order(), from.sizes())
            }
            _ => false,
        };
        if free {
            alias[node.outputs[0].0] = alias[node.inputs[0].0];
            continue;
        }
        let (action, used) = action(graph, node, isa, packs)?;
        let ids = |vs: &[ValueId]| vs.iter().map(|v| v.0).collect();
        steps.push(Step {
            name: node.op.name().into(),
            origin: node.outputs.first().map(|v| graph.values[v.0].origin).unwrap_or_default(),
            action,
            inputs: used.iter().map(|&i| node.inputs[i].0).collect(),
            outputs: ids(&node.outputs),
        });
    }
    let mut first = vec![usize::MAX; graph.values.len()];
    let mut last = vec![0; graph.values.len()];
    for (i, step) in steps.iter().enumerate() {
        step.outputs.iter().for_each(|&v| (first[v], last[v]) = (i, i.max(last[v])));
        step.inputs.iter().for_each(|&v| last[alias[v]] = i);
    }
    graph.outputs.iter().for_each(|v| last[alias[v.0]] = steps.len());
    let written: Vec<usize> = (0..first.len()).filter(|&v| first[v] != usize::MAX).collect();
    let lifetimes: Vec<Lifetime> = written
        .iter()
        .map(|&v| Lifetime { bytes: graph.values[v].meta.nbytes(), first: first[v], last: last[v] })
        .collect();
    let (offsets, workspace) = place(&lifetimes);
    let mut values: Vec<Slot> = Vec::with_capacity(graph.values.len());
    let place_of = |v: usize| {
        let index = written.iter().position(|&w| w == v)?;
        Some(Extent { arena: 0, offset: offsets[index], len: lifetimes[index].bytes })
    };
    let needed: HashSet<usize> = steps.iter().flat_map(|s| s.inputs.iter().map(|&v| alias[v])).collect();
    for (v, value) in graph.values.iter().enumerate() {
        let root = alias[v];
        let source = if let Some(extent) = place_of(root) {
            Source::Workspace(extent)
        } else if let Some(i) = graph.inputs.iter().position(|input| input.0 == root) {
            Source::Input(i)
        } else {
            let used = needed.contains(&root) || graph.outputs.iter().any(|o| alias[o.0] == root);
            let constant = graph.values[root].constant.clone().filter(|_| used);
            constant.map_or(Source::None, Source::Constant)
        };
        values.push(Slot { meta: value.meta.clone(), source });
    }
    let mut arena = Arenas::new();
    arena.push(AlignedBuffer::zeroed(workspace)?);
    let (function, request) = function(graph, &steps, &alias)?;
    Ok(Executable {
        function,
        request,
        steps,
        values,
        inputs: graph.inputs.iter().map(|&v| graph.meta(v).clone()).collect(),
        outputs: graph.outputs.iter().map(|v| v.0).collect(),
        arena,
        workspace,
        failed: Place::default(),
    })
}

/// The function whose kernels are the steps: its arguments are the graph's inputs, its registers what steps
/// write. `alias` says in which value's place each value is.
fn function(graph: &Graph, steps: &[Step], alias: &[usize]) -> Result<(Interpreter, ExecutionContext)> {
    let mut function = FunctionBuilder::new("graph", graph.inputs.len()).in_order();
    let mut registers: Vec<Option<Register>> = vec![None; graph.values.len()];
    for (i, input) in graph.inputs.iter().enumerate() {
        registers[input.0] = Some(function.argument(i));
    }
    for (i, step) in steps.iter().enumerate() {
        let arguments: Vec<Register> = step.inputs.iter().filter_map(|&v| registers[alias[v]]).collect();
        let (results, kernel) = function.step(i, &arguments, step.outputs.len());
        function.edit(kernel).name(&*step.name);
        step.outputs.iter().zip(results).for_each(|(&v, r)| registers[v] = Some(r));
    }
    let refused = |e: host::Error| Error::invalid(e.to_string());
    let function = Interpreter::new(&function.build().map_err(refused)?).map_err(refused)?;
    // The graph itself bounds what runs.
    let limits = host::Limits { kernels: u64::MAX, ..host::Limits::DEFAULT };
    let queue = WorkQueue::single_threaded();
    let host = HostContext::builder(KernelRegistry::new(), queue).limits(limits).build();
    Ok((function, ExecutionContext::new(&host)))
}

/// Depth, height and width of an image of so many space dimensions.
pub(crate) fn pixels(meta: &TensorMeta, space: usize) -> [usize; 3] {
    let mut all = [1; 3];
    all[3 - space..].copy_from_slice(&meta.sizes()[2..]);
    all
}

/// What a node does at run time, and which of its inputs it still reads then.
fn action(graph: &Graph, node: &Node, isa: Isa, packs: &mut Packs) -> Result<(Action, Vec<usize>)> {
    let all = || (0..node.inputs.len()).collect();
    let unknown = || Error::invalid("weights that are not known when the graph is lowered");
    let floats = |i: usize| node.inputs.get(i).and_then(|&v| graph.floats(v)).ok_or_else(unknown);
    let constant =
        |i: usize| node.inputs.get(i).and_then(|&v| graph.get(v).constant.as_ref()).ok_or_else(unknown);
    let out = graph.meta(node.outputs[0]);
    let residual_last = |residual: bool| if residual { vec![0, node.inputs.len() - 1] } else { vec![0] };
    Ok(match &node.op {
        Op::Call(call) => (Action::Call(Box::new(call.clone())), all()),
        Op::Reshape | Op::Relayout => {
            let step = RelayoutStep::new(graph.meta(node.inputs[0]), out, isa);
            (Action::Relayout(step), all())
        }
        Op::Pool(spec) => {
            let x = graph.meta(node.inputs[0]);
            let frame = ConvFrame { batch: x.sizes()[0], input: pixels(x, 2), output: pixels(out, 2) };
            let step = PoolStep { spec: *spec, frame, channels: x.sizes()[1], isa };
            (Action::Pool(Box::new(step)), vec![0])
        }
        Op::Pointwise(program) => {
            let metas: Vec<_> = node.inputs.iter().map(|&v| graph.meta(v)).collect();
            (Action::Pointwise(Box::new(Pass::new(program, &metas, out, isa))), all())
        }
        Op::GlobalMean => {
            let x = graph.meta(node.inputs[0]);
            let pixels = x.sizes()[2..].iter().product();
            let last = image_layout(x) == Some(Layout::ChannelsLast);
            (Action::GlobalMean { pixels, channels: x.sizes()[1], last }, all())
        }
        Op::Attention(spec) => {
            let step = AttentionStep::new(spec, isa)
                .ok_or_else(|| Error::invalid("attention of views that do not fit"))?;
            (Action::Attention(Box::new(step)), all())
        }
        Op::GroupFactors(spec) => {
            (Action::GroupFactors(GroupFactorsStep::new(*spec, graph.meta(node.inputs[0]), isa)?), all())
        }
        Op::Quantize(_) | Op::Dequantize(_) | Op::QuantizedLinear(_) | Op::QuantizedConv(_) => {
            (Action::Quantized(Box::new(QuantizedStep::new(graph, node, isa)?)), vec![0])
        }
        Op::Conv(spec) => {
            let x = graph.meta(node.inputs[0]);
            let weights = floats(1)?;
            let conv = packs.conv(constant(1)?, spec.params, spec.layout, || {
                Ok(Conv::new(isa, spec.params, weights, spec.layout, spec.layout)?)
            })?;
            let frame = ConvFrame {
                batch: x.sizes()[0],
                input: pixels(x, spec.space),
                output: pixels(out, spec.space),
            };
            let bias = if spec.bias { Some(floats(2)?.to_vec()) } else { None };
            let step = ConvStep { conv, frame, bias, spec: *spec };
            (Action::Conv(Box::new(step)), residual_last(spec.residual))
        }
        Op::Linear(spec) => {
            let w = graph.meta(node.inputs[1]);
            let (rows, columns) = (w.sizes()[0], w.sizes()[1]);
            let plain = MatRef::new(floats(1)?, rows, columns);
            let plain = if spec.out_major { plain.t() } else { plain };
            let form = MatrixForm { rows: plain.rows(), columns: plain.cols(), transposed: spec.out_major };
            let weights = packs.matrix(constant(1)?, form, || Ok(PackedB::new(isa, plain)?))?;
            let bias = if spec.bias { Some(floats(2)?.to_vec()) } else { None };
            let step = LinearStep { weights, bias, spec: *spec, isa };
            (Action::Linear(Box::new(step)), residual_last(spec.residual))
        }
    })
}

use crate::data::Data;
use crate::error::{Result, fail};
use crate::payload::Role;
use crate::raise::{Interface, of_rank, raise, scalar_type};
use crate::{BACKEND_ID, Payload};
use graph::{Executable, Packs};
use operator::{Arg, Generator, Isa, KernelContext, KernelRegistry, Out, Scratch};
use pool::Pool;
use runtime::{
    Backend, BackendError, BackendExecutionContext, BackendInitContext, CompileSpec, Delegate,
    FreeableBuffer, Limits,
};
use std::sync::Arc;
use tensor::{DimOrder, Tensor, TensorMeta, TensorView, TensorViewMut};

/// Executables that a delegate keeps, for the sizes that it has met last.
const KEPT: usize = 8;

/// Runs the XNNPACK delegates of programs.
///
/// Payloads become calls of the operators of a registry, so that a kernel that the user has replaced is used here,
/// too.
pub struct XnnpackBackend {
    kernels: Arc<KernelRegistry>,
}

impl XnnpackBackend {
    /// A backend that computes with these operators.
    pub fn new(kernels: impl Into<Arc<KernelRegistry>>) -> Self {
        Self { kernels: kernels.into() }
    }
}

impl Backend for XnnpackBackend {
    fn id(&self) -> &str {
        BACKEND_ID
    }

    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        _: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        let payload = Payload::read(&processed, &format::Limits::default());
        let payload = payload.map_err(|e| BackendError::new(format!("the payload: {e}")))?;
        let num_inputs = inputs_of_calls(&payload)?;
        let data = Data::load(&payload, &processed, ctx.named_data())?;
        let mut delegate = XnnpackDelegate {
            payload: Arc::new(payload),
            data: Arc::new(data),
            num_inputs,
            kernels: Arc::clone(&self.kernels),
            packs: Packs::default(),
            lowered: Vec::new(),
            scratch: Scratch::new(Limits::default().scratch_bytes.min(ctx.bytes_left())),
            generator: Generator::new(0),
        };
        let interface = Interface::of(&delegate.payload);
        delegate.lower(interface, ctx.pool(), ctx.isa(), ctx.bytes_left())?;
        Ok(Box::new(delegate))
    }

    fn listing(&self, processed: &[u8]) -> Option<Result<String, BackendError>> {
        let payload = Payload::read(processed, &format::Limits::default());
        let payload = payload.map_err(|e| BackendError::new(format!("the payload: {e}")));
        Some(payload.map(|payload| payload.listing()))
    }
}

/// The number of a call's inputs. Those of a payload stand before its outputs.
fn inputs_of_calls(payload: &Payload) -> Result<usize> {
    let ids = payload.inputs.iter().chain(&payload.outputs).map(|&v| payload.values[v].role);
    for (expected, role) in ids.enumerate() {
        if let Role::Input(id) | Role::Output(id) = role
            && id as usize != expected
        {
            return fail(format!(
                "argument {expected} of a call is none of the payload's inputs and outputs"
            ));
        }
    }
    Ok(payload.inputs.len())
}

/// A payload with the executables that were made of it.
struct XnnpackDelegate {
    payload: Arc<Payload>,
    data: Arc<Data>,
    num_inputs: usize,
    kernels: Arc<KernelRegistry>,
    packs: Packs,
    /// The one used last stands last.
    lowered: Vec<(Interface, Isa, Executable)>,
    scratch: Scratch,
    generator: Generator,
}

impl XnnpackDelegate {
    /// Makes the executable for an interface the last.
    fn lower(&mut self, interface: Interface, pool: &Pool, isa: Isa, bytes: usize) -> Result<()> {
        let known = self.lowered.iter().position(|(other, level, _)| *other == interface && *level == isa);
        if let Some(at) = known {
            self.lowered[at..].rotate_left(1);
            return Ok(());
        }
        let graph = raise(&self.payload, &self.data, &self.kernels, &interface, bytes)?;
        let ctx = KernelContext::new(pool, &self.scratch, &self.generator).with_isa(isa);
        let executable = Executable::with_packs(graph, &ctx, &mut self.packs)?;
        if self.lowered.len() == KEPT {
            self.lowered.remove(0);
        }
        self.lowered.push((interface, isa, executable));
        Ok(())
    }

    fn run(
        &mut self,
        ctx: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<()> {
        let (pool, isa) = (ctx.pool(), ctx.isa());
        let inputs = self.inputs(inputs)?;
        let views: Vec<TensorView<'_>> = inputs.iter().map(Input::view).collect::<Result<_>>()?;
        let mut targets = targets(outputs, self.payload.outputs.len())?;
        let logical = inputs.iter().any(|input| matches!(input, Input::Copied(_)));
        let order = |t: &TensorViewMut<'_>| {
            if logical { DimOrder::contiguous(t.sizes().rank()) } else { *t.dim_order() }
        };
        let interface = Interface {
            inputs: views.iter().map(|view| view.sizes().to_vec()).collect(),
            outputs: targets.iter().map(|t| (t.dtype(), order(t))).collect(),
        };
        self.lower(interface, pool, isa, ctx.bytes_left())?;
        let Self { lowered, scratch, generator, .. } = self;
        let Some((.., executable)) = lowered.last_mut() else { return fail("nothing was lowered") };
        let kernels = KernelContext::new(pool, scratch, generator).with_isa(isa);
        Ok(executable.run(&kernels, ctx.tracer(), &views, &mut targets)?)
    }

    /// The inputs as the payload has them.
    fn inputs<'a>(&self, inputs: &[Arg<'a>]) -> Result<Vec<Input<'a>>> {
        if inputs.len() != self.payload.inputs.len() {
            return fail(format!(
                "{} inputs for the {} of the payload",
                inputs.len(),
                self.payload.inputs.len()
            ));
        }
        let each = inputs.iter().zip(&self.payload.inputs).enumerate();
        each.map(|(i, (arg, &v))| {
            let Arg::Tensor(view) = arg else { return fail(format!("input {i} is no tensor")) };
            let (meta, value) = (view.meta(), &self.payload.values[v]);
            let (dtype, rank) = (scalar_type(value.datatype), value.dims.len());
            let stored: Vec<usize> = meta.dim_order().iter().map(|&d| meta.sizes()[d as usize]).collect();
            let Some(sizes) = of_rank(&stored, rank).filter(|_| meta.dtype() == dtype) else {
                return fail(format!("input {i} is {meta}, the payload's is {dtype} of {rank} dimensions"));
            };
            if sizes != value.dims && meta.sizes()[..] == value.dims {
                return Ok(Input::Copied(view.to_tensor()?.to_dim_order(DimOrder::contiguous(rank))?));
            }
            Ok(Input::Stored(TensorMeta::contiguous(dtype, &sizes)?, *view))
        })
        .collect()
    }
}

/// An input of a call.
enum Input<'a> {
    /// The bytes of a tensor under its dimensions in the order in which they lie in memory: how payloads see images
    /// whose channels lie together.
    Stored(TensorMeta, TensorView<'a>),
    /// A tensor that is laid out otherwise, but whose sizes as they are called are the payload's: how the first
    /// releases wrote such images.
    Copied(Tensor),
}

impl Input<'_> {
    fn view(&self) -> Result<TensorView<'_>> {
        match self {
            Self::Stored(meta, view) => Ok(TensorView::new(meta, view.bytes())?),
            Self::Copied(tensor) => Ok(tensor.view()),
        }
    }
}

/// The tensors to write.
fn targets<'o>(outputs: &'o mut [Out<'_>], expected: usize) -> Result<Vec<TensorViewMut<'o>>> {
    if outputs.len() != expected {
        return fail(format!("{} outputs for the {expected} of the payload", outputs.len()));
    }
    let each = outputs.iter_mut().enumerate().map(|(i, out)| match out {
        Out::Tensor(view) => Ok(view.reborrow()),
        _ => fail(format!("output {i} is no tensor")),
    });
    each.collect()
}

impl Delegate for XnnpackDelegate {
    fn fork(&self) -> Option<Box<dyn Delegate>> {
        let lowered = self.lowered.iter().map(|(interface, isa, executable)| {
            executable.fork().ok().map(|executable| (interface.clone(), *isa, executable))
        });
        Some(Box::new(Self {
            payload: Arc::clone(&self.payload),
            data: Arc::clone(&self.data),
            num_inputs: self.num_inputs,
            kernels: Arc::clone(&self.kernels),
            packs: self.packs.clone(),
            lowered: lowered.collect::<Option<_>>()?,
            scratch: Scratch::new(Limits::default().scratch_bytes),
            generator: Generator::new(0),
        }))
    }

    fn num_inputs(&self) -> usize {
        self.num_inputs
    }

    fn execute(
        &mut self,
        ctx: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        Ok(self.run(ctx, inputs, outputs)?)
    }
}

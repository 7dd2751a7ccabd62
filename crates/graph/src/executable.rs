//! A graph lowered to steps over a planned workspace.

use crate::graph::{Constant, Graph};
use crate::lower::lower;
use crate::packs::Packs;
use crate::steps::PlacedStep;
use operator::{Error, Held, KernelContext, Result};
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::{AlignedBuffer, Arenas, Extent, TensorMeta, TensorView, TensorViewMut};
use trace::{Place, SpanKind, Tracer};

/// What takes the memory of a workspace, for messages.
pub(crate) const WORKSPACE: &str = "its workspaces";

/// How output memory is aligned that steps write themselves: as the widest element.
const OUTPUT_ALIGNMENT: usize = 16;

/// A graph ready to run: steps in the order in which they run, weights packed, a workspace with a place
/// for every value.
pub struct Executable {
    pub(crate) steps: Arc<[PlacedStep]>,
    pub(crate) values: Arc<[Slot]>,
    /// By their numbers among the values.
    pub(crate) inputs: Arc<[usize]>,
    pub(crate) outputs: Arc<[usize]>,
    pub(crate) arena: Arenas,
    pub(crate) workspace: usize,
    /// As what steps are reported.
    pub(crate) kind: SpanKind,
    pub(crate) held: Held,
    /// The instruction whose result the step computes that failed last.
    pub(crate) failed: Place,
}

/// A value at run time.
pub(crate) struct Slot {
    pub(crate) meta: Arc<TensorMeta>,
    pub(crate) source: Source,
    /// The output of the graph that has its bytes, if it is one alone: in a run whose output lies as the value, that is
    /// where the value is.
    pub(crate) output: Option<usize>,
}

/// The memory of a run.
pub(crate) struct Memory<'r, 'a> {
    pub(crate) arena: &'r mut Arenas,
    pub(crate) inputs: &'r [TensorView<'r>],
    /// The outputs, those that steps write themselves.
    pub(crate) outputs: &'r mut [Option<TensorViewMut<'a>>],
}

/// Where a step finds a value.
pub(crate) enum Source {
    /// In the workspace.
    Workspace(Extent),
    /// A constant that a step reads as it is.
    Constant(Constant),
    /// The caller's input.
    Input(usize),
    /// Nowhere: packed away, or not used.
    None,
}

impl Executable {
    /// Lowers a graph: runs the passes, packs weights, plans the workspace. The executable
    /// is compiled for the instruction set of `ctx` and keeps it, even if it is run under another context.
    pub fn new(graph: Graph, ctx: &KernelContext<'_>) -> Result<Self> {
        Self::with_packs(graph, ctx, &mut Packs::default())
    }

    /// As [`Self::new`], sharing weights that other executables have packed.
    pub fn with_packs(mut graph: Graph, ctx: &KernelContext<'_>, packs: &mut Packs) -> Result<Self> {
        crate::passes::run(&mut graph, ctx);
        crate::layouts::check(&graph)?;
        lower(graph, ctx, packs)
    }

    /// The same steps, with their weights, over a workspace of their own.
    pub fn fork(&self) -> Result<Self> {
        let held = self.held.again(WORKSPACE)?;
        let mut arena = Arenas::new();
        arena.push(AlignedBuffer::long_lived(self.workspace)?);
        Ok(Self {
            steps: Arc::clone(&self.steps),
            values: Arc::clone(&self.values),
            inputs: Arc::clone(&self.inputs),
            outputs: Arc::clone(&self.outputs),
            arena,
            workspace: self.workspace,
            kind: self.kind,
            held,
            failed: Place::default(),
        })
    }

    /// The same, whose steps are those of a delegate: they are reported so, within its call.
    #[must_use]
    pub fn of_delegate(mut self) -> Self {
        self.kind = SpanKind::DelegateStep;
        self
    }

    /// Bytes of the workspace.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace
    }

    /// The number of steps.
    pub fn num_steps(&self) -> usize {
        self.steps.len()
    }

    /// The steps in order: the name of each and the instructions that it stands for, the last of which is the
    /// one whose result it computes.
    pub fn steps(&self) -> impl Iterator<Item = (&str, &[Place])> {
        self.steps.iter().map(|step| (&*step.name, &*step.origins))
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
        for (given, &input) in inputs.iter().zip(&*self.inputs) {
            let expected = &self.values[input].meta;
            let (order, sizes) = (given.meta().dim_order(), expected.sizes());
            let same = given.meta().sizes() == sizes && given.dtype() == expected.dtype();
            if !same || !order.same_layout(expected.dim_order(), sizes) {
                let given = given.meta();
                return Err(Error::invalid(format!("an input {given} of a graph lowered for {expected}")));
            }
        }
        let mut direct: SmallVec<[Option<TensorViewMut<'_>>; 2]> = SmallVec::new();
        for (&v, out) in self.outputs.iter().zip(&mut *outputs) {
            let slot = &self.values[v];
            out.resize(slot.meta.sizes())?;
            direct.push((slot.output.is_some() && slot.lies_as(out)).then(|| out.reborrow()));
        }
        for step in &*self.steps {
            let memory = Memory { arena: &mut self.arena, inputs, outputs: &mut direct };
            if let Err(error) = step.traced(ctx, (tracer, self.kind), &self.values, memory) {
                self.failed = step.origin();
                return Err(step.named(error));
            }
        }
        let is_written: SmallVec<[bool; 2]> = direct.iter().map(Option::is_some).collect();
        drop(direct);
        for ((&v, out), is_written) in self.outputs.iter().zip(outputs).zip(is_written) {
            if !is_written {
                self.values[v].view(inputs, |extent| self.arena.bytes(extent))?.relayout(out)?;
            }
        }
        Ok(())
    }
}

impl Slot {
    /// Whether a tensor of the same sizes has the value's layout, and memory that any element type can lie in.
    fn lies_as(&self, out: &TensorViewMut<'_>) -> bool {
        out.dtype() == self.meta.dtype()
            && self.meta.dim_order().same_layout(out.dim_order(), self.meta.sizes())
            && out.bytes().as_ptr().align_offset(OUTPUT_ALIGNMENT) == 0
    }

    /// The value, where `lent` gives bytes of the workspace.
    pub(crate) fn view<'a>(
        &'a self,
        inputs: &[TensorView<'a>],
        lent: impl FnOnce(Extent) -> tensor::Result<&'a [u8]>,
    ) -> Result<TensorView<'a>> {
        let bytes = match &self.source {
            Source::Workspace(extent) => lent(*extent)?,
            Source::Constant(constant) => {
                let bytes = constant.bytes().get(..self.meta.nbytes());
                bytes.ok_or_else(|| Error::invalid("a constant with fewer bytes than its shape asks for"))?
            }
            Source::Input(i) => inputs[*i].bytes(),
            Source::None => return Err(Error::invalid("a value of a graph that nothing computes is read")),
        };
        Ok(TensorView::new(&self.meta, bytes)?)
    }
}

//! What the graph's own kinds of node have in common: how their operands lie, how they lower to a step, what
//! they can take in.

use crate::graph::{Graph, Kind, NodeId, ValueId};
use crate::layouts::Lies;
use crate::packs::Packs;
use crate::steps::Step;
use kernels::compute::{Activation, Isa};
use operator::{Error, Result};
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use tensor::TensorMeta;

/// A kind of node that lowers to a step: the graph's own kinds, and any that a crate above brings. A node of it
/// is made with [`Fused::new`].
pub trait Operation: Any + fmt::Debug + Send + Sync {
    /// A name for listings, events and errors.
    fn name(&self) -> &str;

    /// Writes the attributes for listings, as `key: value, key: value`.
    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = f;
        Ok(())
    }

    /// Whether every element of the result is computed from the elements at its place in the inputs, all of which
    /// have the sizes of the result: the layout is then that of the first input, whatever it is.
    fn is_elementwise(&self) -> bool {
        false
    }

    /// How the `i`th operand of a node must lie in memory: its inputs are counted first, then its outputs.
    fn lies(&self, i: usize, inputs: usize) -> Lies {
        let _ = inputs;
        match (self.is_elementwise(), i) {
            (false, _) => Lies::Plain,
            (true, 0) => Lies::Anyhow,
            (true, _) => Lies::AsFirst,
        }
    }

    /// Makes the step of a node of this kind.
    ///
    /// # Errors
    /// If the node is none that can run: weights that are not known, say.
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered>;

    /// The same with an activation applied to its result, if it can do that.
    fn with_activation(&self, activation: Activation) -> Option<Arc<dyn Kind>> {
        let _ = activation;
        None
    }

    /// The same with one more input, of the sizes of the result, added to the result, if it can do that.
    fn with_residual(&self) -> Option<Arc<dyn Kind>> {
        None
    }

    /// What it makes of images that exist in channels-last form, too.
    fn images(&self) -> Images {
        if self.is_elementwise() { Images::Follows } else { Images::None }
    }
}

/// What a kind of node does with images `[N, C, space..]` that may be channels-last.
#[derive(Clone, Debug, Default)]
pub enum Images {
    /// It needs them as they are.
    #[default]
    None,
    /// It is best with channels-last images: of this kind, with the first input, and the last if it is a
    /// residual, and the output in that form.
    Prefers {
        /// The kind for channels-last images.
        kind: Arc<dyn Kind>,
        /// Whether the last input is a residual.
        residual: bool,
    },
    /// It takes either, and writes what it takes: all inputs of the output's sizes.
    Follows,
    /// Its first input may have either form; other inputs and the outputs are no images.
    Reads,
}

/// A kind of node that is an [`Operation`].
#[derive(Clone, Debug)]
pub struct Fused(Arc<dyn Operation>);

impl Fused {
    /// The kind of nodes that do `operation`.
    pub fn new(operation: impl Operation) -> Self {
        Self(Arc::new(operation))
    }

    /// The kind, shared.
    pub fn kind(operation: impl Operation) -> Arc<dyn Kind> {
        Arc::new(Self::new(operation))
    }

    /// What the nodes do.
    pub fn operation(&self) -> &dyn Operation {
        &*self.0
    }
}

impl Kind for Fused {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.attributes(f)
    }
}

/// What a node does, if it is of the graph's own kinds or another's.
pub fn operation(graph: &Graph, node: NodeId) -> Option<&dyn Operation> {
    Some(graph.node(node).kind_as::<Fused>()?.operation())
}

/// What a node does, if it does this.
pub fn as_op<T: Operation>(graph: &Graph, node: NodeId) -> Option<&T> {
    (operation(graph, node)? as &dyn Any).downcast_ref()
}

/// The node that defines a value and what it does, if it does this.
pub(crate) fn made_by<T: Operation>(graph: &Graph, value: ValueId) -> Option<(NodeId, &T)> {
    let node = graph.producer(value)?;
    Some((node, as_op(graph, node)?))
}

/// A node that is being lowered.
pub struct Lowering<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) node: NodeId,
    pub(crate) isa: Isa,
    pub(crate) packs: &'g Packs,
}

impl<'g> Lowering<'g> {
    /// The instructions that the step may use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The number of inputs.
    pub fn inputs(&self) -> usize {
        self.graph.node(self.node).inputs().len()
    }

    /// Type, sizes and layout of an input.
    ///
    /// # Errors
    /// If there is no such input.
    pub fn input(&self, i: usize) -> Result<&'g TensorMeta> {
        Ok(self.graph.meta(self.value(i)?))
    }

    /// Type, sizes and layout of an output.
    ///
    /// # Errors
    /// If there is no such output.
    pub fn output(&self, i: usize) -> Result<&'g TensorMeta> {
        let value = self.graph.node(self.node).outputs().get(i);
        value.map(|&v| self.graph.meta(v)).ok_or_else(|| Error::invalid("a node with too few outputs"))
    }

    /// An input that is a constant, as a tensor.
    ///
    /// # Errors
    /// If it is none.
    pub fn constant(&self, i: usize) -> Result<tensor::TensorView<'g>> {
        let value = self.value(i)?;
        self.graph.view(value).ok_or_else(|| unreadable(self.graph.value(value).constant()))
    }

    /// Elements of an input that is a constant of f32, in storage order.
    ///
    /// # Errors
    /// If it is none.
    pub fn floats(&self, i: usize) -> Result<&'g [f32]> {
        Ok(self.constant(i)?.storage()?)
    }

    /// As [`Self::floats`], copied, where an input is said to be there.
    ///
    /// # Errors
    /// As [`Self::floats`].
    pub fn floats_if(&self, there: bool, i: usize) -> Result<Option<Vec<f32>>> {
        there.then(|| Ok(tensor::memory::copied(self.floats(i)?)?)).transpose()
    }

    /// The owner of the bytes of an input that is a constant.
    pub(crate) fn owner(&self, i: usize) -> Result<&'g crate::Constant> {
        self.graph.value(self.value(i)?).constant().ok_or_else(|| unreadable(None))
    }

    fn value(&self, i: usize) -> Result<ValueId> {
        let value = self.graph.node(self.node).inputs().get(i).copied();
        value.ok_or_else(|| Error::invalid("a node with too few inputs"))
    }
}

/// The bytes of weights as a tensor of this meta.
///
/// # Errors
/// Why they cannot be had.
pub(crate) fn viewed<'a>(
    weights: &'a crate::Constant,
    meta: &'a TensorMeta,
) -> Result<tensor::TensorView<'a>> {
    weights.view(meta).ok_or_else(|| unreadable(Some(weights)))
}

fn unreadable(constant: Option<&crate::Constant>) -> Error {
    let problem = constant.and_then(crate::Constant::problem);
    let unknown = || "weights that are not known when the graph is lowered".to_owned();
    Error::invalid(problem.unwrap_or_else(unknown))
}

/// What a node becomes.
pub enum Lowered {
    /// Nothing runs: the output has the bytes of the first input.
    Alias,
    /// A step, with the inputs that it reads when it runs, rising.
    Step {
        /// The step.
        step: Box<dyn Step>,
        /// Which inputs of the node it reads.
        reads: Vec<usize>,
    },
}

impl Lowered {
    /// A step that reads these inputs.
    pub fn step(step: impl Step + 'static, reads: impl IntoIterator<Item = usize>) -> Self {
        Self::Step { step: Box::new(step), reads: reads.into_iter().collect() }
    }
}

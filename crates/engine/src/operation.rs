//! The interface of operations, the kinds of node that lower to steps: operand layouts, lowering, fusion.

use crate::graph::{Graph, Kind, NodeId, ValueId};
use crate::layouts::LayoutReq;
use crate::operands::Operands;
use crate::packs::Packs;
use crate::steps::Step;
use pteron_kernels::compute::{Activation, Isa};
use pteron_operator::{Error, Result};
use pteron_tensor::TensorMeta;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A kind of node that lowers to a step: those of this crate, and any that a dependent crate defines. [`OpKind::new`]
/// makes it the kind of a node.
pub trait Operation: Any + fmt::Debug + Send + Sync {
    /// A name for listings, events and errors.
    fn name(&self) -> &str;

    /// Writes the attributes for listings, in the form `key: value, key: value`.
    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = f;
        Ok(())
    }

    /// Whether each element of the result depends only on the elements of the inputs at the same index, and all inputs
    /// have the sizes of the result. Any layout is accepted then, as long as all operands have that of the first input.
    fn is_elementwise(&self) -> bool {
        false
    }

    /// The memory layout required of the `i`th operand of a node, counting the inputs first and then the outputs.
    fn operand_layout(&self, i: usize, inputs: usize) -> LayoutReq {
        let _ = inputs;
        match (self.is_elementwise(), i) {
            (false, _) => LayoutReq::RowMajor,
            (true, 0) => LayoutReq::Any,
            (true, _) => LayoutReq::SameAsInput0,
        }
    }

    /// Checks that a node of this kind can run: that its operands have the number, types and sizes that its step assumes.
    /// Every node is checked before a graph is lowered, whether a pass made it or a file holds it. Layouts are checked
    /// separately ([`Self::operand_layout`]).
    ///
    /// # Errors
    /// The node cannot run.
    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let _ = operands;
        Ok(())
    }

    /// Lowers a node of this kind to a step.
    ///
    /// # Errors
    /// The node cannot run, for example because its weights are not constant.
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered>;

    /// This operation with an activation applied to its result, if that can be fused.
    fn with_activation(&self, activation: Activation) -> Option<Arc<dyn Kind>> {
        let _ = activation;
        None
    }

    /// This operation with a residual, one more input of the result's sizes that is added to the result, if that can be
    /// fused.
    fn with_residual(&self) -> Option<Arc<dyn Kind>> {
        None
    }

    /// How it uses images that are available in channels-last form.
    fn images(&self) -> Images {
        if self.is_elementwise() { Images::Follows } else { Images::None }
    }
}

/// How an operation uses images `[N, C, space..]` that may be channels-last.
#[derive(Clone, Debug, Default)]
pub enum Images {
    /// It needs them in their original layout.
    #[default]
    None,
    /// It runs fastest on channels-last images. The node gets this kind, and its first input, its residual and its
    /// output become channels-last.
    Prefers {
        /// The kind for channels-last images.
        kind: Arc<dyn Kind>,
        /// Whether the last input is a residual.
        residual: bool,
    },
    /// It accepts both layouts and writes the layout that it reads; this applies to all inputs with the output's sizes.
    Follows,
    /// Its first input may have either layout; other inputs and the outputs are not images.
    Reads,
}

/// The node kind of an [`Operation`].
#[derive(Clone, Debug)]
pub struct OpKind(Arc<dyn Operation>);

impl OpKind {
    /// The kind of nodes that compute `operation`.
    pub fn new(operation: impl Operation) -> Self {
        Self(Arc::new(operation))
    }

    /// The kind in an `Arc`.
    pub fn arc(operation: impl Operation) -> Arc<dyn Kind> {
        Arc::new(Self::new(operation))
    }

    /// The operation.
    pub fn operation(&self) -> &dyn Operation {
        &*self.0
    }
}

impl Kind for OpKind {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.attributes(f)
    }
}

/// The operation of a node; `None` if the node is a call.
pub fn operation(graph: &Graph, node: NodeId) -> Option<&dyn Operation> {
    Some(graph.node(node).kind_as::<OpKind>()?.operation())
}

/// The operation of a node as a `T`, if it is one.
pub fn as_op<T: Operation>(graph: &Graph, node: NodeId) -> Option<&T> {
    (operation(graph, node)? as &dyn Any).downcast_ref()
}

/// The node that defines a value and its operation as a `T`, if it is one.
pub(crate) fn producer_as<T: Operation>(graph: &Graph, value: ValueId) -> Option<(NodeId, &T)> {
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
    /// The instruction set that the step may use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The number of inputs.
    pub fn inputs(&self) -> usize {
        self.graph.node(self.node).inputs().len()
    }

    /// Element type, sizes and layout of an input.
    ///
    /// # Errors
    /// The node has no such input.
    pub fn input(&self, i: usize) -> Result<&'g TensorMeta> {
        Ok(self.graph.meta(self.value(i)?))
    }

    /// Element type, sizes and layout of an output.
    ///
    /// # Errors
    /// The node has no such output.
    pub fn output(&self, i: usize) -> Result<&'g TensorMeta> {
        let value = self.graph.node(self.node).outputs().get(i);
        value.map(|&v| self.graph.meta(v)).ok_or_else(|| Error::invalid("a node has too few outputs"))
    }

    /// A constant input as a tensor.
    ///
    /// # Errors
    /// The input is missing, is not a constant, or its bytes cannot be loaded.
    pub fn constant(&self, i: usize) -> Result<pteron_tensor::TensorView<'g>> {
        let value = self.value(i)?;
        self.graph.view(value).ok_or_else(|| unreadable(self.graph.value(value).constant()))
    }

    /// The elements of a constant f32 input, in storage order.
    ///
    /// # Errors
    /// As [`Self::constant`], or the elements are not f32.
    pub fn floats(&self, i: usize) -> Result<&'g [f32]> {
        Ok(self.constant(i)?.storage()?)
    }

    /// A copy of [`Self::floats`], or `None` if the optional input is not `present`.
    ///
    /// # Errors
    /// As [`Self::floats`].
    pub fn floats_if(&self, present: bool, i: usize) -> Result<Option<Vec<f32>>> {
        present.then(|| Ok(pteron_tensor::memory::copied(self.floats(i)?)?)).transpose()
    }

    /// The owner of a constant input's bytes.
    pub(crate) fn owner(&self, i: usize) -> Result<&'g crate::Constant> {
        self.graph.value(self.value(i)?).constant().ok_or_else(|| unreadable(None))
    }

    fn value(&self, i: usize) -> Result<ValueId> {
        let value = self.graph.node(self.node).inputs().get(i).copied();
        value.ok_or_else(|| Error::invalid("a node has too few inputs"))
    }
}

/// Constant weights as a tensor with this meta.
///
/// # Errors
/// The bytes cannot be loaded.
pub(crate) fn view_of<'a>(
    weights: &'a crate::Constant,
    meta: &'a TensorMeta,
) -> Result<pteron_tensor::TensorView<'a>> {
    weights.view(meta).ok_or_else(|| unreadable(Some(weights)))
}

fn unreadable(constant: Option<&crate::Constant>) -> Error {
    let problem = constant.and_then(crate::Constant::problem);
    let unknown = || "weights are not constant when the graph is lowered".to_owned();
    Error::invalid(problem.unwrap_or_else(unknown))
}

/// The result of lowering a node.
pub enum Lowered {
    /// Nothing runs: the output aliases the first input.
    Alias,
    /// A step, with the inputs that it reads at run time.
    Step {
        /// The step.
        step: Box<dyn Step>,
        /// The indices of the node's inputs that it reads, in increasing order.
        reads: Vec<usize>,
    },
}

impl Lowered {
    /// A step that reads these inputs.
    pub fn step(step: impl Step + 'static, reads: impl IntoIterator<Item = usize>) -> Self {
        Self::Step { step: Box::new(step), reads: reads.into_iter().collect() }
    }
}

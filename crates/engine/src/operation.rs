//! The interface of operations: attributes, operand layouts, validity, fusion.

use crate::graph::{Graph, Kind, NodeId, ValueId};
use crate::layouts::LayoutReq;
use crate::operands::Operands;
use pteron_kernels::compute::Activation;
use pteron_operator::Result;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What a node of a fused graph computes. [`OpKind::new`] makes it the kind of a node.
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

    /// Whether each index of dimension 0 of the results depends only on the same index of dimension 0 of the operands
    /// that are no constants; all of these have the same number of them, outermost in memory. A batch is then computed
    /// in parts.
    fn keeps_rows_apart(&self, operands: &Operands<'_>) -> bool {
        self.is_elementwise() && !operands.any_constant()
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

    /// Checks that a node of this kind can run: that its operands have the number, types and sizes that its step
    /// assumes. Every node is checked before a graph is lowered, whether a pass made it or a file holds it. Layouts are
    /// checked separately ([`Self::operand_layout`]).
    ///
    /// # Errors
    /// The node cannot run.
    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let _ = operands;
        Ok(())
    }

    /// This operation followed by an activation of its result; `None` if the two cannot be fused.
    fn with_activation(&self, activation: Activation) -> Option<Arc<dyn Kind>> {
        let _ = activation;
        None
    }

    /// This operation with a residual, one more input of the result's sizes that is added to the result, if that can be
    /// fused.
    fn with_residual(&self) -> Option<Arc<dyn Kind>> {
        None
    }

    /// How the operation uses images that are available in channels-last form.
    fn image_layouts(&self) -> ImageLayouts {
        if self.is_elementwise() { ImageLayouts::Follows } else { ImageLayouts::None }
    }
}

/// How an operation uses images `[N, C, space..]` that may be channels-last.
#[derive(Clone, Debug, Default)]
pub enum ImageLayouts {
    /// The operation needs images in their original layout.
    #[default]
    None,
    /// It runs fastest on channels-last images. The node's kind becomes `kind`, and its first input, its residual and
    /// its output become channels-last.
    Prefers {
        /// The kind for channels-last images.
        kind: Arc<dyn Kind>,
        /// Whether the last input of the node is a residual.
        residual: bool,
    },
    /// The operation writes the layout that it reads, either one. All inputs with the output's sizes must have it.
    Follows,
    /// The operation's first input may have either layout; other inputs and the outputs are not images.
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

    /// The kind of nodes that compute `operation`, in an `Arc`.
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

/// The operation of a node; `None` if the node's kind is no `OpKind`, as for a call.
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

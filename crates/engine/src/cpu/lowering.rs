//! How an operation becomes a step: the interface that each file of this folder implements for one operation.

use super::packs::Packs;
use super::step::Step;
use super::weights::unreadable_weights;
use crate::graph::{Graph, NodeId, ValueId};
use pteron_kernels::compute::Isa;
use pteron_operator::{Error, Result};
use pteron_tensor::TensorMeta;

/// An operation that can be lowered to a step on the CPU.
pub(crate) trait Lower {
    /// Lowers a node of this kind to a step.
    ///
    /// # Errors
    /// The node cannot run, for example because its weights are not constant.
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered>;
}

/// A node that is being lowered.
pub(crate) struct Lowering<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) node: NodeId,
    pub(crate) isa: Isa,
    pub(crate) packs: &'g Packs,
}

impl<'g> Lowering<'g> {
    /// The instruction set that the step may use.
    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// The number of the node's inputs.
    pub(crate) fn num_inputs(&self) -> usize {
        self.graph.node(self.node).inputs().len()
    }

    /// Element type, sizes and layout of an input.
    ///
    /// # Errors
    /// The node has no such input.
    pub(crate) fn input(&self, i: usize) -> Result<&'g TensorMeta> {
        Ok(self.graph.meta(self.value(i)?))
    }

    /// Element type, sizes and layout of an output.
    ///
    /// # Errors
    /// The node has no such output.
    pub(crate) fn output(&self, i: usize) -> Result<&'g TensorMeta> {
        let value = self.graph.node(self.node).outputs().get(i);
        value.map(|&v| self.graph.meta(v)).ok_or_else(|| Error::invalid("a node has too few outputs"))
    }

    /// A constant input as a tensor.
    ///
    /// # Errors
    /// The input is missing, is not a constant, or its bytes cannot be loaded.
    pub(crate) fn constant_view(&self, i: usize) -> Result<pteron_tensor::TensorView<'g>> {
        let value = self.value(i)?;
        self.graph.view(value).ok_or_else(|| unreadable_weights(self.graph.value(value).constant()))
    }

    /// The elements of a constant f32 input, in storage order.
    ///
    /// # Errors
    /// As [`Self::constant_view`], or the elements are not f32.
    pub(crate) fn floats(&self, i: usize) -> Result<&'g [f32]> {
        Ok(self.constant_view(i)?.storage()?)
    }

    /// A copy of [`Self::floats`], or `None` if the optional input is not `present`.
    ///
    /// # Errors
    /// As [`Self::floats`].
    pub(crate) fn floats_if(&self, present: bool, i: usize) -> Result<Option<Vec<f32>>> {
        present.then(|| Ok(pteron_tensor::memory::copied(self.floats(i)?)?)).transpose()
    }

    /// A constant input as the graph's constant, which owns the bytes; they are not loaded.
    pub(crate) fn constant_input(&self, i: usize) -> Result<&'g crate::Constant> {
        self.graph.value(self.value(i)?).constant().ok_or_else(|| unreadable_weights(None))
    }

    fn value(&self, i: usize) -> Result<ValueId> {
        let value = self.graph.node(self.node).inputs().get(i).copied();
        value.ok_or_else(|| Error::invalid("a node has too few inputs"))
    }
}

/// The result of lowering a node.
pub(super) enum Lowered {
    /// Nothing runs: the node's output aliases its first input.
    Alias,
    /// A step runs; it reads some of the node's inputs.
    Step {
        /// The step that computes the node.
        step: Box<dyn Step>,
        /// The indices of the node's inputs that the step reads, in increasing order.
        reads: Vec<usize>,
    },
}

impl Lowered {
    /// A step that reads the node's inputs with these indices.
    pub(super) fn step(step: impl Step + 'static, reads: impl IntoIterator<Item = usize>) -> Self {
        Self::Step { step: Box::new(step), reads: reads.into_iter().collect() }
    }
}

//! What an operation requires of the operands and results of its nodes beside their layouts: one rule for nodes from passes
//! and from files.

use crate::graph::{Graph, NodeId};
use pteron_operator::{Error, Result};
use pteron_tensor::{ScalarType, TensorMeta};

/// The operands and results of a node.
pub struct Operands<'g> {
    graph: &'g Graph,
    node: NodeId,
}

/// Returns the error that a node cannot run because of `problem`.
pub(crate) fn refuse<T>(problem: impl Into<String>) -> Result<T> {
    Err(Error::invalid(problem))
}

impl<'g> Operands<'g> {
    pub(crate) fn new(graph: &'g Graph, node: NodeId) -> Self {
        Self { graph, node }
    }

    /// Element type, sizes and layout of an input.
    ///
    /// # Errors
    /// The node has no such input.
    pub fn input(&self, i: usize) -> Result<&'g TensorMeta> {
        let value = self.graph.node(self.node).inputs().get(i);
        value.map(|&v| self.graph.meta(v)).ok_or_else(|| Error::invalid("too few operands"))
    }

    /// Element type, sizes and layout of each input.
    pub fn inputs(&self) -> Vec<&'g TensorMeta> {
        self.graph.node(self.node).inputs().iter().map(|&v| self.graph.meta(v)).collect()
    }

    /// Element type, sizes and layout of an input, which must be a constant.
    ///
    /// # Errors
    /// The node has no such input, or it is computed.
    pub fn constant(&self, i: usize) -> Result<&'g TensorMeta> {
        let value = self.graph.node(self.node).inputs().get(i);
        match value.is_some_and(|&v| self.graph.is_constant(v)) {
            true => self.input(i),
            false => refuse(format!("operand {i} is not a constant")),
        }
    }

    /// Whether an operand is a constant.
    pub fn is_constant(&self, i: usize) -> bool {
        self.constant(i).is_ok()
    }

    /// Whether any operand is a constant.
    pub fn any_constant(&self) -> bool {
        self.graph.node(self.node).inputs().iter().any(|&v| self.graph.is_constant(v))
    }

    /// Whether the residual, which is the last operand, is computed, or there is none.
    pub(crate) fn has_computed_residual(&self, present: bool) -> bool {
        !present || !self.is_constant(self.graph.node(self.node).inputs().len().saturating_sub(1))
    }

    /// Whether operand 0 has more dimensions than its rows.
    pub(crate) fn has_matrix(&self) -> bool {
        self.input(0).is_ok_and(|x| x.rank() > 1)
    }

    /// Element type, sizes and layout of a result.
    ///
    /// # Errors
    /// The node has no such result.
    pub fn output(&self, i: usize) -> Result<&'g TensorMeta> {
        let value = self.graph.node(self.node).outputs().get(i);
        value.map(|&v| self.graph.meta(v)).ok_or_else(|| Error::invalid("too few results"))
    }

    /// Checks the numbers of operands and results.
    ///
    /// # Errors
    /// They differ from `inputs` and `outputs`.
    pub fn check_counts(&self, inputs: usize, outputs: usize) -> Result<()> {
        let node = self.graph.node(self.node);
        let actual = (node.inputs().len(), node.outputs().len());
        if actual == (inputs, outputs) {
            return Ok(());
        }
        refuse(format!("{} operands and {} results, expected {inputs} and {outputs}", actual.0, actual.1))
    }

    /// Checks that all operands and results are float32.
    ///
    /// # Errors
    /// One is not.
    pub fn check_all_floats(&self) -> Result<()> {
        let node = self.graph.node(self.node);
        let mut all = node.inputs().iter().chain(node.outputs()).map(|&v| self.graph.meta(v));
        match all.find(|meta| !is_float(meta)) {
            Some(meta) => refuse(format!("{meta} where float32 is expected")),
            None => Ok(()),
        }
    }

    /// Checks that an operand is a float32 constant with `len` elements.
    pub(crate) fn check_vector(&self, i: usize, len: usize) -> Result<()> {
        let meta = self.constant(i)?;
        match meta.numel() == len && is_float(meta) {
            true => Ok(()),
            false => refuse(format!("operand {i} is {meta}, expected {len} constants of float32")),
        }
    }

    /// Checks that an operand has the type and sizes of the result.
    pub(crate) fn check_same_as_output(&self, i: usize) -> Result<()> {
        let (meta, out) = (self.input(i)?, self.output(0)?);
        match meta.dtype() == out.dtype() && meta.sizes() == out.sizes() {
            true => Ok(()),
            false => refuse(format!("operand {i} is {meta}, the result {out}")),
        }
    }

    /// Checks that there is one operand and one result, of the same sizes.
    pub(crate) fn check_same_sizes(&self) -> Result<()> {
        self.check_counts(1, 1)?;
        let (from, to) = (self.input(0)?, self.output(0)?);
        match from.sizes() == to.sizes() {
            true => Ok(()),
            false => refuse(format!("the operand is {from}, the result {to}, expected equal sizes")),
        }
    }

    /// Checks the residual, which is the last operand, if `present`.
    pub(crate) fn check_residual(&self, present: bool) -> Result<()> {
        let last = self.graph.node(self.node).inputs().len().saturating_sub(1);
        if present { self.check_same_as_output(last) } else { Ok(()) }
    }

    /// Checks that an operand is float32 and broadcasts to the result.
    pub(crate) fn check_broadcasts(&self, i: usize) -> Result<()> {
        let (meta, out) = (self.input(i)?, self.output(0)?);
        let lead = out.rank().checked_sub(meta.rank());
        let fits = |lead: usize| {
            let sizes = meta.sizes().iter().zip(&out.sizes()[lead..]);
            sizes.into_iter().all(|(from, to)| from == to || *from == 1)
        };
        match lead.is_some_and(fits) && is_float(meta) {
            true => Ok(()),
            false => refuse(format!("operand {i}, {meta}, does not broadcast to {out}")),
        }
    }

    /// Checks that each size of the result is 1 or equals the size of an operand, as broadcasting requires.
    pub(crate) fn check_broadcast_result(&self) -> Result<()> {
        let (inputs, out) = (self.inputs(), self.output(0)?);
        // Dimensions counted from the last, which broadcasting aligns.
        let is_given = |back: usize, size: usize| {
            inputs.iter().any(|meta| meta.sizes().iter().rev().nth(back).is_some_and(|&own| own == size))
        };
        let mut sizes = out.sizes().iter().rev().enumerate();
        match sizes.all(|(back, &size)| size == 1 || inputs.is_empty() || is_given(back, size)) {
            true => Ok(()),
            false => refuse(format!("the operands do not broadcast to the sizes of {out}")),
        }
    }

    /// Checks the product of operand 0 with the weights, operand 1. Returns the inner size, at most `max_inner`, and
    /// the outer size of the weights.
    pub(crate) fn check_product(&self, out_major: bool, max_inner: usize) -> Result<(usize, usize)> {
        let (x, weights, out) = (self.input(0)?, self.constant(1)?, self.output(0)?);
        let &[rows, columns] = &**weights.sizes() else {
            return refuse(format!("the weights are {weights}, expected a matrix"));
        };
        let (inner, outer) = if out_major { (columns, rows) } else { (rows, columns) };
        let mut expected = x.sizes().to_vec();
        let is_row = expected.last() == Some(&inner) && inner > 0 && outer > 0;
        expected.last_mut().into_iter().for_each(|last| *last = outer);
        if !is_row || **out.sizes() != *expected || inner > max_inner {
            return refuse(format!("the product of {x} and {weights} does not give {out}"));
        }
        Ok((inner, outer))
    }

    /// Checks that input 0 is a non-empty f32 image. Returns it and its number of channels.
    pub(crate) fn check_image(&self) -> Result<(&'g TensorMeta, usize)> {
        self.check_all_floats()?;
        let x = self.input(0)?;
        match &**x.sizes() {
            [_, channels, _, ..] if x.numel() > 0 => Ok((x, *channels)),
            _ => refuse(format!("{x} is not a non-empty image")),
        }
    }
}

/// Whether a tensor is float32.
pub(crate) fn is_float(meta: &TensorMeta) -> bool {
    meta.dtype() == ScalarType::Float
}

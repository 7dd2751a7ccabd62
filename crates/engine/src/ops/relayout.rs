//! Changes of sizes and layout: [`Reshape`] and [`Permute`], which move no elements, and [`Relayout`].

use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::Operation;
use pteron_operator::Result;
use pteron_tensor::TensorMeta;
use std::fmt;

/// Reinterprets the bytes of a tensor with other sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reshape;

impl Operation for Reshape {
    fn name(&self) -> &str {
        "reshape"
    }

    fn operand_layout(&self, i: usize, inputs: usize) -> LayoutReq {
        if i < inputs { LayoutReq::Any } else { LayoutReq::ReshapeOfInput0 }
    }

    fn keeps_rows_apart(&self, _: &Operands<'_>) -> bool {
        true
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(1, 1)
    }
}

/// The same bytes with the dimensions in another order: dimension `i` is dimension `dims[i]` of the input. A
/// channels-last image becomes row-major by moving its channels to the last dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permute {
    /// For each dimension of the result, the index of the same dimension in the input.
    pub dims: Box<[usize]>,
}

impl Permute {
    /// Whether permuting `from` to `to` moves no bytes.
    pub fn keeps_bytes(dims: &[usize], from: &TensorMeta, to: &TensorMeta) -> bool {
        let same = |(i, &d): (usize, &usize)| {
            let size = (from.sizes().get(d), to.sizes().get(i));
            size.0 == size.1 && (size.0 == Some(&1) || from.strides().get(d) == to.strides().get(i))
        };
        let fits = dims.len() == from.rank() && dims.len() == to.rank() && from.dtype() == to.dtype();
        fits && from.numel() == to.numel() && dims.iter().enumerate().all(same)
    }
}

impl Operation for Permute {
    fn name(&self) -> &str {
        "permute"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dims: {:?}", self.dims)
    }

    fn operand_layout(&self, _: usize, _: usize) -> LayoutReq {
        LayoutReq::Any
    }

    fn keeps_rows_apart(&self, _: &Operands<'_>) -> bool {
        self.dims.first() == Some(&0)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(1, 1)?;
        let (from, to) = (operands.input(0)?, operands.output(0)?);
        if Self::keeps_bytes(&self.dims, from, to) {
            return Ok(());
        }
        refuse(format!("permuting {from} by {:?} to {to} would move elements", self.dims))
    }
}

/// Converts a tensor to another layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relayout;

impl Operation for Relayout {
    fn name(&self) -> &str {
        "relayout"
    }

    fn operand_layout(&self, _: usize, _: usize) -> LayoutReq {
        LayoutReq::Any
    }

    fn keeps_rows_apart(&self, _: &Operands<'_>) -> bool {
        true
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(1, 1)?;
        let (from, to) = (operands.input(0)?, operands.output(0)?);
        if from.dtype() == to.dtype() && from.sizes() == to.sizes() {
            return Ok(());
        }
        refuse(format!("a relayout from {from} to {to} would change the type or sizes"))
    }
}

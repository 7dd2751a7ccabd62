//! The operands of a product: matrices, or panels packed ahead of time.

use super::super::mat::MatRef;
use super::pack::{PackedA, PackedB};

/// The left operand of a product.
#[derive(Clone, Copy, Debug)]
pub enum Lhs<'a> {
    /// Not packed.
    Plain(MatRef<'a>),
    /// Packed ahead of time.
    Packed(&'a PackedA),
}

/// The right operand of a product.
#[derive(Clone, Copy, Debug)]
pub enum Rhs<'a> {
    /// Not packed.
    Plain(MatRef<'a>),
    /// Packed ahead of time.
    Packed(&'a PackedB),
}

impl<'a> From<MatRef<'a>> for Lhs<'a> {
    fn from(a: MatRef<'a>) -> Self {
        Lhs::Plain(a)
    }
}

impl<'a> From<&'a PackedA> for Lhs<'a> {
    fn from(a: &'a PackedA) -> Self {
        Lhs::Packed(a)
    }
}

impl<'a> From<MatRef<'a>> for Rhs<'a> {
    fn from(b: MatRef<'a>) -> Self {
        Rhs::Plain(b)
    }
}

impl<'a> From<&'a PackedB> for Rhs<'a> {
    fn from(b: &'a PackedB) -> Self {
        Rhs::Packed(b)
    }
}

impl Lhs<'_> {
    /// The numbers of rows and of columns of the operand.
    pub(super) fn shape(&self) -> (usize, usize) {
        match self {
            Lhs::Plain(a) => (a.rows(), a.cols()),
            Lhs::Packed(a) => (a.rows(), a.cols()),
        }
    }
}

impl Rhs<'_> {
    /// The numbers of rows and of columns of the operand.
    pub(super) fn shape(&self) -> (usize, usize) {
        match self {
            Rhs::Plain(b) => (b.rows(), b.cols()),
            Rhs::Packed(b) => (b.rows(), b.cols()),
        }
    }
}

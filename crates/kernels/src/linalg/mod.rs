//! Factorizations of matrices, the last two dimensions of a tensor, with LAPACK's conventions. They are computed in f64 or
//! complex128 and rounded to the type of the tensor.
//!
//! A kernel cannot refuse the elements of a matrix as PyTorch does: the results of matrices with elements that are NaN or
//! infinite are NaN.

mod eigen;
mod general;
mod jacobi;
mod lu;
mod matrix;
mod qr;
mod singular;

use pteron_operator::{DtypeSet, Operator};
use pteron_tensor::ScalarType;

/// The element types of the matrices that PyTorch factorizes.
const FIELDS: DtypeSet = DtypeSet::of(&[
    ScalarType::Float,
    ScalarType::Double,
    ScalarType::ComplexFloat,
    ScalarType::ComplexDouble,
]);

pub(crate) const EIGEN: &[Operator] = eigen::OPERATORS;
pub(crate) const GENERAL: &[Operator] = general::OPERATORS;
pub(crate) const LU: &[Operator] = lu::OPERATORS;
pub(crate) const QR: &[Operator] = qr::OPERATORS;
pub(crate) const SINGULAR: &[Operator] = singular::OPERATORS;

#[cfg(test)]
mod tests;

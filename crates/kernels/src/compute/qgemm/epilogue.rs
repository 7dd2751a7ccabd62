use super::super::gemm::Activation;
use super::super::mat::{Blocks, MatMut};
use super::super::quantize::{Affine, Quantization};
use std::ops::Range;

/// The epilogue of a product: `activation((sums + offset) * scales + bias)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantizedEpilogue<'a> {
    /// One integer for each column, added to the column's sums before they are scaled.
    pub offset: Option<&'a [i32]>,
    /// The bias: one value for each column, added to the scaled sums.
    pub bias: Option<&'a [f32]>,
    /// The function that is applied to each result. If results are requantized, only an activation that clamps has an
    /// effect.
    pub activation: Activation,
}

impl QuantizedEpilogue<'_> {
    pub(crate) fn check(&self, n: usize) {
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), n, "bias of {n} columns");
        }
        if let Some(offset) = self.offset {
            assert_eq!(offset.len(), n, "offset of {n} columns");
        }
    }

    /// The epilogue of the columns from `column` on.
    pub(crate) fn starting_at_column(self, column: usize) -> Self {
        Self {
            offset: self.offset.map(|o| &o[column..]),
            bias: self.bias.map(|b| &b[column..]),
            activation: self.activation,
        }
    }
}

/// The destination of a product; its rows must be contiguous.
#[derive(Debug)]
pub enum QuantizedOut<'a> {
    /// Dequantized, as f32.
    Real(MatMut<'a, f32>),
    /// Requantized: the lowest byte of each quantized value.
    Quantized(MatMut<'a, u8>, Quantization),
}

impl<'a> QuantizedOut<'a> {
    /// Panics unless the destination is an `m x n` matrix with contiguous rows.
    pub(crate) fn check(&self, m: usize, n: usize) {
        let (shape, step) = match self {
            Self::Real(c) => ((c.rows(), c.cols()), c.col_stride()),
            Self::Quantized(c, _) => ((c.rows(), c.cols()), c.col_stride()),
        };
        assert_eq!(shape, (m, n), "result of a product");
        assert!(step == 1 || n <= 1, "rows of a quantized product's result must be contiguous");
    }

    /// The block of the given rows and columns.
    ///
    /// # Panics
    /// If the ranges are not within the matrix.
    pub(crate) fn block(&mut self, rows: Range<usize>, cols: Range<usize>) -> QuantizedOut<'_> {
        match self {
            Self::Real(c) => QuantizedOut::Real(c.block(rows, cols)),
            Self::Quantized(c, q) => QuantizedOut::Quantized(c.block(rows, cols), *q),
        }
    }

    /// This matrix, in a form in which several tasks can write blocks of it.
    pub(crate) fn blocks(self) -> QuantizedBlocks<'a> {
        match self {
            Self::Real(c) => QuantizedBlocks::Real(c.blocks()),
            Self::Quantized(c, q) => QuantizedBlocks::Quantized(c.blocks(), q),
        }
    }

    /// The numbers of rows and columns of the destination.
    pub(crate) fn shape(&self) -> (usize, usize) {
        match self {
            Self::Real(c) => (c.rows(), c.cols()),
            Self::Quantized(c, _) => (c.rows(), c.cols()),
        }
    }
}

/// A result that several tasks write concurrently; each task writes its own block.
pub(crate) enum QuantizedBlocks<'a> {
    Real(Blocks<'a, f32>),
    Quantized(Blocks<'a, u8>, Quantization),
}

impl<'a> QuantizedBlocks<'a> {
    /// # Safety
    /// As [`Blocks::block`].
    ///
    /// # Panics
    /// If the ranges are not within the result.
    pub(crate) unsafe fn block(&self, rows: Range<usize>, cols: Range<usize>) -> QuantizedOut<'a> {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Self::Real(c) => QuantizedOut::Real(c.block(rows, cols)),
                Self::Quantized(c, q) => QuantizedOut::Quantized(c.block(rows, cols), *q),
            }
        }
    }
}

/// The scale and zero point of the rows of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Params<'a> {
    /// One scale and zero point, shared by all rows.
    All(Affine),
    /// One scale and zero point for each row.
    Rows(&'a [Affine]),
}

impl<'a> Params<'a> {
    /// The scales and zero points of the rows from `row` on.
    pub(crate) fn starting_at_row(self, row: usize) -> Self {
        match self {
            Self::All(_) => self,
            Self::Rows(params) => Self::Rows(&params[row..]),
        }
    }
}

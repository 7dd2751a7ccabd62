use super::super::gemm::Activation;
use super::super::mat::{Blocks, MatMut};
use super::super::quantize::{Affine, Quantization};
use std::ops::Range;

/// What happens to a product before it is stored: `activation((sums + offset) * scales + bias)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantizedEpilogue<'a> {
    /// One number a column, added to its sums before they are scaled.
    pub offset: Option<&'a [i32]>,
    /// One value a column.
    pub bias: Option<&'a [f32]>,
    /// Function to apply. To a result that is quantized again, no more than bounds can be applied.
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

    /// That of the columns from one on.
    pub(crate) fn from(self, column: usize) -> Self {
        Self {
            offset: self.offset.map(|o| &o[column..]),
            bias: self.bias.map(|b| &b[column..]),
            activation: self.activation,
        }
    }
}

/// Where a product goes. Rows are contiguous.
#[derive(Debug)]
pub enum QuantizedOut<'a> {
    /// As f32.
    Real(MatMut<'a, f32>),
    /// Quantized: each number as its lowest byte.
    Quantized(MatMut<'a, u8>, Quantization),
}

impl<'a> QuantizedOut<'a> {
    /// Panics unless it is an `m x n` matrix with contiguous rows.
    pub(crate) fn check(&self, m: usize, n: usize) {
        let (shape, step) = match self {
            Self::Real(c) => ((c.rows(), c.cols()), c.col_stride()),
            Self::Quantized(c, _) => ((c.rows(), c.cols()), c.col_stride()),
        };
        assert_eq!(shape, (m, n), "result of a product");
        assert!(step == 1 || n <= 1, "rows of a quantized product's result are contiguous");
    }

    /// Some of its rows and columns.
    ///
    /// # Panics
    /// If it has not all of them.
    pub(crate) fn block(&mut self, rows: Range<usize>, cols: Range<usize>) -> QuantizedOut<'_> {
        match self {
            Self::Real(c) => QuantizedOut::Real(c.block(rows, cols)),
            Self::Quantized(c, q) => QuantizedOut::Quantized(c.block(rows, cols), *q),
        }
    }

    /// The matrix, to be written in blocks by several tasks.
    pub(crate) fn blocks(self) -> QuantizedBlocks<'a> {
        match self {
            Self::Real(c) => QuantizedBlocks::Real(c.blocks()),
            Self::Quantized(c, q) => QuantizedBlocks::Quantized(c.blocks(), q),
        }
    }

    /// Its rows and columns.
    pub(crate) fn shape(&self) -> (usize, usize) {
        match self {
            Self::Real(c) => (c.rows(), c.cols()),
            Self::Quantized(c, _) => (c.rows(), c.cols()),
        }
    }
}

/// A result that tasks write at once, each its own block.
pub(crate) enum QuantizedBlocks<'a> {
    Real(Blocks<'a, f32>),
    Quantized(Blocks<'a, u8>, Quantization),
}

impl<'a> QuantizedBlocks<'a> {
    /// # Safety
    /// As [`Blocks::block`].
    ///
    /// # Panics
    /// If the result has not all of these rows and columns.
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

/// The parameters of a product's rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Params<'a> {
    /// The same for all.
    All(Affine),
    /// One for each.
    Rows(&'a [Affine]),
}

impl<'a> Params<'a> {
    /// Those of the rows from one on.
    pub(crate) fn from(self, row: usize) -> Self {
        match self {
            Self::All(_) => self,
            Self::Rows(params) => Self::Rows(&params[row..]),
        }
    }
}

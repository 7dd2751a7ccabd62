use super::super::gemm::Activation;
use super::super::isa::Isa;
use super::super::mat::{Blocks, MatMut};
use super::super::math;
use super::super::quantize::{Affine, Quantization, Quantizer};
use super::super::simd::{Op, Simd, dispatch};
use super::pack::PANEL;
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

/// Elements of the largest tile.
pub(crate) const MAX_TILE: usize = 1024;

/// The sums of a tile, row after row, aligned for vectors.
#[repr(C, align(64))]
pub(crate) struct Tile<T>(pub(crate) [T; MAX_TILE]);

/// Dequantizes the sums of a tile, and after the last group stores them.
pub(crate) struct Finish<'a> {
    pub(crate) sums: &'a Tile<i32>,
    /// How often the sums count as double.
    pub(crate) shift: u32,
    /// The results so far, if this is not the first group; written if it is not the last.
    pub(crate) dequantized: &'a mut Tile<f32>,
    pub(crate) first: bool,
    pub(crate) last: bool,
    /// Elements from one row of the tile to the next: whole panels.
    pub(crate) step: usize,
    /// The parameters of the rows, and what is added to the zero points.
    pub(crate) params: Params<'a>,
    pub(crate) zero: i32,
    /// Of each column, whole panels.
    pub(crate) scales: &'a [f32],
    pub(crate) column_sums: &'a [i32],
    /// Of the columns from the tile's first on.
    pub(crate) epilogue: QuantizedEpilogue<'a>,
    /// Contiguous rows: as many as the tile has, and columns that it has.
    pub(crate) out: QuantizedOut<'a>,
}

impl Finish<'_> {
    /// # Panics
    /// If there are fewer sums, scales, biases or parameters than rows and columns.
    pub(crate) fn run(mut self, isa: Isa) {
        dispatch(isa, &mut self);
        let function = self.epilogue.activation.function();
        if let (Some(function), QuantizedOut::Real(c), true) = (function, self.out, self.last) {
            math::activate_rows(isa, function, c);
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

impl Op for &mut Finish<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match (&self.out, self.last) {
            (_, false) => self.each::<S, KEPT>(s),
            (QuantizedOut::Real(..), true) => self.each::<S, REAL>(s),
            (QuantizedOut::Quantized(..), true) => self.each::<S, QUANTIZED>(s),
        }
    }
}

/// Results stay until the next group.
const KEPT: u8 = 0;
/// Results are stored as they are.
const REAL: u8 = 1;
/// Results are quantized.
const QUANTIZED: u8 = 2;

/// Where results are stored.
#[derive(Clone, Copy)]
enum To {
    Real(*mut f32, usize),
    Quantized(*mut u8, usize),
}

impl Finish<'_> {
    #[inline(always)]
    fn each<S: Simd, const END: u8>(&mut self, s: S) {
        // Parameters of all rows are multiplied with those of the columns once. Those of a row come first, and the bias of
        // a column of one group is added without rounding before, where the machine can: as XNNPACK does.
        let one = Affine { scale: 1.0, zero: 0 };
        match self.params {
            Params::All(all) => self.rows::<S, END, false>(s, all, &[]),
            Params::Rows(rows) => self.rows::<S, END, true>(s, one, rows),
        }
    }

    #[inline(always)]
    fn rows<S: Simd, const END: u8, const EACH: bool>(&mut self, s: S, all: Affine, each: &[Affine]) {
        let (rows, cols) = self.out.shape();
        self.out.check(rows, cols);
        let padded = cols.next_multiple_of(PANEL);
        assert!(padded <= self.step && padded <= self.scales.len() && padded <= self.column_sums.len());
        let QuantizedEpilogue { offset, bias, activation } = self.epilogue;
        assert!(rows * self.step <= MAX_TILE && bias.is_none_or(|b| cols <= b.len()));
        assert!(offset.is_none_or(|o| cols <= o.len()) && (!EACH || rows <= each.len()));
        // Sums of several groups have one offset.
        let offset = offset.filter(|_| self.first);
        let (low, high) = activation.bounds().unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
        // Results that are to be quantized are summed, over the groups, in units of the scale to come.
        let (factor, quantizer, to) = match &mut self.out {
            QuantizedOut::Quantized(c, q) => {
                let (quantizer, to) = (Quantizer::new(q), To::Quantized(c.as_mut_ptr(), c.row_stride()));
                (quantizer.inverse(), Some(quantizer.bounded(low, high)), to)
            }
            QuantizedOut::Real(c) => (1.0, None, To::Real(c.as_mut_ptr(), c.row_stride())),
        };
        let (low, high) = (s.splat(low), s.splat(high));
        for col in (0..cols).step_by(S::LANES) {
            let left = cols - col;
            // SAFETY: the assertions hold scales and sums of whole panels, a bias for each column, room for `rows`
            // rows of whole panels in the tile and parameters for each row; the result has these rows and columns.
            unsafe {
                let scales = s.mul(s.load(self.scales.as_ptr().add(col)), s.splat(all.scale * factor));
                let sums = s.load_int(self.column_sums.as_ptr().add(col));
                let mut zeros = s.mul_int(sums, s.splat_int(all.zero.wrapping_add(self.zero)));
                if let Some(offset) = offset {
                    zeros = s.sub_int(zeros, s.load_int(lanes(&offset[col..cols]).as_ptr()));
                }
                let bias = match bias {
                    Some(bias) => s.mul(s.load_first(bias.as_ptr().add(col), left), s.splat(factor)),
                    None => s.splat(0.0),
                };
                for row in 0..rows {
                    let at = row * self.step + col;
                    let x = s.load_int(self.sums.0.as_ptr().add(at));
                    let mut x = s.sub_int(s.shift_right(x, self.shift), zeros);
                    if EACH {
                        x = s.sub_int(x, s.mul_int(sums, s.splat_int(each.get_unchecked(row).zero)));
                    }
                    let mut y = s.real(x);
                    if EACH {
                        y = s.mul(y, s.splat(each.get_unchecked(row).scale));
                    }
                    let dequantized = self.dequantized.0.as_mut_ptr().add(at);
                    if EACH && END == REAL && self.first {
                        y = s.mul_add(y, scales, bias);
                    } else {
                        y = s.mul(y, scales);
                        if !self.first {
                            y = s.add(y, s.load(dequantized));
                        }
                        if END == KEPT {
                            s.store(dequantized, y);
                            continue;
                        }
                        y = s.add(y, bias);
                    }
                    match (to, &quantizer) {
                        (To::Quantized(to, step), Some(quantizer)) if END == QUANTIZED => {
                            s.store_bytes_first(to.add(row * step + col), left, quantizer.quantized(s, y));
                        }
                        (To::Real(to, step), _) if END == REAL => {
                            let y = s.min(high, s.max(low, y));
                            s.store_first(to.add(row * step + col), left, y);
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// The first numbers, as many as the widest vector has, and zeros for those that are not there.
#[inline(always)]
fn lanes(quantized: &[i32]) -> [i32; PANEL] {
    let mut all = [0; PANEL];
    let there = quantized.len().min(PANEL);
    all[..there].copy_from_slice(&quantized[..there]);
    all
}

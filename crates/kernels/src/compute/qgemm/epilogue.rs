use super::super::gemm::Activation;
use super::super::isa::Isa;
use super::super::mat::MatMut;
use super::super::math;
use super::super::quantize::{Affine, Quantization, Quantizer};
use super::super::simd::{Op, Simd, dispatch};
use super::pack::PANEL;

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

impl QuantizedOut<'_> {
    pub(crate) fn place(self, m: usize, n: usize) -> Place {
        let check = |rows, cols, step| {
            assert_eq!((rows, cols), (m, n), "result of a product");
            assert!(step == 1 || n <= 1, "rows of a quantized product's result are contiguous");
        };
        match self {
            Self::Real(mut c) => {
                check(c.rows(), c.cols(), c.col_stride());
                Place::Real(c.as_mut_ptr(), c.row_stride())
            }
            Self::Quantized(mut c, q) => {
                check(c.rows(), c.cols(), c.col_stride());
                Place::Quantized(c.as_mut_ptr(), c.row_stride(), q)
            }
        }
    }
}

/// The first element of a result, and the elements from one row to the next. Tasks write disjoint rows and
/// columns of it.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Real(*mut f32, usize),
    Quantized(*mut u8, usize, Quantization),
}

// SAFETY: made from a `MatMut` that outlives the call; no two of its elements share a place, and no
// two tasks of a product write the same element.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    /// The place of an element.
    pub(crate) fn at(self, row: usize, col: usize) -> Self {
        match self {
            Self::Real(p, step) => Self::Real(p.wrapping_add(row * step + col), step),
            Self::Quantized(p, step, q) => Self::Quantized(p.wrapping_add(row * step + col), step, q),
        }
    }
}

/// Elements of the largest tile.
pub(crate) const MAX_TILE: usize = 1024;

/// The sums of a tile, row after row, aligned for vectors.
#[repr(C, align(64))]
pub(crate) struct Tile<T>(pub(crate) [T; MAX_TILE]);

/// Makes reals of the sums of a tile, and after the last group stores them.
pub(crate) struct Finish<'a> {
    pub(crate) sums: &'a Tile<i32>,
    /// How often the sums count as double.
    pub(crate) shift: u32,
    /// The results so far, if this is not the first group; written if it is not the last.
    pub(crate) reals: &'a mut Tile<f32>,
    pub(crate) first: bool,
    pub(crate) last: bool,
    /// Elements from one row of the tile to the next: whole panels.
    pub(crate) step: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The parameters of the rows, and what is added to the zero points.
    pub(crate) params: Params<'a>,
    pub(crate) zero: i32,
    /// Of each column, whole panels.
    pub(crate) scales: &'a [f32],
    pub(crate) column_sums: &'a [i32],
    /// Of the columns from the tile's first on.
    pub(crate) epilogue: QuantizedEpilogue<'a>,
    pub(crate) out: Place,
}

impl Finish<'_> {
    /// # Safety
    /// `out` is the place of `rows` rows of `cols` elements that nobody else uses now.
    pub(crate) unsafe fn run(self, isa: Isa) {
        let (rows, cols, out, last) = (self.rows, self.cols, self.out, self.last);
        let activation = self.epilogue.activation;
        dispatch(isa, self);
        if let (Activation::Unary(op), Place::Real(p, step), true) = (activation, out, last) {
            for r in 0..rows {
                // SAFETY: a row of the result, as the caller promises.
                let row = unsafe { std::slice::from_raw_parts_mut(p.wrapping_add(r * step), cols) };
                math::activate(isa, op, row);
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

impl Op for Finish<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the caller of `Finish::run` has promised it.
        unsafe {
            match (self.out, self.last) {
                (_, false) => self.each::<S, KEPT>(s),
                (Place::Real(..), true) => self.each::<S, REAL>(s),
                (Place::Quantized(..), true) => self.each::<S, QUANTIZED>(s),
            }
        }
    }
}

/// Results stay until the next group.
const KEPT: u8 = 0;
/// Results are stored as they are.
const REAL: u8 = 1;
/// Results are quantized.
const QUANTIZED: u8 = 2;

impl Finish<'_> {
    /// # Safety
    /// As [`Finish::run`]; the result is of the kind that `END` says.
    #[inline(always)]
    unsafe fn each<S: Simd, const END: u8>(self, s: S) {
        // Parameters of all rows are multiplied with those of the columns once. Those of a row come first, and the bias of
        // a column of one group is added without rounding before, where the machine can: as XNNPACK does.
        let one = Affine { scale: 1.0, zero: 0 };
        // SAFETY: as the caller promises.
        unsafe {
            match self.params {
                Params::All(all) => self.rows::<S, END, false>(s, all, &[]),
                Params::Rows(rows) => self.rows::<S, END, true>(s, one, rows),
            }
        }
    }

    /// # Safety
    /// As [`Finish::each`].
    #[inline(always)]
    unsafe fn rows<S: Simd, const END: u8, const EACH: bool>(self, s: S, all: Affine, each: &[Affine]) {
        let padded = self.cols.next_multiple_of(PANEL);
        assert!(self.cols <= self.step && padded <= self.scales.len() && padded <= self.column_sums.len());
        let QuantizedEpilogue { offset, bias, activation } = self.epilogue;
        assert!(self.rows * self.step <= MAX_TILE && bias.is_none_or(|b| self.cols <= b.len()));
        assert!(offset.is_none_or(|o| self.cols <= o.len()) && (!EACH || self.rows <= each.len()));
        // Sums of several groups have one offset.
        let offset = offset.filter(|_| self.first);
        let (low, high) = activation.bounds().unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
        // Results that are to be quantized are summed, over the groups, in units of the scale to come.
        let (factor, quantizer) = match self.out {
            Place::Quantized(_, _, q) => {
                let quantizer = Quantizer::new(&q);
                (quantizer.inverse(), Some(quantizer.bounded(low, high)))
            }
            Place::Real(..) => (1.0, None),
        };
        let (low, high) = (s.splat(low), s.splat(high));
        for col in (0..self.cols).step_by(S::LANES) {
            let left = self.cols - col;
            // SAFETY: scales and sums are padded to whole panels, and there is a bias for each column; the tile has
            // room for `rows` rows of whole panels; the result is there as the caller promises.
            unsafe {
                let scales = s.mul(s.load(self.scales.as_ptr().add(col)), s.splat(all.scale * factor));
                let sums = s.load_int(self.column_sums.as_ptr().add(col));
                let mut zeros = s.mul_int(sums, s.splat_int(all.zero.wrapping_add(self.zero)));
                if let Some(offset) = offset {
                    zeros = s.sub_int(zeros, s.load_int(lanes(&offset[col..self.cols]).as_ptr()));
                }
                let bias = match bias {
                    Some(bias) => s.mul(s.load_first(bias.as_ptr().add(col), left), s.splat(factor)),
                    None => s.splat(0.0),
                };
                for row in 0..self.rows {
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
                    let reals = self.reals.0.as_mut_ptr().add(at);
                    if EACH && END == REAL && self.first {
                        y = s.mul_add(y, scales, bias);
                    } else {
                        y = s.mul(y, scales);
                        if !self.first {
                            y = s.add(y, s.load(reals));
                        }
                        if END == KEPT {
                            s.store(reals, y);
                            continue;
                        }
                        y = s.add(y, bias);
                    }
                    match (self.out, &quantizer) {
                        (Place::Quantized(to, step, _), Some(quantizer)) if END == QUANTIZED => {
                            s.store_bytes_first(to.add(row * step + col), left, quantizer.numbers(s, y));
                        }
                        (Place::Real(to, step), _) if END == REAL => {
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
fn lanes(numbers: &[i32]) -> [i32; PANEL] {
    let mut all = [0; PANEL];
    let there = numbers.len().min(PANEL);
    all[..there].copy_from_slice(&numbers[..there]);
    all
}

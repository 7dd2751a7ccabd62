use super::super::gemm::Activation;
use super::super::isa::Isa;
use super::super::mat::MatMut;
use super::super::math;
use super::super::quantize::{Affine, Quantization, Quantizer};
use super::super::simd::{Op, Simd, dispatch};
use super::pack::PANEL;

/// What happens to a product before it is stored: `activation(product + bias)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantizedEpilogue<'a> {
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
    /// The parameters of the rows: one for all or one for each; and what is added to the zero points.
    pub(crate) params: &'a [Affine],
    pub(crate) zero: i32,
    /// Of each column, whole panels.
    pub(crate) scales: &'a [f32],
    pub(crate) column_sums: &'a [i32],
    /// Of each column that is there.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) activation: Activation,
    pub(crate) out: Place,
}

impl Finish<'_> {
    /// # Safety
    /// `out` is the place of `rows` rows of `cols` elements that nobody else uses now.
    pub(crate) unsafe fn run(self, isa: Isa) {
        let (rows, cols, out, last) = (self.rows, self.cols, self.out, self.last);
        let activation = self.activation;
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

impl Op for Finish<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (low, high) = self.activation.bounds().unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
        let bounded = |y: f32| {
            let y = if low > y { low } else { y };
            if high < y { high } else { y }
        };
        match self.out {
            _ if !self.last => self.each(|_, _, y, reals, _, _| *reals = *y),
            Place::Real(p, step) => self.each(|r, c, y, _, row, left| {
                let mut out = [0.0; PANEL];
                for l in 0..PANEL {
                    out[l] = bounded(y[l] * row.scale + row.bias[l]);
                }
                // SAFETY: there are `left` elements of the result, as the caller promises.
                unsafe { store(out, p.wrapping_add(r * step + c), left) };
            }),
            Place::Quantized(p, step, q) => {
                let quantizer = Quantizer::new(&q);
                self.each(|r, c, y, _, row, left| {
                    let mut out = [0u8; PANEL];
                    for l in 0..PANEL {
                        out[l] = quantizer.number(bounded(y[l] * row.scale + row.bias[l])) as u8;
                    }
                    // SAFETY: as above.
                    unsafe { store(out, p.wrapping_add(r * step + c), left) };
                });
            }
        }
    }
}

/// What is added to and multiplied with a row's results in the columns of a panel.
struct Row<'a> {
    scale: f32,
    bias: &'a [f32; PANEL],
}

impl Finish<'_> {
    /// Calls `end` with the results so far for each row and panel: the row, the column, the results, where to
    /// leave them, what is to be done with them, and how many there are.
    #[inline(always)]
    fn each(self, end: impl Fn(usize, usize, &[f32; PANEL], &mut [f32; PANEL], &Row<'_>, usize)) {
        for c in (0..self.cols).step_by(PANEL) {
            let left = PANEL.min(self.cols - c);
            let (scales, sums) = (lanes(self.scales, c), lanes(self.column_sums, c));
            let mut bias = [0.0f32; PANEL];
            if let Some(b) = self.bias {
                bias[..left].copy_from_slice(&b[c..][..left]);
            }
            for r in 0..self.rows {
                let Affine { scale, zero } = self.params[if self.params.len() == 1 { 0 } else { r }];
                let zero = zero.wrapping_add(self.zero);
                let at = r * self.step + c;
                let x = lanes(&self.sums.0, at);
                let mut y = [0.0f32; PANEL];
                for l in 0..PANEL {
                    let sum = (x[l] >> self.shift).wrapping_sub(zero.wrapping_mul(sums[l]));
                    y[l] = sum as f32 * scales[l];
                }
                let reals = self.reals.0[at..].first_chunk_mut().expect("whole panels");
                if !self.first {
                    for l in 0..PANEL {
                        y[l] += reals[l];
                    }
                }
                end(r, c, &y, reals, &Row { scale, bias: &bias }, left);
            }
        }
    }
}

#[inline(always)]
fn lanes<T>(all: &[T], at: usize) -> &[T; PANEL] {
    all[at..].first_chunk().expect("whole panels")
}

/// # Safety
/// `left` elements can be written at `to`; `left` is at most [`PANEL`].
#[inline(always)]
unsafe fn store<T: Copy>(from: [T; PANEL], to: *mut T, left: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        if left == PANEL {
            to.cast::<[T; PANEL]>().write_unaligned(from);
        } else {
            // Element by element: a copy of a length not known keeps the vector out of registers.
            for (l, x) in from.into_iter().enumerate() {
                if l < left {
                    to.add(l).write(x);
                }
            }
        }
    }
}

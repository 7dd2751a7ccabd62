//! The epilogue of a tile's sums: they are dequantized, and stored as f32 or requantized.

use super::super::isa::Isa;
use super::super::mat::last_offset;
use super::super::math;
use super::super::quantize::{Affine, Quantizer};
use super::super::simd::{Op, Rounding, Simd, dispatch};
use super::epilogue::{Params, QuantizedEpilogue, QuantizedOut};
use super::pack::PANEL;
use std::ops::Range;

/// The number of elements of the largest tile.
pub(crate) const MAX_TILE: usize = if cfg!(target_arch = "aarch64") { 2048 } else { 1024 };

/// Dequantizes a tile's sums over some groups of the weights' rows; after the last group, stores the results.
pub(crate) struct Finish<'a> {
    /// The sums of the products: group after group, row by row in each.
    pub(crate) sums: &'a [i32],
    /// The groups of rows of the weights; `group_step` is the number of sums from one group to the next.
    pub(crate) groups: Range<usize>,
    pub(crate) group_step: usize,
    /// The sums are `2^shift` times the true sums.
    pub(crate) shift: u32,
    /// Partial results: read if there are groups before these, written if there are groups after them. Otherwise
    /// empty.
    pub(crate) dequantized: &'a mut [f32],
    /// The number of elements from one row of the tile to the next: a whole number of panels.
    pub(crate) step: usize,
    /// The scale and zero point of each row; `zero` is the offset to add to the zero points.
    pub(crate) params: Params<'a>,
    pub(crate) zero: i32,
    /// The scales of a panel's columns, group after group; `column_sums` is laid out alike; panels are `panel_step` apart.
    pub(crate) scales: &'a [f32],
    pub(crate) column_sums: &'a [i32],
    pub(crate) panel_step: usize,
    /// The epilogue for the columns from the tile's first on.
    pub(crate) epilogue: QuantizedEpilogue<'a>,
    /// The results: as many contiguous rows as the tile has, and those of the tile's columns that are in the result.
    pub(crate) out: QuantizedOut<'a>,
}

impl Finish<'_> {
    /// # Panics
    /// If there are too few sums, scales, biases or parameters for the rows and columns.
    pub(crate) fn run(mut self, isa: Isa) {
        dispatch(isa, &mut self);
        let function = self.epilogue.activation.function();
        let last = self.is_last();
        if let (Some(function), QuantizedOut::Real(c), true) = (function, self.out, last) {
            math::activate_rows(isa, function, c);
        }
    }
}

impl Op for &mut Finish<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let quantized = matches!(self.out, QuantizedOut::Quantized(..));
        if self.group_count() > 1 {
            return match (self.is_last(), quantized) {
                (false, _) => self.finish_groups::<S, PARTIAL>(s),
                (true, false) => self.finish_groups::<S, REAL>(s),
                (true, true) => self.finish_groups::<S, QUANTIZED>(s),
            };
        }
        let each = matches!(self.params, Params::Rows(_));
        let plain = self.shift == 0 && (each || self.epilogue.bias.is_none());
        match (quantized, each, plain) {
            (false, false, false) => self.finish_one_group::<S, REAL, false, false>(s),
            (false, false, true) => self.finish_one_group::<S, REAL, false, true>(s),
            (false, true, false) => self.finish_one_group::<S, REAL, true, false>(s),
            (false, true, true) => self.finish_one_group::<S, REAL, true, true>(s),
            (true, false, false) => self.finish_one_group::<S, QUANTIZED, false, false>(s),
            (true, false, true) => self.finish_one_group::<S, QUANTIZED, false, true>(s),
            (true, true, _) => self.finish_one_group::<S, QUANTIZED, true, false>(s),
        }
    }
}

/// Results are kept as partial results, to which those of the next groups are added.
pub(super) const PARTIAL: u8 = 0;
/// Results are stored as f32.
const REAL: u8 = 1;
/// Results are requantized.
const QUANTIZED: u8 = 2;

/// Constants of a vector of columns: their scales, the sums of their weights, what is subtracted from the sums of all
/// rows, and the bias.
#[derive(Clone, Copy)]
struct Columns<S: Simd> {
    scales: S::F,
    sums: S::I,
    zeros: S::I,
    bias: S::F,
}

/// The destination of results, and the bounds to clamp them to.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Real { to: *mut f32, step: usize, low: f32, high: f32 },
    Quantized { to: *mut u8, step: usize, quantizer: Quantizer },
}

impl Target {
    /// The factor that results are multiplied by: results to be requantized are in units of the output scale.
    pub(super) fn result_factor(&self) -> f32 {
        match self {
            Target::Real { .. } => 1.0,
            Target::Quantized { quantizer, .. } => quantizer.inverse(),
        }
    }

    /// Stores the results of four vectors.
    ///
    /// # Safety
    /// These elements are in bounds of the result.
    #[inline(always)]
    unsafe fn store_four<S: Simd, const END: u8>(
        self,
        s: S,
        (row, col): (usize, usize),
        [a, b, c, d]: [S::F; 4],
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Target::Quantized { to, step, quantizer } if END == QUANTIZED => {
                    let quantized = |y| quantizer.quantize_vector(s, y);
                    let to = to.add(row * step + col);
                    s.store_bytes(to, [quantized(a), quantized(b), quantized(c), quantized(d)]);
                }
                Target::Real { to, step, low, high } if END == REAL => {
                    let (low, high) = (s.splat(low), s.splat(high));
                    let to = to.add(row * step + col);
                    s.store(to, s.clamp(a, low, high));
                    s.store(to.add(S::LANES), s.clamp(b, low, high));
                    s.store(to.add(2 * S::LANES), s.clamp(c, low, high));
                    s.store(to.add(3 * S::LANES), s.clamp(d, low, high));
                }
                _ => {}
            }
        }
    }

    /// How the results of four vectors of columns become bytes, if that is faster by [`Simd::store_rounded`], and no
    /// result can be NaN.
    #[inline(always)]
    fn rounding<S: Simd>(self, s: S, columns: &[Columns<S>; 4]) -> Option<Rounding> {
        match self {
            Target::Quantized { quantizer, .. } if S::SATURATES => {
                let [a, b, c, d] = columns;
                let scales = s.add(s.add(a.scales, b.scales), s.add(c.scales, d.scales));
                quantizer.rounding().filter(|_| s.sum(scales).is_finite())
            }
            _ => None,
        }
    }

    /// Rounds and stores the results of four vectors.
    ///
    /// # Safety
    /// These elements are in bounds of the result, which is requantized.
    #[inline(always)]
    unsafe fn store_rounded<S: Simd, const SIGNED: bool>(
        self,
        s: S,
        (row, col): (usize, usize),
        y: [S::F; 4],
        rounding: &Rounding,
    ) {
        if let Target::Quantized { to, step, .. } = self {
            // SAFETY: as the caller promises.
            unsafe { s.store_rounded::<SIGNED>(to.add(row * step + col), y, rounding) };
        }
    }

    /// Stores the requantized results of two vectors.
    ///
    /// # Safety
    /// These elements are in bounds of the result, which is requantized.
    #[inline(always)]
    unsafe fn store_two<S: Simd>(self, s: S, (row, col): (usize, usize), [a, b]: [S::F; 2]) {
        if let Target::Quantized { to, step, quantizer } = self {
            let bytes = [quantizer.quantize_vector(s, a), quantizer.quantize_vector(s, b)];
            // SAFETY: as the caller promises.
            unsafe { s.store_two_bytes(to.add(row * step + col), bytes) };
        }
    }

    /// Stores the first `left` results of a vector, or all if that is fewer.
    ///
    /// # Safety
    /// These elements are in bounds of the result.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd, const END: u8>(
        self,
        s: S,
        (row, col): (usize, usize),
        left: usize,
        y: S::F,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                Target::Quantized { to, step, quantizer } if END == QUANTIZED => {
                    s.store_bytes_first(to.add(row * step + col), left, quantizer.quantize_vector(s, y));
                }
                Target::Real { to, step, low, high } if END == REAL => {
                    let y = s.clamp(y, s.splat(low), s.splat(high));
                    s.store_first(to.add(row * step + col), left, y);
                }
                _ => {}
            }
        }
    }
}

impl Finish<'_> {
    pub(super) fn group_count(&self) -> usize {
        self.panel_step / PANEL
    }

    /// Whether these groups include the last group of the weights' rows.
    fn is_last(&self) -> bool {
        self.groups.end == self.group_count()
    }

    /// # Panics
    /// If there are too few sums, scales, biases or parameters for the rows and columns.
    pub(super) fn check(&mut self) -> Target {
        let (rows, cols) = self.out.shape();
        self.out.check(rows, cols);
        let padded = cols.next_multiple_of(PANEL);
        let columns = last_offset(padded / PANEL, self.panel_step).saturating_add(self.panel_step);
        assert!(padded <= self.step && columns <= self.scales.len() && columns <= self.column_sums.len());
        let tile = rows * self.step;
        assert!(!self.groups.is_empty() && self.groups.end <= self.group_count());
        assert!(last_offset(self.groups.len(), self.group_step).saturating_add(tile) <= self.sums.len());
        assert!(self.groups.len() == self.group_count() || tile <= self.dequantized.len());
        let QuantizedEpilogue { offset, bias, activation } = self.epilogue;
        assert!(bias.is_none_or(|b| cols <= b.len()) && offset.is_none_or(|o| cols <= o.len()));
        assert!(!matches!(self.params, Params::Rows(each) if each.len() < rows));
        let (low, high) = activation.number_bounds().unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
        match &mut self.out {
            QuantizedOut::Quantized(c, q) => {
                let quantizer = Quantizer::new(q).with_bounds(low, high);
                Target::Quantized { to: c.as_mut_ptr(), step: c.row_stride(), quantizer }
            }
            QuantizedOut::Real(c) => Target::Real { to: c.as_mut_ptr(), step: c.row_stride(), low, high },
        }
    }

    /// The bias of the columns from `col` to `cols`, multiplied by `factor`, as one vector.
    #[inline(always)]
    pub(super) fn scaled_bias<S: Simd>(&self, s: S, col: usize, cols: usize, factor: f32) -> S::F {
        match self.epilogue.bias {
            // SAFETY: there is a bias for each column.
            Some(bias) => unsafe {
                s.mul(s.load_first(bias[col..cols].as_ptr(), cols - col), s.splat(factor))
            },
            None => s.splat(0.0),
        }
    }

    /// Finishes a tile with one group. A scale shared by all rows is multiplied into the column scales once.
    /// Otherwise the scale of the row is applied first, and the bias of the column is added in a fused multiply-add,
    /// where the machine has one: as XNNPACK does. `PLAIN`: the shift is zero, and unless `EACH` there is no bias.
    #[inline(always)]
    fn finish_one_group<S: Simd, const END: u8, const EACH: bool, const PLAIN: bool>(&mut self, s: S) {
        let to = self.check();
        let (rows, cols) = self.out.shape();
        let (all, each) = match self.params {
            Params::All(all) => (all, &[][..]),
            Params::Rows(each) => (Affine { scale: 1.0, zero: 0 }, each),
        };
        let factor = to.result_factor();
        // Stores of bytes could change what is behind `self`.
        let (sums, step, shift) = (self.sums.as_ptr(), self.step, self.shift);
        // SAFETY: `check` has found scales and sums of whole panels, `rows` rows of whole panels in the tile and
        // parameters for each row to be in bounds; the result has these rows and columns.
        unsafe {
            let mut col = 0;
            let four = const { (END == QUANTIZED && S::STORES_FOUR || S::BY_LANE) && 4 * S::LANES <= PANEL };
            while four && col + 4 * S::LANES <= cols {
                // Not `map`: it is not inlined.
                let columns = [
                    self.columns::<S, EACH, PLAIN>(s, col, cols, all, factor),
                    self.columns::<S, EACH, PLAIN>(s, col + S::LANES, cols, all, factor),
                    self.columns::<S, EACH, PLAIN>(s, col + 2 * S::LANES, cols, all, factor),
                    self.columns::<S, EACH, PLAIN>(s, col + 3 * S::LANES, cols, all, factor),
                ];
                let rounding = if PLAIN && !EACH { to.rounding(s, &columns) } else { None };
                let results = |row: usize| {
                    let y = |v: usize| {
                        let at = sums.add(row * step + col + v * S::LANES);
                        result::<S, END, EACH, PLAIN>(s, at, shift, each.get(row), &columns[v])
                    };
                    [y(0), y(1), y(2), y(3)]
                };
                match rounding {
                    Some(rounding) if rounding.is_signed() => {
                        let mut row = 0;
                        while row + 2 <= rows {
                            to.store_rounded::<S, true>(s, (row, col), results(row), &rounding);
                            to.store_rounded::<S, true>(s, (row + 1, col), results(row + 1), &rounding);
                            row += 2;
                        }
                        if row < rows {
                            to.store_rounded::<S, true>(s, (row, col), results(row), &rounding);
                        }
                    }
                    Some(rounding) => {
                        for row in 0..rows {
                            to.store_rounded::<S, false>(s, (row, col), results(row), &rounding);
                        }
                    }
                    None => {
                        for row in 0..rows {
                            to.store_four::<S, END>(s, (row, col), results(row));
                        }
                    }
                }
                col += 4 * S::LANES;
            }
            while const { END == QUANTIZED && S::STORES_TWO } && col + 2 * S::LANES <= cols {
                // Not `map`: it may be compiled without the instructions.
                let columns = [
                    self.columns::<S, EACH, PLAIN>(s, col, cols, all, factor),
                    self.columns::<S, EACH, PLAIN>(s, col + S::LANES, cols, all, factor),
                ];
                for row in 0..rows {
                    let at = sums.add(row * step + col);
                    let y = result::<S, END, EACH, PLAIN>(s, at, shift, each.get(row), &columns[0]);
                    let at = at.add(S::LANES);
                    let z = result::<S, END, EACH, PLAIN>(s, at, shift, each.get(row), &columns[1]);
                    to.store_two(s, (row, col), [y, z]);
                }
                col += 2 * S::LANES;
            }
            while col < cols {
                let columns = self.columns::<S, EACH, PLAIN>(s, col, cols, all, factor);
                for row in 0..rows {
                    let at = sums.add(row * step + col);
                    let y = result::<S, END, EACH, PLAIN>(s, at, shift, each.get(row), &columns);
                    to.store::<S, END>(s, (row, col), cols - col, y);
                }
                col += S::LANES;
            }
        }
    }

    /// What the results of a vector of columns from `col` on, of `cols`, are computed with.
    ///
    /// # Safety
    /// [`Self::check`] has passed, and the tile has a column `col`.
    #[inline(always)]
    unsafe fn columns<S: Simd, const EACH: bool, const PLAIN: bool>(
        &self,
        s: S,
        col: usize,
        cols: usize,
        all: Affine,
        factor: f32,
    ) -> Columns<S> {
        let column = self.first_group(col);
        // SAFETY: as the caller promises.
        unsafe {
            let scales = s.load(self.scales.as_ptr().add(column));
            let scales = s.mul(scales, s.splat(all.scale * factor));
            let sums = s.load_int(self.column_sums.as_ptr().add(column));
            let mut zeros = s.mul_int(sums, s.splat_int(all.zero.wrapping_add(self.zero)));
            if let Some(offset) = self.epilogue.offset {
                zeros = s.sub_int(zeros, load_offset(s, &offset[col..cols]));
            }
            let bias = if PLAIN && !EACH { s.splat(0.0) } else { self.scaled_bias(s, col, cols, factor) };
            Columns { scales, sums, zeros, bias }
        }
    }

    /// The index in the scales and in the sums of columns of column `col` in the first group.
    #[inline(always)]
    pub(super) fn first_group(&self, col: usize) -> usize {
        col / PANEL * self.panel_step + col % PANEL
    }
}

/// The results for a vector of sums, which are `2^shift` times the true ones, of a row with parameters of its own,
/// `affine`, if `EACH`.
///
/// # Safety
/// The sums can be read.
#[inline(always)]
unsafe fn result<S: Simd, const END: u8, const EACH: bool, const PLAIN: bool>(
    s: S,
    sums: *const i32,
    shift: u32,
    affine: Option<&Affine>,
    columns: &Columns<S>,
) -> S::F {
    // SAFETY: as the caller promises.
    let x = unsafe { s.load_int(sums) };
    let x = s.sub_int(if PLAIN { x } else { s.shift_right(x, shift) }, columns.zeros);
    let Columns { scales, sums, bias, .. } = *columns;
    match affine {
        Some(affine) if EACH => {
            let x = s.sub_int(x, s.mul_int(sums, s.splat_int(affine.zero)));
            let y = s.mul(s.to_float(x), s.splat(affine.scale));
            if END == REAL { s.mul_add(y, scales, bias) } else { s.add(s.mul(y, scales), bias) }
        }
        _ if PLAIN => s.mul(s.to_float(x), scales),
        _ => s.add(s.mul(s.to_float(x), scales), bias),
    }
}

/// A vector of the first values, padded with zeros.
#[inline(always)]
pub(super) fn load_offset<S: Simd>(s: S, offset: &[i32]) -> S::I {
    let mut padded = [0; PANEL];
    let from = if offset.len() >= S::LANES {
        offset
    } else {
        padded[..offset.len()].copy_from_slice(offset);
        &padded
    };
    // SAFETY: no vector has more lanes than a panel has columns.
    unsafe { s.load_int(from.as_ptr()) }
}

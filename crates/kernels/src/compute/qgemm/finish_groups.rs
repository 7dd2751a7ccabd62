//! The epilogue of sums of weights in several groups, each with scales of its own.

use super::super::quantize::Affine;
use super::super::simd::Simd;
use super::epilogue::Params;
use super::finish::{Finish, PARTIAL, Target, load_offset};
use super::pack::PANEL;

impl Finish<'_> {
    /// Finishes a tile with several groups, whose scales differ: the scale of the row is applied last. The zero point
    /// of a row is subtracted as a multiple of the column's sum of dequantized weights, which is computed in f32,
    /// once for several rows.
    #[inline(always)]
    pub(super) fn finish_groups<S: Simd, const END: u8>(&mut self, s: S) {
        let to = self.check();
        let (rows, cols) = self.out.shape();
        let mut col = 0;
        // SAFETY: as in `finish_one_group`; at least as many rows and columns are left as are processed.
        unsafe {
            // The results of a vector wait for each other: those of a single row are computed four vectors at a time.
            while rows == 1 && col + 4 * S::LANES <= cols {
                let weights = self.dequantized_weights::<S, END, 4>(s, col);
                self.finish_rows::<S, END, 1, 4>(s, to, (0, col), cols, weights);
                col += 4 * S::LANES;
            }
            while col < cols {
                let weights = self.dequantized_weights::<S, END, 1>(s, col);
                let mut row = 0;
                while row + 8 <= rows {
                    self.finish_rows::<S, END, 8, 1>(s, to, (row, col), cols, weights);
                    row += 8;
                }
                while row < rows {
                    self.finish_rows::<S, END, 1, 1>(s, to, (row, col), cols, weights);
                    row += 1;
                }
                col += S::LANES;
            }
        }
    }

    /// The sums of the dequantized weights of `V` vectors of columns from `col` on; zeros if results are partial.
    ///
    /// # Safety
    /// [`Self::check`] has passed, and the tile has a column in each vector.
    #[expect(
        clippy::needless_range_loop,
        reason = "iterators that give vectors may be compiled without the instructions"
    )]
    #[inline(always)]
    unsafe fn dequantized_weights<S: Simd, const END: u8, const V: usize>(
        &self,
        s: S,
        col: usize,
    ) -> [S::F; V] {
        let mut weights = [s.splat(0.0); V];
        for g in 0..if END == PARTIAL { 0 } else { self.group_count() } {
            for v in 0..V {
                let at = self.first_group(col + v * S::LANES) + g * PANEL;
                // SAFETY: as the caller promises.
                unsafe {
                    let sums = s.load_int(self.column_sums.as_ptr().add(at));
                    let scales = s.load(self.scales.as_ptr().add(at));
                    weights[v] = s.mul_add(s.to_float(sums), scales, weights[v]);
                }
            }
        }
        weights
    }

    /// # Safety
    /// [`Self::check`] has passed, and there are `N` rows from `row` on and columns in each of `V` vectors from `col` on,
    /// whose [`Self::dequantized_weights`] are `weights`.
    #[expect(
        clippy::needless_range_loop,
        reason = "iterators that give vectors may be compiled without the instructions"
    )]
    #[inline(always)]
    unsafe fn finish_rows<S: Simd, const END: u8, const N: usize, const V: usize>(
        &mut self,
        s: S,
        to: Target,
        (row, col): (usize, usize),
        cols: usize,
        weights: [S::F; V],
    ) {
        let affine: [Affine; N] = std::array::from_fn(|i| match self.params {
            Params::All(all) => all,
            Params::Rows(each) => each[row + i],
        });
        let mut results = [[s.splat(0.0); V]; N];
        let once = s.splat(1.0 / (1 << self.shift) as f32);
        // SAFETY: as the caller promises.
        unsafe {
            for v in 0..V {
                let col = col + v * S::LANES;
                match self.epilogue.offset {
                    _ if self.groups.start > 0 => {
                        for i in 0..N {
                            let at = (row + i) * self.step + col;
                            results[i][v] = s.load(self.dequantized.as_ptr().add(at));
                        }
                    }
                    // One offset serves all groups, in units of the first group's scale.
                    Some(offset) => {
                        let offset = s.to_float(load_offset(s, &offset[col..cols]));
                        let scales = s.load(self.scales.as_ptr().add(self.first_group(col)));
                        for i in 0..N {
                            results[i][v] = s.mul(offset, scales);
                        }
                    }
                    None => {}
                }
            }
            for g in self.groups.clone() {
                let sums = self.sums.as_ptr().add((g - self.groups.start) * self.group_step);
                for v in 0..V {
                    let col = col + v * S::LANES;
                    let scales = s.load(self.scales.as_ptr().add(self.first_group(col) + g * PANEL));
                    let scales = s.mul(scales, once);
                    for i in 0..N {
                        let sums = s.load_int(sums.add((row + i) * self.step + col));
                        results[i][v] = s.mul_add(s.to_float(sums), scales, results[i][v]);
                    }
                }
            }
            for v in 0..V {
                let col = col + v * S::LANES;
                if END == PARTIAL {
                    for i in 0..N {
                        let at = (row + i) * self.step + col;
                        s.store(self.dequantized.as_mut_ptr().add(at), results[i][v]);
                    }
                    continue;
                }
                let bias = self.scaled_bias(s, col, cols, to.result_factor());
                for i in 0..N {
                    let zero = affine[i].zero.wrapping_add(self.zero).wrapping_neg();
                    let result = s.mul_add(s.splat(zero as f32), weights[v], results[i][v]);
                    let y = s.mul(result, s.splat(affine[i].scale * to.result_factor()));
                    to.store::<S, END>(s, (row + i, col), cols - col, s.add(y, bias));
                }
            }
        }
    }
}

use super::isa::Isa;
use super::mat::{MatMut, MatRef};
use super::simd::{Op, Simd, dispatch};

/// Copies a matrix into another of the same shape, whatever the strides of both; where one runs along
/// its rows and the other down its columns, by blocks transposed in registers.
///
/// # Panics
/// If the shapes differ.
pub fn copy(isa: Isa, from: MatRef<'_>, mut to: MatMut<'_>) {
    assert_eq!((from.rows(), from.cols()), (to.rows(), to.cols()), "shapes of a copy");
    let (rows, cols) = (from.rows(), from.cols());
    if rows == 0 || cols == 0 {
        return;
    }
    let (from, to) =
        if to.col_stride() == 1 || to.row_stride() != 1 { (from, to.reborrow()) } else { (from.t(), to.t()) };
    copy_along(isa, from, to);
}

/// Copies where the target runs along its rows, if it is contiguous at all.
fn copy_along(isa: Isa, from: MatRef<'_>, mut to: MatMut<'_>) {
    let (rows, cols) = (from.rows(), from.cols());
    let (rs, cs) = (to.row_stride(), to.col_stride());
    let target = to.as_mut_ptr();
    if cs == 1 && from.row_stride() == 1 && cols > 1 && rows > 1 {
        let block = Transpose {
            src: from.as_ptr(),
            src_step: from.col_stride(),
            rows: cols,
            cols: rows,
            dst: target,
            dst_step: rs,
        };
        // The source, seen along its contiguous direction, has `cols` rows of `rows` elements; `MatRef`
        // and `MatMut` vouch that all lie in their slices.
        return dispatch(isa, block);
    }
    for i in 0..rows {
        let source = from.from(i, 0);
        let row = target.wrapping_add(i * rs);
        if cs == 1 {
            // SAFETY: row i of the target has `cols` contiguous elements, and no one else writes them.
            let row = unsafe { std::slice::from_raw_parts_mut(row, cols) };
            if from.col_stride() == 1 {
                row.copy_from_slice(&source[..cols]);
            } else {
                for (j, x) in row.iter_mut().enumerate() {
                    *x = source[j * from.col_stride()];
                }
            }
        } else {
            for j in 0..cols {
                // SAFETY: (i, j) is an element of the target.
                unsafe { *row.wrapping_add(j * cs) = source[j * from.col_stride()] };
            }
        }
    }
}

/// `dst[c * dst_step + r] = src[r * src_step + c]` for `rows x cols` elements. Whoever makes one vouches
/// that they can be read and written.
pub(crate) struct Transpose {
    pub(crate) src: *const f32,
    pub(crate) src_step: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) dst: *mut f32,
    pub(crate) dst_step: usize,
}

impl Op for Transpose {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let l = S::LANES;
        for r in (0..self.rows).step_by(l) {
            let h = l.min(self.rows - r);
            for c in (0..self.cols).step_by(l) {
                let w = l.min(self.cols - c);
                let src = self.src.wrapping_add(r * self.src_step + c);
                let dst = self.dst.wrapping_add(c * self.dst_step + r);
                // SAFETY: whoever made this vouches for every element.
                unsafe { s.transpose(src, self.src_step, (h, w), dst, self.dst_step) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_agree_with_their_definition() {
        for isa in Isa::available() {
            for (rows, cols) in
                [(1, 1), (3, 5), (8, 8), (16, 16), (17, 33), (4, 100), (49, 20), (1, 40), (40, 1)]
            {
                let strides = [(cols + 3, 1), (1, rows + 2), (2 * cols + 1, 2)];
                for from in strides {
                    for to in strides {
                        let len = 2 * rows * cols + 3 * (rows + cols);
                        let data: Vec<f32> = (0..len).map(|i| i as f32).collect();
                        let source = MatRef::strided(&data[1..], rows, cols, from.0, from.1);
                        let mut out = vec![-1.0; len];
                        copy(isa, source, MatMut::strided(&mut out[1..], rows, cols, to.0, to.1));
                        let mut want = vec![-1.0; len];
                        for i in 0..rows {
                            for j in 0..cols {
                                want[1 + i * to.0 + j * to.1] = *source.at(i, j);
                            }
                        }
                        assert!(out == want, "{isa:?} {rows}x{cols} from {from:?} to {to:?}");
                    }
                }
            }
        }
    }
}

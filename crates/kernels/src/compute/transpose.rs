use super::isa::Isa;
use super::mat::{MatMut, MatRef};
use super::simd::{Op, Simd, dispatch};

/// Copies a matrix to another of the same shape; both may have any strides. Where one is contiguous along rows and
/// the other along columns, blocks are transposed in registers.
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
    copy_to_rows(isa, from, to);
}

/// Copies `from` to `to`. The caller has transposed both if that makes the rows of `to` contiguous.
fn copy_to_rows(isa: Isa, from: MatRef<'_>, mut to: MatMut<'_>) {
    let (rows, cols) = (from.rows(), from.cols());
    if to.col_stride() == 1 && from.row_stride() == 1 && cols > 1 && rows > 1 {
        match cols {
            2 => return interleave::<2>(from, to),
            3 => return interleave::<3>(from, to),
            _ => {}
        }
        // Seen along its contiguous direction, the source has `cols` rows of `rows` elements.
        return dispatch(isa, Transpose::new(from.t(), to.t()));
    }
    for i in 0..rows {
        let source = from.data_from(i, 0);
        match to.row(i) {
            Some(row) if from.col_stride() == 1 => row.copy_from_slice(&source[..cols]),
            Some(row) => {
                for (j, x) in row.iter_mut().enumerate() {
                    *x = source[j * from.col_stride()];
                }
            }
            None => {
                for j in 0..cols {
                    *to.at(i, j) = source[j * from.col_stride()];
                }
            }
        }
    }
}

/// Copies a matrix of `N` contiguous columns, too few to fill vectors, to one with contiguous rows.
fn interleave<const N: usize>(from: MatRef<'_>, mut to: MatMut<'_>) {
    let columns: [&[f32]; N] = std::array::from_fn(|j| &from.data_from(0, j)[..from.rows()]);
    for i in 0..from.rows() {
        if let Some(Ok(row)) = to.row(i).map(<&mut [f32; N]>::try_from) {
            *row = columns.map(|column| column[i]);
        }
    }
}

/// Copies a matrix with contiguous rows to one with contiguous columns.
pub(crate) struct Transpose<'a> {
    from: MatRef<'a>,
    to: MatMut<'a>,
}

impl<'a> Transpose<'a> {
    /// # Panics
    /// If the shapes differ, or the rows of `from` or the columns of `to` are not contiguous.
    pub(crate) fn new(from: MatRef<'a>, to: MatMut<'a>) -> Self {
        assert_eq!((from.rows(), from.cols()), (to.rows(), to.cols()), "shapes of a copy");
        assert!(from.col_stride() == 1 || from.cols() <= 1, "rows of the source must be contiguous");
        assert!(to.row_stride() == 1 || to.rows() <= 1, "columns of the target must be contiguous");
        Self { from, to }
    }
}

impl Op for Transpose<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (rows, cols) = (self.from.rows(), self.from.cols());
        let (src_step, dst_step) = (self.from.row_stride(), self.to.col_stride());
        let (src, dst) = (self.from.as_ptr(), self.to.as_mut_ptr());
        let l = S::LANES;
        for r in (0..rows).step_by(l) {
            let h = l.min(rows - r);
            for c in (0..cols).step_by(l) {
                let w = l.min(cols - c);
                // SAFETY: the block is in bounds of both matrices, and `new` checked that they are contiguous in
                // these directions.
                unsafe {
                    let (src, dst) = (src.add(r * src_step + c), dst.add(c * dst_step + r));
                    s.transpose(src, src_step, (h, w), dst, dst_step);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_match_the_definition_for_all_strides() {
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

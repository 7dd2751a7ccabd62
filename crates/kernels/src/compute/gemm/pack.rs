//! Operands packed in the layout that the tiles read: what a tile loads at consecutive steps is contiguous. That takes
//! one stream for the prefetcher and few entries of the TLB, where each row of a wide matrix is in a page of its own,
//! and rows at strides of a power of two would evict each other.

use super::super::isa::Isa;
use super::super::mat::{MatMut, MatRef};
use super::super::packed_weights::{PackedWeightsReader, WeightBuffer};
use super::super::simd::{VectorIsa, dispatch};
use super::super::transpose::Transpose;
use super::tile;
use pteron_tensor::{AlignedBuffer, Result};
use std::ops::Range;

/// The right operand of a product, packed for an instruction set: panels of columns, each stored row by row, the last
/// padded with zero columns.
#[derive(Clone, Debug)]
pub struct PackedB {
    data: WeightBuffer,
    k: usize,
    n: usize,
    vectors: VectorIsa,
}

impl PackedB {
    /// A `k x n` matrix whose panels `fill` writes, given their columns: row by row, each row [as long as a panel is
    /// wide](tile::panel_cols). Fails if memory runs out.
    pub(crate) fn from_fn(
        isa: Isa,
        k: usize,
        n: usize,
        mut fill: impl FnMut(Range<usize>, &mut [f32]),
    ) -> Result<Self> {
        let nr = tile::panel_cols(isa);
        let len = Self::packed_len(isa, k, n).unwrap_or(usize::MAX / 64);
        let mut data =
            AlignedBuffer::zeroed_long_lived(len.saturating_mul(size_of::<f32>()).min(usize::MAX / 8))?;
        let panels: &mut [f32] = bytemuck::cast_slice_mut(&mut data);
        for (first, panel) in (0..n).step_by(nr).zip(panels.chunks_exact_mut((k * nr).max(1))) {
            fill(first..n.min(first + nr), panel);
        }
        Ok(Self { data: WeightBuffer::Owned(data), k, n, vectors: isa.into() })
    }

    /// Packs a `k x n` matrix of any strides: a weight of shape `[n, k]`, as in PyTorch's linear, is
    /// `MatRef::new(w, n, k).t()`. Fails if memory runs out.
    pub fn new(isa: Isa, b: MatRef<'_>) -> Result<Self> {
        let (k, nr) = (b.rows(), tile::panel_cols(isa));
        Self::from_fn(isa, k, b.cols(), |columns, panel| pack_b(isa, b, 0..k, columns, nr, panel))
    }

    /// Packs a `k x n` matrix that is stored row by row, as `[n, k]` if it is `transposed`, from pieces of whole rows,
    /// so that it need not be in memory as a whole. `read` passes on the elements of a range of rows, which has about
    /// `piece` elements.
    ///
    /// # Errors
    /// Memory runs out, or `read` fails.
    pub fn from_pieces<E: From<pteron_tensor::Error>>(
        isa: Isa,
        (k, n): (usize, usize),
        transposed: bool,
        piece: usize,
        mut read: impl FnMut(Range<usize>, &mut dyn FnMut(&[f32])) -> Result<(), E>,
    ) -> Result<Self, E> {
        let nr = tile::panel_cols(isa);
        let len = Self::packed_len(isa, k, n).unwrap_or(usize::MAX / 64);
        let mut data =
            AlignedBuffer::zeroed_long_lived(len.saturating_mul(size_of::<f32>()).min(usize::MAX / 8))?;
        let panels: &mut [f32] = bytemuck::cast_slice_mut(&mut data);
        let ((rows, columns), unit) = if transposed { ((n, k), nr) } else { ((k, n), 1) };
        let step = (piece / columns.max(1)).max(1).next_multiple_of(unit);
        for first in (0..rows).step_by(step) {
            let part = first..rows.min(first + step);
            let mut pack = |elements: &[f32]| {
                let part = MatRef::new(elements, part.len(), columns);
                if transposed {
                    return pack_b(isa, part.t(), 0..k, 0..part.rows(), nr, &mut panels[first * k..]);
                }
                let (height, all) = (part.rows(), panels.chunks_exact_mut((k * nr).max(1)));
                for (c, panel) in (0..n).step_by(nr).zip(all) {
                    let panel = &mut panel[first * nr..(first + height) * nr];
                    gather_block(isa, part, 0, c, height, nr.min(n - c), nr, panel);
                }
            };
            read(part.clone(), &mut pack)?;
        }
        Ok(Self { data: WeightBuffer::Owned(data), k, n, vectors: isa.into() })
    }

    /// Loads a `k x n` matrix that was packed for this instruction set and stored; `None` if too few bytes are left.
    pub fn from_packed(isa: Isa, k: usize, n: usize, from: &mut PackedWeightsReader) -> Option<Self> {
        let data = from.take(Self::packed_len(isa, k, n)?)?;
        Some(Self { data, k, n, vectors: isa.into() })
    }

    /// The number of elements of a packed `k x n` matrix, padding included; `None` on overflow.
    fn packed_len(isa: Isa, k: usize, n: usize) -> Option<usize> {
        let nr = tile::panel_cols(isa);
        n.div_ceil(nr).checked_mul(nr)?.checked_mul(k)
    }

    /// Appends the elements in the form that [`Self::from_packed`] reads.
    pub fn store(&self, out: &mut Vec<u8>) {
        self.data.store(out);
    }

    /// The number of rows of the matrix: the inner dimension of the product.
    pub fn rows(&self) -> usize {
        self.k
    }

    /// The number of columns of the matrix.
    pub fn cols(&self) -> usize {
        self.n
    }

    /// The vectors that the matrix was packed for; only products that use them can read it.
    pub(crate) fn vector_isa(&self) -> VectorIsa {
        self.vectors
    }

    /// The bytes of memory that the matrix owns; none if it was loaded from stored weights.
    pub fn nbytes(&self) -> usize {
        self.data.nbytes()
    }

    /// The element at row `i`, column `j`.
    pub(crate) fn at(&self, i: usize, j: usize) -> f32 {
        let nr = tile::panel_cols(self.vectors);
        self.elements()[(j / nr * self.k + i) * nr + j % nr]
    }

    pub(crate) fn elements(&self) -> &[f32] {
        self.data.elements()
    }
}

/// The left operand of a product, packed for an instruction set: panels of rows, each stored column by column.
#[derive(Clone, Debug)]
pub struct PackedA {
    data: WeightBuffer,
    m: usize,
    k: usize,
    height: usize,
    vectors: VectorIsa,
}

impl PackedA {
    /// Packs an `m x k` matrix of any strides. Fails if memory runs out.
    pub fn new(isa: Isa, a: MatRef<'_>) -> Result<Self> {
        let (m, k) = (a.rows(), a.cols());
        let height = panel_height(isa, m);
        let len = m.checked_mul(k).and_then(|l| l.checked_mul(size_of::<f32>())).unwrap_or(usize::MAX / 8);
        let mut data = AlignedBuffer::zeroed(len)?;
        pack_a(isa, a, 0..m, 0..k, height, bytemuck::cast_slice_mut(&mut data));
        Ok(Self { data: WeightBuffer::Owned(data), m, k, height, vectors: isa.into() })
    }

    /// Loads an `m x k` matrix that was packed for this instruction set and stored; `None` if too few bytes are left.
    pub(crate) fn from_packed(isa: Isa, m: usize, k: usize, from: &mut PackedWeightsReader) -> Option<Self> {
        let data = from.take(m.checked_mul(k)?)?;
        Some(Self { data, m, k, height: panel_height(isa, m), vectors: isa.into() })
    }

    /// Appends the elements in the form that [`Self::from_packed`] reads.
    pub(crate) fn store(&self, out: &mut Vec<u8>) {
        self.data.store(out);
    }

    /// The number of rows of the matrix.
    pub fn rows(&self) -> usize {
        self.m
    }

    /// The number of columns of the matrix: the inner dimension of the product.
    pub fn cols(&self) -> usize {
        self.k
    }

    /// The vectors that the matrix was packed for; only products that use them can read it.
    pub(crate) fn vector_isa(&self) -> VectorIsa {
        self.vectors
    }

    /// The bytes of memory that the matrix owns; none if it was loaded from stored weights.
    pub fn nbytes(&self) -> usize {
        self.data.nbytes()
    }

    pub(crate) fn height(&self) -> usize {
        self.height
    }

    pub(crate) fn elements(&self) -> &[f32] {
        self.data.elements()
    }
}

/// The panel height that divides `m` rows most evenly into the fewest panels.
pub(crate) fn panel_height(isa: impl Into<VectorIsa>, m: usize) -> usize {
    let max = tile::max_rows(isa);
    m.div_ceil(m.div_ceil(max).max(1)).max(1)
}

/// Packs rows and columns of `a` into panels of `height` rows: the panel of rows `p * height..` starts
/// at `p * height * k`.
pub(crate) fn pack_a(
    isa: Isa,
    a: MatRef<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
    height: usize,
    out: &mut [f32],
) {
    let k = cols.len();
    if k == 0 {
        return;
    }
    let mut out = out;
    for r in rows.clone().step_by(height) {
        let h = height.min(rows.end - r);
        let (panel, rest) = out.split_at_mut(h * k);
        out = rest;
        gather_block(isa, a.t(), cols.start, r, k, h, h, panel);
    }
}

/// Packs rows and columns of `b` into panels of `nr` columns: the panel of columns `p * nr..` starts
/// at `p * nr * k`.
pub(crate) fn pack_b(
    isa: Isa,
    b: MatRef<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
    nr: usize,
    out: &mut [f32],
) {
    let k = rows.len();
    if k == 0 {
        return;
    }
    for (c, panel) in cols.clone().step_by(nr).zip(out.chunks_exact_mut(nr * k)) {
        gather_block(isa, b, rows.start, c, k, nr.min(cols.end - c), nr, panel);
    }
}

/// Copies the `k x n` block of `b` at `(r, c)` to rows of `step` elements; the elements past the `n`th become zero.
fn gather_block(
    isa: Isa,
    b: MatRef<'_>,
    r: usize,
    c: usize,
    k: usize,
    n: usize,
    step: usize,
    out: &mut [f32],
) {
    let (rs, cs) = (b.row_stride(), b.col_stride());
    if n < step {
        for row in out.chunks_exact_mut(step) {
            row[n..].fill(0.0);
        }
    }
    if cs == 1 {
        for (i, row) in out.chunks_exact_mut(step).enumerate() {
            row[..n].copy_from_slice(&b.data_from(r + i, c)[..n]);
        }
    } else if rs == 1 {
        let from = b.block(r..r + k, c..c + n);
        dispatch(isa, Transpose::new(from.t(), MatMut::strided(out, k, n, step, 1).t()));
    } else {
        for (i, row) in out.chunks_exact_mut(step).enumerate() {
            let source = b.data_from(r + i, c);
            for (j, x) in row[..n].iter_mut().enumerate() {
                *x = source[j * cs];
            }
        }
    }
}

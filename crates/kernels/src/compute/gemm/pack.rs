//! Operands packed in the layout that the tiles read: what a tile loads at consecutive steps is contiguous. That takes
//! one stream for the prefetcher and few entries of the TLB, where each row of a wide matrix is in a page of its own,
//! and rows at strides of a power of two would evict each other.

use super::super::isa::Isa;
use super::super::mat::{MatMut, MatRef};
use super::super::packed_weights::{PackedWeightsReader, WeightBuffer};
use super::super::simd::{VectorIsa, dispatch};
use super::super::transpose::Transpose;
use super::narrow::{Elements, WeightStorage, WeightType, store_exactly};
use super::tile;
use pteron_tensor::{AlignedBuffer, Result};
use std::ops::Range;

/// The right operand of a product, packed for an instruction set: panels of columns, each stored row by row, the last
/// padded with zero columns.
#[derive(Clone, Debug)]
pub struct PackedB {
    data: WeightBuffer,
    /// The scale of each column, padding included; empty if the type of the elements has no scales.
    scales: WeightBuffer,
    ty: WeightType,
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
        let mut data = Self::zeros(isa, WeightType::F32, k, n)?;
        let panels: &mut [f32] = bytemuck::cast_slice_mut(&mut data);
        for (first, panel) in (0..n).step_by(nr).zip(panels.chunks_exact_mut((k * nr).max(1))) {
            fill(first..n.min(first + nr), panel);
        }
        Self::of(isa, WeightStorage::F32, k, n, data)
    }

    /// Packs a `k x n` matrix of any strides: a weight of shape `[n, k]`, as in PyTorch's linear, is
    /// `MatRef::new(w, n, k).t()`. The elements are f32. Fails if memory runs out.
    pub fn new(isa: Isa, b: MatRef<'_>) -> Result<Self> {
        Self::stored_as(isa, WeightStorage::F32, b)
    }

    /// As [`Self::new`]; the elements are stored as `storage` says, or as f32 if that does not represent all of them
    /// exactly.
    pub fn stored_as(isa: Isa, storage: WeightStorage<'_>, b: MatRef<'_>) -> Result<Self> {
        let (k, n, nr) = (b.rows(), b.cols(), tile::panel_cols(isa));
        let ty = storage.weight_type();
        if ty != WeightType::F32 {
            let mut data = Self::zeros(isa, ty, k, n)?;
            let mut panel = AlignedBuffer::zeroed(k * nr * size_of::<f32>())?;
            let panel: &mut [f32] = bytemuck::cast_slice_mut(&mut panel);
            let panels = data.chunks_exact_mut((k * nr * ty.size()).max(1));
            let is_exact = (0..n).step_by(nr).zip(panels).all(|(first, out)| {
                pack_b(isa, b, 0..k, first..n.min(first + nr), nr, panel);
                store_exactly(storage, panel, (nr, first), out)
            });
            if is_exact {
                return Self::of(isa, storage, k, n, data);
            }
        }
        Self::from_fn(isa, k, n, |columns, panel| pack_b(isa, b, 0..k, columns, nr, panel))
    }

    /// Packs a `k x n` matrix that is stored row by row, as `[n, k]` if it is `transposed`, from pieces of whole rows,
    /// so that it need not be in memory as a whole. `read` passes on the elements of a range of rows, which has about
    /// `piece` elements; it is called again for the same rows if the elements cannot be stored as `storage` says. Then
    /// they are stored as f32.
    ///
    /// # Errors
    /// Memory runs out, or `read` fails.
    pub fn from_pieces<E: From<pteron_tensor::Error>>(
        isa: Isa,
        storage: WeightStorage<'_>,
        (k, n): (usize, usize),
        transposed: bool,
        piece: usize,
        mut read: impl FnMut(Range<usize>, &mut dyn FnMut(&[f32])) -> Result<(), E>,
    ) -> Result<Self, E> {
        let (nr, size) = (tile::panel_cols(isa), storage.weight_type().size());
        let mut data = Self::zeros(isa, storage.weight_type(), k, n)?;
        let mut is_exact = true;
        let ((rows, columns), unit) = if transposed { ((n, k), nr) } else { ((k, n), 1) };
        let step = (piece / columns.max(1)).max(1).next_multiple_of(unit);
        let mut scratch = AlignedBuffer::default();
        for first in (0..rows).step_by(step) {
            let part = first..rows.min(first + step);
            let narrow = storage.weight_type() != WeightType::F32;
            // A piece of the panels, in f32, before it is stored in fewer bits.
            let piece = if transposed { part.len().next_multiple_of(nr) * k } else { part.len() * nr };
            scratch.resize(if narrow { piece * size_of::<f32>() } else { 0 })?;
            let mut pack = |elements: &[f32]| {
                let scratch: &mut [f32] = bytemuck::cast_slice_mut(&mut scratch);
                let part = MatRef::new(elements, part.len(), columns);
                if transposed {
                    let out = &mut data[first * k * size..];
                    if !narrow {
                        return pack_b(
                            isa,
                            part.t(),
                            0..k,
                            0..part.rows(),
                            nr,
                            bytemuck::cast_slice_mut(out),
                        );
                    }
                    pack_b(isa, part.t(), 0..k, 0..part.rows(), nr, scratch);
                    let panels = scratch.chunks(nr * k).zip(out.chunks_mut(nr * k * size));
                    for ((panel, out), column) in panels.zip((first..n).step_by(nr)) {
                        is_exact &= store_exactly(storage, panel, (nr, column), out);
                    }
                    return;
                }
                let height = part.rows();
                for (c, panel) in (0..n).step_by(nr).zip(data.chunks_exact_mut((k * nr * size).max(1))) {
                    let out = &mut panel[first * nr * size..(first + height) * nr * size];
                    let columns = nr.min(n - c);
                    if narrow {
                        gather_block(isa, part, 0, c, height, columns, nr, scratch);
                        is_exact &= store_exactly(storage, scratch, (nr, c), out);
                    } else {
                        gather_block(isa, part, 0, c, height, columns, nr, bytemuck::cast_slice_mut(out));
                    }
                }
            };
            read(part.clone(), &mut pack)?;
            if !is_exact {
                return Self::from_pieces(isa, WeightStorage::F32, (k, n), transposed, piece, read);
            }
        }
        Ok(Self::of(isa, storage, k, n, data)?)
    }

    /// Loads a `k x n` matrix that was packed for this instruction set and stored, as `storage` says; `None` if too few
    /// bytes are left, or the scales are others.
    pub fn from_packed(
        isa: Isa,
        storage: WeightStorage<'_>,
        k: usize,
        n: usize,
        from: &mut PackedWeightsReader,
    ) -> Option<Self> {
        let ty = storage.weight_type();
        let data = from.take_as(ty, Self::packed_len(isa, k, n)?)?;
        let scales = match storage {
            WeightStorage::Int8 { scales } => {
                let stored = from.take(Self::packed_len(isa, 1, n)?)?;
                let is_same = stored.elements().get(..n)? == scales.get(..n)?;
                is_same.then_some(stored)?
            }
            _ => WeightBuffer::empty(),
        };
        Some(Self { data, scales, ty, k, n, vectors: isa.into() })
    }

    /// Zeros for the elements of a packed `k x n` matrix of this type.
    fn zeros(isa: Isa, ty: WeightType, k: usize, n: usize) -> Result<AlignedBuffer> {
        let len = Self::packed_len(isa, k, n).unwrap_or(usize::MAX / 64);
        AlignedBuffer::zeroed_long_lived(len.saturating_mul(ty.size()).min(usize::MAX / 8))
    }

    /// A matrix of packed elements.
    fn of(isa: Isa, storage: WeightStorage<'_>, k: usize, n: usize, data: AlignedBuffer) -> Result<Self> {
        let scales = match storage {
            WeightStorage::Int8 { scales } => {
                let len = Self::packed_len(isa, 1, n).unwrap_or(usize::MAX / 64);
                let mut padded = AlignedBuffer::zeroed_long_lived(len * size_of::<f32>())?;
                let to: &mut [f32] = bytemuck::cast_slice_mut(&mut padded);
                to.iter_mut().zip(scales).take(n).for_each(|(to, &scale)| *to = scale);
                WeightBuffer::Owned(padded)
            }
            _ => WeightBuffer::empty(),
        };
        let ty = storage.weight_type();
        Ok(Self { data: WeightBuffer::Owned(data), scales, ty, k, n, vectors: isa.into() })
    }

    /// The number of elements of a packed `k x n` matrix, padding included; `None` on overflow.
    fn packed_len(isa: Isa, k: usize, n: usize) -> Option<usize> {
        let nr = tile::panel_cols(isa);
        n.div_ceil(nr).checked_mul(nr)?.checked_mul(k)
    }

    /// Appends the elements in the form that [`Self::from_packed`] reads.
    pub fn store(&self, out: &mut Vec<u8>) {
        self.data.store(out);
        if self.ty == WeightType::Int8 {
            self.scales.store(out);
        }
    }

    /// The type of the packed elements.
    pub fn weight_type(&self) -> WeightType {
        self.ty
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
        self.data.nbytes() + self.scales.nbytes()
    }

    /// The element at row `i`, column `j` of a matrix of f32 elements.
    pub(crate) fn at(&self, i: usize, j: usize) -> f32 {
        let nr = tile::panel_cols(self.vectors);
        self.data.elements()[(j / nr * self.k + i) * nr + j % nr]
    }

    /// The packed elements.
    pub(crate) fn elements(&self) -> Elements<'_> {
        Elements::of(self.ty, self.data.bytes(), self.scales.elements())
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

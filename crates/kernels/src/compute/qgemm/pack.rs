//! The right operand of a product, packed in the layout that the tiles read.
//!
//! Four rows of a column are adjacent because instructions for 8-bit values (`vpdpbusd`, `tdpbusd`) add up four
//! products a 32-bit lane; two where 16-bit values are multiplied (`vpmaddwd`), eight for matrix products (`smmla`). The
//! sums of the columns are stored, too: they take the zero point out of the product,
//! `sum((a - zero) * b) = sum(a * b) - zero * sum(b)`, as in gemmlowp (Jacob et al., "Quantization and Training of
//! Neural Networks for Efficient Integer-Arithmetic-Only Inference", 2018), so that tiles multiply the stored bytes.

use super::super::mat::MatRef;
use pteron_tensor::memory::filled;
use pteron_tensor::{AlignedBuffer, Result};

/// The number of columns of a panel.
pub(crate) const PANEL: usize = 16;
/// The number of rows of a long panel is padded to a multiple of this, the number of rows of an AMX step.
const STEP: usize = 64;
/// The number of rows of a short panel is padded to a multiple of this, the number of rows of a step of 4-bit values.
const SHORT_STEP: usize = 8;

/// The width in memory of quantized weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightBits {
    /// Two values in each byte: -8 to 7.
    Four,
    /// One value in each byte: -128 to 127.
    Eight,
}

/// A `k x n` matrix of quantized weights, which stand for `quantized * scale`.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// The quantized values, of any strides. A weight of shape `[n, k]`, as in PyTorch's linear, is
    /// `MatRef::new(w, n, k).t()`.
    pub quantized: MatRef<'a, i8>,
    /// The width in memory of the quantized values.
    pub bits: WeightBits,
    /// One scale for all columns (if there is one group), or one for each column, or one for each column in each group
    /// of rows: `[groups, n]`.
    pub scales: &'a [f32],
    /// The number of rows of a group; the last group may have fewer. `k` or more means one group.
    pub group: usize,
}

/// Weights packed once: panels of 16 columns, each a sequence of blocks in which four rows of each column are adjacent
/// (with 4-bit values, eight rows: four in the low halves of the bytes, the next four in the high halves; with 8-bit
/// values, as many rows as the microkernels of the instruction set multiply at once: two, four or eight). Padding is zero.
#[derive(Clone, Debug)]
pub struct PackedWeights {
    data: AlignedBuffer,
    k: usize,
    n: usize,
    bits: WeightBits,
    /// The number of rows of a column of 8-bit values that are adjacent.
    adjacent: usize,
    group: usize,
    /// Whether no 8-bit value is -128; false if this was not looked at.
    without_least: bool,
    /// `[panels, groups, PANEL]`: the scales of a panel are contiguous, as a tile reads them.
    scales: Vec<f32>,
    /// The sum of each column in each group, in the layout of the scales.
    sums: Vec<i32>,
}

impl PackedWeights {
    /// The largest inner dimension for which a sum of products of 8-bit values fits 32 bits.
    pub const MAX_ROWS: usize = 1 << 16;
    /// The number of rows of a group is a multiple of this, if there are several groups.
    pub const GROUP_UNIT: usize = 32;

    /// Packs weights for microkernels that read `adjacent` rows of a column of 8-bit values together: 2, 4 or 8. Fails
    /// if memory runs out.
    ///
    /// # Panics
    /// If there are more than [`Self::MAX_ROWS`] rows, there are several groups whose rows are not a multiple of
    /// [`Self::GROUP_UNIT`], the number of scales does not match, or a 4-bit value is out of range.
    pub(super) fn with_adjacent_rows(adjacent: usize, weights: &Weights<'_>) -> Result<Self> {
        let Weights { quantized, bits, scales, group } = *weights;
        let (k, n) = (quantized.rows(), quantized.cols());
        assert!(k <= Self::MAX_ROWS, "weights of {k} rows: at most {} can be summed", Self::MAX_ROWS);
        let group = if group < k { group } else { k.max(1) };
        let groups = k.div_ceil(group).max(1);
        assert!(
            groups == 1 || group.is_multiple_of(Self::GROUP_UNIT),
            "groups of {group} rows: expected a multiple of {}",
            Self::GROUP_UNIT
        );
        let expected = groups.saturating_mul(n);
        let one = scales.len() == 1 && groups == 1;
        assert!(
            one || scales.len() == expected,
            "{} scales for {groups} groups of {n} columns",
            scales.len()
        );

        let padded = n.div_ceil(PANEL).saturating_mul(PANEL);
        let step = if 2 * k > STEP { STEP } else { SHORT_STEP };
        let depth = k.next_multiple_of(step);
        let per_byte = if bits == WeightBits::Four { 2 } else { 1 };
        let data = AlignedBuffer::zeroed_long_lived(padded.saturating_mul(depth) / per_byte)?;
        let (mut column_scales, sums) = (filled(groups * padded, 0.0)?, filled(groups * padded, 0)?);
        for (i, to) in column_scales.chunks_exact_mut(PANEL).enumerate() {
            let (first, g) = (i / groups * PANEL, i % groups);
            let to = &mut to[..PANEL.min(n - first)];
            match one {
                true => to.fill(scales[0]),
                false => to.copy_from_slice(&scales[g * n + first..][..to.len()]),
            }
        }
        let without_least = false;
        let adjacent = if bits == WeightBits::Eight { adjacent } else { 4 };
        let mut packed =
            Self { data, k, n, bits, adjacent, group, without_least, scales: column_scales, sums };
        packed.fill(quantized, depth);
        if cfg!(target_arch = "aarch64") && bits == WeightBits::Eight {
            packed.without_least = !packed.data.contains(&0x80);
        }
        Ok(packed)
    }

    /// Packs another matrix of 8-bit values in the memory of this one, with the same scales.
    ///
    /// # Panics
    /// If the matrix has other sizes, or this one has several groups or values of 4 bits.
    pub(super) fn repack(&mut self, quantized: MatRef<'_, i8>) {
        assert_eq!((quantized.rows(), quantized.cols()), (self.k, self.n), "sizes of a matrix to pack");
        assert!(self.group_count() == 1 && self.bits == WeightBits::Eight, "groups or values of 4 bits");
        self.without_least = false;
        self.fill(quantized, self.depth());
    }

    fn fill(&mut self, quantized: MatRef<'_, i8>, depth: usize) {
        let panel = self.panel_bytes(depth);
        if quantized.row_stride() == 1 {
            return self.fill_from_columns(quantized, panel);
        }
        if quantized.col_stride() == 1 && self.bits == WeightBits::Eight && self.group_count() == 1 {
            return match self.adjacent {
                2 => self.fill_from_rows::<2>(quantized, panel),
                8 => self.fill_from_rows::<8>(quantized, panel),
                _ => self.fill_from_rows::<4>(quantized, panel),
            };
        }
        let (rs, groups, adjacent) = (quantized.row_stride(), self.group_count(), self.adjacent);
        for j in 0..self.n {
            let data = &mut self.data[j / PANEL * panel..][..panel];
            let (lane, mut i) = (j % PANEL * adjacent, 0);
            for g in 0..self.k.div_ceil(self.group) {
                let end = self.k.min(i + self.group);
                let column = quantized.data_from(i, j);
                let mut sum = 0;
                for t in 0..end - i {
                    let x = column[t * rs];
                    sum += i32::from(x);
                    match self.bits {
                        WeightBits::Eight => {
                            data[i / adjacent * adjacent * PANEL + lane + i % adjacent] = x as u8;
                        }
                        WeightBits::Four => {
                            assert!((-8..8).contains(&x), "{x} does not fit 4 bits");
                            data[i / 8 * 64 + lane + i % 4] |= (x as u8 & 15) << (i / 4 % 2 * 4);
                        }
                    }
                    i += 1;
                }
                let at = scale_index(groups, g, j);
                self.sums[at] = sum;
            }
        }
    }

    /// Like [`Self::fill`], but for one group of 8-bit values with contiguous rows, of which `N` are adjacent.
    fn fill_from_rows<const N: usize>(&mut self, quantized: MatRef<'_, i8>, panel: usize) {
        for first in (0..self.n).step_by(PANEL) {
            let columns = PANEL.min(self.n - first);
            let mut sums = [0; PANEL];
            let data = &mut self.data[first / PANEL * panel..][..panel];
            for (block, i) in data.chunks_exact_mut(N * PANEL).zip((0..self.k).step_by(N)) {
                for r in 0..N.min(self.k - i) {
                    let row = &quantized.data_from(i + r, first)[..columns];
                    let to = block.as_chunks_mut::<N>().0;
                    for ((to, sum), &x) in to.iter_mut().zip(&mut sums).zip(row) {
                        to[r] = x as u8;
                        *sum += i32::from(x);
                    }
                }
            }
            self.sums[first..][..columns].copy_from_slice(&sums[..columns]);
        }
    }

    /// Like [`Self::fill`], but for a matrix with contiguous columns.
    fn fill_from_columns(&mut self, quantized: MatRef<'_, i8>, panel: usize) {
        // Groups start at whole blocks: there is one group, or the rows of each are a multiple of `GROUP_UNIT`.
        let groups = self.group_count();
        for j in 0..self.n {
            let data = &mut self.data[j / PANEL * panel..][..panel];
            let lane = j % PANEL;
            for (g, start) in (0..self.k).step_by(self.group).enumerate() {
                let column = &quantized.data_from(start, j)[..self.group.min(self.k - start)];
                let at = scale_index(groups, g, j);
                match (self.bits, self.adjacent) {
                    (WeightBits::Eight, adjacent) => {
                        self.sums[at] = column.iter().map(|&x| i32::from(x)).sum();
                        let data = &mut data[start * PANEL..];
                        match adjacent {
                            2 if lane % 2 == 1 => {}
                            2 if j + 1 < self.n => {
                                let next = &quantized.data_from(start, j + 1)[..column.len()];
                                copy_two_columns(column, next, places::<4, 32>(data, lane / 2));
                            }
                            2 => copy_column(column, places::<2, 32>(data, lane)),
                            8 => copy_column(column, places::<8, 128>(data, lane)),
                            _ => copy_column(column, places::<4, 64>(data, lane)),
                        }
                    }
                    (WeightBits::Four, _) => {
                        let (chunks, rest) = column.as_chunks::<8>();
                        let mut last = [0; 8];
                        last[..rest.len()].copy_from_slice(rest);
                        let blocks = chunks.iter().chain((!rest.is_empty()).then_some(&last));
                        let (mut sum, mut out_of_range) = (0, 0);
                        for (rows, to) in blocks.zip(places::<4, 64>(&mut data[start / 2 * PANEL..], lane)) {
                            let eight = Nibbles::pack(rows);
                            sum += eight.sum;
                            out_of_range |= eight.out_of_range;
                            *to = eight.packed;
                        }
                        assert!(out_of_range == 0, "a value of column {j} does not fit 4 bits");
                        self.sums[at] = sum;
                    }
                }
            }
        }
    }

    fn panel_bytes(&self, depth: usize) -> usize {
        match self.bits {
            WeightBits::Eight => depth * PANEL,
            WeightBits::Four => depth * PANEL / 2,
        }
    }

    /// The number of rows of the matrix: the inner dimension of the product.
    pub fn rows(&self) -> usize {
        self.k
    }

    /// The number of columns of the matrix.
    pub fn cols(&self) -> usize {
        self.n
    }

    /// The width in memory of the quantized values.
    pub fn bits(&self) -> WeightBits {
        self.bits
    }

    /// The bytes of memory that the packed weights own.
    pub fn nbytes(&self) -> usize {
        self.data.len() + size_of_val(&*self.scales) + size_of_val(&*self.sums)
    }

    /// Whether microkernels that read `adjacent` rows together can read these weights.
    pub(super) fn has_adjacent_rows(&self, adjacent: usize) -> bool {
        self.bits == WeightBits::Four || self.adjacent == adjacent
    }

    /// Whether no value is known to be -128.
    pub(super) fn is_without_least(&self) -> bool {
        self.without_least
    }

    pub(super) fn panel_count(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    pub(super) fn group_count(&self) -> usize {
        self.k.div_ceil(self.group).max(1)
    }

    pub(super) fn group_rows(&self) -> usize {
        self.group
    }

    /// The number of bytes from one panel to the next.
    pub(super) fn panel_step(&self) -> usize {
        self.data.len() / self.panel_count().max(1)
    }

    /// The number of rows of a panel, padding included.
    pub(super) fn depth(&self) -> usize {
        match self.bits {
            WeightBits::Eight => self.panel_step() / PANEL,
            WeightBits::Four => self.panel_step() / PANEL * 2,
        }
    }

    /// The bytes of a panel from row `row` on, which must be a multiple of the rows of a block.
    pub(super) fn panel(&self, panel: usize, row: usize) -> &[u8] {
        let at = self.panel_bytes(row);
        &self.data[panel * self.panel_step() + at..]
    }

    /// The scales and sums of the columns from panel `panel` on: group after group of that panel, then of the next.
    pub(super) fn scales_and_sums(&self, panel: usize) -> (&[f32], &[i32]) {
        let at = scale_index(self.group_count(), 0, panel * PANEL);
        (&self.scales[at..], &self.sums[at..])
    }
}

/// The `i`-th `N` bytes of each block of `BLOCK` bytes.
#[inline(always)]
fn places<const N: usize, const BLOCK: usize>(
    panel: &mut [u8],
    i: usize,
) -> impl Iterator<Item = &mut [u8; N]> {
    panel.as_chunks_mut::<BLOCK>().0.iter_mut().map(move |block| &mut block.as_chunks_mut().0[i])
}

/// Copies a column of 8-bit values, `N` rows to each place.
#[inline(always)]
fn copy_column<'a, const N: usize>(column: &[i8], mut places: impl Iterator<Item = &'a mut [u8; N]>) {
    let (chunks, rest) = column.as_chunks::<N>();
    for (rows, to) in chunks.iter().zip(&mut places) {
        *to = bytemuck::cast(*rows);
    }
    if let (Some(last), false) = (places.next(), rest.is_empty()) {
        last.iter_mut().zip(rest).for_each(|(to, &x)| *to = x as u8);
    }
}

/// Copies two columns of 8-bit values, two rows of each to each place.
#[inline(always)]
fn copy_two_columns<'a>(a: &[i8], b: &[i8], mut places: impl Iterator<Item = &'a mut [u8; 4]>) {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
    let mut copy = |a: [i8; 4], b: [i8; 4]| {
        let (a, b) = (u32::from_le_bytes(bytemuck::cast(a)), u32::from_le_bytes(bytemuck::cast(b)));
        for rows in [a & 0xffff | b << 16, a >> 16 | b & 0xffff_0000] {
            if let Some(to) = places.next() {
                *to = rows.to_le_bytes();
            }
        }
    };
    a.iter().zip(b).for_each(|(&a, &b)| copy(a, b));
    if !a_rest.is_empty() {
        let mut last = [[0; 4]; 2];
        last[0][..a_rest.len()].copy_from_slice(a_rest);
        last[1][..b_rest.len()].copy_from_slice(b_rest);
        copy(last[0], last[1]);
    }
}

/// Eight rows of a column of 4-bit values, packed/// Eight rows of a column of 4-bit values, packed together in a general-purpose register.
struct Nibbles {
    /// Bytes that each hold one row in the low half and the row four below in the high half.
    packed: [u8; 4],
    sum: i32,
    /// Nonzero if a value does not fit 4 bits.
    out_of_range: u64,
}

impl Nibbles {
    #[inline(always)]
    fn pack(rows: &[i8; 8]) -> Self {
        const LOW_HALVES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const ONES: u64 = 0x0101_0101_0101_0101;
        let rows = u64::from_le_bytes(rows.map(|x| x as u8));
        // Adds 8 to every byte without carries between bytes: a value that fits becomes 0 to 15.
        let offset = ((rows & 0x7f7f_7f7f_7f7f_7f7f) + 8 * ONES) ^ (rows & 0x8080_8080_8080_8080);
        let sum = (offset & LOW_HALVES).wrapping_mul(ONES) >> 56;
        let nibbles = rows & LOW_HALVES;
        let packed = (nibbles as u32 | (nibbles >> 32 << 4) as u32).to_le_bytes();
        Self { packed, sum: sum as i32 - 64, out_of_range: offset & !LOW_HALVES }
    }
}

/// The index, in the layout of scales and sums, of a column in group `group` of `groups`.
fn scale_index(groups: usize, group: usize, column: usize) -> usize {
    (column / PANEL * groups + group) * PANEL + column % PANEL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_are_packed_summed_and_checked() {
        for x in i8::MIN..=i8::MAX {
            for at in 0..8 {
                let mut rows = [3, -8, 7, 0, -1, 5, -4, 1];
                rows[at] = x;
                let Nibbles { packed, sum, out_of_range } = Nibbles::pack(&rows);
                assert_eq!(out_of_range == 0, (-8..8).contains(&x), "{x}");
                if out_of_range == 0 {
                    assert_eq!(sum, rows.iter().map(|&x| i32::from(x)).sum::<i32>());
                    let pairs = std::array::from_fn(|i| rows[i] as u8 & 15 | (rows[i + 4] as u8) << 4);
                    assert_eq!(packed, pairs);
                }
            }
        }
    }

    #[test]
    fn contiguous_columns_and_rows_are_packed_alike() {
        for (adjacent, bits) in
            [2, 4, 8].into_iter().flat_map(|rows| [(rows, WeightBits::Four), (rows, WeightBits::Eight)])
        {
            for (k, n, group) in [(1, 1, 1), (7, 3, 7), (8, 16, 8), (45, 17, 45), (96, 20, 32), (100, 33, 64)]
            {
                let by_column: Vec<i8> = (0..k * n).map(|i| (i * 7 % 16) as i8 - 8).collect();
                let by_row: Vec<i8> = (0..k * n).map(|i| by_column[i % n * k + i / n]).collect();
                let scales = vec![0.5; k.div_ceil(group) * n];
                let pack = |quantized| {
                    let weights = Weights { quantized, bits, scales: &scales, group };
                    PackedWeights::with_adjacent_rows(adjacent, &weights).unwrap()
                };
                let columns = pack(MatRef::new(&by_column, n, k).t());
                let rows = pack(MatRef::new(&by_row, k, n));
                assert_eq!((&*columns.data, &columns.sums), (&*rows.data, &rows.sums), "{bits:?} {k} {n}");
            }
        }
    }
}

//! Sums of dot products of four 8-bit values, both of whose operands differ from column to column.

use super::super::mat::last_offset;
use super::pack::PANEL;

/// The number of values of a column in one dot product.
pub(crate) const QUAD: usize = 4;

/// Rows of sums. Column `c` of row `i` adds up, over the taps `t`, the dot products of the four values at
/// `a[i * a_step + taps[t] + 4 c..]` and at `b[t * b_step + 4 c..]`.
pub(crate) struct Columns<'a> {
    pub(crate) a: &'a [u8],
    pub(crate) a_step: usize,
    pub(crate) taps: &'a [usize],
    /// At most 256 values of a column are not zero.
    pub(crate) b: &'a [i8],
    pub(crate) b_step: usize,
    /// The number of columns whose sums are meaningful. Operands and sums are padded to a multiple of 16.
    pub(crate) columns: usize,
    /// The sums, in rows that include the padding of the columns.
    pub(crate) sums: &'a mut [i32],
    /// The number of elements from one row of sums to the next.
    pub(crate) step: usize,
}

impl Columns<'_> {
    pub(super) fn rows(&self) -> usize {
        self.sums.len() / self.step
    }

    /// Panics unless all operands and sums are in bounds.
    pub(super) fn check(&self) {
        let columns = self.columns.next_multiple_of(PANEL);
        assert!(columns <= self.step && self.sums.len().is_multiple_of(self.step), "sums of columns");
        let tap = self.taps.iter().max().unwrap_or(&0);
        let a = last_offset(self.rows(), self.a_step).saturating_add(*tap).saturating_add(columns * QUAD);
        assert!(a <= self.a.len(), "left operands of columns");
        let b = last_offset(self.taps.len(), self.b_step).saturating_add(columns * QUAD);
        assert!(b <= self.b.len(), "right operands of columns");
    }
}

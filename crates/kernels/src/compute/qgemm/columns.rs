//! Dot products of four 8-bit values whose operands both differ from column to column.

use super::super::isa::Isa;
use super::super::mat::last_of;
#[cfg(target_arch = "x86_64")]
use super::tile::{Kind, Path};

/// Values of a column that are multiplied at once.
pub(crate) const QUAD: usize = 4;

/// A way to compute such products, on a machine that has the instructions: [`ColumnPath::of`] is its only source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnPath(#[cfg(target_arch = "x86_64")] Kind);

/// Sums of some columns in rows: of column `c` in row `i`, those of the products of `a[i * a_step + taps[t] + 4 c..]` with
/// `b[t * b_step + 4 c..]`.
pub(crate) struct Columns<'a> {
    pub(crate) a: &'a [u8],
    pub(crate) a_step: usize,
    pub(crate) taps: &'a [usize],
    pub(crate) b: &'a [i8],
    pub(crate) b_step: usize,
    /// Columns that count. Operands and sums go on to a multiple of 16.
    pub(crate) columns: usize,
    /// Whole rows.
    pub(crate) sums: &'a mut [i32],
    /// Sums from one row to the next.
    pub(crate) step: usize,
}

impl ColumnPath {
    /// The fastest for a level, if there is one.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of(isa: Isa) -> Option<Self> {
        let takes = |path: &Path| matches!(path.0, Kind::AvxVnni | Kind::Avx512Vnni);
        Path::available(isa).filter(takes).last().map(|path| Self(path.0))
    }

    /// The fastest for a level, if there is one.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn of(_: Isa) -> Option<Self> {
        None
    }

    /// # Panics
    /// If operands or sums do not reach as far as they are read or written.
    pub(crate) fn run(self, columns: &mut Columns<'_>) {
        columns.check();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the path exists only where the machine has its instructions, and operands were checked.
        unsafe {
            match self.0 {
                Kind::AvxVnni => super::x86::avx_vnni_columns(columns),
                _ => super::x86::avx512_vnni_columns(columns),
            }
        }
    }
}

impl Columns<'_> {
    pub(super) fn rows(&self) -> usize {
        self.sums.len() / self.step
    }

    fn check(&self) {
        let columns = self.columns.next_multiple_of(super::pack::PANEL);
        assert!(columns <= self.step && self.sums.len().is_multiple_of(self.step), "sums of columns");
        let tap = self.taps.iter().max().unwrap_or(&0);
        let a = last_of(self.rows(), self.a_step).saturating_add(*tap).saturating_add(columns * QUAD);
        assert!(a <= self.a.len(), "left operands of columns");
        let b = last_of(self.taps.len(), self.b_step).saturating_add(columns * QUAD);
        assert!(b <= self.b.len(), "right operands of columns");
    }
}

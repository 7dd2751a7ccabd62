//! The tile of a product: sums of a few rows of A by a few panels of B, and the interface of its implementations.

use super::super::isa::Feature;
use super::super::mat::last_offset;
use super::columns::Columns;
use super::pack::{PANEL, WeightBits};

/// The longest step of a microkernel, in bytes of a row. Copied rows begin at multiples of this.
pub(crate) const MAX_STEP: usize = 64;
/// The number of rows of the largest tile. Blocks of rows are padded to a multiple of this.
pub(super) const MAX_ROWS: usize = 32;

/// The tiles of an instruction set. An implementation is a file and a row of `MICROKERNELS` in
/// [`select`](super::select), which chooses one for each product; the loops over tiles call it once for as many tiles
/// as are finished together.
pub(crate) trait Microkernel: Sync {
    /// The feature that the machine needs to run the microkernel; `None` if every machine can run it.
    fn feature(&self) -> Option<Feature>;
    /// The time of a multiplication, relative to that of the fastest implementation.
    fn relative_time(&self) -> usize;
    /// The number of panels of a tile with a single row, and of a taller tile.
    fn panels(&self) -> [usize; 2];
    /// The number of rows of sums that tiles write, if they cover `rows` rows in all, one below the other.
    fn rows_written(&self, rows: usize) -> usize;

    /// The number of sums from one row to the next in a tile of `panels` panels.
    fn row_step(&self, panels: usize) -> usize {
        panels * PANEL
    }
    /// The number of rows of half a tile, if tiles have two separate halves in memory. Such tiles run one at a time.
    fn half_rows(&self) -> Option<usize> {
        None
    }
    /// Whether the microkernel reads packed 4-bit values of B in products of `rows` rows; otherwise they are widened to
    /// 8 bits first.
    fn reads_four_bits(&self, rows: usize) -> bool {
        let _ = rows;
        true
    }
    /// The number of rows of a column that are adjacent in panels of 8-bit values.
    fn adjacent_rows(&self) -> usize {
        4
    }
    /// Whether values of A are widened to 16 bits where B has values of `bits`.
    fn multiplies_words(&self, bits: WeightBits) -> bool {
        let _ = bits;
        false
    }
    /// Whether rows of A are read where they are, if they are contiguous and need no conversion, rather than copied.
    fn reads_in_place(&self) -> bool {
        false
    }
    /// Whether products of `m` rows and `k` inner elements, in groups of `group`, fill the tiles well enough.
    fn is_efficient(&self, m: usize, k: usize, group: usize) -> bool {
        let _ = (m, k, group);
        true
    }
    /// The limits on rows of several segments; `None` if segments can have any length.
    fn segment_limits(&self) -> Option<SegmentLimits> {
        None
    }
    /// The function that computes [`Columns`] after they were checked; `None` if the microkernel has none.
    fn column_function(&self) -> Option<unsafe fn(&mut Columns<'_>)> {
        None
    }
    /// The least number of lines of a kernel from which on [`Columns`] pay, whose quads are values of four lines.
    fn min_column_lines(&self) -> usize {
        1
    }

    /// Sets up this thread for products whose groups have `group` rows of B, until [`Self::release`]. Returns the
    /// number of bytes of a row that a step takes; where B has 4-bit values, a step takes twice as many.
    ///
    /// # Safety
    /// The machine has the [feature](Self::feature).
    unsafe fn set_up(&self, group: usize) -> usize {
        let _ = group;
        4
    }
    /// Undoes [`Self::set_up`].
    ///
    /// # Safety
    /// This thread is set up.
    unsafe fn release(&self) {}
    /// Computes the sums of tiles below each other.
    ///
    /// # Safety
    /// This thread is set up for steps of `step` bytes, and [`Args::check`] has passed.
    unsafe fn run(&self, step: usize, args: &mut Args<'_>);
}

/// Limits of a microkernel on rows that are read in segments from the lines of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentLimits {
    /// The number of bytes that the length of a segment must be a multiple of.
    pub(crate) unit: usize,
    /// Neighbouring pixels of a line that a tile reads, and the least share of them that must be output pixels for
    /// that to pay.
    pub(crate) pixels: usize,
    pub(crate) min_utilization: f64,
    /// Columns of the product, and bytes of a segment, from which on this microkernel pays, if necessary with copies
    /// of whole rows: with fewer, copying takes longer than the products of others.
    pub(crate) min_columns: usize,
    pub(crate) min_len: usize,
}

/// The operands of tiles below each other. Rows of A and panels of B are padded: to the step of the tile, and to as
/// many rows as the microkernel takes at once.
pub(crate) struct Args<'a> {
    pub(super) a: &'a [u8],
    /// Whether A has 16-bit values, rather than bytes.
    pub(super) words: bool,
    /// The number of bytes from one row of A to the next.
    pub(super) a_step: usize,
    /// Bytes from the first row of A to the first of the second half, for tiles of [two
    /// halves](Microkernel::half_rows).
    pub(super) low: usize,
    /// The offset of each segment of a row of A, of `k` elements, in elements. Successive segments go with successive
    /// blocks of B.
    pub(super) segments: &'a [usize],
    pub(super) b: &'a [u8],
    /// The number of bytes from one panel of B to the next.
    pub(super) b_step: usize,
    pub(super) k: usize,
    /// Consecutive groups in A and B, of `k` elements each, and the number of sums from one group to the next. With
    /// several groups, a row of A has one segment and `k` is a multiple of a step; with several segments, microkernels
    /// that have [limits on them](Microkernel::segment_limits) need such a `k`, too.
    pub(super) groups: usize,
    pub(super) group_step: usize,
    /// Whether no value of B is the least one, -128; unknown with 4-bit values.
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "only tiles that widen ask"))]
    pub(super) without_least: bool,
    /// Whether B has 4-bit values: the microkernel's sums are then 16 times the true ones.
    pub(super) four: bool,
    pub(super) rows: usize,
    pub(super) panels: usize,
    /// The number of columns of the panels whose sums are used.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "tiles with AVX2 omit the others"))]
    pub(super) columns: usize,
    /// Room for the rows that the microkernel [writes](Microkernel::rows_written), which may be more than `rows`.
    pub(super) sums: &'a mut [i32],
}

impl Args<'_> {
    /// Panics unless all that the microkernel reads in steps of `step` bytes and the sums that it writes are in
    /// bounds.
    pub(super) fn check(&self, kernel: &dyn Microkernel, step: usize) {
        assert!(kernel.reads_four_bits(self.rows) || !self.four, "4-bit values of a tile");
        let (rows, low) = match kernel.half_rows() {
            Some(half) => {
                assert!(self.rows <= 2 * half && self.panels <= 2, "a tile of two halves");
                (half, if self.rows > half { self.low } else { 0 })
            }
            None => (kernel.rows_written(self.rows), 0),
        };
        let step = if self.four { 2 * step } else { step.max(kernel.adjacent_rows()) };
        let k = self.k.next_multiple_of(step);
        let any_segments = kernel.segment_limits().is_none();
        assert!(any_segments || k == self.k || self.segments.len() == 1, "segments of a row");
        assert!(
            self.groups == 1 || self.groups > 1 && k == self.k && self.segments == [0],
            "groups of a tile"
        );
        let k = k.saturating_mul(self.groups);
        assert!(!self.segments.is_empty(), "segments of a row");
        let segment = self.segments.iter().max().unwrap_or(&0).saturating_add(k);
        let segment = segment.saturating_mul(if self.words { 2 } else { 1 }).saturating_add(low);
        assert!(
            last_offset(rows, self.a_step).saturating_add(segment) <= self.a.len() || k == 0,
            "A of a tile"
        );
        let panel = k.saturating_mul(self.segments.len()) * PANEL / if self.four { 2 } else { 1 };
        assert!(
            last_offset(self.panels, self.b_step).saturating_add(panel) <= self.b.len() || k == 0,
            "B of a tile"
        );
        let sums = kernel.rows_written(self.rows).saturating_mul(kernel.row_step(self.panels));
        let sums = last_offset(self.groups, self.group_step).saturating_add(sums);
        assert!(sums <= self.sums.len(), "sums of a tile");
    }
}

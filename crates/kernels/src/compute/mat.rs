use std::marker::PhantomData;
use std::ops::Range;

/// The number of elements that a strided matrix spans, from its first to its last element; `None` on overflow.
fn span_len(rows: usize, cols: usize, rs: usize, cs: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    (rows - 1).checked_mul(rs)?.checked_add((cols - 1).checked_mul(cs)?)?.checked_add(1)
}

/// The offset of the last of `count` elements of stride `step`; saturates at `usize::MAX`.
pub(crate) fn last_offset(count: usize, step: usize) -> usize {
    count.saturating_sub(1).saturating_mul(step)
}

/// A matrix to read: `rows x cols` elements, element `(i, j)` at offset `i * rs + j * cs` of a slice. Strides are in
/// elements and may be zero (a broadcast).
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a, T = f32> {
    /// The elements, from the element `(0, 0)` on.
    data: &'a [T],
    rows: usize,
    cols: usize,
    rs: usize,
    cs: usize,
}

impl<'a, T> MatRef<'a, T> {
    /// A dense row-major matrix.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * cols`.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols, 1)
    }

    /// A matrix with any strides.
    ///
    /// # Panics
    /// If an element is out of bounds of `data`.
    pub fn strided(data: &'a [T], rows: usize, cols: usize, rs: usize, cs: usize) -> Self {
        let fits = span_len(rows, cols, rs, cs).is_some_and(|s| s <= data.len());
        assert!(
            fits,
            "a {rows}x{cols} matrix with strides {rs}, {cs} exceeds a slice of {} elements",
            data.len()
        );
        Self { data, rows, cols, rs, cs }
    }

    /// The transpose; no element moves.
    pub fn t(self) -> Self {
        Self { data: self.data, rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The number of elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.rs
    }

    /// The number of elements from one column to the next.
    pub fn col_stride(&self) -> usize {
        self.cs
    }

    /// The element at row `i`, column `j`.
    pub fn at(&self, i: usize, j: usize) -> &'a T {
        assert!(i < self.rows && j < self.cols);
        &self.data[i * self.rs + j * self.cs]
    }

    /// The rest of the slice, from the element `(i, j)` on.
    pub(super) fn data_from(&self, i: usize, j: usize) -> &'a [T] {
        &self.data[i * self.rs + j * self.cs..]
    }

    /// The block of the given rows and columns.
    ///
    /// # Panics
    /// If the ranges are not within the matrix.
    #[inline]
    pub(super) fn block(&self, rows: Range<usize>, cols: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "row range of a block");
        assert!(cols.start <= cols.end && cols.end <= self.cols, "column range of a block");
        let data =
            if rows.is_empty() || cols.is_empty() { &[] } else { self.data_from(rows.start, cols.start) };
        Self { data, rows: rows.len(), cols: cols.len(), ..*self }
    }

    /// The address of the element `(0, 0)`; meaningless if the matrix is empty. All elements are in one slice.
    pub(super) fn as_ptr(&self) -> *const T {
        self.data.as_ptr()
    }
}

/// A matrix to write; like [`MatRef`], but no two elements may alias.
///
/// It borrows its elements and not the gaps between them: blocks of one matrix interleave in memory, and several
/// tasks write them concurrently.
#[derive(Debug)]
pub struct MatMut<'a, T = f32> {
    /// The address of the element `(0, 0)`. This value alone borrows every element for `'a`.
    first: *mut T,
    rows: usize,
    cols: usize,
    rs: usize,
    cs: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: it is an exclusive borrow of its elements.
unsafe impl<T: Send> Send for MatMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for MatMut<'_, T> {}

impl<'a, T> MatMut<'a, T> {
    /// A dense row-major matrix.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * cols`.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols.max(1), 1)
    }

    /// A matrix with any strides under which no two elements alias.
    ///
    /// # Panics
    /// If an element is out of bounds of `data`, or rows (or columns) interleave or overlap.
    pub fn strided(data: &'a mut [T], rows: usize, cols: usize, rs: usize, cs: usize) -> Self {
        check(data.len(), rows, cols, rs, cs);
        Self { first: data.as_mut_ptr(), rows, cols, rs, cs, borrow: PhantomData }
    }

    /// The transpose; no element moves.
    pub fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs, ..self }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The number of elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.rs
    }

    /// The number of elements from one column to the next.
    pub fn col_stride(&self) -> usize {
        self.cs
    }

    /// This matrix, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> MatMut<'_, T> {
        MatMut { ..*self }
    }

    /// The block of the given rows and columns.
    ///
    /// # Panics
    /// If the ranges are not within the matrix.
    #[inline]
    pub(super) fn block(&mut self, rows: Range<usize>, cols: Range<usize>) -> MatMut<'_, T> {
        // SAFETY: the block borrows the whole matrix.
        unsafe { Blocks { whole: self.reborrow() }.block(rows, cols) }
    }

    /// The matrix as one row, if its elements are contiguous; otherwise the matrix unchanged.
    pub(super) fn into_one_row(self) -> Self {
        let dense = self.cs == 1 && self.rs == self.cols;
        if dense { Self { rows: 1, cols: self.rows * self.cols, ..self } } else { self }
    }

    /// The matrix, to be written in disjoint blocks by several tasks.
    pub(super) fn blocks(self) -> Blocks<'a, T> {
        Blocks { whole: self }
    }

    /// The element at row `i`, column `j`.
    ///
    /// # Panics
    /// If `(i, j)` is out of bounds.
    #[inline]
    pub(super) fn at(&mut self, i: usize, j: usize) -> &mut T {
        assert!(i < self.rows && j < self.cols);
        // SAFETY: an element in bounds, which only this value borrows.
        unsafe { &mut *self.first.add(i * self.rs + j * self.cs) }
    }

    /// The elements of row `i`, if they are contiguous.
    ///
    /// # Panics
    /// If `i` is out of bounds.
    #[inline]
    pub(super) fn row(&mut self, i: usize) -> Option<&mut [T]> {
        assert!(i < self.rows);
        if self.cs != 1 && self.cols > 1 {
            return None;
        }
        let len = self.cols;
        // SAFETY: the elements of a row, which only this value borrows. An empty row may have any address.
        Some(unsafe { std::slice::from_raw_parts_mut(self.first.wrapping_add(i * self.rs), len) })
    }

    /// The address of the element `(0, 0)`; of no meaning if the matrix is empty. All elements can be reached from
    /// it.
    pub(super) fn as_mut_ptr(&mut self) -> *mut T {
        self.first
    }
}

/// Panics unless all elements of a matrix are within `len` and no two alias.
fn check(len: usize, rows: usize, cols: usize, rs: usize, cs: usize) {
    let fits = span_len(rows, cols, rs, cs).is_some_and(|s| s <= len);
    assert!(fits, "a {rows}x{cols} matrix with strides {rs}, {cs} exceeds a slice of {len} elements");
    let disjoint = rows == 0
        || cols == 0
        || ((rows == 1 || rs > (cols - 1) * cs) && (cols == 1 || cs > 0))
        || ((cols == 1 || cs > (rows - 1) * rs) && (rows == 1 || rs > 0));
    assert!(disjoint, "elements of a {rows}x{cols} matrix with strides {rs}, {cs} alias");
}

/// A matrix that several tasks write concurrently; each task writes its own block.
#[derive(Debug)]
pub(crate) struct Blocks<'a, T = f32> {
    whole: MatMut<'a, T>,
}

// SAFETY: an exclusive borrow of its elements, which hands out only disjoint blocks, as callers promise.
unsafe impl<T: Send> Sync for Blocks<'_, T> {}

impl<'a, T> Blocks<'a, T> {
    /// The block of the given rows and columns, borrowed for as long as the matrix.
    ///
    /// # Safety
    /// While the block is in use, no other block that overlaps it may be used.
    ///
    /// # Panics
    /// If the ranges are not within the matrix.
    #[inline]
    pub(crate) unsafe fn block(&self, rows: Range<usize>, cols: Range<usize>) -> MatMut<'a, T> {
        let MatMut { first, rs, cs, .. } = self.whole;
        assert!(rows.start <= rows.end && rows.end <= self.whole.rows, "row range of a block");
        assert!(cols.start <= cols.end && cols.end <= self.whole.cols, "column range of a block");
        // An empty block may have any address.
        let first = first.wrapping_add(rows.start * rs + cols.start * cs);
        MatMut { first, rows: rows.len(), cols: cols.len(), rs, cs, borrow: PhantomData }
    }
}

/// A slice that several tasks write concurrently; each task writes its own elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared<'a, T = f32> {
    first: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: an exclusive borrow of its elements, which hands out only disjoint parts, as callers promise.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub(super) fn new(data: &'a mut [T]) -> Self {
        Self { first: data.as_mut_ptr(), len: data.len(), borrow: PhantomData }
    }

    /// The matrix whose element `(0, 0)` is element `first` of the slice.
    ///
    /// # Safety
    /// While the matrix is in use, no other matrix that shares an element with it may be used.
    ///
    /// # Panics
    /// As [`MatMut::strided`].
    pub(super) unsafe fn matrix(
        self,
        first: usize,
        (rows, rs): (usize, usize),
        (cols, cs): (usize, usize),
    ) -> MatMut<'a, T> {
        check(self.len.saturating_sub(first), rows, cols, rs, cs);
        MatMut { first: self.first.wrapping_add(first), rows, cols, rs, cs, borrow: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_locate_elements() {
        let data: Vec<i32> = (0..20).collect();
        let m = MatRef::strided(&data, 3, 4, 5, 1);
        assert_eq!((*m.at(2, 3), *m.t().at(3, 2)), (13, 13));
        assert_eq!(MatRef::strided(&data, 100, 20, 0, 1).rows(), 100);
    }

    #[test]
    #[cfg_attr(not(panic = "unwind"), ignore = "catches panics")]
    fn out_of_bounds_and_aliasing_matrices_are_refused() {
        let refuse = |rows, cols, rs, cs| {
            std::panic::catch_unwind(move || {
                MatMut::strided(&mut [0.0f32; 12], rows, cols, rs, cs);
            })
            .is_err()
        };
        assert!(refuse(3, 5, 5, 1));
        assert!(refuse(3, 4, 3, 1));
        assert!(refuse(2, 2, 0, 0));
        assert!(refuse(2, 1, 0, 1));
        assert!(refuse(usize::MAX, 2, usize::MAX, 1));
        assert!(!refuse(3, 4, 4, 1));
        assert!(!refuse(3, 4, 1, 3));
        assert!(!refuse(0, 9, 0, 0));
        assert!(!refuse(1, 12, 0, 1));
    }
}

/// The number of elements from the first to one past the last of a strided matrix.
fn span(rows: usize, cols: usize, rs: usize, cs: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    (rows - 1).checked_mul(rs)?.checked_add((cols - 1).checked_mul(cs)?)?.checked_add(1)
}

/// A matrix to read: `rows x cols` elements, element `(i, j)` at `i * rs + j * cs` of a slice.
/// Strides are in elements and may be zero (a broadcast).
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a, T = f32> {
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
    /// If an element lies outside `data`.
    pub fn strided(data: &'a [T], rows: usize, cols: usize, rs: usize, cs: usize) -> Self {
        let fits = span(rows, cols, rs, cs).is_some_and(|s| s <= data.len());
        assert!(fits, "a {rows}x{cols} matrix with strides {rs}, {cs} leaves its {} elements", data.len());
        Self { data, rows, cols, rs, cs }
    }

    /// The transpose; no element moves.
    pub fn t(self) -> Self {
        Self { data: self.data, rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.rs
    }

    /// Elements from one column to the next.
    pub fn col_stride(&self) -> usize {
        self.cs
    }

    /// The element at row `i`, column `j`.
    pub fn at(&self, i: usize, j: usize) -> &'a T {
        assert!(i < self.rows && j < self.cols);
        &self.data[i * self.rs + j * self.cs]
    }

    /// From the element `(i, j)` to the end of the slice.
    pub(super) fn from(&self, i: usize, j: usize) -> &'a [T] {
        &self.data[i * self.rs + j * self.cs..]
    }

    pub(super) fn as_ptr(&self) -> *const T {
        self.data.as_ptr()
    }
}

/// A matrix to write; like [`MatRef`], but no two elements may share a place.
#[derive(Debug)]
pub struct MatMut<'a, T = f32> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    rs: usize,
    cs: usize,
}

impl<'a, T> MatMut<'a, T> {
    /// A dense row-major matrix.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * cols`.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self::strided(data, rows, cols, cols.max(1), 1)
    }

    /// A matrix with any strides under which no two elements share a place.
    ///
    /// # Panics
    /// If an element lies outside `data`, or rows (or columns) interleave or overlap.
    pub fn strided(data: &'a mut [T], rows: usize, cols: usize, rs: usize, cs: usize) -> Self {
        let fits = span(rows, cols, rs, cs).is_some_and(|s| s <= data.len());
        assert!(fits, "a {rows}x{cols} matrix with strides {rs}, {cs} leaves its {} elements", data.len());
        let apart = rows == 0
            || cols == 0
            || ((rows == 1 || rs > (cols - 1) * cs) && (cols == 1 || cs > 0))
            || ((cols == 1 || cs > (rows - 1) * rs) && (rows == 1 || rs > 0));
        assert!(apart, "elements of a {rows}x{cols} matrix with strides {rs}, {cs} share places");
        Self { data, rows, cols, rs, cs }
    }

    /// The transpose; no element moves.
    pub fn t(self) -> Self {
        Self { data: self.data, rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    pub fn row_stride(&self) -> usize {
        self.rs
    }

    /// Elements from one column to the next.
    pub fn col_stride(&self) -> usize {
        self.cs
    }

    /// The same matrix, borrowed for a shorter time.
    pub fn reborrow(&mut self) -> MatMut<'_, T> {
        MatMut { data: self.data, rows: self.rows, cols: self.cols, rs: self.rs, cs: self.cs }
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut T {
        self.data.as_mut_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_strides() {
        let data: Vec<i32> = (0..20).collect();
        let m = MatRef::strided(&data, 3, 4, 5, 1);
        assert_eq!((*m.at(2, 3), *m.t().at(3, 2)), (13, 13));
        assert_eq!(MatRef::strided(&data, 100, 20, 0, 1).rows(), 100);
    }

    #[test]
    fn bad_matrices_are_refused() {
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

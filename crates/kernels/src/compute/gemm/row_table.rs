use std::cell::RefCell;
use std::marker::PhantomData;

thread_local! {
    /// The memory of this thread's last row table, which the next one reuses instead of allocating.
    static STARTS: RefCell<Vec<*const f32>> = const { RefCell::new(Vec::new()) };
}

/// The addresses of rows of A, which can be anywhere: each row has `len` contiguous elements, borrowed for `'a`.
pub(crate) struct RowTable<'a> {
    starts: Vec<*const f32>,
    len: usize,
    rows: PhantomData<&'a [f32]>,
}

impl<'a> RowTable<'a> {
    /// Lends an empty table of rows of `len` elements. A table that is lent inside `body` has its own memory.
    pub(crate) fn with<R>(len: usize, body: impl FnOnce(&mut Self) -> R) -> R {
        let mut starts = STARTS.take();
        starts.clear();
        let mut table = Self { starts, len, rows: PhantomData };
        let result = body(&mut table);
        STARTS.replace(table.starts);
        result
    }

    /// Adds rows: each is the first `len` elements of a slice.
    ///
    /// # Panics
    /// If a slice is shorter.
    #[inline(always)]
    pub(crate) fn extend_rows(&mut self, rows: impl Iterator<Item = &'a [f32]>) {
        let len = self.len;
        self.starts.extend(rows.map(|row| {
            assert!(row.len() >= len, "a row of {} elements, not {len}", row.len());
            row.as_ptr()
        }));
    }

    /// Adds the rows that begin at the given elements of `data`.
    ///
    /// # Panics
    /// If a row exceeds `data`.
    #[inline(always)]
    pub(crate) fn extend(&mut self, data: &'a [f32], firsts: impl Iterator<Item = usize>) {
        let (before, mut greatest) = (self.starts.len(), 0);
        // One check for all rows: a check for each would keep the compiler from removing branches from the loop.
        self.starts.extend(firsts.map(|first| {
            greatest = greatest.max(first);
            data.as_ptr().wrapping_add(first)
        }));
        if greatest.saturating_add(self.len) > data.len() && self.starts.len() > before {
            self.starts.truncate(before);
            panic!("a row at {greatest} exceeds a slice of {} elements", data.len());
        }
    }

    /// The number of elements of a row.
    pub(super) fn row_len(&self) -> usize {
        self.len
    }

    /// The address of each row.
    pub(super) fn starts(&self) -> &[*const f32] {
        &self.starts
    }
}

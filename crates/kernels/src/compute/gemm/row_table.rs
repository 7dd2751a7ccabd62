use std::cell::RefCell;
use std::marker::PhantomData;

thread_local! {
    /// Kept from table to table, so that filling one allocates nothing after a thread's first.
    static STARTS: RefCell<Vec<*const f32>> = const { RefCell::new(Vec::new()) };
}

/// Where rows of A are that lie anywhere: each `len` contiguous elements, borrowed for `'a`.
pub(crate) struct RowTable<'a> {
    starts: Vec<*const f32>,
    len: usize,
    rows: PhantomData<&'a [f32]>,
}

impl<'a> RowTable<'a> {
    /// Lends an empty table of rows of `len` elements. A table within the use of a table has memory of its own.
    pub(crate) fn with<R>(len: usize, body: impl FnOnce(&mut Self) -> R) -> R {
        let mut starts = STARTS.take();
        starts.clear();
        let mut table = Self { starts, len, rows: PhantomData };
        let result = body(&mut table);
        STARTS.replace(table.starts);
        result
    }

    /// Adds rows: the first elements of each.
    ///
    /// # Panics
    /// If one has too few.
    #[inline(always)]
    pub(crate) fn extend_rows(&mut self, rows: impl Iterator<Item = &'a [f32]>) {
        let len = self.len;
        self.starts.extend(rows.map(|row| {
            assert!(row.len() >= len, "a row of {} elements, not {len}", row.len());
            row.as_ptr()
        }));
    }

    /// Adds rows that begin at these elements of `data`.
    ///
    /// # Panics
    /// If one leaves `data`.
    #[inline(always)]
    pub(crate) fn extend(&mut self, data: &'a [f32], firsts: impl Iterator<Item = usize>) {
        let (before, mut greatest) = (self.starts.len(), 0);
        // One check for all: a check for each would stand in the way of a loop without branches.
        self.starts.extend(firsts.map(|first| {
            greatest = greatest.max(first);
            data.as_ptr().wrapping_add(first)
        }));
        if greatest.saturating_add(self.len) > data.len() && self.starts.len() > before {
            self.starts.truncate(before);
            panic!("a row at {greatest} leaves {} elements", data.len());
        }
    }

    /// Elements of a row.
    pub(super) fn row_len(&self) -> usize {
        self.len
    }

    /// The first element of each row.
    pub(super) fn starts(&self) -> &[*const f32] {
        &self.starts
    }
}

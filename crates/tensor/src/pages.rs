//! Zeroed pages from the operating system, for large long-lived memory. This module needs `unsafe`.

use memmap2::{Advice, MmapOptions, MmapRaw};
use std::ops::{Deref, DerefMut};

/// The size of a huge page, in bytes.
const HUGE: usize = 2 << 20;

/// Anonymous zeroed pages. If the system grants huge pages on request, the range uses them for every whole huge page,
/// which cuts the cost of page faults and TLB misses.
pub(crate) struct Pages {
    map: MmapRaw,
    len: usize,
}

impl Pages {
    /// The size in bytes from which requesting huge pages is worthwhile.
    pub(crate) const LARGE: usize = HUGE;

    /// Maps `len` zero bytes, in huge pages where possible; `None` if the system refuses the map.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        // The system aligns a mapping of whole huge pages to the huge page size. Bytes past the last whole huge page
        // use small pages, so that no more memory is held than was requested.
        let range = len.checked_next_multiple_of(HUGE)?;
        let map = MmapOptions::new().len(range).map_anon().ok()?;
        let _ = map.advise_range(Advice::HugePage, 0, len / HUGE * HUGE);
        Some(Self { map: MmapRaw::from(map), len })
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_mut_ptr()
    }
}

impl Deref for Pages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: this value owns the map, which has at least `len` readable bytes and lives as long as the
        // reference; it is written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the map is private and writable, and `&mut self` is the only access to it.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr(), self.len) }
    }
}

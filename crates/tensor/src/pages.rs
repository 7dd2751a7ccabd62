//! Zeroed pages from the operating system, for large memory that lives long. One of the places of this crate that need
//! `unsafe`.

use memmap2::{Advice, MmapOptions, MmapRaw};
use std::ops::{Deref, DerefMut};

/// The size of a huge page.
const HUGE: usize = 2 << 20;

/// Bytes that are zero until they are written. Where the system has huge pages for who asks, whole ones of the range are
/// such: they are had, and found again, at a fraction of what small ones cost.
pub(crate) struct Pages {
    map: MmapRaw,
    len: usize,
}

impl Pages {
    /// Bytes from which on huge pages are worth asking for.
    pub(crate) const LARGE: usize = HUGE;

    /// `None` if the system does not give them.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        // A range of whole huge pages is placed at a multiple of their size. What is past the last whole one takes small
        // pages: no more memory is held than was asked for.
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
        // SAFETY: the map is this value's own, of at least `len` bytes that can be read, and lives as long as the
        // reference; it is written through `&mut self` alone.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the map is private and can be written, and `&mut self` is the only way to it.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr(), self.len) }
    }
}

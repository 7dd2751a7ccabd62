use crate::{Error, Result};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// The alignment, in bytes, of every owned buffer: the size of a cache line and of an AVX-512 register.
pub const ALIGNMENT: usize = 64;

/// A block of bytes with a buffer's alignment; an empty slice of blocks serves as an empty, aligned buffer.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Block([u8; ALIGNMENT]);

/// The allocation behind a buffer.
enum Memory {
    Heap(Vec<u8>),
    #[cfg(all(target_os = "linux", not(miri)))]
    Pages(crate::pages::Pages),
}

impl Memory {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Self::Heap(bytes) => bytes.as_mut_ptr(),
            #[cfg(all(target_os = "linux", not(miri)))]
            Self::Pages(pages) => pages.as_mut_ptr(),
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl Deref for Memory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            #[cfg(all(target_os = "linux", not(miri)))]
            Self::Pages(pages) => pages,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            #[cfg(all(target_os = "linux", not(miri)))]
            Self::Pages(pages) => pages,
        }
    }
}

/// Owned bytes that start at a multiple of [`ALIGNMENT`].
///
/// The operating system zeroes new bytes page by page, when they are first touched: a large buffer that is
/// mostly unused takes little memory.
#[derive(Default)]
pub struct AlignedBuffer {
    /// The allocation: padding that aligns the bytes, the bytes, and spare capacity. (A zeroed allocation with that
    /// alignment would be filled with zeros at once instead of page by page.)
    bytes: Memory,
    /// The index, in the allocation, of the first aligned byte.
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// `len` zero bytes. Fails, rather than aborts, if the allocation fails.
    pub fn zeroed(len: usize) -> Result<Self> {
        if len == 0 {
            return Ok(Self::default());
        }
        let out_of_memory = || Error::OutOfMemory(len);
        let bytes: Vec<u8> =
            bytemuck::allocation::try_zeroed_vec(padded_len(len)?).map_err(|()| out_of_memory())?;
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        if start >= ALIGNMENT {
            return Err(out_of_memory());
        }
        Ok(Self { bytes: Memory::Heap(bytes), start, len })
    }

    /// Like [`Self::zeroed`], for long-lived memory such as packed weights or a workspace. A large buffer is mapped
    /// separately, with huge pages if the system has them, and is returned to the system when it is dropped.
    pub fn zeroed_long_lived(len: usize) -> Result<Self> {
        #[cfg(all(target_os = "linux", not(miri)))]
        if len >= crate::pages::Pages::LARGE
            && let Some(padded_len) = len.checked_next_multiple_of(ALIGNMENT)
            && let Some(pages) = crate::pages::Pages::zeroed(padded_len)
        {
            return Ok(Self { bytes: Memory::Pages(pages), start: 0, len });
        }
        Self::zeroed(len)
    }

    /// A copy of these bytes.
    pub fn from_slice(bytes: &[u8]) -> Result<Self> {
        let len = bytes.len();
        if len == 0 {
            return Ok(Self::default());
        }
        let padded = padded_len(len)?;
        let mut all: Vec<u8> = Vec::new();
        all.try_reserve_exact(padded).map_err(|_| Error::OutOfMemory(len))?;
        let start = all.as_ptr().align_offset(ALIGNMENT);
        if start >= ALIGNMENT {
            return Err(Error::OutOfMemory(len));
        }
        all.resize(start, 0);
        all.extend_from_slice(bytes);
        all.resize(padded, 0);
        Ok(Self { bytes: Memory::Heap(all), start, len })
    }

    /// Changes the length. Bytes past the old length are zero or left over from an earlier, longer use.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        if len > self.capacity() {
            let mut new = Self::zeroed(len)?;
            let old = self.start..self.start + self.capacity();
            new.bytes[new.start..][..old.len()].copy_from_slice(&self.bytes[old]);
            *self = new;
        }
        self.len = len;
        Ok(())
    }

    /// The start and length of the bytes, without creating a reference to them, so that earlier pointers stay valid.
    pub(crate) fn raw_parts(&mut self) -> (*mut u8, usize) {
        match self.len {
            0 => (empty_slice_mut().as_mut_ptr(), 0),
            len => (self.bytes.as_mut_ptr().wrapping_add(self.start), len),
        }
    }

    /// The number of bytes that fit without another allocation.
    pub fn capacity(&self) -> usize {
        (self.bytes.len() - self.start) / ALIGNMENT * ALIGNMENT
    }
}

/// The bytes to allocate for `len` aligned bytes: whole blocks, plus padding to align the first.
fn padded_len(len: usize) -> Result<usize> {
    let blocks = len.checked_next_multiple_of(ALIGNMENT).and_then(|n| n.checked_add(ALIGNMENT - 1));
    blocks.ok_or(Error::OutOfMemory(len))
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> Self {
        match Self::from_slice(self) {
            Ok(copy) => copy,
            Err(e) => panic!("{e}"),
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        if self.len == 0 { empty_slice() } else { &self.bytes[self.start..][..self.len] }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.len == 0 { empty_slice_mut() } else { &mut self.bytes[self.start..][..self.len] }
    }
}

/// An empty slice with an aligned address.
fn empty_slice<'a>() -> &'a [u8] {
    bytemuck::cast_slice::<Block, u8>(&[])
}

/// An empty mutable slice with an aligned address.
fn empty_slice_mut<'a>() -> &'a mut [u8] {
    bytemuck::cast_slice_mut::<Block, u8>(&mut [])
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let b = AlignedBuffer::zeroed(len).unwrap();
            assert_eq!(b.len(), len);
            assert_eq!(b.as_ptr() as usize % ALIGNMENT, 0);
            assert!(b.iter().all(|&x| x == 0));
        }
    }

    #[test]
    fn buffers_grow_and_keep_their_contents() {
        let mut b = AlignedBuffer::from_slice(&[1, 2, 3]).unwrap();
        b.resize(1000).unwrap();
        assert_eq!((&b[..3], b.as_ptr() as usize % ALIGNMENT), (&[1, 2, 3][..], 0));
        assert!(b[3..].iter().all(|&x| x == 0));
        b.resize(2).unwrap();
        b.resize(3).unwrap();
        assert_eq!((b[2], &b.clone()[..]), (3, &[1, 2, 3][..]));
        let mut none = AlignedBuffer::default();
        assert_eq!((none.as_mut_ptr() as usize % ALIGNMENT, none.capacity()), (0, 0));
        none.resize(1).unwrap();
        assert_eq!(none[0], 0);
    }

    /// The resident set size of this process, in bytes.
    #[cfg(target_os = "linux")]
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    #[test]
    fn untouched_pages_take_no_memory() {
        let before = resident();
        let mut b = AlignedBuffer::zeroed(1 << 30).unwrap();
        b[1 << 29] = 1;
        assert!(resident() < before + (64 << 20), "{} then {}", before, resident());
        assert_eq!((b[0], b[1 << 29], b[(1 << 30) - 1]), (0, 1, 0));
    }

    #[test]
    fn long_lived_buffers_behave_like_others() {
        // Miri does not use `Pages`, and takes minutes for millions of elements.
        let lens: &[usize] =
            if cfg!(miri) { &[0, 1000] } else { &[0, 1000, (2 << 20) - 1, 2 << 20, (5 << 20) + 100] };
        for &len in lens {
            let mut b = AlignedBuffer::zeroed_long_lived(len).unwrap();
            assert_eq!((b.len(), b.as_ptr() as usize % ALIGNMENT), (len, 0));
            assert!(b.iter().all(|&x| x == 0));
            b.fill(7);
            let copy = b.clone();
            b.resize(len + 1).unwrap();
            assert_eq!((&b[..len], &copy[..], b.get(len)), (&copy[..], &b[..len], Some(&0)));
        }
        assert!(AlignedBuffer::zeroed_long_lived(usize::MAX).is_err());
        assert!(AlignedBuffer::zeroed_long_lived(usize::MAX / 2).is_err());
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(AlignedBuffer::zeroed(usize::MAX).is_err());
        assert!(AlignedBuffer::zeroed(usize::MAX / 2).is_err());
    }
}

use crate::{Error, Result};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// The alignment, in bytes, of every owned buffer: a cache line, and an AVX-512 register.
pub const ALIGNMENT: usize = 64;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Block([u8; ALIGNMENT]);

/// Owned bytes that start at a multiple of [`ALIGNMENT`].
#[derive(Clone, Default)]
pub struct AlignedBuffer {
    blocks: Vec<Block>,
    len: usize,
}

impl AlignedBuffer {
    /// `len` zero bytes. Fails, rather than aborts, if the memory cannot be had.
    pub fn zeroed(len: usize) -> Result<Self> {
        let blocks = bytemuck::allocation::try_zeroed_vec(len.div_ceil(ALIGNMENT))
            .map_err(|()| Error::OutOfMemory(len))?;
        Ok(Self { blocks, len })
    }

    /// A copy of these bytes.
    pub fn from_slice(bytes: &[u8]) -> Result<Self> {
        let mut new = Self::zeroed(bytes.len())?;
        new.copy_from_slice(bytes);
        Ok(new)
    }

    /// Changes the length; bytes past the old length are zero or what an earlier, longer use left.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        let count = len.div_ceil(ALIGNMENT);
        if count > self.blocks.len() {
            self.blocks.try_reserve_exact(count - self.blocks.len()).map_err(|_| Error::OutOfMemory(len))?;
            self.blocks.resize(count, Block([0; ALIGNMENT]));
        }
        self.len = len;
        Ok(())
    }

    /// Where the bytes start, and how many they are, without a reference to any of them: pointers that were
    /// made before stay valid.
    pub(crate) fn raw_parts(&mut self) -> (*mut u8, usize) {
        (self.blocks.as_mut_ptr().cast(), self.len)
    }

    /// Bytes that can be held without another allocation.
    pub fn capacity(&self) -> usize {
        self.blocks.len() * ALIGNMENT
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.blocks)[..self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.blocks)[..self.len]
    }
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
    fn impossible_sizes_are_errors() {
        assert!(AlignedBuffer::zeroed(usize::MAX / 2).is_err());
    }
}

use crate::{Error, Result};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// The largest rank: ExecuTorch's `kTensorDimensionLimit`.
pub const MAX_RANK: usize = 16;

/// The sizes (or strides) of a tensor, dimension 0 first, stored inline.
#[derive(Clone, Copy)]
pub struct Shape {
    rank: u8,
    dims: [usize; MAX_RANK],
}

impl Shape {
    /// The shape of a zero-dim tensor.
    pub const SCALAR: Shape = Shape { rank: 0, dims: [0; MAX_RANK] };

    /// A shape of these sizes.
    pub fn new(dims: &[usize]) -> Result<Self> {
        let mut shape = Self::SCALAR;
        let slot = shape.dims.get_mut(..dims.len()).ok_or(Error::RankTooLarge { rank: dims.len() })?;
        slot.copy_from_slice(dims);
        shape.rank = dims.len() as u8;
        Ok(shape)
    }

    /// `rank` dimensions of size `size`.
    pub fn filled(rank: usize, size: usize) -> Result<Self> {
        if rank > MAX_RANK {
            return Err(Error::RankTooLarge { rank });
        }
        let mut shape = Self { rank: rank as u8, dims: [0; MAX_RANK] };
        shape.fill(size);
        Ok(shape)
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The number of elements of a tensor with these sizes; fails if it overflows.
    pub fn numel(&self) -> Result<usize> {
        if self.contains(&0) {
            return Ok(0);
        }
        self.iter()
            .try_fold(1usize, |n, &d| n.checked_mul(d))
            .ok_or_else(|| Error::SizeOverflow { shape: self.to_string() })
    }

    /// Appends a dimension as the last one. Fails if the rank would exceed [`MAX_RANK`].
    pub fn push(&mut self, size: usize) -> Result<()> {
        let rank = self.rank();
        *self.dims.get_mut(rank).ok_or(Error::RankTooLarge { rank: rank + 1 })? = size;
        self.rank += 1;
        Ok(())
    }

    /// Inserts a dimension before dimension `at`, which must be at most the rank.
    pub fn insert(&mut self, at: usize, size: usize) -> Result<()> {
        self.push(size)?;
        self[at..].rotate_right(1);
        Ok(())
    }

    /// Removes dimension `at`, which must be less than the rank, and returns its size.
    pub fn remove(&mut self, at: usize) -> usize {
        let size = self[at];
        self[at..].rotate_left(1);
        self.rank -= 1;
        size
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self::SCALAR
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [usize] {
        &mut self.dims[..self.rank as usize]
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Shape {}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numel_is_the_product_and_overflow_is_an_error() {
        assert_eq!(Shape::SCALAR.numel(), Ok(1));
        assert_eq!(Shape::new(&[2, 3]).unwrap().numel(), Ok(6));
        assert_eq!(Shape::new(&[usize::MAX, 0, usize::MAX]).unwrap().numel(), Ok(0));
        assert!(Shape::new(&[usize::MAX, 2]).unwrap().numel().is_err());
        assert!(Shape::new(&[1; 17]).is_err());
    }

    #[test]
    fn insert_and_remove_are_inverse() {
        let mut s = Shape::new(&[2, 3, 4]).unwrap();
        s.insert(1, 9).unwrap();
        assert_eq!(&*s, &[2, 9, 3, 4]);
        assert_eq!(s.remove(1), 9);
        assert_eq!(&*s, &[2, 3, 4]);
    }
}

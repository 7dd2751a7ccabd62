use crate::{Error, MAX_RANK, Result, Shape};
use std::fmt;
use std::ops::Deref;

/// The dimensions of a tensor, from the outermost in memory to the innermost.
///
/// `[0, 1, 2, 3]` is contiguous, `[0, 2, 3, 1]` is channels-last. Always a permutation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DimOrder {
    rank: u8,
    order: [u8; MAX_RANK],
}

impl DimOrder {
    /// The row-major order of this rank, which is clamped to [`MAX_RANK`].
    pub const fn contiguous(rank: usize) -> Self {
        let mut order = [0; MAX_RANK];
        let mut i = 0;
        while i < rank && i < MAX_RANK {
            order[i] = i as u8;
            i += 1;
        }
        Self { rank: i as u8, order }
    }

    /// The dim order `order`. Fails if it is longer than [`MAX_RANK`] or not a permutation of `0..order.len()`.
    pub fn new(order: &[u8]) -> Result<Self> {
        let rank = order.len();
        if rank > MAX_RANK {
            return Err(Error::RankTooLarge { rank });
        }
        let mut seen = 0u32;
        for &d in order {
            if d as usize >= rank || seen & (1 << d) != 0 {
                return Err(Error::BadDimOrder { order: order.to_vec(), rank });
            }
            seen |= 1 << d;
        }
        let mut new = Self::contiguous(rank);
        new.order[..rank].copy_from_slice(order);
        Ok(new)
    }

    /// Channels-last for rank 4 or 5, contiguous for any other rank.
    pub fn channels_last(rank: usize) -> Self {
        let mut new = Self::contiguous(rank);
        if rank == 4 || rank == 5 {
            new.order[1..rank].rotate_left(1);
        }
        new
    }

    /// Whether this is the row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.iter().enumerate().all(|(i, &d)| i == d as usize)
    }

    /// Whether this is channels-last, of rank 4 or 5.
    pub fn is_channels_last(&self) -> bool {
        matches!(self.rank, 4 | 5) && *self == Self::channels_last(self.rank as usize)
    }

    /// The strides, in elements, of a dense tensor of these sizes in this order.
    ///
    /// A dimension of size zero counts as one of size one, as in ExecuTorch.
    /// If the product of the sizes overflows, the strides wrap; constructors of tensors check `numel`.
    pub fn strides(&self, sizes: &Shape) -> Shape {
        let mut strides = *sizes;
        let mut step = 1usize;
        for &d in self.iter().rev() {
            strides[d as usize] = step;
            step = step.wrapping_mul(sizes[d as usize].max(1));
        }
        strides
    }

    /// Whether both orders give a tensor of these sizes the same layout. The position of dimensions of size one
    /// does not matter, and all layouts of an empty tensor are the same.
    pub fn same_layout(&self, other: &DimOrder, sizes: &[usize]) -> bool {
        if self == other || sizes.contains(&0) {
            return true;
        }
        let wide = |o: &DimOrder| -> [u8; MAX_RANK] {
            let mut wide_dims = [u8::MAX; MAX_RANK];
            let big = o.iter().filter(|&&d| sizes.get(d as usize).is_some_and(|&s| s != 1));
            wide_dims.iter_mut().zip(big).for_each(|(k, &d)| *k = d);
            wide_dims
        };
        self.rank == other.rank && wide(self) == wide(other)
    }
}

impl Default for DimOrder {
    fn default() -> Self {
        Self::contiguous(0)
    }
}

impl Deref for DimOrder {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.order[..self.rank as usize]
    }
}

impl fmt::Debug for DimOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Display for DimOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_follow_the_order() {
        let sizes = Shape::new(&[2, 3, 4, 5]).unwrap();
        assert_eq!(&*DimOrder::contiguous(4).strides(&sizes), &[60, 20, 5, 1]);
        assert_eq!(&*DimOrder::channels_last(4).strides(&sizes), &[60, 1, 15, 3]);
        let empty = Shape::new(&[2, 0, 4]).unwrap();
        assert_eq!(&*DimOrder::contiguous(3).strides(&empty), &[4, 4, 1]);
    }

    #[test]
    fn only_permutations_are_orders() {
        assert!(DimOrder::new(&[0, 2, 1]).is_ok());
        assert!(DimOrder::new(&[0, 0, 1]).is_err());
        assert!(DimOrder::new(&[0, 3, 1]).is_err());
    }

    #[test]
    fn dimensions_of_size_one_do_not_affect_the_layout() {
        let cl = DimOrder::channels_last(4);
        assert!(cl.same_layout(&DimOrder::contiguous(4), &[2, 1, 4, 5]));
        assert!(cl.same_layout(&DimOrder::contiguous(4), &[2, 3, 1, 1]));
        assert!(!cl.same_layout(&DimOrder::contiguous(4), &[2, 3, 1, 5]));
        assert!(cl.same_layout(&DimOrder::contiguous(4), &[2, 3, 0, 5]));
    }
}

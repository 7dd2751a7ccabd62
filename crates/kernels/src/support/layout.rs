//! The memory layout of a tensor or of a view of one: sizes, strides and an offset, with the
//! view operations (slice, permute, expand, ...) that shape operators are built from, and the traversal
//! order of loops over them.

use pteron_operator::{Result, ensure};
use pteron_tensor::{DimOrder, MAX_RANK, Shape, TensorMeta};
use smallvec::SmallVec;
use std::ops::Range;

/// Sizes, strides (in elements, possibly zero or negative) and the offset of the first element.
///
/// A layout is derived from a tensor's layout, only by operations that keep every element in bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) sizes: Shape,
    strides: [isize; MAX_RANK],
    pub(crate) offset: usize,
}

impl Layout {
    /// The layout of a whole tensor.
    pub(crate) fn of_tensor(meta: &TensorMeta) -> Self {
        Self::dense(meta.sizes(), meta.strides())
    }

    /// The layout of a row-major tensor of these sizes.
    pub(crate) fn contiguous(sizes: &Shape) -> Self {
        Self::dense(sizes, &DimOrder::contiguous(sizes.rank()).strides(sizes))
    }

    fn dense(sizes: &Shape, strides: &Shape) -> Self {
        let mut new = [0; MAX_RANK];
        new.iter_mut().zip(strides.iter()).for_each(|(n, &s)| *n = s as isize);
        Self { sizes: *sizes, strides: new, offset: 0 }
    }

    pub(crate) fn rank(&self) -> usize {
        self.sizes.rank()
    }

    pub(crate) fn strides(&self) -> &[isize] {
        &self.strides[..self.rank()]
    }

    /// The number of elements. It may overflow for expanded dimensions (stride 0), which is an error.
    pub(crate) fn numel(&self) -> Result<usize> {
        Ok(self.sizes.numel()?)
    }

    /// Restricts dimension `dim` to `len` indices, from `start` on, `step` apart. They must be in bounds.
    pub(crate) fn slice(mut self, dim: usize, start: usize, len: usize, step: isize) -> Self {
        debug_assert!(len == 0 || (start as isize + (len as isize - 1) * step) < self.sizes[dim] as isize);
        if len > 0 {
            self.offset = (self.offset as isize + start as isize * self.strides[dim]) as usize;
        }
        self.sizes[dim] = len;
        self.strides[dim] = self.strides[dim].wrapping_mul(step);
        self
    }

    /// Reverses a dimension.
    pub(crate) fn flip(self, dim: usize) -> Self {
        match self.sizes[dim] {
            0 => self,
            n => self.slice(dim, n - 1, n, -1),
        }
    }

    /// Selects one index of a dimension, and removes the dimension.
    pub(crate) fn select(self, dim: usize, index: usize) -> Self {
        self.slice(dim, index, 1, 1).remove(dim)
    }

    /// Permutes the dimensions: dimension `i` of the result is dimension `dims[i]`.
    pub(crate) fn permute(&self, dims: &[usize]) -> Self {
        let mut new = *self;
        for (to, &from) in dims.iter().enumerate() {
            new.sizes[to] = self.sizes[from];
            new.strides[to] = self.strides[from];
        }
        new
    }

    /// Swaps two dimensions.
    pub(crate) fn transpose(mut self, a: usize, b: usize) -> Self {
        self.sizes.swap(a, b);
        self.strides.swap(a, b);
        self
    }

    /// Removes a dimension, which must have size one.
    pub(crate) fn remove(mut self, dim: usize) -> Self {
        let rank = self.rank();
        self.strides[dim..rank].rotate_left(1);
        self.sizes.remove(dim);
        self
    }

    /// Inserts a dimension of this size and stride before `dim`.
    pub(crate) fn insert(mut self, dim: usize, size: usize, stride: isize) -> Result<Self> {
        self.sizes.insert(dim, size)?;
        let rank = self.rank();
        self.strides[rank - 1] = stride;
        self.strides[dim..rank].rotate_right(1);
        Ok(self)
    }

    /// Broadcasts to these sizes: missing dimensions are added in front, those of size one are repeated.
    pub(crate) fn expand(&self, sizes: &Shape) -> Result<Self> {
        let new = sizes.rank();
        ensure!(
            new >= self.rank(),
            "a tensor of shape {} cannot be broadcast to the shape {sizes}, which has fewer dimensions",
            self.sizes
        );
        let front = new - self.rank();
        let mut out = Self { sizes: *sizes, strides: [0; MAX_RANK], offset: self.offset };
        for (d, (&size, &stride)) in self.sizes.iter().zip(&self.strides).enumerate() {
            if size == sizes[front + d] {
                out.strides[front + d] = stride;
            } else {
                ensure!(
                    size == 1,
                    "a tensor of shape {} cannot be broadcast to the shape {sizes}: \
                     dimension {d} is {size}, not 1 or {}",
                    self.sizes,
                    sizes[front + d]
                );
            }
        }
        Ok(out)
    }

    /// A view of the same elements in row-major order with sizes `sizes`; `None` if that needs a copy.
    pub(crate) fn reshape(&self, sizes: &Shape) -> Option<Self> {
        let mut new = Self { sizes: *sizes, strides: [0; MAX_RANK], offset: self.offset };
        if sizes.contains(&0) || self.sizes.contains(&0) {
            return (sizes.contains(&0) && self.sizes.contains(&0)).then_some(new);
        }
        let walk = self.walk();
        let mut runs = walk.dims.iter().copied();
        let (mut left, mut stride) = runs.next().unwrap_or((1, 1));
        for d in (0..sizes.rank()).rev() {
            if sizes[d] == 1 {
                continue;
            }
            if left == 1 {
                (left, stride) = runs.next()?;
            }
            if left % sizes[d] != 0 {
                return None;
            }
            new.strides[d] = stride;
            stride *= sizes[d] as isize;
            left /= sizes[d];
        }
        Some(new)
    }

    /// Traverses the elements in row-major order.
    pub(crate) fn walk(&self) -> Walk {
        Walk::new((0..self.rank()).rev().map(|d| (self.sizes[d], self.strides[d])), self.offset)
    }

    /// Traverses the elements in the storage order of a tensor with these sizes and this dim order.
    pub(crate) fn walk_in(&self, order: &DimOrder) -> Walk {
        let dims = order.iter().rev().map(|&d| (self.sizes[d as usize], self.strides[d as usize]));
        Walk::new(dims, self.offset)
    }
}

/// A traversal of elements: a loop nest, innermost loop first, in which adjacent loops are merged where possible.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    dims: SmallVec<[(usize, isize); 6]>,
    offset: usize,
}

impl Walk {
    /// A traversal by loops of these sizes and strides, innermost first.
    pub(crate) fn new(loops: impl Iterator<Item = (usize, isize)>, offset: usize) -> Self {
        let mut dims: SmallVec<[(usize, isize); 6]> = SmallVec::new();
        for (size, stride) in loops.filter(|&(size, _)| size != 1) {
            match dims.last_mut() {
                Some((n, s)) if s.checked_mul(*n as isize) == Some(stride) => *n = n.saturating_mul(size),
                _ => dims.push((size, stride)),
            }
        }
        Self { dims, offset }
    }

    /// The offset of the first element, if all elements are contiguous; otherwise `None`.
    pub(crate) fn contiguous_start(&self) -> Option<usize> {
        match self.dims[..] {
            [] | [(_, 1)] => Some(self.offset),
            _ => None,
        }
    }

    /// The length of the contiguous runs into which a traversal of `len` elements divides.
    pub(crate) fn run_len(&self, len: usize) -> usize {
        match self.dims[..] {
            [] => len.max(1),
            [(size, 1), ..] => size,
            _ => 1,
        }
    }

    /// The offset of the only element that is read, if all loops have stride zero (a broadcast); otherwise `None`.
    pub(crate) fn constant_offset(&self) -> Option<usize> {
        self.dims.iter().all(|&(_, stride)| stride == 0).then_some(self.offset)
    }

    /// The length and stride of the innermost loop.
    pub(crate) fn inner_loop(&self) -> (usize, isize) {
        self.dims.first().copied().unwrap_or((1, 1))
    }

    /// The offset of the element at a position of the traversal.
    pub(crate) fn offset_at(&self, mut position: usize) -> usize {
        let mut at = self.offset as isize;
        for &(size, stride) in &self.dims {
            at += (position % size) as isize * stride;
            position /= size;
        }
        at as usize
    }

    /// The offset of the first element of a range, if the elements of the range are contiguous; otherwise `None`.
    pub(crate) fn contiguous_start_of(&self, range: Range<usize>) -> Option<usize> {
        match self.dims.first() {
            None => Some(self.offset),
            Some(&(size, 1)) if range.start % size + range.len() <= size => Some(self.offset_at(range.start)),
            _ => None,
        }
    }

    /// Calls `run(offset, stride, count)` for the evenly strided runs that make up a range of positions, in order.
    #[inline]
    pub(crate) fn each_run(&self, range: Range<usize>, mut run: impl FnMut(usize, isize, usize)) {
        let mut left = range.len();
        let Some((&(inner, stride), outer)) = self.dims.split_first() else {
            if left > 0 {
                run(self.offset, 0, left);
            }
            return;
        };
        if left == 0 || self.dims.iter().any(|&(size, _)| size == 0) {
            return;
        }
        let mut index = [0usize; MAX_RANK];
        let mut position = range.start / inner;
        let mut skip = range.start % inner;
        let mut at = self.offset as isize;
        for (i, &(size, s)) in index.iter_mut().zip(outer) {
            *i = position % size;
            at += *i as isize * s;
            position /= size;
        }
        loop {
            let n = (inner - skip).min(left);
            run((at + skip as isize * stride) as usize, stride, n);
            left -= n;
            skip = 0;
            if left == 0 {
                return;
            }
            for (i, &(size, s)) in index.iter_mut().zip(outer) {
                *i += 1;
                at += s;
                if *i < size {
                    break;
                }
                at -= s * size as isize;
                *i = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::ScalarType;

    fn layout(sizes: &[usize]) -> Layout {
        Layout::of_tensor(&TensorMeta::contiguous(ScalarType::Float, sizes).unwrap())
    }

    fn elements(walk: &Walk, n: usize) -> Vec<usize> {
        let mut all = Vec::new();
        walk.each_run(0..n, |start, stride, count| {
            all.extend((0..count).map(|i| (start as isize + i as isize * stride) as usize));
        });
        assert!((0..n).all(|i| walk.offset_at(i) == all[i]));
        all
    }

    #[test]
    fn adjacent_loops_are_merged() {
        let l = layout(&[2, 3, 4]);
        assert_eq!(l.walk().contiguous_start(), Some(0));
        assert_eq!(l.slice(0, 1, 1, 1).walk().contiguous_start(), Some(12));
        assert_eq!(l.slice(1, 0, 2, 1).walk().dims.as_slice(), &[(8, 1), (2, 12)]);
        assert_eq!(layout(&[]).walk().constant_offset(), Some(0));
    }

    #[test]
    fn runs_may_start_at_any_position() {
        let l = layout(&[2, 3, 4]).transpose(0, 2);
        let all = elements(&l.walk(), 24);
        assert_eq!(&all[..4], &[0, 12, 4, 16]);
        let mut part = Vec::new();
        l.walk()
            .each_run(5..17, |s, d, n| part.extend((0..n).map(|i| (s as isize + i as isize * d) as usize)));
        assert_eq!(part, all[5..17]);
    }

    #[test]
    fn views_of_views() {
        let l = layout(&[4, 6]).slice(1, 1, 3, 2).flip(0);
        assert_eq!(elements(&l.walk(), 12), [19, 21, 23, 13, 15, 17, 7, 9, 11, 1, 3, 5]);
        let e = layout(&[3, 1]).expand(&Shape::new(&[2, 3, 2]).unwrap()).unwrap();
        assert_eq!(elements(&e.walk(), 12), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
        assert!(layout(&[3, 2]).expand(&Shape::new(&[3, 3]).unwrap()).is_err());
        let r = layout(&[4, 6]).slice(1, 0, 4, 1).reshape(&Shape::new(&[4, 2, 2]).unwrap()).unwrap();
        assert_eq!(r.strides(), &[6, 2, 1]);
        assert!(layout(&[4, 6]).slice(1, 0, 4, 1).reshape(&Shape::new(&[16]).unwrap()).is_none());
    }
}

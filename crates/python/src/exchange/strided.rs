use pteron::tensor::{MAX_RANK, TensorMeta};
use pteron::{DimOrder, Shape};

/// Strides in bytes, of up to [`MAX_RANK`] dimensions.
#[derive(Clone, Copy)]
pub(super) struct Strides {
    rank: usize,
    numbers: [isize; MAX_RANK],
}

impl Strides {
    /// Collects strides; `None` if there are more than [`MAX_RANK`], or one of them is `None`.
    pub(super) fn new(strides: impl ExactSizeIterator<Item = Option<isize>>) -> Option<Self> {
        let mut all = Self { rank: strides.len(), numbers: [0; MAX_RANK] };
        for (number, stride) in all.numbers.get_mut(..strides.len())?.iter_mut().zip(strides) {
            *number = stride?;
        }
        Some(all)
    }

    /// The strides of row-major elements of `element` bytes; `None` if there are too many dimensions or a size is too
    /// large.
    pub(super) fn row_major(sizes: &[i64], element: usize) -> Option<Self> {
        let mut all = Self { rank: sizes.len(), numbers: [0; MAX_RANK] };
        let mut step = isize::try_from(element).ok()?;
        for (number, &size) in all.numbers.get_mut(..sizes.len())?.iter_mut().zip(sizes).rev() {
            *number = step;
            step = step.saturating_mul(isize::try_from(size).ok()?);
        }
        Some(all)
    }

    /// The strides, in bytes, of a tensor with this type and layout.
    pub(super) fn from_meta(meta: &TensorMeta) -> Self {
        let size = meta.dtype().size();
        let mut all = Self { rank: meta.rank(), numbers: [0; MAX_RANK] };
        for (number, stride) in all.numbers.iter_mut().zip(meta.strides().iter()) {
            *number = (stride * size) as isize;
        }
        all
    }
}

impl std::ops::Deref for Strides {
    type Target = [isize];
    fn deref(&self) -> &[isize] {
        &self.numbers[..self.rank]
    }
}

/// Whether elements of `element` bytes with these strides are dense if dimensions are taken in `order`, outermost
/// first.
fn is_dense(
    sizes: &[usize],
    strides: &[isize],
    element: usize,
    order: impl DoubleEndedIterator<Item = usize>,
) -> bool {
    let mut expected = element;
    for d in order.rev() {
        if sizes[d] != 1 && strides[d] != expected as isize {
            return false;
        }
        let Some(next) = expected.checked_mul(sizes[d]).filter(|&n| n <= isize::MAX as usize) else {
            return false;
        };
        expected = next;
    }
    true
}

/// The dim order in which elements of `element` bytes with these strides are dense; `None` if there is no such order.
pub(super) fn dense_order(sizes: &[usize], strides: &[isize], element: usize) -> Option<DimOrder> {
    let rank = sizes.len();
    if is_dense(sizes, strides, element, 0..rank) || sizes.contains(&0) {
        return Some(DimOrder::contiguous(rank));
    }
    // Dimensions of size 1 may have any stride: sort them outermost.
    let mut order: Vec<u8> = (0..u8::try_from(rank).ok()?).collect();
    order.sort_by_key(|&d| (sizes[usize::from(d)] != 1, std::cmp::Reverse(strides[usize::from(d)]), d));
    match is_dense(sizes, strides, element, order.iter().map(|&d| usize::from(d))) {
        true => DimOrder::new(&order).ok(),
        false => None,
    }
}

/// The location of a tensor's elements: the address of the first one, and the strides in bytes.
pub(super) struct Place<'a> {
    pub(super) start: *mut u8,
    pub(super) strides: &'a [isize],
}

/// Copies elements of `size` bytes between places with any strides.
///
/// # Safety
/// For every element of a tensor of these sizes, the memory at `from` must be readable and the memory at `to` writable,
/// and the two must not overlap.
pub(super) unsafe fn copy(from: &Place<'_>, to: &Place<'_>, sizes: &Shape, size: usize) {
    if sizes.contains(&0) {
        return;
    }
    let rank = sizes.rank();
    let mut index = vec![0usize; rank];
    let (mut source, mut target) = (from.start.cast_const(), to.start);
    loop {
        // SAFETY: `source` and `target` are the addresses of the same element at both places. By the contract of this function
        // one is readable, the other writable, and they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(source, target, size) };
        let mut d = rank;
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            index[d] += 1;
            source = source.wrapping_offset(from.strides[d]);
            target = target.wrapping_offset(to.strides[d]);
            if index[d] < sizes[d] {
                break;
            }
            let back = -(sizes[d] as isize);
            source = source.wrapping_offset(from.strides[d].wrapping_mul(back));
            target = target.wrapping_offset(to.strides[d].wrapping_mul(back));
            index[d] = 0;
        }
    }
}

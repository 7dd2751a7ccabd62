//! The buffers of Arrow arrays as slices.

use super::node::Node;

/// A buffer of an array as a slice of `count` elements.
///
/// # Safety
/// The buffer with this index must be null or have at least `count` elements, which nobody may write to during `'a`.
pub(super) unsafe fn buffer<'a, T>(node: &Node, index: usize, count: usize) -> Result<&'a [T], String> {
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err("an Arrow array is too long".to_owned());
    }
    match node.buffers.get(index).copied() {
        Some(at) if !at.is_null() && at.cast::<T>().is_aligned() => {
            // SAFETY: the pointer is not null and aligned, and the size is that of a slice; the rest is the caller's obligation.
            Ok(unsafe { std::slice::from_raw_parts(at.cast(), count) })
        }
        _ if count == 0 => Ok(&[]),
        _ => Err("an Arrow array lacks a buffer".to_owned()),
    }
}

/// The validity bitmap of an array, if there may be nulls.
///
/// # Safety
/// As [`buffer`].
pub(super) unsafe fn validity<'a>(node: &Node) -> Result<Option<&'a [u8]>, String> {
    let may_be_null = node.null_count != 0 && node.buffers.first().is_some_and(|at| !at.is_null());
    match may_be_null {
        // SAFETY: by the interface, a validity buffer has a bit for each element; the rest is the caller's obligation.
        true => Ok(Some(unsafe { buffer(node, 0, (node.offset + node.length).div_ceil(8))? })),
        false => Ok(None),
    }
}

//! Fallible allocation of vectors whose length comes from a file or an argument: a failure is an error, not an abort.

use crate::{Error, Result};

/// An empty vector with capacity for `len` elements.
///
/// # Errors
/// If the allocation fails.
pub fn with_room<T>(len: usize) -> Result<Vec<T>> {
    let mut new = Vec::new();
    new.try_reserve_exact(len).map_err(|_| Error::OutOfMemory(len.saturating_mul(size_of::<T>())))?;
    Ok(new)
}

/// A vector of `len` copies of a value.
///
/// # Errors
/// If the allocation fails.
pub fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>> {
    let mut new = with_room(len)?;
    new.resize(len, value);
    Ok(new)
}

/// A copy of a slice.
///
/// # Errors
/// If the allocation fails.
pub fn copied<T: Clone>(elements: &[T]) -> Result<Vec<T>> {
    let mut copy = with_room(elements.len())?;
    copy.extend_from_slice(elements);
    Ok(copy)
}

/// A vector of the items of an iterator of known length.
///
/// # Errors
/// If the allocation fails.
pub fn collected<T>(elements: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut all = with_room(elements.len())?;
    all.extend(elements);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_overflows_is_an_error() {
        assert_eq!(filled(3, 7u8).unwrap(), [7, 7, 7]);
        assert_eq!(copied(&[1, 2]).unwrap(), [1, 2]);
        assert_eq!(collected((0..3).map(|x| x * x)).unwrap(), [0, 1, 4]);
        assert!(matches!(filled(usize::MAX, 0u64), Err(Error::OutOfMemory(usize::MAX))));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri aborts when an allocation fails")]
    fn a_failed_allocation_is_an_error() {
        assert!(matches!(with_room::<u8>(usize::MAX / 2), Err(Error::OutOfMemory(_))));
    }
}

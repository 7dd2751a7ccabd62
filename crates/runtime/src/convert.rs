//! Sizes and elements of files in the form of this machine.

use crate::Result;
use pteron_tensor::ScalarType;

/// Converts a 64-bit size from a file to `usize`. Fails if it does not fit.
pub(crate) fn usize_of(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| pteron_tensor::Error::SizeOverflow { shape: format!("{n} bytes") }.into())
}

/// Converts little-endian elements to the host's byte order, in place.
pub(crate) fn from_little_endian(bytes: &mut [u8], dtype: ScalarType) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.alignment()).for_each(<[u8]>::reverse);
    }
}

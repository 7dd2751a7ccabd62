//! What a file may ask of its reader.

use crate::error::{Error, ErrorKind, Result};

/// Most sections, known and unknown together, that a file may have. The format defines eleven; the bound keeps a
/// file of millions of empty sections from turning "open" into a scan.
pub const MAX_SECTIONS: u32 = 1024;

/// [`Limits::location_nesting`] unless the caller says otherwise. Inlining in real compilers nests call sites some
/// tens deep.
pub const DEFAULT_LOCATION_NESTING: u32 = 256;

/// [`Limits::attribute_nesting`] unless the caller says otherwise.
pub const DEFAULT_ATTRIBUTE_NESTING: u32 = 64;

/// The most that [`Limits::location_nesting`] can be raised to: a location is a tree of boxes, and dropping,
/// printing and comparing it recurses.
pub const MAX_LOCATION_NESTING: u32 = 1024;

/// The most that [`Limits::attribute_nesting`] can be raised to, for the same reason.
pub const MAX_ATTRIBUTE_NESTING: u32 = 128;

/// [`Limits::max_kernels`] unless the caller says otherwise.
pub const DEFAULT_MAX_KERNELS: u64 = 1 << 28;

/// [`Limits::expansion`] unless the caller says otherwise.
pub const DEFAULT_EXPANSION: u64 = 16;

/// What [`Limits::expansion`] allows for any file, however small: bytes.
pub const MIN_EXPANSION: u64 = 1 << 16;

/// Bounds that a caller can tighten (or, for nesting, raise up to the constants above).
///
/// Everything else is bounded by the size of the file: no count is believed before the bytes that it promises are
/// known to exist, so that memory stays a small multiple of the bytes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How deep locations may nest (a location without children is 1 deep).
    pub location_nesting: u32,
    /// How deep aggregates may nest (an attribute that is no aggregate is 1 deep).
    pub attribute_nesting: u32,
    /// Most kernels in one function.
    pub max_kernels: u64,
    /// How many times the size of the file its names and locations may take together when each is counted as often
    /// as it is used. Names and locations can be shared; without this bound, a small file could name a long string
    /// or a large location so often that reading them all takes hours and fills the memory.
    pub expansion: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            location_nesting: DEFAULT_LOCATION_NESTING,
            attribute_nesting: DEFAULT_ATTRIBUTE_NESTING,
            max_kernels: DEFAULT_MAX_KERNELS,
            expansion: DEFAULT_EXPANSION,
        }
    }
}

/// What is left of [`Limits::expansion`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget {
    left: u64,
}

impl Budget {
    /// For a file of `len` bytes.
    pub(crate) fn new(limits: &Limits, len: u64) -> Self {
        Budget { left: limits.expansion.saturating_mul(len).max(MIN_EXPANSION) }
    }

    /// Counts `bytes` that were named at file offset `at`.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: u64, at: u64) -> Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Error::new(
                ErrorKind::Limit,
                at,
                format!("{bytes} more bytes of shared names or locations"),
                format!("no more than {} (Limits::expansion)", self.left),
            )),
        }
    }

    /// Whether nothing is left.
    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }
}

impl Limits {
    pub(crate) fn locations(&self) -> usize {
        self.location_nesting.min(MAX_LOCATION_NESTING) as usize
    }

    pub(crate) fn attributes(&self) -> u32 {
        self.attribute_nesting.min(MAX_ATTRIBUTE_NESTING)
    }
}

//! Limits on the resources that a file can make its reader use.

use crate::error::{Error, ErrorKind, Result};

/// Maximum number of sections of a file, known and unknown together. The format defines eleven; the limit keeps opening
/// a file cheap even if it has millions of empty sections.
pub const MAX_SECTIONS: u32 = 1024;

/// Default of [`Limits::location_nesting`]. Compilers that inline nest call sites a few dozen levels deep.
pub const DEFAULT_LOCATION_NESTING: u32 = 256;

/// Default of [`Limits::attribute_nesting`].
pub const DEFAULT_ATTRIBUTE_NESTING: u32 = 64;

/// Upper bound of [`Limits::location_nesting`]: a location is a tree of boxes, and dropping, printing and comparing it
/// recurses.
pub const MAX_LOCATION_NESTING: u32 = 1024;

/// Upper bound of [`Limits::attribute_nesting`]: dropping, printing and comparing nested aggregates recurses.
pub const MAX_ATTRIBUTE_NESTING: u32 = 128;

/// Default of [`Limits::max_kernels`].
pub const DEFAULT_MAX_KERNELS: u64 = 1 << 28;

/// Default of [`Limits::expansion`].
pub const DEFAULT_EXPANSION: u64 = 16;

/// Minimum number of bytes of names and locations that [`Limits::expansion`] allows, however small the file is.
pub const MIN_EXPANSION: u64 = 1 << 16;

/// Limits that a caller can tighten (or, for nesting, raise up to the constants above).
///
/// Everything else is bounded by the size of the file: a count is checked against the remaining bytes before memory is
/// allocated for it, so that memory stays a small multiple of the bytes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum nesting depth of locations (a location without children has depth 1).
    pub location_nesting: u32,
    /// Maximum nesting depth of aggregates (an attribute that is not an aggregate has depth 1).
    pub attribute_nesting: u32,
    /// Maximum number of kernels in one function.
    pub max_kernels: u64,
    /// Maximum total size in bytes of each of: kernel names, type names, function names, and attribute names with
    /// locations; as a multiple of the file size, if each is counted once per use. A node of a location counts 8 times
    /// its bytes. Names and locations can be shared; without this limit, a small file could refer to a long string or a
    /// large location so often that decoding all uses takes hours and exhausts memory.
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

/// The bytes of names and locations that may still be decoded under [`Limits::expansion`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget {
    left: u64,
}

impl Budget {
    /// The budget of a file of `len` bytes.
    pub(crate) fn new(limits: &Limits, len: u64) -> Self {
        Budget { left: limits.expansion.saturating_mul(len).max(MIN_EXPANSION) }
    }

    /// Fails if `bytes`, the names and locations that a reader of the file being written decodes, exceed the budget.
    pub(crate) fn check_model(&self, bytes: u64) -> Result<()> {
        if bytes <= self.left {
            return Ok(());
        }
        Err(Error::without_offset(
            ErrorKind::Limit,
            format!("{bytes} bytes of names or locations, counted once per use"),
            format!("at most {} for a file of this size (Limits::expansion)", self.left),
        ))
    }

    /// Takes the `bytes` of a name or location from the budget, for a reference to it at file offset `at`.
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

    /// Whether the budget is used up.
    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }
}

impl Limits {
    pub(crate) fn effective_location_nesting(&self) -> usize {
        self.location_nesting.min(MAX_LOCATION_NESTING) as usize
    }

    pub(crate) fn effective_attribute_nesting(&self) -> u32 {
        self.attribute_nesting.min(MAX_ATTRIBUTE_NESTING)
    }
}

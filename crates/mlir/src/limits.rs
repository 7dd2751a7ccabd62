//! Bounds that keep any source text from exhausting the stack or the memory.

/// Nesting of regions, attributes, types and locations, counted together.
///
/// A parser frame in an unoptimized build takes a few KiB; this bound fits a 2 MiB thread stack.
pub const MAX_DEPTH: usize = 128;

/// Nesting of locations that aliases build up, three levels for each alias: as deep as BEF files may nest them by
/// default. Without aliases [`MAX_DEPTH`] holds.
pub const MAX_LOCATION_DEPTH: usize = 765;

/// Attributes, types and locations that uses of aliases may stand for, in one source text: this many, and
/// [`MAX_EXPANSION`] more for each byte of source. Keeps aliases of aliases from growing without bound.
pub const MAX_EXPANDED: u64 = 1 << 22;

/// See [`MAX_EXPANDED`].
pub const MAX_EXPANSION: u64 = 16;

/// Longest source text, in bytes. Offsets are kept as `u32`.
pub const MAX_SOURCE_BYTES: usize = (u32::MAX - 1) as usize;

/// Largest payload of one `dense<...>` attribute once a splat is expanded, in bytes (1 GiB).
pub const MAX_DENSE_BYTES: u64 = 1 << 30;

/// Default bound of what dense attributes (splats written out) and the texts of compiled modules take together
/// in one translation to BEF, in bytes (1 GiB).
pub const MAX_BEF_PAYLOAD: u64 = 1 << 30;

/// Most results that one operation may name (`%0:N = ...`).
pub const MAX_RESULTS: u64 = 1 << 20;

/// Most results in one source text that are implied by a count (`corert.executeop(...) : N`), all together.
pub const MAX_IMPLIED_RESULTS: u64 = 1 << 20;

/// Widest integer type, in bits (MLIR's own bound).
pub const MAX_INTEGER_WIDTH: u32 = (1 << 24) - 1;

/// Longest source line that a diagnostic quotes, in bytes.
pub const MAX_QUOTED_LINE: usize = 4096;

/// Diagnostics kept of one run; the first is the one that matters.
pub const MAX_DIAGNOSTICS: usize = 100;

//! Limits that keep any source text from exhausting the stack or memory.

/// Maximum nesting depth of regions, attributes, types and locations, counted together.
///
/// A parser frame in an unoptimized build takes a few KiB; this depth fits a 2 MiB thread stack.
pub const MAX_DEPTH: usize = 128;

/// Maximum nesting depth of locations built with aliases, counted as for [`MAX_DEPTH`]. An alias may count as three
/// levels, so this admits about 255 of them in one another, the default limit of BEF files. Without aliases,
/// [`MAX_DEPTH`] applies.
pub const MAX_LOCATION_DEPTH: usize = 765;

/// Maximum number of attributes, types and locations that aliases expand to in one source text: this many, plus
/// [`MAX_EXPANSION`] for each byte of source. Keeps aliases of aliases from growing exponentially.
pub const MAX_EXPANDED: u64 = 1 << 22;

/// Number of attributes, types and locations that aliases may expand to per byte of source: see [`MAX_EXPANDED`].
pub const MAX_EXPANSION: u64 = 16;

/// Maximum length of a source text in bytes. Offsets are stored as `u32`.
pub const MAX_SOURCE_BYTES: usize = (u32::MAX - 1) as usize;

/// Maximum payload of one `dense<...>` attribute in bytes, with splats expanded (1 GiB).
pub const MAX_DENSE_BYTES: u64 = 1 << 30;

/// Default limit of the total size of dense attributes (with splats expanded) and texts of compiled modules in one
/// translation to BEF, in bytes (1 GiB).
pub const MAX_BEF_PAYLOAD: u64 = 1 << 30;

/// Maximum number of results that one operation may name (`%0:N = ...`).
pub const MAX_RESULTS: u64 = 1 << 20;

/// Maximum total number of results in one source text that are implied by a count (`corert.executeop(...) : N`).
pub const MAX_IMPLIED_RESULTS: u64 = 1 << 20;

/// Maximum width of integer types in bits (MLIR's own limit).
pub const MAX_INTEGER_WIDTH: u32 = (1 << 24) - 1;

/// Maximum length of a source line quoted in a diagnostic, in bytes.
pub const MAX_QUOTED_LINE: usize = 4096;

/// Maximum number of diagnostics that are kept: the first ones, which are the most relevant.
pub const MAX_DIAGNOSTICS: usize = 100;

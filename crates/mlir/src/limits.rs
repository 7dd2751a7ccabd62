//! Bounds that keep any source text from exhausting the stack or the memory.

/// Nesting of regions, attributes, types and locations, counted together.
///
/// A parser frame in an unoptimized build takes a few KiB; this bound fits a 2 MiB thread stack.
pub const MAX_DEPTH: usize = 128;

/// Longest source text, in bytes. Offsets are kept as `u32`.
pub const MAX_SOURCE_BYTES: usize = (u32::MAX - 1) as usize;

/// Largest payload of one `dense<...>` attribute once a splat is expanded, in bytes (1 GiB).
pub const MAX_DENSE_BYTES: u64 = 1 << 30;

/// Sum of all expanded `dense<...>` payloads of one translation, in bytes (4 GiB minus one page).
pub const MAX_BEF_DENSE_BYTES: u64 = (1 << 32) - 4096;

/// Most results that one operation may name (`%0:N = ...`).
pub const MAX_RESULTS: u64 = 1 << 20;

/// Widest integer type, in bits (MLIR's own bound).
pub const MAX_INTEGER_WIDTH: u32 = (1 << 24) - 1;

/// Longest source line that a diagnostic quotes, in bytes.
pub const MAX_QUOTED_LINE: usize = 4096;

/// Diagnostics kept of one run; the first is the one that matters.
pub const MAX_DIAGNOSTICS: usize = 100;

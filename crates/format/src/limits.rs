//! Limits on what a file may ask for: one documented constant for each, and [`Limits`] to change them.

/// Limits on what a file may ask for. Every reader and verifier takes one.
///
/// The defaults admit every program seen in practice with two orders of magnitude to spare, and keep a hostile file
/// from taking more than a small multiple of its own size.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a program's flatbuffer (segments not counted).
    pub program_bytes: u64,
    /// Entries of one vector of tables or scalars. Byte vectors are bounded by the size of the file only.
    pub vector_len: u64,
    /// Bytes of one string.
    pub string_bytes: u64,
    /// Levels of tables within tables.
    pub nesting: u32,
    /// Bytes, each counted eight times, that may be decoded beyond the flatbuffer's own size. That happens only if
    /// several offsets point to the same table, vector or string.
    pub shared_bytes: u64,
    /// Values of one execution plan.
    pub values: u64,
    /// Instructions of one chain.
    pub instructions: u64,
    /// Bytes of all planned arenas of one execution plan together.
    pub arena_bytes: u64,
    /// Segments of one file.
    pub segments: u64,
    /// Bytes of one tensor.
    pub tensor_bytes: u64,
    /// Errors that `verify_all` collects before it stops.
    pub errors: usize,
}

/// See [`Limits::program_bytes`]: 1 GiB, for legacy programs with inline weights.
pub const PROGRAM_BYTES: u64 = 1 << 30;
/// See [`Limits::vector_len`].
pub const VECTOR_LEN: u64 = 1 << 24;
/// See [`Limits::string_bytes`].
pub const STRING_BYTES: u64 = 1 << 24;
/// See [`Limits::nesting`]: the deepest schema here has eight.
pub const NESTING: u32 = 32;
/// See [`Limits::shared_bytes`]: 32 MiB.
pub const SHARED_BYTES: u64 = 32 << 20;
/// See [`Limits::values`].
pub const VALUES: u64 = 1 << 22;
/// See [`Limits::instructions`].
pub const INSTRUCTIONS: u64 = 1 << 22;
/// See [`Limits::arena_bytes`]: 64 GiB.
pub const ARENA_BYTES: u64 = 64 << 30;
/// See [`Limits::segments`].
pub const SEGMENTS: u64 = 1 << 20;
/// See [`Limits::tensor_bytes`]: 64 GiB.
pub const TENSOR_BYTES: u64 = 64 << 30;
/// See [`Limits::errors`].
pub const ERRORS: usize = 100;

impl Limits {
    /// The documented defaults, as a constant.
    pub const DEFAULT: Self = Self {
        program_bytes: PROGRAM_BYTES,
        vector_len: VECTOR_LEN,
        string_bytes: STRING_BYTES,
        nesting: NESTING,
        shared_bytes: SHARED_BYTES,
        values: VALUES,
        instructions: INSTRUCTIONS,
        arena_bytes: ARENA_BYTES,
        segments: SEGMENTS,
        tensor_bytes: TENSOR_BYTES,
        errors: ERRORS,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

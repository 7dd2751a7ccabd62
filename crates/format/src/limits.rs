//! Limits on what a file may ask for: one documented constant for each, and [`Limits`] to change them.

/// Limits on what a file may ask for. Every reader and verifier takes one.
///
/// The defaults admit every program seen in practice with two orders of magnitude to spare, and keep a hostile file
/// from taking more than a small multiple of its own size.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The maximum size of a program's flatbuffer in bytes, without segments.
    pub program_bytes: u64,
    /// The maximum number of entries of a vector of tables or scalars. Only the file's size bounds byte vectors.
    pub vector_len: u64,
    /// The maximum length of a string in bytes.
    pub string_bytes: u64,
    /// The maximum nesting depth of tables.
    pub nesting: u32,
    /// How many bytes may be decoded beyond the flatbuffer's own size, which happens only if several offsets point to
    /// the same table, vector or string. Each such byte counts eight times. Small files are allowed less: 64 times
    /// their size plus 1 MiB.
    pub shared_bytes: u64,
    /// The maximum number of values of an execution plan.
    pub values: u64,
    /// The maximum number of instructions of a chain.
    pub instructions: u64,
    /// The maximum size of all planned arenas of an execution plan together, in bytes.
    pub arena_bytes: u64,
    /// The maximum number of segments of a file.
    pub segments: u64,
    /// The maximum size of a tensor in bytes.
    pub tensor_bytes: u64,
    /// The maximum number of errors that `verify_all` collects.
    pub errors: usize,
}

/// The default of [`Limits::program_bytes`]: 1 GiB, for legacy programs with inline weights.
pub const PROGRAM_BYTES: u64 = 1 << 30;
/// The default of [`Limits::vector_len`].
pub const VECTOR_LEN: u64 = 1 << 24;
/// The default of [`Limits::string_bytes`].
pub const STRING_BYTES: u64 = 1 << 24;
/// The default of [`Limits::nesting`]: the deepest schema here has eight levels.
pub const NESTING: u32 = 32;
/// The default of [`Limits::shared_bytes`]: 32 MiB.
pub const SHARED_BYTES: u64 = 32 << 20;
/// The default of [`Limits::values`].
pub const VALUES: u64 = 1 << 22;
/// The default of [`Limits::instructions`].
pub const INSTRUCTIONS: u64 = 1 << 22;
/// The default of [`Limits::arena_bytes`]: 64 GiB.
pub const ARENA_BYTES: u64 = 64 << 30;
/// The default of [`Limits::segments`].
pub const SEGMENTS: u64 = 1 << 20;
/// The default of [`Limits::tensor_bytes`]: 64 GiB.
pub const TENSOR_BYTES: u64 = 64 << 30;
/// The default of [`Limits::errors`].
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

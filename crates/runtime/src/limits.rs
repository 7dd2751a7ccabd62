//! What a program may use. Everything a file can ask for is bounded by one of these.

/// Bounds on what loading and running a program may use.
///
/// The defaults let every reasonable program through; whoever runs files of strangers lowers them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Instructions that one execution of a method may run: the reference's
    /// `ET_MAX_INSTRUCTIONS`, ten million.
    pub instructions: u64,
    /// Bytes of all memory arenas of a method, tensors without a place in the plan counted in.
    pub arena_bytes: u64,
    /// Bytes of temporary memory that the kernels of a method may hold at a time.
    pub scratch_bytes: usize,
    /// Bytes of one segment, constant or delegate payload read into memory. Mapped bytes count too.
    pub segment_bytes: u64,
    /// Bytes that a backend may take through its init and execution contexts.
    pub backend_bytes: usize,
    /// What the flatbuffer of a program may hold.
    pub format: format::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            instructions: 10_000_000,
            arena_bytes: 64 << 30,
            scratch_bytes: 4 << 30,
            segment_bytes: 256 << 30,
            backend_bytes: 16 << 30,
            format: format::Limits::default(),
        }
    }
}

impl Limits {
    /// Bounds for files that nobody vouches for: 64 MiB of arenas, 16 MiB of temporaries, 100,000
    /// instructions.
    pub fn strict() -> Self {
        Self {
            instructions: 100_000,
            arena_bytes: 64 << 20,
            scratch_bytes: 16 << 20,
            segment_bytes: 64 << 20,
            backend_bytes: 16 << 20,
            format: format::Limits::default(),
        }
    }
}

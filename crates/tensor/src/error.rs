use crate::ScalarType;

/// What can be wrong with a tensor, its shape or its bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value read from a file is no scalar type.
    #[error("{0} is not a scalar type (the schema defines 0 to 29)")]
    UnknownScalarType(i8),
    /// More dimensions than [`crate::MAX_RANK`].
    #[error("a tensor of rank {rank} (at most {} dimensions are supported)", crate::MAX_RANK)]
    RankTooLarge {
        /// The rank asked for.
        rank: usize,
    },
    /// The number of elements or bytes does not fit `usize`.
    #[error("the size of a tensor of shape {shape} overflows")]
    SizeOverflow {
        /// The shape, as text.
        shape: String,
    },
    /// A dim order that is not a permutation of `0..rank`.
    #[error("dim order {order:?} is not a permutation of 0..{rank}")]
    BadDimOrder {
        /// The order found.
        order: Vec<u8>,
        /// The rank of the tensor.
        rank: usize,
    },
    /// A typed access with another type than the tensor's.
    #[error("expected a tensor of {expected}, found {found}")]
    WrongType {
        /// What the access asked for.
        expected: ScalarType,
        /// What the tensor holds.
        found: ScalarType,
    },
    /// Bytes and shape disagree.
    #[error("{found} bytes for a tensor of {expected} bytes")]
    WrongByteCount {
        /// What shape and type ask for.
        expected: usize,
        /// The bytes given.
        found: usize,
    },
    /// Bytes that do not start at a multiple of the element's alignment.
    #[error("the bytes of a {dtype} tensor are not aligned to {} bytes", dtype.alignment())]
    Misaligned {
        /// The scalar type.
        dtype: ScalarType,
    },
    /// A slice in row-major order was asked of a tensor that is laid out otherwise.
    #[error(
        "the elements of {tensor} do not lie in row-major order: `to_vec` copies them in that order, \
         `to_dim_order` converts, `storage` gives them as they lie"
    )]
    NotRowMajor {
        /// Type, sizes and dim order, as text.
        tensor: String,
    },
    /// A resize that the tensor's dynamism forbids.
    #[error("cannot resize a tensor of shape {from} to {to}: {reason}")]
    Resize {
        /// The present shape.
        from: String,
        /// The shape asked for.
        to: String,
        /// Why it is refused.
        reason: &'static str,
    },
    /// An extent that does not lie within its arena.
    #[error("bytes {offset}..{end} of arena {arena}, which has {size} bytes")]
    OutOfArena {
        /// Index of the arena.
        arena: usize,
        /// First byte asked for.
        offset: usize,
        /// One past the last byte asked for.
        end: usize,
        /// The size of the arena.
        size: usize,
    },
    /// Two views that would overlap while one of them can be written.
    #[error("two views of arena {arena} overlap at byte {offset} while one of them is written")]
    Overlap {
        /// Index of the arena.
        arena: usize,
        /// Where the second view starts.
        offset: usize,
    },
    /// Memory could not be had.
    #[error("could not allocate {0} bytes")]
    OutOfMemory(usize),
}

/// The result of a tensor operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

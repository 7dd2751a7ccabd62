use crate::ScalarType;

/// An error about a tensor, its shape or its bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A number, read from a file, that stands for no scalar type.
    #[error("{0} is not a scalar type (the schema defines 0 to 29)")]
    UnknownScalarType(i8),
    /// A tensor has more dimensions than [`crate::MAX_RANK`].
    #[error("a tensor of rank {rank} (at most {} dimensions are supported)", crate::MAX_RANK)]
    RankTooLarge {
        /// The rank asked for.
        rank: usize,
    },
    /// The number of elements does not fit `usize`, or the number of bytes does not fit `isize`.
    #[error("the size of a tensor of shape {shape} overflows")]
    SizeOverflow {
        /// The shape, as text.
        shape: String,
    },
    /// A dim order that is not a permutation of `0..rank`.
    #[error("dim order {order:?} is not a permutation of 0..{rank}")]
    BadDimOrder {
        /// The dim order found.
        order: Vec<u8>,
        /// The rank of the tensor.
        rank: usize,
    },
    /// A typed access with a type that is not the tensor's.
    #[error("expected a tensor of {expected}, found {found}")]
    WrongType {
        /// The type that the access asked for.
        expected: ScalarType,
        /// The tensor's type.
        found: ScalarType,
    },
    /// The number of bytes does not match the shape and type.
    #[error("{found} bytes for a tensor of {expected} bytes")]
    WrongByteCount {
        /// The byte count of the shape and type.
        expected: usize,
        /// The number of bytes given.
        found: usize,
    },
    /// Bytes that do not start at a multiple of the element's alignment.
    #[error("the bytes of a {dtype} tensor are not aligned to {} bytes", dtype.alignment())]
    Misaligned {
        /// The scalar type of the element.
        dtype: ScalarType,
    },
    /// A row-major slice was requested of a tensor with another layout.
    #[error(
        "the elements of {tensor} are not in row-major order: `to_vec` copies them in that order, \
         `to_dim_order` converts, `storage` gives them in storage order"
    )]
    NotRowMajor {
        /// Type, sizes and dim order of the tensor, as text.
        tensor: String,
    },
    /// A resize that the tensor's dynamism, rank or capacity forbids, or a copy between tensors of different sizes.
    #[error("cannot resize a tensor of shape {from} to {to}: {reason}")]
    Resize {
        /// The current shape.
        from: String,
        /// The requested shape.
        to: String,
        /// The reason why the resize is forbidden.
        reason: &'static str,
    },
    /// An extent is out of its arena's bounds, or the arena does not exist.
    #[error("bytes {offset}..{end} of arena {arena}, which has {size} bytes")]
    OutOfArena {
        /// Index of the arena.
        arena: usize,
        /// The offset, in the arena, of the first requested byte.
        offset: usize,
        /// The offset, in the arena, one past the last requested byte.
        end: usize,
        /// The size of the arena, in bytes; 0 if it does not exist.
        size: usize,
    },
    /// Two views would overlap although one of them is writable.
    #[error("two views of arena {arena} overlap at byte {offset} while one of them is written")]
    Overlap {
        /// Index of the arena.
        arena: usize,
        /// The offset, in the arena, of the view that was requested last.
        offset: usize,
    },
    /// An allocation of this many bytes failed.
    #[error("could not allocate {0} bytes")]
    OutOfMemory(usize),
}

/// The result of a tensor operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

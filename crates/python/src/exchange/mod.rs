//! Memory shared between Python and the runtime: the only module of this crate with `unsafe` blocks of its own.
//!
//! The module `arrow` imports and exports Arrow's C data interface, whose memory is immutable.
//!
//! All other `unsafe` blocks here rely on the rules of the buffer protocol and of DLPack: memory that an exporter has
//! lent is neither moved nor freed until it is returned, and nobody writes to it while another reads it. Python
//! enforces the first rule. The caller must observe the second: an array that is an argument of a call must not be
//! written to by other threads before the call returns, as with any function that releases the GIL. `docs/python.md`
//! says so.

mod array;
pub(crate) mod arrow;
mod buffer;
mod dlpack;
mod maps;
mod storage;
mod strided;

pub(crate) use array::{Array, has_buffer};
pub(crate) use buffer::{fill_view, free_view};
pub(crate) use dlpack::{CPU, export};
pub(crate) use maps::promise_unchanged;
pub(crate) use storage::Storage;

use pteron::ScalarType;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts inputs that were copied since they are not dense, and outputs that were copied; the copy of each input into
/// the method's own memory is not counted.
#[derive(Default)]
pub(crate) struct Copies {
    inputs: AtomicU64,
    outputs: AtomicU64,
}

/// The copies that this process has made.
pub(crate) static COPIES: Copies = Copies { inputs: AtomicU64::new(0), outputs: AtomicU64::new(0) };

impl Copies {
    /// Counts an array that was copied to a tensor because its elements are not dense.
    pub(crate) fn count_input(&self) {
        self.inputs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an output that was copied out of the method's memory.
    pub(crate) fn count_output(&self) {
        self.outputs.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of copied inputs, and the number of copied outputs.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.inputs.load(Ordering::Relaxed), self.outputs.load(Ordering::Relaxed))
    }
}

/// The element type of a Python array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    /// A type that Python arrays and this package have in common.
    Known(ScalarType),
    /// Untyped elements of this many bytes.
    Opaque(usize),
}

impl Element {
    /// The element type for a buffer's format string, such as `<f`; `None` for structures and for the other byte order.
    fn of_format(format: &str, size: usize) -> Option<Self> {
        let foreign = if cfg!(target_endian = "little") { ['>', '!'] } else { ['<', '\0'] };
        if size > 1 && format.starts_with(foreign) {
            return None;
        }
        let code = format.trim_start_matches(['@', '=', '<', '>', '!']);
        Some(Self::Known(match (code, size) {
            ("?", 1) => ScalarType::Bool,
            ("B", 1) => ScalarType::Byte,
            ("b", 1) => ScalarType::Char,
            ("H", 2) => ScalarType::UInt16,
            ("h", 2) => ScalarType::Short,
            ("I" | "L", 4) => ScalarType::UInt32,
            ("i" | "l", 4) => ScalarType::Int,
            ("L" | "Q" | "N", 8) => ScalarType::UInt64,
            ("l" | "q" | "n", 8) => ScalarType::Long,
            ("e", 2) => ScalarType::Half,
            ("f", 4) => ScalarType::Float,
            ("d", 8) => ScalarType::Double,
            ("Zf", 8) => ScalarType::ComplexFloat,
            ("Zd", 16) => ScalarType::ComplexDouble,
            ("c", 1) => return Some(Self::Opaque(1)),
            _ if code.ends_with(['x', 's', 'V']) => return Some(Self::Opaque(size)),
            _ => return None,
        }))
    }

    /// The size of an element in bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Known(dtype) => dtype.size(),
            Self::Opaque(size) => size,
        }
    }

    /// `wanted`, if the elements can be read as that type: types that Python arrays lack are passed as untyped bytes or
    /// unsigned integers of the same size.
    pub(crate) fn read_as(self, wanted: ScalarType) -> Option<ScalarType> {
        match self {
            Self::Known(dtype) if dtype == wanted => Some(wanted),
            Self::Known(dtype) if format_of(wanted).1 && format_of(wanted).0 == format_of(dtype).0 => {
                Some(wanted)
            }
            Self::Opaque(size) if size == wanted.size() => Some(wanted),
            _ => None,
        }
    }
}

/// The buffer format for a type, and whether that is only a substitute, as the buffer protocol lacks the type.
pub(crate) fn format_of(dtype: ScalarType) -> (&'static std::ffi::CStr, bool) {
    match dtype {
        ScalarType::Bool => (c"?", false),
        ScalarType::Byte => (c"B", false),
        ScalarType::Char => (c"b", false),
        ScalarType::UInt16 => (c"H", false),
        ScalarType::Short => (c"h", false),
        ScalarType::UInt32 => (c"I", false),
        ScalarType::Int => (c"i", false),
        ScalarType::UInt64 => (c"Q", false),
        ScalarType::Long => (c"q", false),
        ScalarType::Half => (c"e", false),
        ScalarType::Float => (c"f", false),
        ScalarType::Double => (c"d", false),
        ScalarType::ComplexFloat => (c"Zf", false),
        ScalarType::ComplexDouble => (c"Zd", false),
        other => match other.size() {
            1 => (c"B", true),
            2 => (c"H", true),
            _ => (c"I", true),
        },
    }
}

//! `.gguf`: named tensors, many of them quantized in blocks, and metadata (read only).
//!
//! A file is a header and the data of the tensors. The header has the magic `GGUF`, a version, the numbers of tensors
//! and of metadata entries, the entries, and for each tensor its name, sizes, type and offset. The reader follows the
//! format's public specification (`docs/gguf.md` in `ggml-org/ggml`), versions 2 and 3, little-endian.

mod blocks;
mod read;
#[cfg(test)]
mod tests;

pub use read::read;

use pteron_tensor::ScalarType;
use std::fmt;
use std::ops::Range;

/// The header of a file. The data of all tensors has been checked to be in bounds of the file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Gguf {
    /// The version of the format.
    pub version: u32,
    /// Alignment of each tensor's data, in bytes.
    pub alignment: u64,
    /// The metadata, in the file's order. Keys are unique.
    pub metadata: Vec<(String, Value)>,
    /// The tensors, in the file's order. Names are unique.
    pub tensors: Vec<Tensor>,
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// The name.
    pub name: String,
    /// The sizes in elements, the outermost dimension first, as in PyTorch (the file has the innermost first).
    pub sizes: Vec<u64>,
    /// How the elements are stored.
    pub kind: TensorKind,
    /// The byte range of the tensor's data in the file.
    pub data: Range<u64>,
}

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// An unsigned integer of any width.
    Unsigned(u64),
    /// A signed integer of any width.
    Signed(i64),
    /// A floating-point number of either width.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    String(String),
    /// Values of one kind. Only the first [`Value::KEPT`] are kept.
    Array {
        /// The length of the array in the file.
        len: u64,
        /// The first values of the array.
        first: Vec<Value>,
    },
}

impl Value {
    /// How many values of an array are kept: a vocabulary has some hundred thousand.
    pub const KEPT: usize = 16;
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(v) => write!(f, "{v}"),
            Self::Signed(v) => write!(f, "{v}"),
            Self::Float(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::String(v) => f.write_str(v),
            Self::Array { len, first } => {
                f.write_str("[")?;
                for (i, value) in first.iter().enumerate() {
                    write!(f, "{}{value}", if i > 0 { ", " } else { "" })?;
                }
                let more = *len > first.len() as u64;
                write!(f, "{}]", if more { format!(", … {len} in all") } else { String::new() })
            }
        }
    }
}

/// How the elements of a tensor are stored: individually, or in blocks that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorKind {
    number: u32,
    name: &'static str,
    /// Elements per block.
    elements: u64,
    /// Bytes per block.
    bytes: u64,
    /// The element type, if elements are stored individually.
    scalar: Option<ScalarType>,
}

macro_rules! kinds {
    ($($number:literal $name:literal $elements:literal $bytes:literal $($scalar:ident)?;)*) => {
        &[$(TensorKind {
            number: $number,
            name: $name,
            elements: $elements,
            bytes: $bytes,
            scalar: kinds!(@ $($scalar)?),
        },)*]
    };
    (@) => { None };
    (@ $scalar:ident) => { Some(ScalarType::$scalar) };
}

/// Each kind's number, name, elements and bytes per block, and the element type if elements are stored individually.
const KINDS: &[TensorKind] = kinds! {
    0 "F32" 1 4 Float;
    1 "F16" 1 2 Half;
    2 "Q4_0" 32 18;
    3 "Q4_1" 32 20;
    6 "Q5_0" 32 22;
    7 "Q5_1" 32 24;
    8 "Q8_0" 32 34;
    10 "Q2_K" 256 84;
    11 "Q3_K" 256 110;
    12 "Q4_K" 256 144;
    13 "Q5_K" 256 176;
    14 "Q6_K" 256 210;
    15 "Q8_K" 256 292;
    16 "IQ2_XXS" 256 66;
    17 "IQ2_XS" 256 74;
    18 "IQ3_XXS" 256 98;
    19 "IQ1_S" 256 50;
    20 "IQ4_NL" 32 18;
    21 "IQ3_S" 256 110;
    22 "IQ2_S" 256 82;
    23 "IQ4_XS" 256 136;
    24 "I8" 1 1 Char;
    25 "I16" 1 2 Short;
    26 "I32" 1 4 Int;
    27 "I64" 1 8 Long;
    28 "F64" 1 8 Double;
    29 "IQ1_M" 256 56;
    30 "BF16" 1 2 BFloat16;
    34 "TQ1_0" 256 54;
    35 "TQ2_0" 256 66;
    39 "MXFP4" 32 17;
    40 "NVFP4" 64 36;
    41 "Q1_0" 128 18;
};

impl TensorKind {
    /// The kind with this number; `None` if it is unknown.
    pub fn from_number(number: u32) -> Option<Self> {
        KINDS.iter().find(|kind| kind.number == number).copied()
    }

    /// The kind's name, such as `Q8_0`.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// The element type, if elements are stored individually.
    pub const fn scalar_type(self) -> Option<ScalarType> {
        self.scalar
    }

    /// Elements per block; 1 if elements are stored individually. Rows consist of whole blocks.
    pub const fn block_elements(self) -> u64 {
        self.elements
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> u64 {
        self.bytes
    }
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

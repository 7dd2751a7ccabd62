use pteron_tensor::ScalarType;
use std::ops::Range;

/// The id that means "no value".
pub(super) const NO_VALUE: u32 = u32::MAX;
/// The offset that marks a constant as named data.
pub(super) const NAMED: u64 = u64::MAX;

/// The element type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the schema's own names")]
pub enum Datatype {
    Fp32,
    Fp16,
    /// Signed 8-bit, per-tensor scale and zero point.
    Qint8,
    /// Unsigned 8-bit, per-tensor scale and zero point.
    Quint8,
    /// A bias with a per-tensor scale.
    Qint32,
    /// 8-bit weights with per-channel scales.
    Qcint8,
    /// A bias with per-channel scales.
    Qcint32,
    /// 4-bit weights with per-channel scales.
    Qcint4,
    /// Dynamically quantized 8-bit activations, with per-token parameters.
    Qdint8,
    /// 4-bit weights with a scale for each block of a row.
    Qbint4,
    /// Dynamically quantized 8-bit activations as in `Qdint8`, in a packed layout.
    Qpint8,
    Int32,
    /// `Fp32` in the packed layout of a kernel; only inside of a runtime.
    Pfp32,
    Bf16,
}

impl Datatype {
    const ALL: [(Self, &'static str, u64); 14] = [
        (Self::Fp32, "fp32", 32),
        (Self::Fp16, "fp16", 16),
        (Self::Qint8, "qint8", 8),
        (Self::Quint8, "quint8", 8),
        (Self::Qint32, "qint32", 32),
        (Self::Qcint8, "qcint8", 8),
        (Self::Qcint32, "qcint32", 32),
        (Self::Qcint4, "qcint4", 4),
        (Self::Qdint8, "qdint8", 8),
        (Self::Qbint4, "qbint4", 4),
        (Self::Qpint8, "qpint8", 8),
        (Self::Int32, "int32", 32),
        (Self::Pfp32, "pfp32", 32),
        (Self::Bf16, "bf16", 16),
    ];

    /// The type with this code in the schema, 1 to 14.
    pub fn from_code(code: i16) -> Option<Self> {
        let index = usize::try_from(code).ok()?.checked_sub(1)?;
        Self::ALL.get(index).map(|(datatype, ..)| *datatype)
    }

    /// The type's code in the schema.
    pub fn code(self) -> i16 {
        self as i16 + 1
    }

    /// The type's name in the schema, without `xnn_datatype_`.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The scalar type in which elements are stored.
    pub(crate) fn scalar_type(self) -> ScalarType {
        match self {
            Self::Fp32 | Self::Pfp32 => ScalarType::Float,
            Self::Fp16 => ScalarType::Half,
            Self::Bf16 => ScalarType::BFloat16,
            Self::Qint8 | Self::Qcint8 | Self::Qdint8 | Self::Qpint8 => ScalarType::Char,
            Self::Quint8 | Self::Qcint4 | Self::Qbint4 => ScalarType::Byte,
            Self::Qint32 | Self::Qcint32 | Self::Int32 => ScalarType::Int,
        }
    }

    /// Bits of an element.
    pub fn bits(self) -> u64 {
        Self::ALL[self as usize].2
    }

    /// Bytes of a tensor of these sizes. Rows of 4-bit elements are padded to whole bytes. `None` on overflow, also of the
    /// product of the sizes other than 0, since parts of the sizes of empty tensors are multiplied too.
    pub fn nbytes(self, dims: &[usize]) -> Option<u64> {
        let product = |dims: &[usize]| dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
        dims.iter().try_fold(8u64, |n, &d| n.checked_mul(d.max(1) as u64))?;
        match (self.bits(), dims.split_last()) {
            (4, Some((&last, rows))) => product(rows)?.checked_mul(last.div_ceil(2) as u64),
            (bits, _) => product(dims)?.checked_mul(bits.div_ceil(8)),
        }
    }

    /// Whether values of this type have [`Quantization`] parameters.
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::Fp32 | Self::Fp16 | Self::Int32 | Self::Pfp32 | Self::Bf16)
    }
}

/// A tensor of a payload.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// The value's id in the file.
    pub id: u32,
    /// The element type.
    pub datatype: Datatype,
    /// The value's sizes; of a value that is not constant, those of the example inputs at export.
    pub dims: Vec<usize>,
    /// Whether the value is an input, an output, a constant or an intermediate value.
    pub role: Role,
    /// The value's quantization parameters.
    pub quantization: Quantization,
    /// Whether the value is a float input that nodes read dynamically quantized, per token. The first releases wrote dynamic quantization
    /// this way.
    pub quantized_by_row: bool,
}

impl Value {
    /// The index of the value's bytes in the payload's constants, if the value is constant.
    pub fn constant_index(&self) -> Option<usize> {
        if let Role::Constant(index) = self.role { Some(index) } else { None }
    }
}

/// The role of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Read from the delegate call's argument of this index.
    Input(u32),
    /// Written to the delegate call's argument of this index.
    Output(u32),
    /// A constant, by its index in [`Payload::constants`](super::Payload::constants).
    Constant(usize),
    /// An intermediate value, written and read by nodes.
    Internal,
}

/// How a quantized value `q` is dequantized.
#[derive(Debug, Clone, PartialEq)]
pub enum Quantization {
    /// No quantization: values are floats or plain integers.
    None,
    /// `(q - zero_point) * scale`.
    PerTensor {
        /// The scale, above 0.
        scale: f32,
        /// The zero point.
        zero_point: i32,
    },
    /// `q * scale`, with a scale for each channel. 4-bit values are stored with an offset of 8.
    PerChannel {
        /// The scale of each channel.
        scales: Scales,
        /// The dimension of the channels.
        channel_dim: usize,
    },
    /// Dynamic: parameters are computed at run time from the elements, one set for each index of the batch dimensions.
    PerToken {
        /// The number of trailing dimensions that share parameters.
        num_nonbatch_dims: usize,
    },
    /// `q * scale`, with a scale for each group of elements in a row. Values are stored with an offset of 8.
    PerGroup {
        /// The scales, row by row. If they are stored as bytes, they are bf16.
        scales: Scales,
        /// The dimension of the rows.
        channel_dim: usize,
        /// The number of elements that share a scale.
        group_size: usize,
    },
}

/// Where scales are stored.
#[derive(Debug, Clone, PartialEq)]
pub enum Scales {
    /// In the flatbuffer.
    Inline(Vec<f32>),
    /// In one of the payload's constants.
    Constant {
        /// The index of the constant.
        index: usize,
        /// The number of scales.
        count: usize,
    },
}

/// Where the bytes of a constant are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Constant {
    /// A byte range of the payload.
    Payload(Range<u64>),
    /// Named data of the program or of a `.ptd` file.
    Named {
        /// The key under which the bytes are stored.
        key: String,
        /// The number of bytes that the payload declares for the constant.
        size: u64,
    },
}

impl Constant {
    /// The number of bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Payload(range) => range.end - range.start,
            Self::Named { size, .. } => *size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_empty_tensors_must_not_overflow() {
        assert_eq!(Datatype::Fp32.nbytes(&[0, 1 << 31, 1 << 20]), Some(0));
        assert_eq!(Datatype::Fp32.nbytes(&[0, 1 << 31, 1 << 31, 4]), None);
        assert_eq!(Datatype::Qcint4.nbytes(&[2, 3]), Some(4));
    }
}

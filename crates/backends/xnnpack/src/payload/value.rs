use std::ops::Range;

/// The type of a value's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the schema's own names")]
pub enum Datatype {
    Fp32,
    Fp16,
    /// Signed, one scale and zero point.
    Qint8,
    /// Unsigned, one scale and zero point.
    Quint8,
    /// A bias, one scale.
    Qint32,
    /// Weights, a scale a channel.
    Qcint8,
    /// A bias, a scale a channel.
    Qcint32,
    /// Weights of four bits, a scale a channel.
    Qcint4,
    /// Activations, quantized when they are computed, by parameters for each row.
    Qdint8,
    /// Weights of four bits, a scale for each block of a row.
    Qbint4,
    /// As `Qdint8`, in a packed layout.
    Qpint8,
    Int32,
    /// Packed `Fp32`.
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

    /// The type of a number of the schema: 1 to 14.
    pub fn from_code(code: i16) -> Option<Self> {
        let index = usize::try_from(code).ok()?.checked_sub(1)?;
        Self::ALL.get(index).map(|(datatype, ..)| *datatype)
    }

    /// Its number in the schema.
    pub fn code(self) -> i16 {
        self as i16 + 1
    }

    /// Its name in the schema, without `xnn_datatype_`.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Bits of an element.
    pub fn bits(self) -> u64 {
        Self::ALL[self as usize].2
    }

    /// Bytes of a tensor of these sizes. Rows of four-bit elements are of whole bytes. `None` if that overflows.
    pub fn nbytes(self, dims: &[usize]) -> Option<u64> {
        let product = |dims: &[usize]| dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
        match (self.bits(), dims.split_last()) {
            (4, Some((&last, rows))) => product(rows)?.checked_mul(last.div_ceil(2) as u64),
            (bits, _) => product(dims)?.checked_mul(bits.div_ceil(8)),
        }
    }

    /// Whether values of it are described by [`Quantization`].
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::Fp32 | Self::Fp16 | Self::Int32 | Self::Pfp32 | Self::Bf16)
    }
}

/// A tensor of a payload.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// The id by which the file's nodes name it.
    pub id: u32,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its sizes, of constants as they are, of others as they were when the program was exported.
    pub dims: Vec<usize>,
    /// Where its elements come from or go to.
    pub role: Role,
    /// What its numbers stand for.
    pub quantization: Quantization,
    /// Whether nodes see it quantized by row although its own type is real: how the first releases
    /// wrote dynamic quantization.
    pub quantized_by_row: bool,
}

impl Value {
    /// The index of its bytes in the payload's constants, if it is constant.
    pub fn constant(&self) -> Option<usize> {
        if let Role::Constant(index) = self.role { Some(index) } else { None }
    }
}

/// Where a value's elements come from or go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The argument of this index of the delegate's calls, which nodes read.
    Input(u32),
    /// The argument of this index of the delegate's calls, which a node writes.
    Output(u32),
    /// Constant bytes: their index in [`Payload::constants`](super::Payload::constants).
    Constant(usize),
    /// Written and read by nodes.
    Internal,
}

/// What a value's numbers stand for.
#[derive(Debug, Clone, PartialEq)]
pub enum Quantization {
    /// Themselves.
    None,
    /// `(q - zero_point) * scale`.
    PerTensor {
        /// The scale, above 0.
        scale: f32,
        /// The number that stands for 0.
        zero_point: i32,
    },
    /// `q * scale`, a scale for each channel. Four-bit numbers are stored with 8 added.
    PerChannel {
        /// The scales.
        scales: Scales,
        /// The dimension of the channels.
        channel_dim: usize,
    },
    /// By parameters chosen from the elements, for each index of the other dimensions.
    PerToken {
        /// How many dimensions, counted from the last, share parameters.
        num_nonbatch_dims: usize,
    },
    /// `q * scale`, a scale for each group of elements of a row. Numbers are stored with 8 added.
    PerGroup {
        /// The scales: those of the first row, then of the second. As bytes they are bf16.
        scales: Scales,
        /// The dimension of the rows.
        channel_dim: usize,
        /// Elements that share a scale.
        group_size: usize,
    },
}

/// Where scales are.
#[derive(Debug, Clone, PartialEq)]
pub enum Scales {
    /// In the flatbuffer.
    Inline(Vec<f32>),
    /// Bytes of the payload's constants.
    Constant {
        /// The index of the bytes.
        index: usize,
        /// How many there are.
        count: usize,
    },
}

/// Constant bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Constant {
    /// Bytes of the payload.
    Payload(Range<u64>),
    /// Named data of the program or of a `.ptd`.
    Named {
        /// The key.
        key: String,
        /// Bytes, as the payload has it.
        size: u64,
    },
}

impl Constant {
    /// Bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Payload(range) => range.end - range.start,
            Self::Named { size, .. } => *size,
        }
    }
}

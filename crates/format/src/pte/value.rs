use super::DeviceType;
use super::device::device_name;
use super::enumeration::schema_enum;
use crate::shape;
use pteron_tensor::ScalarType;

/// A value of an execution plan (`EValue`). Indices are into
/// [`ExecutionPlan::values`](super::ExecutionPlan::values).
#[derive(Debug, Clone, PartialEq)]
pub enum EValue {
    /// No value (`None`).
    Null,
    /// An integer. Scalar types, layouts and devices that are passed as arguments are integers, too.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A floating-point number.
    Double(f64),
    /// A tensor.
    Tensor(Tensor),
    /// A string.
    String(String),
    /// Integers, as indices of `Int` values: sizes may be computed at run time.
    IntList(Vec<i64>),
    /// Floating-point numbers.
    DoubleList(Vec<f64>),
    /// Booleans.
    BoolList(Vec<bool>),
    /// Tensors, as indices of `Tensor` values.
    TensorList(Vec<i32>),
    /// Tensors or None, as indices of `Tensor` values or -1.
    OptionalTensorList(Vec<i32>),
}

impl EValue {
    /// The name of this kind of value in the schema.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "Null",
            Self::Int(_) => "Int",
            Self::Bool(_) => "Bool",
            Self::Double(_) => "Double",
            Self::Tensor(_) => "Tensor",
            Self::String(_) => "String",
            Self::IntList(_) => "IntList",
            Self::DoubleList(_) => "DoubleList",
            Self::BoolList(_) => "BoolList",
            Self::TensorList(_) => "TensorList",
            Self::OptionalTensorList(_) => "OptionalTensorList",
        }
    }

    /// The tensor, if it is one.
    pub const fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }
}

/// A tensor's type, shape and storage (`Tensor`).
///
/// The bytes of a tensor that [`is_external`](Self::is_external) are in the `.ptd`, whatever the buffer index says.
/// Otherwise a positive `data_buffer_idx` is the index of a constant or, together with `allocation_info`, of the
/// initial bytes of a mutable tensor; `allocation_info` alone means planned memory, and neither of them memory that the
/// caller supplies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tensor {
    /// The number of the element type; see [`dtype`](Self::dtype).
    pub scalar_type: i8,
    /// The offset of the tensor in its storage: always 0.
    pub storage_offset: i32,
    /// Sizes, outermost dimension first; upper bounds if the shape is dynamic.
    pub sizes: Vec<i32>,
    /// Dimensions from the outermost in memory to the innermost.
    pub dim_order: Vec<u8>,
    /// Whether training computes the tensor's gradient.
    pub requires_grad: bool,
    /// Index of the constant or of the initial bytes; 0 for none.
    pub data_buffer_idx: u32,
    /// The tensor's location in a planned arena; `None` if its memory is not planned.
    pub allocation_info: Option<AllocationDetails>,
    /// PyTorch's storage layout: always 0, which means strided.
    pub layout: i8,
    /// Whether and how the sizes may change.
    pub shape_dynamism: TensorShapeDynamism,
    /// The tensor's name, where its bytes are, and its device.
    pub extra_tensor_info: Option<ExtraTensorInfo>,
}

impl Tensor {
    /// The element type; `None` if its number is unknown.
    pub fn dtype(&self) -> Option<ScalarType> {
        ScalarType::from_i8(self.scalar_type).ok()
    }

    /// Number of elements; `None` if a size is negative or the product overflows.
    pub fn numel(&self) -> Option<u64> {
        shape::numel(&self.sizes)
    }

    /// Number of bytes; `None` if it overflows, a size is negative or the element type is unknown.
    pub fn nbytes(&self) -> Option<u64> {
        shape::nbytes(self.scalar_type, &self.sizes)
    }

    /// The device that the tensor is on, if it is not the CPU: `CUDA:0`.
    pub fn device(&self) -> Option<String> {
        let info = self.extra_tensor_info.as_ref().filter(|info| info.device_type != DeviceType::Cpu)?;
        Some(device_name(info.device_type, info.device_index))
    }

    /// Whether the bytes are looked up by name outside the program.
    pub fn is_external(&self) -> bool {
        self.extra_tensor_info.as_ref().is_some_and(|info| info.location == TensorDataLocation::External)
    }

    /// The index of the constant that holds the bytes: not 0, for a tensor that is neither planned nor external.
    pub fn constant_idx(&self) -> Option<u32> {
        let constant = self.data_buffer_idx > 0 && self.allocation_info.is_none() && !self.is_external();
        constant.then_some(self.data_buffer_idx)
    }

    /// The index of the initial bytes of a planned tensor in a mutable data segment.
    pub fn initial_data_idx(&self) -> Option<u32> {
        let mutable = self.data_buffer_idx > 0 && self.allocation_info.is_some() && !self.is_external();
        mutable.then_some(self.data_buffer_idx)
    }

    /// The name in the source model, if it was kept.
    pub fn fully_qualified_name(&self) -> Option<&str> {
        self.extra_tensor_info.as_ref()?.fully_qualified_name.as_deref()
    }

    /// The name by which a caller of the method accesses it: that of a mutable tensor or of external data. Constants in
    /// the program have none.
    pub fn attribute_name(&self) -> Option<&str> {
        let is_constant = self.data_buffer_idx != 0 && self.allocation_info.is_none() && !self.is_external();
        self.fully_qualified_name().filter(|_| !is_constant)
    }
}

/// A location in a planned arena (`AllocationDetails`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AllocationDetails {
    /// The index of the arena, counted from 1.
    pub memory_id: u32,
    /// Low half of the byte offset in the arena.
    pub memory_offset_low: u32,
    /// High half of the byte offset in the arena.
    pub memory_offset_high: u32,
}

impl AllocationDetails {
    /// Byte `offset` of arena `memory_id`, counted from 1.
    pub const fn new(memory_id: u32, offset: u64) -> Self {
        Self { memory_id, memory_offset_low: offset as u32, memory_offset_high: (offset >> 32) as u32 }
    }

    /// The byte offset in the arena.
    pub const fn offset(&self) -> u64 {
        self.memory_offset_low as u64 | (self.memory_offset_high as u64) << 32
    }
}

/// What newer files add about a tensor (`ExtraTensorInfo`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExtraTensorInfo {
    /// Index into [`Program::mutable_data_segments`](super::Program::mutable_data_segments).
    pub mutable_data_segments_idx: u64,
    /// The name in the source model; for an external tensor, the key in the `.ptd`.
    pub fully_qualified_name: Option<String>,
    /// Whether the tensor's bytes are in this file.
    pub location: TensorDataLocation,
    /// The kind of device that the tensor is on.
    pub device_type: DeviceType,
    /// The index among devices of that kind.
    pub device_index: i8,
}

schema_enum! {
    /// Whether and how a tensor's sizes may change.
    TensorShapeDynamism {
        /// The sizes are static.
        Static = 0 "STATIC",
        /// The sizes are dynamic; those in the file are upper bounds.
        DynamicBound = 1 "DYNAMIC_BOUND",
        /// The sizes are dynamic without bounds; such tensors are not supported.
        DynamicUnbound = 2 "DYNAMIC_UNBOUND",
    }
}

schema_enum! {
    /// Whether a tensor's bytes are in this file.
    TensorDataLocation {
        /// In a segment of this file, or nowhere.
        Segment = 0 "SEGMENT",
        /// In a `.ptd`, by name.
        External = 1 "EXTERNAL",
    }
}

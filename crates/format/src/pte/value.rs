use super::DeviceType;
use super::schema::schema_enum;
use crate::shape;
use tensor::ScalarType;

/// A value of an execution plan (`EValue`). Indices are into
/// [`ExecutionPlan::values`](super::ExecutionPlan::values).
#[derive(Debug, Clone, PartialEq)]
pub enum EValue {
    /// None.
    Null,
    /// An integer; also scalar types, layouts and devices as arguments.
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
    /// The schema's name of this kind of value.
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

/// A tensor's type, shape and place (`Tensor`).
///
/// Where its bytes are: in the `.ptd` if [`is_external`](Self::is_external), whatever the buffer
/// index says. Otherwise a positive `data_buffer_idx` names a constant, or, with `allocation_info`
/// beside it, the initial bytes of a mutable tensor; `allocation_info` alone is planned memory; and
/// neither is a tensor whose memory the caller supplies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tensor {
    /// The element type's number; see [`dtype`](Self::dtype).
    pub scalar_type: i8,
    /// Always 0.
    pub storage_offset: i32,
    /// Sizes, outermost dimension first; upper bounds if the shape is dynamic.
    pub sizes: Vec<i32>,
    /// Dimensions from the outermost in memory to the innermost.
    pub dim_order: Vec<u8>,
    /// Whether training computes its gradient.
    pub requires_grad: bool,
    /// The constant or the initial bytes; 0 is none.
    pub data_buffer_idx: u32,
    /// Place in a planned arena.
    pub allocation_info: Option<AllocationDetails>,
    /// Always 0: strided.
    pub layout: i8,
    /// Whether sizes may change.
    pub shape_dynamism: TensorShapeDynamism,
    /// Name, location and device.
    pub extra_tensor_info: Option<ExtraTensorInfo>,
}

impl Tensor {
    /// The element type, if the number stands for one.
    pub fn dtype(&self) -> Option<ScalarType> {
        ScalarType::from_i8(self.scalar_type).ok()
    }

    /// Number of elements; `None` if a size is negative or the product overflows.
    pub fn numel(&self) -> Option<u64> {
        shape::numel(&self.sizes)
    }

    /// Number of bytes; `None` if it overflows or the element type is unknown.
    pub fn nbytes(&self) -> Option<u64> {
        shape::nbytes(self.scalar_type, &self.sizes)
    }

    /// Whether the bytes are looked up by name outside the program.
    pub fn is_external(&self) -> bool {
        self.extra_tensor_info.as_ref().is_some_and(|info| info.location == TensorDataLocation::External)
    }

    /// The constant that holds the bytes: an index that is not 0, of a tensor neither planned nor external.
    pub fn constant_idx(&self) -> Option<u32> {
        let constant = self.data_buffer_idx > 0 && self.allocation_info.is_none() && !self.is_external();
        constant.then_some(self.data_buffer_idx)
    }

    /// The entry of a mutable data segment that holds the initial bytes of a planned tensor.
    pub fn initial_data_idx(&self) -> Option<u32> {
        let mutable = self.data_buffer_idx > 0 && self.allocation_info.is_some() && !self.is_external();
        mutable.then_some(self.data_buffer_idx)
    }

    /// The name in the source model, if it was kept.
    pub fn fully_qualified_name(&self) -> Option<&str> {
        self.extra_tensor_info.as_ref()?.fully_qualified_name.as_deref()
    }
}

/// A place in a planned arena (`AllocationDetails`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AllocationDetails {
    /// The arena, counted from 1.
    pub memory_id: u32,
    /// Low half of the byte offset in the arena.
    pub memory_offset_low: u32,
    /// High half of it.
    pub memory_offset_high: u32,
}

impl AllocationDetails {
    /// A place at byte `offset` of arena `memory_id`, counted from 1.
    pub const fn new(memory_id: u32, offset: u64) -> Self {
        Self { memory_id, memory_offset_low: offset as u32, memory_offset_high: (offset >> 32) as u32 }
    }

    /// The byte offset in the arena.
    pub const fn offset(&self) -> u64 {
        self.memory_offset_low as u64 | (self.memory_offset_high as u64) << 32
    }
}

/// What newer files say about a tensor (`ExtraTensorInfo`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExtraTensorInfo {
    /// Into [`Program::mutable_data_segments`](super::Program::mutable_data_segments).
    pub mutable_data_segments_idx: u64,
    /// The name in the source model; of an external tensor the key in the `.ptd`.
    pub fully_qualified_name: Option<String>,
    /// In this file or outside.
    pub location: TensorDataLocation,
    /// The kind of device it is on.
    pub device_type: DeviceType,
    /// Which of its kind.
    pub device_index: i8,
}

schema_enum! {
    /// Whether and how a tensor's sizes may change.
    TensorShapeDynamism {
        /// The sizes are fixed.
        Static = 0 "STATIC",
        /// The sizes may change up to those in the file.
        DynamicBound = 1 "DYNAMIC_BOUND",
        /// The sizes may change without bound; nothing runs such a tensor.
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

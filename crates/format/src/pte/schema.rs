use super::device::device_name;
use super::enumeration::schema_enum;
use super::{DeviceType, EValue};
use crate::container::DataSegment;
use std::fmt;
use std::ops::Range;

/// A whole program (`Program`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Program {
    /// Version of the schema: 0 so far.
    pub version: u32,
    /// The methods.
    pub execution_plan: Vec<ExecutionPlan>,
    /// Inline constants of old files; entry 0 is a placeholder.
    pub constant_buffer: Vec<Buffer>,
    /// Payloads of delegates whose location is [`DataLocation::Inline`].
    pub backend_delegate_data: Vec<BackendDelegateInlineData>,
    /// Raw bytes stored after the flatbuffer.
    pub segments: Vec<DataSegment>,
    /// The segment that holds the constants; absent in files from before release 0.4 and in files that use
    /// `constant_buffer`.
    pub constant_segment: Option<SubsegmentOffsets>,
    /// Segments of initial bytes of mutable tensors.
    pub mutable_data_segments: Vec<SubsegmentOffsets>,
    /// Names of segments that delegates look up.
    pub named_data: Vec<NamedData>,
}

/// One method (`ExecutionPlan`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExecutionPlan {
    /// The method's name, such as `forward`.
    pub name: String,
    /// The Python containers of inputs and outputs.
    pub container_meta_type: Option<ContainerMetadata>,
    /// The values that instructions work on; everything else refers to them by index.
    pub values: Vec<EValue>,
    /// Values that the caller sets, by index.
    pub inputs: Vec<i32>,
    /// Values that are returned to the caller, by index.
    pub outputs: Vec<i32>,
    /// Sequences of instructions, executed one after the other.
    pub chains: Vec<Chain>,
    /// The operators that [`Instruction::KernelCall`] refers to.
    pub operators: Vec<Operator>,
    /// The delegates that [`Instruction::DelegateCall`] refers to.
    pub delegates: Vec<BackendDelegate>,
    /// Bytes of each planned arena; entry 0 is a placeholder.
    pub non_const_buffer_sizes: Vec<i64>,
    /// The devices of the arenas that are not on the CPU.
    pub non_const_buffer_device: Vec<NonConstBufferDevice>,
}

/// The Python containers of a method's inputs and outputs, as pytree JSON (`ContainerMetadata`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerMetadata {
    /// The containers of the inputs.
    pub encoded_inp_str: Option<String>,
    /// The containers of the outputs.
    pub encoded_out_str: Option<String>,
}

/// A sequence of instructions, with the values it reads and writes (`Chain`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chain {
    /// Values read from outside the chain; informative.
    pub inputs: Vec<i32>,
    /// Values used outside the chain; informative.
    pub outputs: Vec<i32>,
    /// The instructions.
    pub instructions: Vec<Instruction>,
    /// The source of each instruction, if it was recorded.
    pub stacktrace: Vec<FrameList>,
}

/// A stack of source frames (`FrameList`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FrameList {
    /// The frames, outermost first.
    pub items: Vec<Frame>,
}

/// A source location (`Frame`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// The name of the source file.
    pub filename: Option<String>,
    /// The line, counted from 1.
    pub lineno: i32,
    /// The name of the function.
    pub name: Option<String>,
    /// The line's text.
    pub context: Option<String>,
}

/// One instruction of a chain (`Instruction`). Indices are into the execution plan's vectors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Calls an operator.
    KernelCall {
        /// Index into [`ExecutionPlan::operators`].
        op_index: i32,
        /// Indices of values: the arguments of the schema in order, then the return value.
        args: Vec<i32>,
    },
    /// Calls a delegate.
    DelegateCall {
        /// Index into [`ExecutionPlan::delegates`].
        delegate_index: i32,
        /// Indices of values: inputs, then outputs.
        args: Vec<i32>,
    },
    /// Copies a value; for a tensor, its handle and not its bytes.
    MoveCall {
        /// Index of the value that is copied.
        move_from: i32,
        /// Index of the value that is overwritten.
        move_to: i32,
    },
    /// Jumps if a Bool, or any element of a bool tensor, is false.
    JumpFalseCall {
        /// Index of the value that is tested.
        cond_value_index: i32,
        /// Index of an instruction of this chain; one past the last ends the chain.
        destination_instruction: i32,
    },
    /// Releases a tensor's data.
    FreeCall {
        /// Index of the tensor's value.
        value_index: i32,
    },
}

impl Instruction {
    /// The name of this kind of instruction in the schema.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::KernelCall { .. } => "KernelCall",
            Self::DelegateCall { .. } => "DelegateCall",
            Self::MoveCall { .. } => "MoveCall",
            Self::JumpFalseCall { .. } => "JumpFalseCall",
            Self::FreeCall { .. } => "FreeCall",
        }
    }
}

/// An operator's name (`Operator`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Operator {
    /// Namespace and name: `aten::add`.
    pub name: String,
    /// Overload: `out`; may be empty.
    pub overload: String,
}

impl Operator {
    /// Name and overload as in registries: `aten::add.out`, or `aten::copy_` without overload.
    pub fn full_name(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.overload.is_empty() { Ok(()) } else { write!(f, ".{}", self.overload) }
    }
}

/// A subgraph that a backend executes (`BackendDelegate`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackendDelegate {
    /// The backend's name, such as `XnnpackBackend`.
    pub id: String,
    /// Where the payload is.
    pub processed: BackendDelegateDataReference,
    /// Settings passed to the backend at compile time.
    pub compile_specs: Vec<CompileSpec>,
}

/// Where a delegate's payload is (`BackendDelegateDataReference`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BackendDelegateDataReference {
    /// Inline or in a segment.
    pub location: DataLocation,
    /// Index into [`Program::backend_delegate_data`] or [`Program::segments`].
    pub index: u32,
}

/// A setting of a delegate (`CompileSpec`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct CompileSpec {
    /// The setting's name.
    pub key: String,
    /// The setting's value, interpreted by the backend.
    pub value: Vec<u8>,
}

schema_enum! {
    /// Where a delegate's payload is stored.
    DataLocation {
        /// In [`Program::backend_delegate_data`].
        Inline = 0 "INLINE",
        /// In [`Program::segments`].
        Segment = 1 "SEGMENT",
    }
}

/// The device of a planned arena (`NonConstBufferDevice`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NonConstBufferDevice {
    /// Index into [`ExecutionPlan::non_const_buffer_sizes`], whose entry 0 is a placeholder.
    pub buffer_idx: i32,
    /// The kind of device.
    pub device_type: DeviceType,
    /// The index among devices of that kind.
    pub device_index: i8,
}

impl NonConstBufferDevice {
    /// The device's name: `CUDA:1`.
    pub fn name(&self) -> String {
        device_name(self.device_type, self.device_index)
    }
}

/// An inline constant (`Buffer`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Buffer {
    /// The constant's byte range in the file.
    pub storage: Range<u64>,
}

/// An inline delegate payload (`BackendDelegateInlineData`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct BackendDelegateInlineData {
    /// The payload's byte range in the file.
    pub data: Range<u64>,
}

/// A segment that holds several tensors (`SubsegmentOffsets`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SubsegmentOffsets {
    /// Index into [`Program::segments`].
    pub segment_index: u32,
    /// The offset of each tensor in the segment; entry 0 is a placeholder. The length of a tensor is not recorded here:
    /// it follows from its type and sizes.
    pub offsets: Vec<u64>,
}

/// A named segment (`NamedData`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct NamedData {
    /// The name.
    pub key: String,
    /// Index into [`Program::segments`].
    pub segment_index: u32,
}

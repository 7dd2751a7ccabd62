//! ETDump: what a runtime recorded during execution, i.e. times, allocations and intermediate values.
//!
//! A file is one size-prefixed flatbuffer, so its identifier `ED00` is at byte 8. The bytes of recorded tensors are in
//! a separate debug buffer, at [`Tensor::offset`].
//!
//! Times are raw ticks of whatever clock the runtime used; the file does not say which.

mod read;
mod write;

pub use read::read;
pub use write::write;

use crate::shape;
use pteron_tensor::ScalarType;
use std::ops::Range;

/// The file identifier at byte 8.
pub const IDENTIFIER: [u8; 4] = *b"ED00";

/// A recording (`ETDump`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ETDump {
    /// Version of the schema.
    pub version: u32,
    /// The recorded blocks: usually loading, then each execution.
    pub run_data: Vec<RunData>,
}

/// A block of events (`RunData`).
#[derive(Debug, Clone, PartialEq)]
pub struct RunData {
    /// The block's name: `Default` for loading, `Execute` for an execution.
    pub name: Option<String>,
    /// The index of the test case of a bundled program that was run, or -1.
    pub bundled_input_index: i32,
    /// The allocators that allocation events refer to.
    pub allocators: Vec<Allocator>,
    /// The events, in order.
    pub events: Vec<Event>,
}

/// A tracked allocator (`Allocator`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocator {
    /// The allocator's name.
    pub name: Option<String>,
}

/// An event (`Event`); exactly one of its fields should be set.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Event {
    /// A span of time.
    pub profile_event: Option<ProfileEvent>,
    /// An allocation.
    pub allocation_event: Option<AllocationEvent>,
    /// A recorded value.
    pub debug_event: Option<DebugEvent>,
}

/// A span of time (`ProfileEvent`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileEvent {
    /// What took the time: `native_call_add.out`, `DELEGATE_CALL`, `Method::execute`.
    pub name: Option<String>,
    /// The index of the chain that was executed.
    pub chain_index: i32,
    /// The index of the instruction in its chain, or -1.
    pub instruction_id: i32,
    /// The debug id of the operator in the delegate, or -1.
    pub delegate_debug_id_int: i32,
    /// The debug name of the operator in the delegate.
    pub delegate_debug_id_str: Option<String>,
    /// Other data that the delegate recorded.
    pub delegate_debug_metadata: Vec<u8>,
    /// When the span began, in ticks.
    pub start_time: u64,
    /// When the span ended, in ticks.
    pub end_time: u64,
}

/// An allocation (`AllocationEvent`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllocationEvent {
    /// Index into [`RunData::allocators`], counted from 1.
    pub allocator_id: i32,
    /// The size of the allocation, in bytes.
    pub allocation_size: u64,
}

/// A recorded value (`DebugEvent`).
#[derive(Debug, Clone, PartialEq)]
pub struct DebugEvent {
    /// The index of the chain that was executed.
    pub chain_index: u64,
    /// The index of the instruction in its chain, or -1.
    pub instruction_id: i32,
    /// The recorded value.
    pub debug_entry: Option<Value>,
    /// The debug id of the operator in the delegate, or -1.
    pub delegate_debug_id_int: i32,
    /// The debug name of the operator in the delegate.
    pub delegate_debug_id_str: Option<String>,
    /// The name of the operator.
    pub name: Option<String>,
}

/// A recorded value (`Value`).
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// The value's kind and contents.
    pub kind: ValueKind,
    /// Whether the value is an output of the method, if that was recorded.
    pub output: Option<bool>,
}

/// The kinds of recorded values.
#[derive(Debug, Clone, PartialEq)]
pub enum ValueKind {
    /// No value (`None`).
    Null,
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A 32-bit floating-point number.
    Float(f32),
    /// A 64-bit floating-point number.
    Double(f64),
    /// A tensor.
    Tensor(Tensor),
    /// A list of tensors.
    TensorList(Vec<Tensor>),
    /// A string; the schema has no field for its text.
    String,
}

/// A recorded tensor (`Tensor`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tensor {
    /// The element type, as its number in ExecuTorch's `ScalarType`.
    pub scalar_type: i8,
    /// Sizes, outermost dimension first.
    pub sizes: Vec<i64>,
    /// Strides, in elements.
    pub strides: Vec<i64>,
    /// The byte offset of the tensor's data in the debug buffer.
    pub offset: i64,
}

impl Default for RunData {
    fn default() -> Self {
        Self { name: None, bundled_input_index: -1, allocators: Vec::new(), events: Vec::new() }
    }
}

impl Default for ProfileEvent {
    fn default() -> Self {
        Self {
            name: None,
            chain_index: 0,
            instruction_id: -1,
            delegate_debug_id_int: -1,
            delegate_debug_id_str: None,
            delegate_debug_metadata: Vec::new(),
            start_time: 0,
            end_time: 0,
        }
    }
}

impl Default for DebugEvent {
    fn default() -> Self {
        Self {
            chain_index: 0,
            instruction_id: -1,
            debug_entry: None,
            delegate_debug_id_int: -1,
            delegate_debug_id_str: None,
            name: None,
        }
    }
}

impl ProfileEvent {
    /// Ticks from start to end; 0 if the clock ran backwards.
    pub fn ticks(&self) -> u64 {
        self.end_time.saturating_sub(self.start_time)
    }
}

impl Tensor {
    /// The element type; `None` if its number is unknown.
    pub fn dtype(&self) -> Option<ScalarType> {
        ScalarType::from_i8(self.scalar_type).ok()
    }

    /// Number of bytes; `None` if it overflows, a size is negative or above `i32::MAX`, or the element type is unknown.
    pub fn nbytes(&self) -> Option<u64> {
        let sizes: Option<Vec<i32>> = self.sizes.iter().map(|&size| i32::try_from(size).ok()).collect();
        shape::nbytes(self.scalar_type, &sizes?)
    }

    /// The range of the tensor's bytes in a debug buffer of `len` bytes; `None` if it is out of bounds, or
    /// [`Self::nbytes`] is `None`.
    pub fn data_range(&self, len: u64) -> Option<Range<u64>> {
        let start = u64::try_from(self.offset).ok()?;
        let end = start.checked_add(self.nbytes()?)?;
        (end <= len).then_some(start..end)
    }
}

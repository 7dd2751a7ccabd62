//! `.pte`: an ExecuTorch program.
//!
//! ```text
//! 0    u32 offset of the flatbuffer's root
//! 4    `ET12`
//! 8    extended header, if there are segments: `eh00`, its length, program size,
//!      segment base offset and, from a length of 32 on, segment data size
//! ..   the tables, up to the program size
//! ..   padding
//! ..   segments, each at the segment base plus its offset
//! ```
//!
//! Opening a file takes its first [`HEAD_BYTES`](crate::container::HEAD_BYTES) bytes, then exactly the bytes of the
//! program; segments are read on demand:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron_format::{Limits, pte};
//! let file = std::fs::read("model.pte")?;
//! let header = pte::Header::parse(&file, file.len() as u64)?;
//! let tables = &file[..header.program_size as usize];
//! let program = pte::VerifiedProgram::read(tables, &header, &Limits::default())?;
//! println!("{} methods", program.execution_plan.len());
//! # Ok(()) }
//! ```
//!
//! The structs mirror the tables of `program.fbs`, owned and with the same names; absent vectors are empty. Bulk bytes
//! inside the flatbuffer (inline constants and delegates) are represented as ranges of the file.

mod device;
mod enumeration;
mod header;
mod layout;
mod layouts;
mod own_data;
mod read;
mod revision;
mod schema;
mod value;
mod value_names;
mod verify;
mod write;

pub use crate::container::DataSegment;
pub use device::DeviceType;
pub use header::{EXTENDED_HEADER_LENGTH, ExtendedHeader, Header, IDENTIFIER, MIN_EXTENDED_HEADER_LENGTH};
pub use own_data::{
    Alignments, MAX_OWN_BYTES, OWN_KEY_PREFIX, TASK_KEY, alignments_key, delegate_sources_key,
    input_sizes_key, is_delegate_sources_key, is_own_key, is_value_names_key, value_names_key,
};
pub use read::{read_program, read_program_with};
pub use revision::{Revised, Revision, undeclared_parts};
pub use schema::{
    BackendDelegate, BackendDelegateDataReference, BackendDelegateInlineData, Buffer, Chain, CompileSpec,
    ContainerMetadata, DataLocation, ExecutionPlan, Frame, FrameList, Instruction, NamedData,
    NonConstBufferDevice, Operator, Program, SubsegmentOffsets,
};
pub use value::{
    AllocationDetails, EValue, ExtraTensorInfo, Tensor, TensorDataLocation, TensorShapeDynamism,
};
pub use value_names::ValueNames;
pub use verify::{InvalidMethod, TensorData, VerifiedProgram, verify, verify_all};
pub use write::{Builder, DEFAULT_CONSTANT_ALIGNMENT, DEFAULT_SEGMENT_ALIGNMENT, Draft, NamedBlob, Prepared};

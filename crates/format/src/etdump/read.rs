use super::{
    AllocationEvent, Allocator, DebugEvent, ETDump, Event, IDENTIFIER, ProfileEvent, RunData, Tensor, Value,
    ValueKind,
};
use crate::container::{Head, HeaderField, Magic};
use crate::flatbuffer::{In, Reader};
use crate::{Error, ErrorKind, FileKind, Limits, Result};

/// Length of the size prefix, in bytes.
const PREFIX: usize = 4;

/// Reads a recording; `file` is the whole file. Bytes after the flatbuffer are ignored, because recorders write into
/// buffers that are larger than needed.
///
/// Only the structure of the flatbuffer is checked. The contents of events are not: they are displayed, never followed.
pub fn read(file: &[u8], limits: &Limits) -> Result<ETDump> {
    let head = Head::new(file, file.len() as u64, FileKind::Etdump)?;
    head.check_magic(PREFIX + 4, Magic { identifier: IDENTIFIER, kind: FileKind::Etdump })?;
    let size: u32 = head.read_scalar(HeaderField::new("size", 0))?;
    let bytes = file.get(PREFIX..).and_then(|rest| rest.get(..size as usize)).ok_or_else(|| {
        let expected = format!("a file of at least {} bytes", u64::from(size) + PREFIX as u64);
        Error::new(ErrorKind::Truncated, "header.size", expected, format_args!("one of {}", file.len()))
            .at(0)
            .hint("the file is cut off, or the recorder was not finished")
    })?;
    Reader::new(bytes, PREFIX as u64, limits).root(|t| {
        let run_data = t.tables(1, "run_data", read_run_data)?;
        Ok(ETDump { version: t.get(0, "version", 0)?, run_data })
    })
}

fn read_run_data(t: In<'_, '_, '_>) -> Result<RunData> {
    Ok(RunData {
        name: t.string(0, "name")?,
        bundled_input_index: t.get(1, "bundled_input_index", -1)?,
        allocators: t.tables(2, "allocators", |t| Ok(Allocator { name: t.string(0, "name")? }))?,
        events: t.tables(3, "events", |t| {
            Ok(Event {
                profile_event: t.table(0, "profile_event", read_profile_event)?,
                allocation_event: t.table(1, "allocation_event", |t| {
                    Ok(AllocationEvent {
                        allocator_id: t.get(0, "allocator_id", 0)?,
                        allocation_size: t.get(1, "allocation_size", 0)?,
                    })
                })?,
                debug_event: t.table(2, "debug_event", read_debug_event)?,
            })
        })?,
    })
}

fn read_profile_event(t: In<'_, '_, '_>) -> Result<ProfileEvent> {
    Ok(ProfileEvent {
        name: t.string(0, "name")?,
        chain_index: t.get(1, "chain_index", 0)?,
        instruction_id: t.get(2, "instruction_id", -1)?,
        delegate_debug_id_int: t.get(3, "delegate_debug_id_int", -1)?,
        delegate_debug_id_str: t.string(4, "delegate_debug_id_str")?,
        delegate_debug_metadata: t.bytes(5, "delegate_debug_metadata")?,
        start_time: t.get(6, "start_time", 0)?,
        end_time: t.get(7, "end_time", 0)?,
    })
}

fn read_debug_event(t: In<'_, '_, '_>) -> Result<DebugEvent> {
    Ok(DebugEvent {
        chain_index: t.get(0, "chain_index", 0)?,
        instruction_id: t.get(1, "instruction_id", -1)?,
        debug_entry: t.table(2, "debug_entry", read_value)?,
        delegate_debug_id_int: t.get(3, "delegate_debug_id_int", -1)?,
        delegate_debug_id_str: t.string(4, "delegate_debug_id_str")?,
        name: t.string(5, "name")?,
    })
}

fn read_value(t: In<'_, '_, '_>) -> Result<Value> {
    let number: i8 = t.get(0, "val", 0)?;
    let kind = match number {
        0 => ValueKind::Null,
        1 => ValueKind::Int(t.required_table(3, "int_value", |t| t.get(0, "int_val", 0))?),
        2 => ValueKind::Bool(t.required_table(6, "bool_value", |t| t.get(0, "bool_val", false))?),
        3 => ValueKind::Float(t.required_table(4, "float_value", |t| t.get(0, "float_val", 0.0))?),
        4 => ValueKind::Double(t.required_table(5, "double_value", |t| t.get(0, "double_val", 0.0))?),
        5 => ValueKind::Tensor(t.required_table(1, "tensor", read_tensor)?),
        6 => ValueKind::TensorList(
            t.required_table(2, "tensor_list", |t| t.tables(0, "tensors", read_tensor))?,
        ),
        7 => ValueKind::String,
        other => {
            let expected = "a kind of value known to this reader";
            return Err(t.error(ErrorKind::Newer, 0, "val", expected, format_args!("kind {other}")));
        }
    };
    Ok(Value { kind, output: t.table(7, "output", |t| t.get(0, "bool_val", false))? })
}

fn read_tensor(t: In<'_, '_, '_>) -> Result<Tensor> {
    Ok(Tensor {
        scalar_type: t.get(0, "scalar_type", 0)?,
        sizes: t.scalars(1, "sizes")?,
        strides: t.scalars(2, "strides")?,
        offset: t.get(3, "offset", 0)?,
    })
}

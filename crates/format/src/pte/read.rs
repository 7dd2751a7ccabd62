use super::{
    AllocationDetails, BackendDelegate, BackendDelegateDataReference, BackendDelegateInlineData, Buffer,
    Chain, CompileSpec, ContainerMetadata, DataLocation, DeviceType, EValue, ExecutionPlan, ExtraTensorInfo,
    Frame, FrameList, Instruction, NamedData, NonConstBufferDevice, Operator, Program, SubsegmentOffsets,
    Tensor, TensorDataLocation, TensorShapeDynamism,
};
use crate::container::read_segment;
use crate::flatbuffer::{In, Reader};
use crate::{ErrorKind, Limits, Result};

/// Decodes the tables of a program under the default limits; see [`read_program_with`].
pub fn read_program(program_bytes: &[u8]) -> Result<Program> {
    read_program_with(program_bytes, &Limits::DEFAULT)
}

/// Decodes the tables of a program: the first [`Header::program_size`](super::Header::program_size) bytes of a file.
///
/// Checks the structure of the flatbuffer, and that the kinds of all unions and enums are known;
/// [`verify`](super::verify) checks the values.
pub fn read_program_with(program_bytes: &[u8], limits: &Limits) -> Result<Program> {
    let Decoded { mut program, plans, .. } = decode(program_bytes, limits)?;
    program.execution_plan =
        plans.into_iter().map(|plan| plan.map_err(|broken| broken.error)).collect::<Result<_>>()?;
    Ok(program)
}

/// The tables of a program, and each of its methods, decoded or with the reason why it could not be.
pub(crate) struct Decoded {
    /// The tables, without methods.
    pub(crate) program: Program,
    pub(crate) plans: Vec<Result<ExecutionPlan, Broken>>,
    /// The paths of fields that this reader does not know.
    pub(crate) unknown_fields: Vec<String>,
}

/// A method whose tables are malformed, or have members of enums or unions that this reader does not know.
pub(crate) struct Broken {
    /// The method's name, if that could be read.
    pub(crate) name: Option<String>,
    pub(crate) error: crate::Error,
    /// The method as far as it could be read, if nothing is wrong with it except unknown members of enums or unions.
    pub(crate) plan: Option<ExecutionPlan>,
    /// The unknown members. In their place `plan` has [`EValue::Null`] for values, a kernel call with operator index -1 for instructions,
    /// and the default of an enum.
    pub(crate) unknown: Vec<crate::Error>,
}

/// Decodes the tables of a program. A method that cannot be decoded does not affect the others.
pub(crate) fn decode(program_bytes: &[u8], limits: &Limits) -> Result<Decoded> {
    let reader = Reader::new(program_bytes, 0, limits);
    let decoded = reader.root(read_root)?;
    Ok(Decoded { unknown_fields: reader.unknown_fields(), ..decoded })
}

/// The file offset of the field at `path`, as errors print it, found by decoding again.
pub(crate) fn locate(program_bytes: &[u8], limits: &Limits, path: &str) -> Option<u64> {
    let reader = Reader::new(program_bytes, 0, limits).with_watched_path(path);
    reader.root(read_root).ok()?;
    reader.watched_offset()
}

fn read_root(t: In<'_, '_, '_>) -> Result<Decoded> {
    let version = t.get(0, "version", 0)?;
    let plans = t.each_table(1, "execution_plan", |t| {
        let (table, plan) = match t {
            Ok(t) => (Some(t), read_execution_plan(t)),
            Err(error) => (None, Err(error)),
        };
        let unknown = table.map(|t| t.take_recoverable()).unwrap_or_default();
        match plan {
            Ok(plan) => Ok(match unknown.first() {
                None => Ok(plan),
                Some(first) => {
                    let (name, error) = (Some(plan.name.clone()), first.clone());
                    Err(Broken { name, error, plan: Some(plan), unknown })
                }
            }),
            // A limit applies to the whole file, so the program is rejected, not only this method.
            Err(error) if error.kind() == ErrorKind::Limit => Err(error),
            Err(error) => {
                let name = table.and_then(|t| t.required_string(0, "name").ok());
                if let Some(table) = table {
                    table.stop_early();
                }
                Ok(Err(Broken { name, error, plan: None, unknown }))
            }
        }
    })?;
    let program = Program {
        version,
        execution_plan: Vec::new(),
        constant_buffer: t.tables(2, "constant_buffer", |t| {
            Ok(Buffer { storage: t.byte_range(0, "storage")?.unwrap_or_default() })
        })?,
        backend_delegate_data: t.tables(3, "backend_delegate_data", |t| {
            Ok(BackendDelegateInlineData { data: t.byte_range(0, "data")?.unwrap_or_default() })
        })?,
        segments: t.tables(4, "segments", read_segment)?,
        constant_segment: t.table(5, "constant_segment", read_subsegment_offsets)?,
        mutable_data_segments: t.tables(6, "mutable_data_segments", read_subsegment_offsets)?,
        named_data: t.tables(7, "named_data", |t| {
            Ok(NamedData { key: t.required_string(0, "key")?, segment_index: t.get(1, "segment_index", 0)? })
        })?,
    };
    Ok(Decoded { program, plans, unknown_fields: Vec::new() })
}

fn read_subsegment_offsets(t: In<'_, '_, '_>) -> Result<SubsegmentOffsets> {
    Ok(SubsegmentOffsets { segment_index: t.get(0, "segment_index", 0)?, offsets: t.scalars(1, "offsets")? })
}

fn read_enum<E: Default>(
    t: In<'_, '_, '_>,
    id: usize,
    name: &'static str,
    known: fn(i8) -> Option<E>,
) -> Result<E> {
    let number: i8 = t.get(id, name, 0)?;
    Ok(known(number).unwrap_or_else(|| {
        t.record_recoverable(newer_error(t, id, name, number));
        E::default()
    }))
}

#[cold]
fn newer_error(
    t: In<'_, '_, '_>,
    id: usize,
    name: &'static str,
    number: impl std::fmt::Display,
) -> crate::Error {
    t.error(ErrorKind::Newer, id, name, "a kind known to this reader", format_args!("kind {number}"))
        .hint("the file is newer than this reader, or damaged")
}

fn read_execution_plan(t: In<'_, '_, '_>) -> Result<ExecutionPlan> {
    Ok(ExecutionPlan {
        name: t.required_string(0, "name")?,
        container_meta_type: t.table(1, "container_meta_type", |t| {
            Ok(ContainerMetadata {
                encoded_inp_str: t.string(0, "encoded_inp_str")?,
                encoded_out_str: t.string(1, "encoded_out_str")?,
            })
        })?,
        values: t.tables(2, "values", read_evalue)?,
        inputs: t.scalars(3, "inputs")?,
        outputs: t.scalars(4, "outputs")?,
        chains: t.tables(5, "chains", read_chain)?,
        operators: t.tables(6, "operators", |t| {
            Ok(Operator {
                name: t.required_string(0, "name")?,
                overload: t.string(1, "overload")?.unwrap_or_default(),
            })
        })?,
        delegates: t.tables(7, "delegates", read_backend_delegate)?,
        non_const_buffer_sizes: t.scalars(8, "non_const_buffer_sizes")?,
        non_const_buffer_device: t.tables(9, "non_const_buffer_device", |t| {
            Ok(NonConstBufferDevice {
                buffer_idx: t.get(0, "buffer_idx", 0)?,
                device_type: read_enum(t, 1, "device_type", DeviceType::from_i8)?,
                device_index: t.get(2, "device_index", 0)?,
            })
        })?,
    })
}

fn read_evalue(t: In<'_, '_, '_>) -> Result<EValue> {
    let value = t.union(0, "val", |kind, v| {
        Ok(match kind {
            1 => EValue::Null,
            2 => EValue::Int(v.get(0, "int_val", 0)?),
            3 => EValue::Bool(v.get(0, "bool_val", false)?),
            4 => EValue::Double(v.get(0, "double_val", 0.0)?),
            5 => EValue::Tensor(read_tensor(v)?),
            6 => EValue::String(v.required_string(0, "string_val")?),
            7 => EValue::IntList(v.scalars(0, "items")?),
            8 => EValue::DoubleList(v.scalars(0, "items")?),
            9 => EValue::BoolList(v.scalars(0, "items")?),
            10 => EValue::TensorList(v.scalars(0, "items")?),
            11 => EValue::OptionalTensorList(v.scalars(0, "items")?),
            other => {
                t.record_recoverable(newer_error(t, 0, "val", format_args!("{other} of value")));
                EValue::Null
            }
        })
    })?;
    value.ok_or_else(|| t.error(ErrorKind::Structure, 0, "val", "a value", "nothing"))
}

fn read_tensor(t: In<'_, '_, '_>) -> Result<Tensor> {
    Ok(Tensor {
        scalar_type: t.get(0, "scalar_type", 0)?,
        storage_offset: t.get(1, "storage_offset", 0)?,
        sizes: t.scalars(2, "sizes")?,
        dim_order: t.scalars(3, "dim_order")?,
        requires_grad: t.get(4, "requires_grad", false)?,
        data_buffer_idx: t.get(5, "data_buffer_idx", 0)?,
        allocation_info: t.table(6, "allocation_info", |t| {
            Ok(AllocationDetails {
                memory_id: t.get(0, "memory_id", 0)?,
                memory_offset_low: t.get(1, "memory_offset_low", 0)?,
                memory_offset_high: t.get(2, "memory_offset_high", 0)?,
            })
        })?,
        layout: t.get(7, "layout", 0)?,
        shape_dynamism: read_enum(t, 8, "shape_dynamism", TensorShapeDynamism::from_i8)?,
        extra_tensor_info: t.table(9, "extra_tensor_info", |t| {
            Ok(ExtraTensorInfo {
                mutable_data_segments_idx: t.get(0, "mutable_data_segments_idx", 0)?,
                fully_qualified_name: t.string(1, "fully_qualified_name")?,
                location: read_enum(t, 2, "location", TensorDataLocation::from_i8)?,
                device_type: read_enum(t, 3, "device_type", DeviceType::from_i8)?,
                device_index: t.get(4, "device_index", 0)?,
            })
        })?,
    })
}

fn read_backend_delegate(t: In<'_, '_, '_>) -> Result<BackendDelegate> {
    Ok(BackendDelegate {
        id: t.required_string(0, "id")?,
        processed: t.required_table(1, "processed", |t| {
            Ok(BackendDelegateDataReference {
                location: read_enum(t, 0, "location", DataLocation::from_i8)?,
                index: t.get(1, "index", 0)?,
            })
        })?,
        compile_specs: t.tables(2, "compile_specs", |t| {
            Ok(CompileSpec { key: t.required_string(0, "key")?, value: t.bytes(1, "value")? })
        })?,
    })
}

fn read_chain(t: In<'_, '_, '_>) -> Result<Chain> {
    Ok(Chain {
        inputs: t.scalars(0, "inputs")?,
        outputs: t.scalars(1, "outputs")?,
        instructions: t.tables(2, "instructions", read_instruction)?,
        stacktrace: t.tables(3, "stacktrace", |t| {
            let items = t.tables(0, "items", |t| {
                Ok(Frame {
                    filename: t.string(0, "filename")?,
                    lineno: t.get(1, "lineno", 0)?,
                    name: t.string(2, "name")?,
                    context: t.string(3, "context")?,
                })
            })?;
            Ok(FrameList { items })
        })?,
    })
}

fn read_instruction(t: In<'_, '_, '_>) -> Result<Instruction> {
    let instruction = t.union(0, "instr_args", |kind, i| {
        Ok(match kind {
            1 => Instruction::KernelCall { op_index: i.get(0, "op_index", 0)?, args: i.scalars(1, "args")? },
            2 => Instruction::DelegateCall {
                delegate_index: i.get(0, "delegate_index", 0)?,
                args: i.scalars(1, "args")?,
            },
            3 => Instruction::MoveCall {
                move_from: i.get(0, "move_from", 0)?,
                move_to: i.get(1, "move_to", 0)?,
            },
            4 => Instruction::JumpFalseCall {
                cond_value_index: i.get(0, "cond_value_index", 0)?,
                destination_instruction: i.get(1, "destination_instruction", 0)?,
            },
            5 => Instruction::FreeCall { value_index: i.get(0, "value_index", 0)? },
            other => {
                t.record_recoverable(newer_error(t, 0, "instr_args", format_args!("{other} of instruction")));
                Instruction::KernelCall { op_index: -1, args: Vec::new() }
            }
        })
    })?;
    instruction.ok_or_else(|| t.error(ErrorKind::Structure, 0, "instr_args", "an instruction", "nothing"))
}

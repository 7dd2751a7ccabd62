use crate::Result;
use crate::container::{Blob, write_data_segments};
use crate::flatbuffer::{Field, Finished, Ref, Writer};
use crate::pte::{
    AllocationDetails, BackendDelegate, Chain, CompileSpec, ContainerMetadata, EValue, ExecutionPlan,
    ExtraTensorInfo, Frame, FrameList, IDENTIFIER, Instruction, NamedData, NonConstBufferDevice, Operator,
    Program, SubsegmentOffsets, Tensor,
};

/// The flatbuffer of a program. `constants` and `delegates` are its inline data, whose first bytes are aligned to
/// `inline_alignment`.
///
/// Empty vectors are written, too, because readers of the reference implementation expect them; optional ones (stack
/// traces, devices) are written only if they are not empty.
pub(in crate::pte) fn write_program(
    program: &Program,
    constants: &[Blob<'_>],
    delegates: &[Blob<'_>],
    inline_alignment: usize,
) -> Result<Finished> {
    let mut w = Writer::new();
    let inline = |w: &mut Writer, blobs: &[Blob<'_>]| -> Result<Ref> {
        let mut all = Vec::with_capacity(blobs.len());
        for blob in blobs {
            let bytes = w.bytes(&blob.to_vec()?, inline_alignment.max(16));
            all.push(w.table(&[bytes.into()]));
        }
        Ok(w.refs(&all))
    };
    let constant_buffer = inline(&mut w, constants)?;
    let backend_delegate_data = inline(&mut w, delegates)?;
    let w = &mut w;
    let named_data = w.tables(&program.named_data, |w, entry: &NamedData| {
        let key = w.string(&entry.key);
        w.table(&[key.into(), Field::scalar(entry.segment_index, 0)])
    });
    let mutable = w.tables(&program.mutable_data_segments, write_subsegments);
    let constant = program.constant_segment.as_ref().map(|segment| write_subsegments(w, segment));
    let segments = write_data_segments(w, &program.segments);
    let plans = w.tables(&program.execution_plan, write_plan);
    let root = w.table(&[
        Field::scalar(program.version, 0),
        plans.into(),
        constant_buffer.into(),
        backend_delegate_data.into(),
        segments.into(),
        constant.into(),
        mutable.into(),
        named_data.into(),
    ]);
    std::mem::take(w).finish(root, IDENTIFIER)
}

fn write_subsegments(w: &mut Writer, segment: &SubsegmentOffsets) -> Ref {
    let offsets = w.scalars(&segment.offsets);
    w.table(&[Field::scalar(segment.segment_index, 0), offsets.into()])
}

/// Writes a string, if there is one, and returns the field that refers to it.
fn write_optional_string(w: &mut Writer, text: &Option<String>) -> Field {
    text.as_ref().map(|text| w.string(text)).into()
}

fn write_plan(w: &mut Writer, plan: &ExecutionPlan) -> Ref {
    let device = (!plan.non_const_buffer_device.is_empty()).then(|| {
        w.tables(&plan.non_const_buffer_device, |w, device: &NonConstBufferDevice| {
            w.table(&[
                Field::scalar(device.buffer_idx, 0),
                Field::scalar(device.device_type as i8, 0),
                Field::scalar(device.device_index, 0),
            ])
        })
    });
    let sizes = w.scalars(&plan.non_const_buffer_sizes);
    let delegates = w.tables(&plan.delegates, write_delegate);
    let operators = w.tables(&plan.operators, |w, operator: &Operator| {
        let (name, overload) = (w.string(&operator.name), w.string(&operator.overload));
        w.table(&[name.into(), overload.into()])
    });
    let chains = w.tables(&plan.chains, write_chain);
    let outputs = w.scalars(&plan.outputs);
    let inputs = w.scalars(&plan.inputs);
    let values = w.tables(&plan.values, write_evalue);
    let container = plan.container_meta_type.as_ref().map(|meta: &ContainerMetadata| {
        let (inputs, outputs) = (
            write_optional_string(w, &meta.encoded_inp_str),
            write_optional_string(w, &meta.encoded_out_str),
        );
        w.table(&[inputs, outputs])
    });
    let name = w.string(&plan.name);
    w.table(&[
        name.into(),
        container.into(),
        values.into(),
        inputs.into(),
        outputs.into(),
        chains.into(),
        operators.into(),
        delegates.into(),
        sizes.into(),
        device.into(),
    ])
}

fn write_delegate(w: &mut Writer, delegate: &BackendDelegate) -> Ref {
    let specs = w.tables(&delegate.compile_specs, |w, spec: &CompileSpec| {
        let (value, key) = (w.scalars(&spec.value), w.string(&spec.key));
        w.table(&[key.into(), value.into()])
    });
    let reference = &delegate.processed;
    let processed = w.table(&[Field::scalar(reference.location as i8, 0), Field::scalar(reference.index, 0)]);
    let id = w.string(&delegate.id);
    w.table(&[id.into(), processed.into(), specs.into()])
}

fn write_chain(w: &mut Writer, chain: &Chain) -> Ref {
    let stacktrace = (!chain.stacktrace.is_empty()).then(|| w.tables(&chain.stacktrace, write_frames));
    let instructions = w.tables(&chain.instructions, write_instruction);
    let outputs = w.scalars(&chain.outputs);
    let inputs = w.scalars(&chain.inputs);
    w.table(&[inputs.into(), outputs.into(), instructions.into(), stacktrace.into()])
}

fn write_frames(w: &mut Writer, list: &FrameList) -> Ref {
    let items = w.tables(&list.items, |w, frame: &Frame| {
        let (filename, name, context) = (
            write_optional_string(w, &frame.filename),
            write_optional_string(w, &frame.name),
            write_optional_string(w, &frame.context),
        );
        w.table(&[filename, Field::scalar(frame.lineno, 0), name, context])
    });
    w.table(&[items.into()])
}

fn write_instruction(w: &mut Writer, instruction: &Instruction) -> Ref {
    let (kind, args) = match instruction {
        Instruction::KernelCall { op_index, args } => (1u8, write_call(w, *op_index, args)),
        Instruction::DelegateCall { delegate_index, args } => (2, write_call(w, *delegate_index, args)),
        Instruction::MoveCall { move_from, move_to } => (3, write_pair(w, *move_from, *move_to)),
        Instruction::JumpFalseCall { cond_value_index, destination_instruction } => {
            (4, write_pair(w, *cond_value_index, *destination_instruction))
        }
        Instruction::FreeCall { value_index } => (5, w.table(&[Field::scalar(*value_index, 0)])),
    };
    w.table(&[Field::required_scalar(kind), args.into()])
}

fn write_call(w: &mut Writer, index: i32, args: &[i32]) -> Ref {
    let args = w.scalars(args);
    w.table(&[Field::scalar(index, 0), args.into()])
}

fn write_pair(w: &mut Writer, first: i32, second: i32) -> Ref {
    w.table(&[Field::scalar(first, 0), Field::scalar(second, 0)])
}

fn write_evalue(w: &mut Writer, value: &EValue) -> Ref {
    let items = |w: &mut Writer, items: Ref| w.table(&[items.into()]);
    let (kind, table) = match value {
        EValue::Null => (1u8, w.table(&[])),
        EValue::Int(value) => (2, w.table(&[Field::scalar(*value, 0)])),
        EValue::Bool(value) => (3, w.table(&[Field::scalar(*value, false)])),
        // Compared by bits: -0.0 == 0.0, the default, so a comparison of numbers would omit -0.0.
        EValue::Double(value) => (4, w.table(&[Field::scalar(value.to_bits(), 0)])),
        EValue::Tensor(value) => (5, write_tensor(w, value)),
        EValue::String(value) => {
            let text = w.string(value);
            (6, w.table(&[text.into()]))
        }
        EValue::IntList(values) => {
            let all = w.scalars(values);
            (7, items(w, all))
        }
        EValue::DoubleList(values) => {
            let all = w.scalars(values);
            (8, items(w, all))
        }
        EValue::BoolList(values) => {
            let all = w.scalars(values);
            (9, items(w, all))
        }
        EValue::TensorList(values) => {
            let all = w.scalars(values);
            (10, items(w, all))
        }
        EValue::OptionalTensorList(values) => {
            let all = w.scalars(values);
            (11, items(w, all))
        }
    };
    w.table(&[Field::required_scalar(kind), table.into()])
}

fn write_tensor(w: &mut Writer, tensor: &Tensor) -> Ref {
    let extra = tensor.extra_tensor_info.as_ref().map(|info: &ExtraTensorInfo| {
        let name = write_optional_string(w, &info.fully_qualified_name);
        w.table(&[
            Field::scalar(info.mutable_data_segments_idx, 0),
            name,
            Field::scalar(info.location as i8, 0),
            Field::scalar(info.device_type as i8, 0),
            Field::scalar(info.device_index, 0),
        ])
    });
    let place = tensor.allocation_info.as_ref().map(|place: &AllocationDetails| {
        w.table(&[
            Field::scalar(place.memory_id, 0),
            Field::scalar(place.memory_offset_low, 0),
            Field::scalar(place.memory_offset_high, 0),
        ])
    });
    let dim_order = w.scalars(&tensor.dim_order);
    let sizes = w.scalars(&tensor.sizes);
    w.table(&[
        Field::scalar(tensor.scalar_type, 0),
        Field::scalar(tensor.storage_offset, 0),
        sizes.into(),
        dim_order.into(),
        Field::scalar(tensor.requires_grad, false),
        Field::scalar(tensor.data_buffer_idx, 0),
        place.into(),
        Field::scalar(tensor.layout, 0),
        Field::scalar(tensor.shape_dynamism as i8, 0),
        extra.into(),
    ])
}

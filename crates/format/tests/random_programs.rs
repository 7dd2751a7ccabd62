//! Arbitrary programs survive a round trip.

mod support;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use pteron_format::Limits;
use pteron_format::container::{Blob, Place, Segment};
use pteron_format::pte::{
    AllocationDetails, Draft, EValue, ExecutionPlan, ExtraTensorInfo, Frame, FrameList, Header, Instruction,
    NamedData, Program, SubsegmentOffsets, Tensor, TensorShapeDynamism, read_program,
};

fn tensor() -> impl Strategy<Value = Tensor> {
    let place = (any::<u32>(), any::<u64>()).prop_map(|(id, offset)| AllocationDetails::new(id, offset));
    let extra = (any::<u64>(), option::of(".{0,8}"), any::<i8>()).prop_map(|(which, name, device_index)| {
        ExtraTensorInfo {
            mutable_data_segments_idx: which,
            fully_qualified_name: name,
            device_index,
            ..ExtraTensorInfo::default()
        }
    });
    let shape = (any::<i8>(), any::<i32>(), vec(any::<i32>(), 0..5), vec(any::<u8>(), 0..5), any::<bool>());
    (shape, any::<u32>(), option::of(place), any::<i8>(), 0..3i8, option::of(extra)).prop_map(
        |(
            (scalar_type, storage_offset, sizes, dim_order, requires_grad),
            index,
            place,
            layout,
            dynamism,
            extra,
        )| {
            Tensor {
                scalar_type,
                storage_offset,
                sizes,
                dim_order,
                requires_grad,
                data_buffer_idx: index,
                allocation_info: place,
                layout,
                shape_dynamism: TensorShapeDynamism::from_i8(dynamism).unwrap(),
                extra_tensor_info: extra,
            }
        },
    )
}

fn value() -> impl Strategy<Value = EValue> {
    prop_oneof![
        Just(EValue::Null),
        any::<i64>().prop_map(EValue::Int),
        any::<bool>().prop_map(EValue::Bool),
        any::<f64>().prop_map(EValue::Double),
        tensor().prop_map(EValue::Tensor),
        ".{0,20}".prop_map(EValue::String),
        vec(any::<i64>(), 0..6).prop_map(EValue::IntList),
        vec(any::<f64>(), 0..6).prop_map(EValue::DoubleList),
        vec(any::<bool>(), 0..6).prop_map(EValue::BoolList),
        vec(any::<i32>(), 0..6).prop_map(EValue::TensorList),
        vec(any::<i32>(), 0..6).prop_map(EValue::OptionalTensorList),
    ]
}

fn instruction() -> impl Strategy<Value = Instruction> {
    let args = || vec(any::<i32>(), 0..6);
    let pair = || (any::<i32>(), any::<i32>());
    prop_oneof![
        (any::<i32>(), args()).prop_map(|(op_index, args)| Instruction::KernelCall { op_index, args }),
        (any::<i32>(), args())
            .prop_map(|(delegate_index, args)| Instruction::DelegateCall { delegate_index, args }),
        pair().prop_map(|(move_from, move_to)| Instruction::MoveCall { move_from, move_to }),
        pair().prop_map(|(cond_value_index, destination_instruction)| Instruction::JumpFalseCall {
            cond_value_index,
            destination_instruction
        }),
        any::<i32>().prop_map(|value_index| Instruction::FreeCall { value_index }),
    ]
}

fn plan() -> impl Strategy<Value = ExecutionPlan> {
    let ids = || vec(any::<i32>(), 0..4);
    let frame = (option::of(".{0,6}"), any::<i32>(), option::of(".{0,6}"))
        .prop_map(|(filename, lineno, name)| Frame { filename, lineno, name, context: None });
    let frames = vec(vec(frame, 0..3).prop_map(|items| FrameList { items }), 0..3);
    (".{0,10}", vec(value(), 0..12), ids(), ids(), vec(instruction(), 0..8), frames, vec(any::<i64>(), 0..4))
        .prop_map(|(name, values, inputs, outputs, instructions, stacktrace, sizes)| {
            // What is otherwise rare comes from the small program with one of everything.
            let mut plan = support::program::draft().program.execution_plan.remove(0);
            (plan.name, plan.inputs, plan.outputs, plan.values) = (name, inputs, outputs, values);
            plan.chains[0].instructions = instructions;
            plan.chains[0].stacktrace = stacktrace;
            plan.non_const_buffer_sizes = sizes;
            plan
        })
}

fn program() -> impl Strategy<Value = Program> {
    let offsets = || {
        (any::<u32>(), vec(any::<u64>(), 0..4))
            .prop_map(|(segment_index, offsets)| SubsegmentOffsets { segment_index, offsets })
    };
    let named = (".{0,8}", any::<u32>()).prop_map(|(key, segment_index)| NamedData { key, segment_index });
    (any::<u32>(), vec(plan(), 0..3), option::of(offsets()), vec(offsets(), 0..2), vec(named, 0..3)).prop_map(
        |(version, execution_plan, constant_segment, mutable_data_segments, named_data)| Program {
            version,
            execution_plan,
            constant_segment,
            mutable_data_segments,
            named_data,
            ..Program::default()
        },
    )
}

proptest! {
    #[test]
    fn programs_survive(program in program(), blobs in vec((vec(any::<u8>(), 0..40), 0u32..9), 0..5), shift in 4u32..13) {
        let segments = blobs
            .iter()
            .map(|(bytes, align)| Segment { blob: Blob::bytes(&bytes[..]), place: Place::Aligned(1 << align) })
            .collect();
        let inline: Vec<Blob<'_>> = blobs.iter().map(|(bytes, _)| Blob::bytes(&bytes[..])).collect();
        let draft = Draft {
            program: program.clone(),
            segments,
            inline_constants: inline.clone(),
            inline_delegates: inline,
            segment_alignment: 1 << shift,
            inline_alignment: 1 << (shift % 7),
        };
        let prepared = draft.prepare_unverified().unwrap();
        let mut file = Vec::new();
        prepared.write_to(&mut file).unwrap();
        prop_assert_eq!(file.len() as u64, prepared.header().file_len);
        let header = Header::parse(&file, file.len() as u64).unwrap();
        prop_assert_eq!(&header, prepared.header());
        let mut read = read_program(&file[..header.program_size as usize]).unwrap();
        let slice = |start: u64, len: u64| &file[start as usize..(start + len) as usize];
        for ((bytes, align), segment) in blobs.iter().zip(&read.segments).filter(|((bytes, _), _)| !bytes.is_empty()) {
            let start = header.segment_base_offset + segment.offset;
            prop_assert_eq!(slice(start, segment.size), &bytes[..]);
            prop_assert!(start.is_multiple_of(1 << (*align).max(shift)));
        }
        for ((bytes, _), constant) in blobs.iter().zip(&read.constant_buffer) {
            let storage = &constant.storage;
            prop_assert_eq!(slice(storage.start, storage.end - storage.start), &bytes[..]);
            prop_assert!(storage.start.is_multiple_of(1 << (shift % 7).max(4)));
        }
        prop_assert_eq!(read.segments.len(), blobs.len());
        prop_assert_eq!(read.backend_delegate_data.len(), blobs.len());
        read.segments.clear();
        read.constant_buffer.clear();
        read.backend_delegate_data.clear();
        // Compared as text, because NaN is not equal to itself.
        prop_assert_eq!(format!("{read:?}"), format!("{program:?}"));
    }

    #[test]
    fn arbitrary_bytes_are_read_or_rejected(bytes in vec(any::<u8>(), 0..200)) {
        let mut file = b"\x10\0\0\0ET12\0\0\0\0".to_vec();
        file.extend(bytes);
        _ = read_program(&file);
        let limits = Limits::default();
        if let Ok(header) = Header::parse(&file, file.len() as u64) {
            _ = pteron_format::pte::VerifiedProgram::errors(&file, &header, &limits);
        }
    }
}

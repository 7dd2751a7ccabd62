//! Malicious files, each with its attack and the errors that a reader must report.
//!
//! The files are in `testdata/hostile`, where other tests use them, too; the errors are in `expected.txt` beside them.
//! `BLESS=1 cargo test` writes both anew; review the difference before committing it.
//!
//! The advisories of October 2025 against the reference's loaders name three classes, which the names of the files
//! start with: `overflow` (GHSA-84m3-f99p-cqx5, GHSA-hj95-mhgf-jxc4), `heap` for sizes that lead past a buffer
//! (GHSA-xc7w-r669-48pf, GHSA-h952-963h-rv99, GHSA-9m39-3mf3-xwch) and `bounds` for indices out of bounds of a vector
//! (GHSA-f9hx-c6jf-3qxm).

mod support;

use pteron_format::container::{Blob, Segment};
use pteron_format::flatbuffer::{Field, Ref, Writer};
use pteron_format::pte::{
    Draft, EValue, ExecutionPlan, Instruction, NonConstBufferDevice, Tensor, TensorShapeDynamism,
};
use pteron_format::{ErrorKind, Limits, bpte, etdump, ptd, pte};
use std::fmt::Write as _;
use std::path::Path;
use support::program;

type Case = (&'static str, Vec<u8>);

/// The errors that a reader of the file's kind reports, one a line; empty if it accepts the file.
fn complaint(name: &str, file: &[u8]) -> String {
    let head = &file[..file.len().min(64)];
    let limits = Limits::default();
    let len = file.len() as u64;
    let errors = match name.rsplit('.').next() {
        Some("pte") => match pte::Header::parse(head, len) {
            Ok(header) => {
                pte::VerifiedProgram::errors(&file[..header.program_size as usize], &header, &limits)
            }
            Err(error) => vec![error],
        },
        Some("ptd") => match ptd::Header::parse(head, len) {
            Ok(header) => {
                ptd::VerifiedFlatTensor::errors(&file[..header.tables_size as usize], &header, &limits)
            }
            Err(error) => vec![error],
        },
        Some("bpte") => bpte::read(file, &limits).err().into_iter().collect(),
        _ => etdump::read(file, &limits).err().into_iter().collect(),
    };
    for error in &errors {
        assert!(error.offset().is_some(), "{name}: {error} has no offset");
        assert_ne!(error.kind(), ErrorKind::Io);
    }
    errors.iter().map(|error| format!("  {error}\n")).collect()
}

fn write(draft: Draft<'_>) -> Vec<u8> {
    let mut file = Vec::new();
    draft.prepare_unverified().unwrap().write_to(&mut file).unwrap();
    file
}

/// The small program with a change to its draft.
fn draft(change: impl FnOnce(&mut Draft<'static>)) -> Vec<u8> {
    let mut draft = program::draft();
    change(&mut draft);
    write(draft)
}

/// The small program with a change to its plan.
fn plan(change: impl FnOnce(&mut ExecutionPlan)) -> Vec<u8> {
    draft(|draft| change(&mut draft.program.execution_plan[0]))
}

/// The small program with a change to one of its tensors.
fn tensor(index: usize, change: impl FnOnce(&mut Tensor)) -> Vec<u8> {
    plan(|plan| match &mut plan.values[index] {
        EValue::Tensor(tensor) => change(tensor),
        other => panic!("{other:?} is no tensor"),
    })
}

fn instruction(instruction: Instruction) -> Vec<u8> {
    plan(|plan| plan.chains[0].instructions.push(instruction))
}

fn value(value: EValue) -> Vec<u8> {
    plan(|plan| plan.values.push(value))
}

/// The small program with bytes replaced; they must occur exactly once.
fn patched(old: &[u8], new: &[u8]) -> Vec<u8> {
    replaced(write(program::draft()), old, new)
}

fn replaced(mut file: Vec<u8>, old: &[u8], new: &[u8]) -> Vec<u8> {
    let places: Vec<usize> = (0..=file.len() - old.len()).filter(|&at| file[at..].starts_with(old)).collect();
    assert_eq!(places.len(), 1, "{old:?} occurs at {places:?}");
    file[places[0]..places[0] + new.len()].copy_from_slice(new);
    file
}

/// The small program with the bytes at an offset overwritten.
fn overwritten(at: usize, new: &[u8]) -> Vec<u8> {
    let mut file = write(program::draft());
    file[at..at + new.len()].copy_from_slice(new);
    file
}

/// The fields of a segment table as this crate writes them: the size first.
fn segment(offset: u64, size: u64) -> Vec<u8> {
    [size.to_le_bytes(), offset.to_le_bytes()].concat()
}

/// A file with a handmade flatbuffer.
fn raw(identifier: &[u8; 4], make: impl FnOnce(&mut Writer) -> Ref) -> Vec<u8> {
    let mut w = Writer::new();
    let root = make(&mut w);
    w.finish(root, *identifier).unwrap().bytes
}

/// A program of one plan with handmade vectors: values, chains.
fn raw_plan(make: impl FnOnce(&mut Writer) -> (Option<Ref>, Option<Ref>)) -> Vec<u8> {
    raw(b"ET12", |w| {
        let (values, chains) = make(w);
        let name = w.string("forward");
        let plan = w.table(&[
            name.into(),
            Field::Absent,
            values.into(),
            Field::Absent,
            Field::Absent,
            chains.into(),
        ]);
        let plans = w.refs(&[plan]);
        w.table(&[Field::Absent, plans.into()])
    })
}

fn programs() -> Vec<Case> {
    let call = |op_index, args: &[i32]| Instruction::KernelCall { op_index, args: args.to_vec() };
    let jump = |cond_value_index, destination_instruction| Instruction::JumpFalseCall {
        cond_value_index,
        destination_instruction,
    };
    let place = |memory_id, offset| {
        move |t: &mut Tensor| {
            t.allocation_info = Some(pte::AllocationDetails::new(memory_id, offset));
        }
    };
    vec![
        ("duplicate_methods.pte", draft(|d| d.program.execution_plan.extend_from_within(..))),
        ("schema_version.pte", draft(|d| d.program.version = 1)),
        ("bounds_input.pte", plan(|p| p.inputs.push(99))),
        ("bounds_output_negative.pte", plan(|p| p.outputs.push(-1))),
        ("bounds_operator.pte", instruction(call(1, &[]))),
        ("bounds_argument.pte", instruction(call(0, &[0, i32::MAX]))),
        ("bounds_argument_negative.pte", instruction(call(0, &[i32::MIN]))),
        ("bounds_delegate.pte", instruction(Instruction::DelegateCall { delegate_index: 7, args: vec![] })),
        ("bounds_move.pte", instruction(Instruction::MoveCall { move_from: 15, move_to: -2 })),
        ("bounds_free.pte", instruction(Instruction::FreeCall { value_index: 1 << 20 })),
        ("free_no_tensor.pte", instruction(Instruction::FreeCall { value_index: 5 })),
        ("bounds_jump.pte", instruction(jump(7, 7))),
        ("bounds_jump_negative.pte", instruction(jump(7, -1))),
        ("jump_condition_float.pte", instruction(jump(0, 0))),
        ("bounds_int_list.pte", value(EValue::IntList(vec![5, i64::MAX]))),
        ("int_list_of_bool.pte", value(EValue::IntList(vec![7]))),
        ("bounds_tensor_list.pte", value(EValue::TensorList(vec![-1]))),
        ("tensor_list_of_int.pte", value(EValue::TensorList(vec![5]))),
        ("bounds_optional_tensor_list.pte", value(EValue::OptionalTensorList(vec![-1, -2]))),
        ("negative_size.pte", tensor(0, |t| t.sizes = vec![-2])),
        ("overflow_numel.pte", tensor(0, |t| (t.sizes, t.dim_order) = (vec![i32::MAX; 3], vec![0, 1, 2]))),
        (
            "overflow_nbytes.pte",
            tensor(0, |t| {
                (t.sizes, t.dim_order) = (vec![1 << 30, 1 << 30, 4], vec![0, 1, 2]);
            }),
        ),
        ("tensor_too_large.pte", tensor(4, |t| (t.sizes, t.dim_order) = (vec![1 << 30; 2], vec![0, 1]))),
        ("rank_17.pte", tensor(0, |t| (t.sizes, t.dim_order) = (vec![1; 17], (0..17).collect()))),
        ("dim_order_twice.pte", tensor(0, |t| (t.sizes, t.dim_order) = (vec![1, 2], vec![1, 1]))),
        ("dim_order_short.pte", tensor(0, |t| t.dim_order.clear())),
        ("bounds_dim_order.pte", tensor(0, |t| t.dim_order = vec![255])),
        ("scalar_type.pte", tensor(0, |t| t.scalar_type = 31)),
        ("storage_offset.pte", tensor(0, |t| t.storage_offset = -4)),
        ("dynamic_unbound.pte", tensor(0, |t| t.shape_dynamism = TensorShapeDynamism::DynamicUnbound)),
        ("memory_id_0.pte", tensor(0, place(0, 0))),
        ("bounds_memory_id.pte", tensor(0, place(2, 0))),
        ("heap_planned_past_arena.pte", tensor(0, place(1, 44))),
        ("overflow_planned.pte", tensor(0, place(1, u64::MAX - 3))),
        ("misaligned.pte", tensor(0, place(1, 2))),
        ("arena_negative.pte", plan(|p| p.non_const_buffer_sizes.push(-1))),
        ("arena_reserved.pte", plan(|p| p.non_const_buffer_sizes[0] = 64)),
        ("arena_too_large.pte", plan(|p| p.non_const_buffer_sizes.extend([i64::MAX; 3]))),
        ("device_reserved.pte", plan(|p| p.non_const_buffer_device.push(NonConstBufferDevice::default()))),
        ("bounds_constant.pte", tensor(2, |t| t.data_buffer_idx = u32::MAX)),
        ("heap_constant_past_segment.pte", tensor(2, |t| t.sizes = vec![3])),
        (
            "bounds_constant_segment.pte",
            draft(|d| {
                d.program.constant_segment.as_mut().unwrap().segment_index = 9;
            }),
        ),
        (
            "heap_constant_offset.pte",
            draft(|d| {
                d.program.constant_segment.as_mut().unwrap().offsets[1] = u64::MAX;
            }),
        ),
        ("initial_data_without_segment.pte", draft(|d| d.program.mutable_data_segments.clear())),
        (
            "heap_initial_data_past_segment.pte",
            tensor(3, |t| (t.sizes, t.dim_order) = (vec![2, 2], vec![0, 1])),
        ),
        (
            "external_without_name.pte",
            tensor(4, |t| {
                t.extra_tensor_info.as_mut().unwrap().fully_qualified_name = None;
            }),
        ),
        ("bounds_delegate_segment.pte", plan(|p| p.delegates[0].processed.index = 4)),
        (
            "bounds_delegate_inline.pte",
            plan(|p| {
                p.delegates[0].processed.location = pte::DataLocation::Inline;
            }),
        ),
        ("delegate_without_name.pte", plan(|p| p.delegates[0].id.clear())),
        ("duplicate_named_data.pte", draft(|d| d.program.named_data.extend_from_within(..))),
        ("bounds_named_data.pte", draft(|d| d.program.named_data[0].segment_index = 77)),
        ("no_chains.pte", plan(|p| p.chains.clear())),
        ("constants_twice.pte", draft(|d| d.inline_constants = vec![Blob::bytes(vec![0; 8])])),
        (
            "many_errors.pte",
            plan(|p| {
                p.inputs = vec![100, 101];
                p.chains[0].instructions = vec![call(3, &[50]), jump(60, 70)];
            }),
        ),
        ("overlapping_segments.pte", patched(&segment(256, 7), &segment(4, 7))),
        ("overflow_segment.pte", patched(&segment(256, 7), &segment(u64::MAX - 4, 7))),
        ("heap_segment_past_file.pte", patched(&segment(256, 7), &segment(256, 1 << 40))),
        ("segments_without_header.pte", {
            let mut file = draft(|d| d.segments[0] = Segment::new(Blob::bytes(vec![0; 24])));
            file[8..12].copy_from_slice(b"none");
            file
        }),
        ("truncated.pte", write(program::draft())[..1000].to_vec()),
        ("truncated_segments.pte", {
            let mut file = write(program::draft());
            file.pop();
            file
        }),
        ("empty.pte", Vec::new()),
        ("three_bytes.pte", vec![0x1c, 0, 0]),
        ("other_magic.pte", overwritten(4, b"ELF\x7f")),
        ("newer_magic.pte", overwritten(4, b"ET13")),
        ("newer_header.pte", overwritten(8, b"eh01")),
        ("header_short.pte", overwritten(12, &8u32.to_le_bytes())),
        ("overflow_program_size.pte", overwritten(16, &u64::MAX.to_le_bytes())),
        ("program_size_small.pte", overwritten(16, &41u64.to_le_bytes())),
        ("overflow_segment_base.pte", overwritten(24, &u64::MAX.to_le_bytes())),
        ("segment_base_in_tables.pte", overwritten(24, &64u64.to_le_bytes())),
        ("root_outside.pte", overwritten(0, &0x7fff_fff0u32.to_le_bytes())),
        ("root_at_itself.pte", overwritten(0, &[0; 4])),
        ("root_wraps_around.pte", overwritten(0, &0xffff_fffcu32.to_le_bytes())),
    ]
}

fn flatbuffers() -> Vec<Case> {
    vec![
        ("vtable_outside.pte", {
            let mut file = raw(b"ET12", |w| w.table(&[]));
            file[12..16].copy_from_slice(&i32::MIN.to_le_bytes());
            file
        }),
        (
            "vtable_odd.pte",
            replaced(
                raw(b"ET12", |w| w.table(&[Field::required_scalar(0u32)])),
                &[6, 0, 8, 0],
                &[5, 0, 8, 0],
            ),
        ),
        ("vtable_field_outside.pte", {
            replaced(
                raw(b"ET12", |w| w.table(&[Field::required_scalar(0u32)])),
                &[6, 0, 8, 0, 4, 0],
                &[6, 0, 8, 0, 200, 0],
            )
        }),
        (
            "vector_of_2_31.pte",
            replaced(
                raw_plan(|w| (Some(w.scalars(&[0x1111_1111u32])), None)),
                &[1, 0, 0, 0, 0x11, 0x11, 0x11, 0x11],
                &0x8000_0000u32.to_le_bytes(),
            ),
        ),
        (
            "vector_shared_beyond_measure.pte",
            raw(b"ET12", |w| {
                let null = w.table(&[]);
                let null = w.table(&[Field::required_scalar(1u8), null.into()]);
                let values = w.refs(&vec![null; 5_000]);
                let name = w.string("forward");
                let plan = w.table(&[name.into(), Field::Absent, values.into()]);
                let plans = w.refs(&vec![plan; 5_000]);
                w.table(&[Field::Absent, plans.into()])
            }),
        ),
        ("offset_cycle.pte", {
            // An execution plan that is its own list of values, as far as offsets can point backwards.
            let mut file = raw_plan(|w| (Some(w.scalars(&[0x1111_1111u32])), None));
            let at = file.windows(4).position(|window| window == [0x11; 4]).unwrap();
            file[at..at + 4].copy_from_slice(&(at as u32).wrapping_neg().to_le_bytes());
            file
        }),
        (
            "value_kind_unknown.pte",
            raw_plan(|w| {
                let table = w.table(&[]);
                let value = w.table(&[Field::required_scalar(12u8), table.into()]);
                (Some(w.refs(&[value])), None)
            }),
        ),
        (
            "value_without_table.pte",
            raw_plan(|w| {
                let value = w.table(&[Field::required_scalar(5u8)]);
                (Some(w.refs(&[value])), None)
            }),
        ),
        (
            "value_none.pte",
            raw_plan(|w| {
                let value = w.table(&[]);
                (Some(w.refs(&[value])), None)
            }),
        ),
        (
            "instruction_kind_unknown.pte",
            raw_plan(|w| {
                let table = w.table(&[]);
                let instruction = w.table(&[Field::required_scalar(6u8), table.into()]);
                let instructions = w.refs(&[instruction]);
                let chain = w.table(&[Field::Absent, Field::Absent, instructions.into()]);
                (None, Some(w.refs(&[chain])))
            }),
        ),
        (
            "instruction_none.pte",
            raw_plan(|w| {
                let instruction = w.table(&[]);
                let instructions = w.refs(&[instruction]);
                let chain = w.table(&[Field::Absent, Field::Absent, instructions.into()]);
                (None, Some(w.refs(&[chain])))
            }),
        ),
        (
            "enum_unknown.pte",
            raw_plan(|w| {
                let tensor = [Field::Absent; 8];
                let tensor = w.table(&[&tensor[..], &[Field::required_scalar(3i8)]].concat());
                let value = w.table(&[Field::required_scalar(5u8), tensor.into()]);
                (Some(w.refs(&[value])), None)
            }),
        ),
        ("name_not_utf8.pte", replaced(write(program::draft()), b"forward\0", b"for\xffard\0")),
        (
            "method_without_name.pte",
            raw(b"ET12", |w| {
                let plan = w.table(&[]);
                let plans = w.refs(&[plan]);
                w.table(&[Field::Absent, plans.into()])
            }),
        ),
    ]
}

fn data() -> Vec<Case> {
    let layout = |sizes: &[i32]| ptd::TensorLayout {
        scalar_type: 6,
        sizes: sizes.to_vec(),
        dim_order: (0..sizes.len() as u8).collect(),
    };
    let file = || {
        let mut builder = ptd::Builder::new();
        builder.tensor("weight", layout(&[2, 3]), Blob::bytes(vec![1; 24]));
        builder.blob("other", Blob::bytes(vec![2; 9]));
        let mut file = Vec::new();
        builder.write(&mut file).unwrap();
        file
    };
    let overwritten = |at: usize, new: &[u8]| {
        let mut file = file();
        file[at..at + new.len()].copy_from_slice(new);
        file
    };
    let numbers = |n: &[i32]| n.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    vec![
        ("empty.ptd", Vec::new()),
        ("no_header.ptd", overwritten(8, &[0; 4])),
        ("newer_magic.ptd", overwritten(4, b"FT02")),
        ("newer_header.ptd", overwritten(8, b"FH02")),
        ("a_program.ptd", write(program::draft())),
        ("overflow_tables.ptd", overwritten(24, &u64::MAX.to_le_bytes())),
        ("overflow_segments.ptd", overwritten(40, &u64::MAX.to_le_bytes())),
        ("segment_base_in_tables.ptd", overwritten(32, &[0; 8])),
        ("truncated.ptd", {
            let mut file = file();
            file.pop();
            file
        }),
        ("duplicate_keys.ptd", replaced(file(), b"\x05\0\0\0other\0", b"\x06\0\0\0weight")),
        ("heap_tensor_past_segment.ptd", replaced(file(), &numbers(&[2, 2, 3]), &numbers(&[2, 2, 4]))),
        ("overflow_numel.ptd", replaced(file(), &numbers(&[2, 2, 3]), &numbers(&[2, i32::MAX, i32::MAX]))),
        ("negative_size.ptd", replaced(file(), &numbers(&[2, 2, 3]), &numbers(&[2, -2, 3]))),
        ("vector_of_2_31.ptd", replaced(file(), &numbers(&[2, 2, 3]), &numbers(&[i32::MIN, 2, 3]))),
        ("overlapping_segments.ptd", replaced(file(), &segment(128, 9), &segment(20, 9))),
        ("overflow_segment.ptd", replaced(file(), &segment(128, 9), &segment(u64::MAX, 9))),
    ]
}

fn bundles() -> Vec<Case> {
    let mut dump = Vec::new();
    etdump::write(&etdump::ETDump::default(), &mut dump).unwrap();
    let mut cut = dump.clone();
    cut[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut bundle = Vec::new();
    bpte::write(&[], b"program", &mut bundle).unwrap();
    vec![
        ("size_past_file.etdp", cut),
        ("empty.etdp", Vec::new()),
        ("no_program.bpte", raw(b"BP08", |w| w.table(&[]))),
        ("schema_version.bpte", replaced(bundle, &2u32.to_le_bytes(), &3u32.to_le_bytes())),
    ]
}

#[test]
fn every_file_is_rejected_with_the_expected_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/hostile");
    let bless = std::env::var_os("BLESS").is_some();
    let cases = [programs(), flatbuffers(), data(), bundles()].concat();
    let mut text = String::new();
    if bless {
        std::fs::create_dir_all(&folder).unwrap();
    }
    for (name, file) in &cases {
        let said = complaint(name, file);
        assert!(!said.is_empty(), "{name} is accepted");
        write!(text, "{name}\n{said}").unwrap();
        if bless {
            std::fs::write(folder.join(name), file).unwrap();
        }
        let committed = std::fs::read(folder.join(name)).unwrap();
        assert_eq!(complaint(name, &committed), said, "{name} as committed");
    }
    assert!(cases.len() >= 50);
    let expected = folder.join("expected.txt");
    if bless {
        std::fs::write(&expected, &text).unwrap();
    }
    let expected = std::fs::read_to_string(expected).unwrap();
    for (said, expected) in text.lines().zip(expected.lines()) {
        assert_eq!(said, expected);
    }
    assert_eq!(text.len(), expected.len());
}

#[test]
fn the_small_program_itself_is_valid() {
    let file = write(program::draft());
    assert_eq!(complaint("small.pte", &file), "");
}

fn readable(file: &[u8]) -> pte::VerifiedProgram {
    let header = pte::Header::parse(file, file.len() as u64).unwrap();
    pte::VerifiedProgram::read_readable(&file[..header.program_size as usize], &header, &Limits::default())
        .unwrap()
}

#[test]
fn unknown_members_leave_the_rest_readable() {
    let file = raw_plan(|w| {
        let table = w.table(&[]);
        let unknown = w.table(&[Field::required_scalar(12u8), table.into()]);
        let text = w.string("the rest");
        let text = w.table(&[text.into()]);
        let text = w.table(&[Field::required_scalar(6u8), text.into()]);
        (Some(w.refs(&[unknown, text])), None)
    });
    let program = readable(&file);
    let [method] = program.invalid_methods() else { panic!("{:?}", program.invalid_methods()) };
    let unknown: Vec<_> = method.unknown.iter().map(|e| (e.path(), e.found())).collect();
    assert_eq!(unknown, [("execution_plan[0].values[0].val", "kind 12 of value")]);
    assert_eq!(method.error.kind(), ErrorKind::Newer);
    let values = &method.plan.as_ref().unwrap().values;
    assert_eq!(values[..], [EValue::Null, EValue::String("the rest".to_owned())]);
    assert!(program.unknown_fields().is_empty(), "{:?}", program.unknown_fields());
}

#[test]
fn fields_of_newer_schemas_are_listed() {
    let file = raw(b"ET12", |w| {
        let mut fields: Vec<Field> = (0..9).map(|_| Field::Absent).collect();
        fields.push(Field::required_scalar(7u32));
        w.table(&fields)
    });
    assert_eq!(readable(&file).unknown_fields(), ["field_9"]);
}

//! The names and kinds of the fields of the tables of `program.fbs`, by field id.

use crate::flatbuffer::FieldKind::{Bulk, Member, Scalar, Scalars, Table, Tables, Text, Union};
use crate::flatbuffer::Layout;

pub(super) static PROGRAM: Layout = Layout(&[
    ("version", Scalar(4)),
    ("execution_plan", Tables(&EXECUTION_PLAN)),
    ("constant_buffer", Tables(&INLINE)),
    ("backend_delegate_data", Tables(&INLINE)),
    ("segments", Tables(&crate::container::DATA_SEGMENT)),
    ("constant_segment", Table(&SUBSEGMENTS)),
    ("mutable_data_segments", Tables(&SUBSEGMENTS)),
    ("named_data", Tables(&NAMED_DATA)),
]);

static INLINE: Layout = Layout(&[("data", Bulk)]);
static SUBSEGMENTS: Layout = Layout(&[("segment_index", Scalar(4)), ("offsets", Scalars(8))]);
static NAMED_DATA: Layout = Layout(&[("key", Text), ("segment_index", Scalar(4))]);

static EXECUTION_PLAN: Layout = Layout(&[
    ("name", Text),
    ("container_meta_type", Table(&CONTAINER)),
    ("values", Tables(&EVALUE)),
    ("inputs", Scalars(4)),
    ("outputs", Scalars(4)),
    ("chains", Tables(&CHAIN)),
    ("operators", Tables(&OPERATOR)),
    ("delegates", Tables(&DELEGATE)),
    ("non_const_buffer_sizes", Scalars(8)),
    ("non_const_buffer_device", Tables(&DEVICE)),
]);

static CONTAINER: Layout = Layout(&[("encoded_inp_str", Text), ("encoded_out_str", Text)]);
static OPERATOR: Layout = Layout(&[("name", Text), ("overload", Text)]);
static DEVICE: Layout =
    Layout(&[("buffer_idx", Scalar(4)), ("device_type", Scalar(1)), ("device_index", Scalar(1))]);

static DELEGATE: Layout =
    Layout(&[("id", Text), ("processed", Table(&REFERENCE)), ("compile_specs", Tables(&COMPILE_SPEC))]);
static REFERENCE: Layout = Layout(&[("location", Scalar(1)), ("index", Scalar(4))]);
static COMPILE_SPEC: Layout = Layout(&[("key", Text), ("value", Scalars(1))]);

static CHAIN: Layout = Layout(&[
    ("inputs", Scalars(4)),
    ("outputs", Scalars(4)),
    ("instructions", Tables(&INSTRUCTION)),
    ("stacktrace", Tables(&FRAMES)),
]);
static FRAMES: Layout = Layout(&[("items", Tables(&FRAME))]);
static FRAME: Layout =
    Layout(&[("filename", Text), ("lineno", Scalar(4)), ("name", Text), ("context", Text)]);

static INSTRUCTION: Layout = Layout(&[("instr_args", Union(INSTRUCTIONS)), ("instr_args", Member)]);
static INSTRUCTIONS: &[Layout] = &[
    Layout(&[("op_index", Scalar(4)), ("args", Scalars(4))]),
    Layout(&[("delegate_index", Scalar(4)), ("args", Scalars(4))]),
    Layout(&[("move_from", Scalar(4)), ("move_to", Scalar(4))]),
    Layout(&[("cond_value_index", Scalar(4)), ("destination_instruction", Scalar(4))]),
    Layout(&[("value_index", Scalar(4))]),
];

static EVALUE: Layout = Layout(&[("val", Union(VALUES)), ("val", Member)]);
static VALUES: &[Layout] = &[
    Layout(&[]),
    Layout(&[("int_val", Scalar(8))]),
    Layout(&[("bool_val", Scalar(1))]),
    Layout(&[("double_val", Scalar(8))]),
    Layout(TENSOR),
    Layout(&[("string_val", Text)]),
    Layout(&[("items", Scalars(8))]),
    Layout(&[("items", Scalars(8))]),
    Layout(&[("items", Scalars(1))]),
    Layout(&[("items", Scalars(4))]),
    Layout(&[("items", Scalars(4))]),
];

static TENSOR: &[(&str, crate::flatbuffer::FieldKind)] = &[
    ("scalar_type", Scalar(1)),
    ("storage_offset", Scalar(4)),
    ("sizes", Scalars(4)),
    ("dim_order", Scalars(1)),
    ("requires_grad", Scalar(1)),
    ("data_buffer_idx", Scalar(4)),
    ("allocation_info", Table(&ALLOCATION)),
    ("layout", Scalar(1)),
    ("shape_dynamism", Scalar(1)),
    ("extra_tensor_info", Table(&EXTRA)),
];
static ALLOCATION: Layout =
    Layout(&[("memory_id", Scalar(4)), ("memory_offset_low", Scalar(4)), ("memory_offset_high", Scalar(4))]);
static EXTRA: Layout = Layout(&[
    ("mutable_data_segments_idx", Scalar(8)),
    ("fully_qualified_name", Text),
    ("location", Scalar(1)),
    ("device_type", Scalar(1)),
    ("device_index", Scalar(1)),
]);

//! The names and kinds of the fields of the tables of `flat_tensor.fbs`, by field id.

use crate::container::DATA_SEGMENT;
use crate::flatbuffer::FieldKind::{Scalar, Scalars, Table, Tables, Text};
use crate::flatbuffer::Layout;

pub(super) static FLAT_TENSOR: Layout = Layout(&[
    ("version", Scalar(4)),
    ("segments", Tables(&DATA_SEGMENT)),
    ("named_data", Tables(&NAMED_DATA)),
]);
static NAMED_DATA: Layout =
    Layout(&[("key", Text), ("segment_index", Scalar(4)), ("tensor_layout", Table(&TENSOR_LAYOUT))]);
static TENSOR_LAYOUT: Layout =
    Layout(&[("scalar_type", Scalar(1)), ("sizes", Scalars(4)), ("dim_order", Scalars(1))]);

/// The layout of the `FlatTensor` table of release 0.6.
pub(super) static FLAT_TENSOR_0_6: Layout = Layout(&[
    ("version", Scalar(4)),
    ("tensor_alignment", Scalar(4)),
    ("tensors", Tables(&TENSOR_0_6)),
    ("segments", Tables(&DATA_SEGMENT)),
    ("named_data", Tables(&NAMED_DATA_0_6)),
]);
static TENSOR_0_6: Layout = Layout(&[
    ("fully_qualified_name", Text),
    ("scalar_type", Scalar(1)),
    ("sizes", Scalars(4)),
    ("dim_order", Scalars(1)),
    ("segment_index", Scalar(4)),
    ("offset", Scalar(8)),
]);
static NAMED_DATA_0_6: Layout = Layout(&[("key", Text), ("segment_index", Scalar(4))]);

//! `tfrt_dht` and `tfrt_dht_sync`: dense host tensors. Source: TFRT's `dense_host_tensor` definitions.

use super::{Dialect, Row, op};

const TENSOR: &str = "!t.tensor";
const BUFFER: &str = "!ht.host_buffer";
const CHAIN: &str = "!tfrt.chain";
const DTYPES: &[&str] =
    &["ui8", "ui16", "ui32", "ui64", "i32", "f32", "i64", "bool", "complex64", "complex128"];
const RANKS: &[&str] = &["0", "1", "2", "3", "4"];

pub(super) const DIALECT: Dialect = Dialect { name: "tfrt_dht", rows: ROWS, isolated: false };

const ROWS: &[Row] = &[
    op("create_uninitialized_tensor")
        .suffixes(&[DTYPES, RANKS])
        .results(TENSOR)
        .attributes("i64s shape")
        .format("$shape attr-dict"),
    op("make_tensor")
        .suffixes(&[DTYPES])
        .operands("!ht.host_buffer, !ts.shape, !tfrt.chain")
        .results("!t.tensor, !tfrt.chain")
        .format("operands attr-dict"),
    op("fill_tensor_with_constant")
        .suffixes(&[DTYPES])
        .operands("!t.tensor, !tfrt.chain")
        .results(CHAIN)
        .attributes("any value")
        .format("operands $value attr-dict"),
    op("print_tensor").operands("!t.tensor, !tfrt.chain").results(CHAIN).format("operands attr-dict"),
    op("set_tensor_with_constant_values")
        .suffixes(&[DTYPES])
        .operands("!t.tensor, !tfrt.chain")
        .results(CHAIN)
        .attributes("array values")
        .format("operands $values attr-dict"),
    op("tensor_equal")
        .suffixes(&[DTYPES])
        .operands("!t.tensor, !t.tensor, !tfrt.chain")
        .results("i1, !tfrt.chain")
        .format("operands attr-dict"),
    op("allocate_buffer").operands("i64, i64").results(BUFFER).format("operands attr-dict"),
    op("get_buffer")
        .operands("!t.tensor, !tfrt.chain")
        .results("!ht.host_buffer, !tfrt.chain")
        .format("operands attr-dict"),
    op("get_buffer_slice").operands("!ht.host_buffer, i64, i64").results(BUFFER).format("operands attr-dict"),
    op("print_buffer").operands("!ht.host_buffer, !tfrt.chain").results(CHAIN).format("operands attr-dict"),
    op("get_tensor_shape").operands(TENSOR).results("!ts.shape").format("operands attr-dict"),
];

pub(super) const SYNC_DIALECT: Dialect = Dialect { name: "tfrt_dht_sync", rows: SYNC_ROWS, isolated: false };

const SYNC_ROWS: &[Row] = &[
    op("create_uninitialized_tensor")
        .suffixes(&[DTYPES, RANKS])
        .results(TENSOR)
        .attributes("i64s shape")
        .format("$shape attr-dict"),
    op("print_tensor").operands(TENSOR).format("operands attr-dict"),
    op("allocate_buffer").operands("i64, i64").results(BUFFER).format("operands attr-dict"),
    op("get_tensor_shape").operands(TENSOR).results("!ts.shape").format("operands attr-dict"),
    op("set_tensor_with_constant_values")
        .suffixes(&[DTYPES])
        .operands("!t.tensor tensor")
        .attributes("array values")
        .format("$tensor $values attr-dict"),
    op("make_tensor")
        .suffixes(&[DTYPES])
        .operands("!ht.host_buffer, !ts.shape")
        .results(TENSOR)
        .format("operands attr-dict"),
    op("get_buffer_slice").operands("!ht.host_buffer, i64, i64").results(BUFFER).format("operands attr-dict"),
];

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
        .over(&[DTYPES, RANKS])
        .gives(TENSOR)
        .attrs("i64s shape")
        .form("$shape attr-dict"),
    op("make_tensor")
        .over(&[DTYPES])
        .takes("!ht.host_buffer, !ts.shape, !tfrt.chain")
        .gives("!t.tensor, !tfrt.chain")
        .form("operands attr-dict"),
    op("fill_tensor_with_constant")
        .over(&[DTYPES])
        .takes("!t.tensor, !tfrt.chain")
        .gives(CHAIN)
        .attrs("any value")
        .form("operands $value attr-dict"),
    op("print_tensor").takes("!t.tensor, !tfrt.chain").gives(CHAIN).form("operands attr-dict"),
    op("set_tensor_with_constant_values")
        .over(&[DTYPES])
        .takes("!t.tensor, !tfrt.chain")
        .gives(CHAIN)
        .attrs("array values")
        .form("operands $values attr-dict"),
    op("tensor_equal")
        .over(&[DTYPES])
        .takes("!t.tensor, !t.tensor, !tfrt.chain")
        .gives("i1, !tfrt.chain")
        .form("operands attr-dict"),
    op("allocate_buffer").takes("i64, i64").gives(BUFFER).form("operands attr-dict"),
    op("get_buffer")
        .takes("!t.tensor, !tfrt.chain")
        .gives("!ht.host_buffer, !tfrt.chain")
        .form("operands attr-dict"),
    op("get_buffer_slice").takes("!ht.host_buffer, i64, i64").gives(BUFFER).form("operands attr-dict"),
    op("print_buffer").takes("!ht.host_buffer, !tfrt.chain").gives(CHAIN).form("operands attr-dict"),
    op("get_tensor_shape").takes(TENSOR).gives("!ts.shape").form("operands attr-dict"),
];

pub(super) const SYNC_DIALECT: Dialect = Dialect { name: "tfrt_dht_sync", rows: SYNC_ROWS, isolated: false };

const SYNC_ROWS: &[Row] = &[
    op("create_uninitialized_tensor")
        .over(&[DTYPES, RANKS])
        .gives(TENSOR)
        .attrs("i64s shape")
        .form("$shape attr-dict"),
    op("print_tensor").takes(TENSOR).form("operands attr-dict"),
    op("allocate_buffer").takes("i64, i64").gives(BUFFER).form("operands attr-dict"),
    op("get_tensor_shape").takes(TENSOR).gives("!ts.shape").form("operands attr-dict"),
    op("set_tensor_with_constant_values")
        .over(&[DTYPES])
        .takes("!t.tensor tensor")
        .attrs("array values")
        .form("$tensor $values attr-dict"),
    op("make_tensor")
        .over(&[DTYPES])
        .takes("!ht.host_buffer, !ts.shape")
        .gives(TENSOR)
        .form("operands attr-dict"),
    op("get_buffer_slice").takes("!ht.host_buffer, i64, i64").gives(BUFFER).form("operands attr-dict"),
];

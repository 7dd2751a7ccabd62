//! `coo`: sparse host tensors. Source: TFRT's `coo_host_tensor` operation definitions.

use super::{Dialect, Row, op};

const OVER: &[&[&str]] = &[&["i32", "f32"], &["0", "1", "2", "3"]];

pub(super) const DIALECT: Dialect = Dialect { name: "coo", rows: ROWS, isolated: false };

const ROWS: &[Row] = &[
    op("convert_coo_to_dht")
        .over(OVER)
        .takes("!t.tensor, !tfrt.chain")
        .gives("!t.tensor, !tfrt.chain")
        .form("operands attr-dict"),
    op("convert_dht_to_coo")
        .over(OVER)
        .takes("!t.tensor, !tfrt.chain")
        .gives("!t.tensor, !tfrt.chain")
        .form("operands attr-dict"),
    op("tensor_equal")
        .over(OVER)
        .takes("!t.tensor, !t.tensor, !tfrt.chain")
        .gives("i1, !tfrt.chain")
        .form("operands attr-dict"),
    op("print_tensor").takes("!t.tensor, !tfrt.chain").gives("!tfrt.chain").form("operands attr-dict"),
];

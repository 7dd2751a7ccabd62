//! `coo`: sparse host tensors. Source: TFRT's `coo_host_tensor` operation definitions.

use super::{Dialect, Row, op};

const OVER: &[&[&str]] = &[&["i32", "f32"], &["0", "1", "2", "3"]];

pub(super) const DIALECT: Dialect = Dialect { name: "coo", rows: ROWS, isolated: false };

const ROWS: &[Row] = &[
    op("convert_coo_to_dht")
        .suffixes(OVER)
        .operands("!t.tensor, !tfrt.chain")
        .results("!t.tensor, !tfrt.chain")
        .format("operands attr-dict"),
    op("convert_dht_to_coo")
        .suffixes(OVER)
        .operands("!t.tensor, !tfrt.chain")
        .results("!t.tensor, !tfrt.chain")
        .format("operands attr-dict"),
    op("tensor_equal")
        .suffixes(OVER)
        .operands("!t.tensor, !t.tensor, !tfrt.chain")
        .results("i1, !tfrt.chain")
        .format("operands attr-dict"),
    op("print_tensor").operands("!t.tensor, !tfrt.chain").results("!tfrt.chain").format("operands attr-dict"),
];

//! `ts` and `ts_sync`: tensor shapes. Source: TFRT's `tensor_shape` operation definitions.

use super::{Dialect, Row, op};

const SHAPE: &str = "!ts.shape";
const PARTIAL: &str = "!ts.partial_shape";
const CHAIN: &str = "!tfrt.chain";
const RANKS: &[&[&str]] = &[&["0", "1", "2", "3"]];

pub(super) const DIALECT: Dialect = Dialect { name: "ts", rows: ROWS, isolated: false };

const ROWS: &[Row] = &[
    op("build_shape").results(SHAPE).attributes("i64s value").format("$value attr-dict"),
    op("equal_shape").operands("!ts.shape, !ts.shape").results("i1").format("operands attr-dict"),
    op("get_dimension").operands("!ts.shape, i32").results("i64").format("operands attr-dict"),
    op("get_num_elements").operands(SHAPE).results("i64").format("operands attr-dict"),
    op("print_shape").operands("!ts.shape, !tfrt.chain").results(CHAIN).format("operands attr-dict"),
    op("as_fixed_rank_shape")
        .suffixes(RANKS)
        .operands(SHAPE)
        .results("!ts.fixed_rank_shape.{T}")
        .format("operands attr-dict"),
    op("print_fixed_rank_shape")
        .suffixes(RANKS)
        .operands("!ts.fixed_rank_shape.{T}, !tfrt.chain")
        .results(CHAIN)
        .format("operands attr-dict"),
    op("build_partial_shape").results(PARTIAL).attributes("i64s value").format("$value attr-dict"),
    op("build_unranked_partial_shape").results(PARTIAL).format("attr-dict"),
    op("print_partial_shape")
        .operands("!ts.partial_shape, !tfrt.chain")
        .results(CHAIN)
        .format("operands attr-dict"),
    op("to_shape").operands(PARTIAL).results(SHAPE).format("operands attr-dict"),
    op("to_partial_shape").operands(SHAPE).results(PARTIAL).format("operands attr-dict"),
];

pub(super) const SYNC_DIALECT: Dialect = Dialect { name: "ts_sync", rows: SYNC_ROWS, isolated: false };

const SYNC_ROWS: &[Row] = &[
    op("build_shape").results(SHAPE).attributes("i64s value").format("$value attr-dict"),
    op("get_num_elements").operands(SHAPE).results("i64").format("operands attr-dict"),
    op("build_partial_shape").results(PARTIAL).attributes("i64s value").format("$value attr-dict"),
    op("to_shape").operands(PARTIAL).results(SHAPE).format("operands attr-dict"),
    op("to_partial_shape").operands(SHAPE).results(PARTIAL).format("operands attr-dict"),
];

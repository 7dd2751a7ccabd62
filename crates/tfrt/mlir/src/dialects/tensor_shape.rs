//! `ts` and `ts_sync`: tensor shapes. Source: TFRT's `tensor_shape` operation definitions.

use super::{Dialect, Row, op};

const SHAPE: &str = "!ts.shape";
const PARTIAL: &str = "!ts.partial_shape";
const CHAIN: &str = "!tfrt.chain";
const RANKS: &[&[&str]] = &[&["0", "1", "2", "3"]];

pub(super) const DIALECT: Dialect = Dialect { name: "ts", rows: ROWS, isolated: false };

const ROWS: &[Row] = &[
    op("build_shape").gives(SHAPE).attrs("i64s value").form("$value attr-dict"),
    op("equal_shape").takes("!ts.shape, !ts.shape").gives("i1").form("operands attr-dict"),
    op("get_dimension").takes("!ts.shape, i32").gives("i64").form("operands attr-dict"),
    op("get_num_elements").takes(SHAPE).gives("i64").form("operands attr-dict"),
    op("print_shape").takes("!ts.shape, !tfrt.chain").gives(CHAIN).form("operands attr-dict"),
    op("as_fixed_rank_shape")
        .over(RANKS)
        .takes(SHAPE)
        .gives("!ts.fixed_rank_shape.{T}")
        .form("operands attr-dict"),
    op("print_fixed_rank_shape")
        .over(RANKS)
        .takes("!ts.fixed_rank_shape.{T}, !tfrt.chain")
        .gives(CHAIN)
        .form("operands attr-dict"),
    op("build_partial_shape").gives(PARTIAL).attrs("i64s value").form("$value attr-dict"),
    op("build_unranked_partial_shape").gives(PARTIAL).form("attr-dict"),
    op("print_partial_shape").takes("!ts.partial_shape, !tfrt.chain").gives(CHAIN).form("operands attr-dict"),
    op("to_shape").takes(PARTIAL).gives(SHAPE).form("operands attr-dict"),
    op("to_partial_shape").takes(SHAPE).gives(PARTIAL).form("operands attr-dict"),
];

pub(super) const SYNC_DIALECT: Dialect = Dialect { name: "ts_sync", rows: SYNC_ROWS, isolated: false };

const SYNC_ROWS: &[Row] = &[
    op("build_shape").gives(SHAPE).attrs("i64s value").form("$value attr-dict"),
    op("get_num_elements").takes(SHAPE).gives("i64").form("operands attr-dict"),
    op("build_partial_shape").gives(PARTIAL).attrs("i64s value").form("$value attr-dict"),
    op("to_shape").takes(PARTIAL).gives(SHAPE).form("operands attr-dict"),
    op("to_partial_shape").takes(SHAPE).gives(PARTIAL).form("operands attr-dict"),
];

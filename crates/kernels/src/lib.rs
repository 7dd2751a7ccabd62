//! The operator library in families, on a compute core of plain functions over slices.

pub mod compute;

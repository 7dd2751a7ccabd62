//! Section 3, Types: the names of the types. Signatures and registers refer to them by position, the type index.

use super::name_table;
use super::strings::{StringOffsets, Strings};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::limits::Budget;
use crate::model::Module;
use crate::region::Region;

/// Type names by type index, read from the Types section.
#[inline]
pub(crate) fn read<'a>(region: &Region<'a>, strings: &Strings<'a>, budget: Budget) -> Result<Vec<&'a str>> {
    name_table::read(region, strings, budget, "types")
}

pub(crate) fn write(module: &Module<'_>, strings: &StringOffsets<'_>) -> Buffer<'static> {
    name_table::write(module.type_names(), strings)
}

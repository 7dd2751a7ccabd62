//! Section 2, Kernels: the names of the kernels. Functions refer to them by position, the kernel code.

use super::name_table;
use super::strings::{StringOffsets, Strings};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::limits::Budget;
use crate::model::Module;
use crate::region::Region;

/// Kernel names by kernel code, read from the Kernels section.
#[inline]
pub(crate) fn read<'a>(region: &Region<'a>, strings: &Strings<'a>, budget: Budget) -> Result<Vec<&'a str>> {
    name_table::read(region, strings, budget, "kernels")
}

pub(crate) fn write(module: &Module<'_>, strings: &StringOffsets<'_>) -> Buffer<'static> {
    name_table::write(module.kernel_names(), strings)
}

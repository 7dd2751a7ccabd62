//! `VBR count`, then a VBR string offset each: the layout that Kernels and Types share.

use super::strings::{StringOffsets, Strings};
use crate::buffer::Buffer;
use crate::error::{InField, Result};
use crate::limits::Budget;
use crate::region::Region;

/// The names of a Kernels or Types section, in the order of the table.
#[inline]
pub(super) fn read<'a>(
    region: &Region<'a>,
    strings: &Strings<'a>,
    mut budget: Budget,
    table: &str,
) -> Result<Vec<&'a str>> {
    let mut read = || {
        let mut cursor = region.cursor();
        let count = cursor.count("names", 1)?;
        let strings = strings.for_names(count);
        let mut names = Vec::with_capacity(count as usize);
        for index in 0..count {
            let at = cursor.offset();
            let name = cursor.vbr().and_then(|offset| strings.get(offset));
            let name = name.and_then(|name| budget.spend(name.len() as u64, at).map(|()| name));
            names.push(name.in_field(|| format!("[{index}]"))?);
        }
        cursor.finish()?;
        Ok(names)
    };
    read().in_field(|| table)
}

pub(super) fn write<'m>(
    names: impl ExactSizeIterator<Item = &'m str>,
    strings: &StringOffsets<'_>,
) -> Buffer<'static> {
    let mut out = Buffer::new();
    out.vbr(names.len() as u64);
    names.for_each(|name| out.vbr(strings.offset_of(name)));
    out
}

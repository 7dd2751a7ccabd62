//! `VBR count`, then a VBR string offset each: the layout that Kernels and Types share.

use super::strings::{StringOffsets, Strings};
use crate::buffer::Buffer;
use crate::error::{Result, Within};
use crate::region::Region;

/// The names, in table order.
pub(super) fn read<'a>(region: Region<'a>, strings: Strings<'a>, table: &str) -> Result<Vec<&'a str>> {
    let mut cursor = region.cursor();
    let mut read = || {
        let count = cursor.count("names", 1)?;
        let mut names = Vec::with_capacity(count as usize);
        for index in 0..count {
            let name = cursor.vbr().and_then(|offset| strings.get(offset));
            names.push(name.within(|| format!("[{index}]"))?);
        }
        cursor.finish()?;
        Ok(names)
    };
    read().within(|| table)
}

pub(super) fn write<'m>(
    names: impl ExactSizeIterator<Item = &'m str>,
    strings: &StringOffsets<'_>,
) -> Buffer<'static> {
    let mut out = Buffer::new();
    out.vbr(names.len() as u64);
    names.for_each(|name| out.vbr(strings.of(name)));
    out
}

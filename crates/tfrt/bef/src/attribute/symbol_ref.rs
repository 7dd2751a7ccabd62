//! Symbols inside compiled modules, unaligned: `VBR id, VBR len(root), VBR n, VBR len(nested) * n, VBR len(text)`,
//! then root, nested names and the module's text, and one NUL.

use std::borrow::Cow;

use super::string::text;
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::region::Region;

/// A symbol inside a `tfrt.compiled` module, with the module itself as text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SymbolRef<'a> {
    /// Sequence number of the symbol in the file.
    pub id: u64,
    /// Outermost symbol.
    pub root: Cow<'a, str>,
    /// The rest of the path below the root: a nested symbol for each level, outermost first.
    pub nested: Vec<Cow<'a, str>>,
    /// The enclosing compiled module in MLIR's generic form.
    pub module: Cow<'a, str>,
}

impl<'a> SymbolRef<'a> {
    /// The symbol with its texts owned: copied if they are borrowed from a file.
    pub fn into_owned(self) -> SymbolRef<'static> {
        let owned = |text: Cow<'a, str>| Cow::Owned(text.into_owned());
        SymbolRef {
            id: self.id,
            root: owned(self.root),
            nested: self.nested.into_iter().map(owned).collect(),
            module: owned(self.module),
        }
    }
}

/// Reads the symbol at `offset`. Also returns the offset of its end.
pub(super) fn read(region: Region<'_>, offset: u64) -> Result<(SymbolRef<'_>, u64)> {
    let mut cursor = region.slice_from(offset)?.cursor();
    let id = cursor.vbr().in_field(|| "id")?;
    let root = cursor.vbr().in_field(|| "root")?;
    // Each nested symbol takes at least one byte, that of its length.
    let nested = cursor.count("nested symbols", 1)?;
    let nested: Vec<u64> = (0..nested)
        .map(|index| cursor.vbr().in_field(|| format!("nested[{index}]")))
        .collect::<Result<_>>()?;
    let module = cursor.vbr().in_field(|| "module")?;
    let root = cursor.take(root).and_then(text).in_field(|| "root")?;
    let mut names = Vec::with_capacity(nested.len());
    for (index, length) in nested.into_iter().enumerate() {
        let name = cursor.take(length).and_then(text).in_field(|| format!("nested[{index}]"))?;
        names.push(name.into());
    }
    let module = cursor.take(module).and_then(text).in_field(|| "module")?;
    let at = cursor.offset();
    let end = cursor.u8()?;
    if end != 0 {
        return Err(Error::new(ErrorKind::String, at, format!("{end:#04x}"), "NUL after the module's text"));
    }
    let symbol = SymbolRef { id, root: root.into(), nested: names, module: module.into() };
    Ok((symbol, offset + cursor.position()))
}

/// Appends a symbol and returns its offset.
pub(super) fn write<'m>(symbol: &'m SymbolRef<'_>, out: &mut Buffer<'m>) -> u64 {
    let offset = out.len();
    out.vbr(symbol.id);
    out.vbr(symbol.root.len() as u64);
    out.vbr(symbol.nested.len() as u64);
    symbol.nested.iter().for_each(|name| out.vbr(name.len() as u64));
    out.vbr(symbol.module.len() as u64);
    out.bytes(symbol.root.as_bytes());
    symbol.nested.iter().for_each(|name| out.bytes(name.as_bytes()));
    out.payload(symbol.module.as_bytes());
    out.byte(0);
    offset
}

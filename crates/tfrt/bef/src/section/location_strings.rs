//! Section 6, LocationStrings: like section 0, but each string is written when a location first uses it.

use std::collections::HashMap;

use super::strings;
use crate::buffer::Buffer;
use crate::error::Result;

pub use super::strings::Strings as LocationStrings;

/// The strings of the locations written so far.
#[derive(Debug)]
pub(super) struct LocationStringsWriter<'m> {
    out: Buffer<'m>,
    offsets: HashMap<&'m str, u64>,
}

impl<'m> LocationStringsWriter<'m> {
    pub(super) fn new() -> Self {
        LocationStringsWriter { out: Buffer::new(), offsets: HashMap::new() }
    }

    /// The offset of `string`, which is appended if it is new.
    pub(super) fn intern(&mut self, string: &'m str) -> Result<u64> {
        if let Some(&offset) = self.offsets.get(string) {
            return Ok(offset);
        }
        let offset = self.out.len();
        strings::write_string(string, &mut self.out)?;
        self.offsets.insert(string, offset);
        Ok(offset)
    }

    pub(super) fn finish(self) -> Buffer<'m> {
        self.out
    }
}

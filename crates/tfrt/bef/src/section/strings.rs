//! Section 0, Strings: NUL-terminated names, referred to by byte offset.
//!
//! Writers sort them bytewise and write each once: names of kernels, types and functions, and, if the optional sections
//! are written, names of attributes.

use std::collections::{BTreeSet, HashMap};
use std::str::Utf8Error;

use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::model::Module;
use crate::region::Region;

/// The strings of a Strings or LocationStrings section.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strings<'a> {
    region: Region<'a>,
    /// The whole section if it is known to be UTF-8, otherwise empty.
    text: &'a str,
}

/// A section of at most this many bytes per name is validated as a whole: that is faster than name by name.
const BYTES_PER_NAME: u64 = 32;

/// Offset and length of the most recently checked string, since consecutive checks are mostly of one string.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastString(Option<(u64, u64)>);

impl<'a> Strings<'a> {
    pub(crate) fn new(region: Region<'a>) -> Self {
        Strings { region, text: "" }
    }

    /// For a reader of about `names` names: if there are many for the size of the section, validates the whole section
    /// at once, which takes less time than validating each name.
    pub(crate) fn for_names(&self, names: u64) -> Self {
        let validates_section = self.region.len() <= names.saturating_mul(BYTES_PER_NAME);
        if validates_section && self.text.is_empty() { self.validated() } else { *self }
    }

    /// Validates the whole section as UTF-8.
    pub(crate) fn validated(&self) -> Self {
        Strings { text: std::str::from_utf8(self.region.bytes()).unwrap_or_default(), ..*self }
    }

    /// Checks every string.
    ///
    /// # Errors
    /// As [`get`](Self::get), for the first malformed one.
    pub(crate) fn check(&self) -> Result<()> {
        // Valid UTF-8 that ends with a NUL consists of complete strings.
        if self.text.ends_with('\0') {
            return Ok(());
        }
        self.iter().try_for_each(|string| string.map(drop))
    }

    /// The string that starts at `offset`.
    ///
    /// # Errors
    /// When no string starts there, it has no end, or it is not UTF-8.
    #[inline]
    pub fn get(&self, offset: u64) -> Result<&'a str> {
        self.read_string(offset).in_field(|| format!("strings[{offset}]"))
    }

    /// Checks that a string starts at `offset`, but not its text, and returns its length including the NUL. `last`
    /// caches the previously checked string.
    #[inline]
    pub(crate) fn check_start(&self, offset: u64, last: &mut LastString) -> Result<u64> {
        if let Some((start, len)) = last.0
            && start == offset
        {
            return Ok(len);
        }
        let len = self.len_at(offset)?;
        last.0 = Some((offset, len));
        Ok(len)
    }

    fn len_at(&self, offset: u64) -> Result<u64> {
        let start = self.check_offset(offset).in_field(|| format!("strings[{offset}]"))?;
        let tail = &self.region.bytes()[start..];
        Ok(find_nul(tail).map_or(tail.len(), |length| length + 1) as u64)
    }

    #[inline]
    fn check_offset(&self, offset: u64) -> Result<usize> {
        let bytes = self.region.bytes();
        match usize::try_from(offset) {
            Ok(start) if start < bytes.len() && (start == 0 || bytes[start - 1] == 0) => Ok(start),
            _ => Err(self.not_a_start_error(offset)),
        }
    }

    #[cold]
    fn not_a_start_error(&self, offset: u64) -> Error {
        if offset < self.region.len() {
            let at = self.region.start() + offset;
            return Error::new(ErrorKind::NotAStart, at, "the middle of a string", "the start of one");
        }
        Error::new(
            ErrorKind::OutOfRange,
            self.region.start(),
            format!("string offset {offset}"),
            format!("one below {}, the size of the section's strings", self.region.len()),
        )
    }

    #[inline(always)]
    fn read_string(&self, offset: u64) -> Result<&'a str> {
        let start = self.check_offset(offset)?;
        let tail = &self.region.bytes()[start..];
        let Some(length) = find_nul(tail) else { return Err(self.missing_nul(offset)) };
        match self.text.get(start..start + length) {
            Some(string) => Ok(string),
            None => std::str::from_utf8(&tail[..length]).map_err(|error| self.invalid_utf8(offset, error)),
        }
    }

    #[cold]
    fn missing_nul(&self, offset: u64) -> Error {
        let at = self.region.start() + offset;
        Error::new(ErrorKind::String, at, "no NUL up to the end of the section", "a NUL")
    }

    #[cold]
    fn invalid_utf8(&self, offset: u64, error: Utf8Error) -> Error {
        let bad = self.region.start() + offset + error.valid_up_to() as u64;
        Error::new(ErrorKind::String, bad, "bytes that are not UTF-8", "a name in UTF-8")
    }

    /// All strings with their offsets, in file order. Stops after the first malformed one.
    pub fn iter(&self) -> impl Iterator<Item = Result<(u64, &'a str)>> + use<'a> {
        let strings = *self;
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let offset = next.take().filter(|&offset| offset < strings.region.len())?;
            let string = strings.get(offset);
            if let Ok(string) = string {
                next = Some(offset + string.len() as u64 + 1);
            }
            Some(string.map(|string| (offset, string)))
        })
    }
}

/// Position of the first NUL. Reads 8 bytes at a time without an alignment prologue, since names are short.
#[inline]
fn find_nul(bytes: &[u8]) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let (words, _) = bytes.as_chunks::<8>();
    for (index, &word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(word);
        // Sets the top bit of each zero byte, and perhaps of bytes after the first zero byte.
        let nuls = word.wrapping_sub(LOW) & !word & LOW << 7;
        if nuls != 0 {
            return Some(index * 8 + nuls.trailing_zeros() as usize / 8);
        }
    }
    let done = words.len() * 8;
    let rest = bytes[done..].iter().position(|&byte| byte == 0)?;
    Some(done + rest)
}

/// The offset of each string in the Strings section of a file being written.
pub(crate) struct StringOffsets<'m> {
    offsets: HashMap<&'m str, u64>,
}

impl StringOffsets<'_> {
    /// The offset of a string of the module; [`write`] has collected all of them.
    pub(crate) fn offset_of(&self, string: &str) -> u64 {
        self.offsets.get(string).copied().unwrap_or_default()
    }
}

/// Collects the module's strings and lays them out.
pub(crate) fn write<'m>(module: &'m Module<'_>) -> Result<(Buffer<'m>, StringOffsets<'m>)> {
    let mut strings: BTreeSet<&str> = module.extra_strings().collect();
    strings.extend(module.kernel_names());
    strings.extend(module.type_names());
    for function in &module.functions {
        strings.insert(&function.name);
        if module.optional_sections {
            let kernels = function.body.iter().flat_map(|body| &body.kernels);
            strings.extend(kernels.flat_map(|kernel| &kernel.attributes).filter_map(|a| a.name.as_deref()));
        }
    }
    let mut out = Buffer::new();
    let mut offsets = HashMap::with_capacity(strings.len());
    for string in strings {
        offsets.insert(string, out.len());
        write_string(string, &mut out)?;
    }
    Ok((out, StringOffsets { offsets }))
}

/// Appends a NUL-terminated string.
pub(super) fn write_string(string: &str, out: &mut Buffer<'_>) -> Result<()> {
    if string.contains('\0') {
        return Err(Error::without_offset(
            ErrorKind::String,
            format!("the name {string:?}"),
            "a name without NUL: names are NUL-terminated in the file",
        ));
    }
    out.bytes(string.as_bytes());
    out.byte(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_found_by_the_offset_of_their_first_byte() {
        let strings = Strings::new(Region::new(b"\0add\0i32\0", 100));
        let all: Vec<_> = strings.iter().map(Result::unwrap).collect();
        assert_eq!(all, [(0, ""), (1, "add"), (5, "i32")]);
        let error = strings.get(2).unwrap_err();
        assert_eq!((error.kind, error.offset), (ErrorKind::NotAStart, Some(102)));
        assert_eq!(strings.get(9).unwrap_err().kind, ErrorKind::OutOfRange);
        assert_eq!(strings.get(u64::MAX).unwrap_err().kind, ErrorKind::OutOfRange);
    }

    #[test]
    fn unterminated_and_non_utf8_strings_are_rejected() {
        let strings = Strings::new(Region::new(b"\xFF\0add", 7));
        assert_eq!(strings.get(0).unwrap_err().kind, ErrorKind::String);
        let error = strings.get(2).unwrap_err();
        assert_eq!((error.kind, error.offset), (ErrorKind::String, Some(9)));
        assert_eq!(error.path, "strings[2]");
    }
}

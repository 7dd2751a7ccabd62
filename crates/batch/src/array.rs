use std::borrow::Cow;

/// A borrowed Arrow array: its type, and its buffers as slices. Nothing is trusted: a buffer may be shorter than the array needs.
#[derive(Debug, Clone)]
pub struct Array<'a> {
    /// The type as a format string of Arrow's C data interface, such as `f` or `+l`.
    pub format: Cow<'a, str>,
    /// The number of elements.
    pub length: usize,
    /// The position of the first element in the buffers.
    pub offset: usize,
    /// Which elements are not null; `None` if all of them.
    pub validity: Option<Bitmap<'a>>,
    /// The buffers behind the validity bitmap, in the order of the C data interface; for views without the buffer of sizes.
    pub buffers: Vec<&'a [u8]>,
    /// The arrays of the elements of lists.
    pub children: Vec<Array<'a>>,
    /// The values of a dictionary-encoded array, whose `format` is that of the indices.
    pub dictionary: Option<Box<Array<'a>>>,
}

/// Bits, packed from the lowest of each byte.
#[derive(Debug, Clone, Copy)]
pub struct Bitmap<'a> {
    /// The bytes.
    pub bits: &'a [u8],
    /// The position of the first bit.
    pub offset: usize,
}

impl Bitmap<'_> {
    /// Whether a bit is set, counted from the first; false behind the end.
    pub fn is_set(&self, index: usize) -> bool {
        is_set(self.bits, self.offset.saturating_add(index))
    }
}

/// Whether bit `index` is set, counted from the lowest bit of the first byte; false behind the end.
pub(crate) fn is_set(bits: &[u8], index: usize) -> bool {
    bits.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}

impl<'a> Array<'a> {
    /// The position behind the last element in the buffers.
    pub(crate) fn end(&self) -> Result<usize, String> {
        self.offset.checked_add(self.length).ok_or_else(|| TOO_LONG.to_owned())
    }

    /// A buffer behind the validity bitmap, which has this number of bytes or more.
    pub(crate) fn buffer(&self, index: usize, bytes: usize) -> Result<&'a [u8], String> {
        match self.buffers.get(index) {
            Some(buffer) if buffer.len() >= bytes => Ok(buffer),
            None if bytes == 0 => Ok(&[]),
            _ => Err("an Arrow array lacks a buffer".to_owned()),
        }
    }
}

/// The error of an array whose bytes cannot be counted.
pub(crate) const TOO_LONG: &str = "an Arrow array is too long";

//! Elements that Arrow stores in another form than programs take: dictionary indices, views and decimals.

use crate::array::{Array, Bitmap, TOO_LONG};
use pteron_tensor::{ScalarType, memory};

/// The positions of rows in a dictionary.
pub(crate) struct Indices<'a> {
    bytes: &'a [u8],
    /// Bytes of an index.
    width: usize,
    is_signed: bool,
    offset: usize,
    validity: Option<Bitmap<'a>>,
}

impl<'a> Indices<'a> {
    /// The indices of an array; `None` if they are not integers.
    pub(crate) fn new(array: &Array<'a>) -> Result<Option<Self>, String> {
        let (width, is_signed) = match &*array.format {
            "c" => (1, true),
            "C" => (1, false),
            "s" => (2, true),
            "S" => (2, false),
            "i" => (4, true),
            "I" => (4, false),
            "l" => (8, true),
            "L" => (8, false),
            _ => return Ok(None),
        };
        let bytes = array.buffer(0, array.end()?.checked_mul(width).ok_or(TOO_LONG)?)?;
        Ok(Some(Self { bytes, width, is_signed, offset: array.offset, validity: array.validity }))
    }

    /// The position of a row in the dictionary.
    pub(crate) fn get(&self, row: usize) -> Result<usize, String> {
        if self.validity.is_some_and(|validity| !validity.is_set(row)) {
            return Err("it is null".to_owned());
        }
        let at = self.offset + row;
        let bytes = self.bytes.get(at * self.width..(at + 1) * self.width);
        let index = bytes.and_then(|bytes| usize::try_from(integer(bytes, self.is_signed)).ok());
        index.ok_or_else(|| "its index is outside the dictionary".to_owned())
    }
}

/// An integer of up to 16 bytes, in native byte order.
fn integer(bytes: &[u8], is_signed: bool) -> i128 {
    let is_negative = match cfg!(target_endian = "little") {
        true => bytes.last().is_some_and(|byte| byte >> 7 == 1),
        false => bytes.first().is_some_and(|byte| byte >> 7 == 1),
    };
    let mut wide = if is_signed && is_negative { [0xff; 16] } else { [0; 16] };
    match cfg!(target_endian = "little") {
        true => wide[..bytes.len()].copy_from_slice(bytes),
        false => wide[16 - bytes.len()..].copy_from_slice(bytes),
    }
    i128::from_ne_bytes(wide)
}

/// The size of a view in bytes.
const VIEW: usize = 16;

/// The maximum number of bytes that a view holds itself.
const INLINE: usize = 12;

/// Binary values as views of buffers.
pub(crate) struct Views<'a> {
    views: &'a [u8],
    buffers: Vec<&'a [u8]>,
}

impl<'a> Views<'a> {
    /// The views of an array.
    pub(crate) fn new(array: &Array<'a>) -> Result<Self, String> {
        let views = array.buffer(0, array.end()?.checked_mul(VIEW).ok_or(TOO_LONG)?)?;
        Ok(Self { views, buffers: array.buffers.iter().skip(1).copied().collect() })
    }

    /// The bytes of the value whose view is at position `at` of the buffer, in which the array's offset counts.
    pub(crate) fn get(&self, at: usize) -> Result<&[u8], String> {
        let broken = || "its view is not valid".to_owned();
        let view = self.views.get(at * VIEW..(at + 1) * VIEW).ok_or_else(broken)?;
        let number = |at: usize| usize::try_from(integer(&view[at..at + 4], true)).map_err(|_| broken());
        let size = number(0)?;
        if size <= INLINE {
            return Ok(&view[4..4 + size]);
        }
        let (buffer, start) = (number(8)?, number(12)?);
        let end = start.checked_add(size).ok_or_else(broken)?;
        self.buffers.get(buffer).and_then(|bytes| bytes.get(start..end)).ok_or_else(broken)
    }
}

/// Decimals as numbers: int64 if they are integers that fit, otherwise float64. `None` for another format.
pub(crate) fn decimals(array: &Array<'_>) -> Result<Option<(ScalarType, Vec<u8>)>, String> {
    let Some((precision, scale, bytes)) = decimal_of(&array.format) else { return Ok(None) };
    let end = array.end()?;
    let size = end.checked_mul(bytes).ok_or(TOO_LONG)?;
    let elements = &array.buffer(0, size)?[..size];
    let is_int = scale == 0 && precision <= 18;
    let mut numbers: Vec<u8> = memory::with_room(end.saturating_mul(8)).map_err(|e| e.to_string())?;
    for element in elements.chunks_exact(bytes) {
        match is_int {
            true => numbers.extend((integer(low_16_bytes(element), true) as i64).to_ne_bytes()),
            false if scale < 0 => {
                numbers.extend((float(element) * 10f64.powi(scale.saturating_neg())).to_ne_bytes())
            }
            false => numbers.extend((float(element) / 10f64.powi(scale)).to_ne_bytes()),
        }
    }
    Ok(Some((if is_int { ScalarType::Long } else { ScalarType::Double }, numbers)))
}

/// The precision, the scale and the bytes of an element of a format such as `d:10,2` or `d:10,2,256`.
fn decimal_of(format: &str) -> Option<(u32, i32, usize)> {
    let mut parts = format.strip_prefix("d:")?.split(',');
    let (precision, scale) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let bits = parts.next().map_or(Some(128usize), |bits| bits.parse().ok())?;
    matches!(bits, 32 | 64 | 128 | 256).then_some((precision, scale, bits / 8))
}

/// The bytes of an integer's low 128 bits; all of them if it has fewer.
fn low_16_bytes(element: &[u8]) -> &[u8] {
    match cfg!(target_endian = "little") {
        true => &element[..element.len().min(16)],
        false => &element[element.len().saturating_sub(16)..],
    }
}

/// An integer of up to 32 bytes as a float.
fn float(element: &[u8]) -> f64 {
    if element.len() <= 16 {
        return integer(element, true) as f64;
    }
    let high = match cfg!(target_endian = "little") {
        true => &element[16..],
        false => &element[..16],
    };
    let low = integer(low_16_bytes(element), true);
    // A small number's high half only repeats its sign.
    match integer(high, true) {
        high if high == low >> 127 => low as f64,
        high => high as f64 * 2f64.powi(128) + low as u128 as f64,
    }
}

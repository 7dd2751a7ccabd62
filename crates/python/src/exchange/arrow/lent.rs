//! Imported arrays as slices, and built arrays as nodes.

use super::buffers::{buffer, validity};
use super::field::Field;
use super::node::Node;
use pteron::tensor::AlignedBuffer;
use pteron_batch::{Array, Bitmap, BuiltArray};
use std::borrow::Cow;
use std::ffi::c_void;
use std::ptr;

const TOO_LONG: &str = "an Arrow array is too long";

/// The bytes of an array, borrowed. Of a type that columns do not support, there is nothing but the format.
///
/// # Safety
/// The field must be that of the array, and the array's memory must be valid and not written to during `'a`.
pub(super) unsafe fn lend<'a>(field: &'a Field, node: &Node) -> Result<Array<'a>, String> {
    // SAFETY: the caller's obligation; the dictionary is a part of the array.
    let (validity, dictionary, buffers) = unsafe {
        let dictionary = match (field.dictionary(), node.dictionary()) {
            (None, _) => None,
            (Some(values), Some(dictionary)) => Some(Box::new(lend(values, dictionary)?)),
            (Some(_), None) => return Err("an Arrow array lacks its dictionary".to_owned()),
        };
        (validity(node)?, dictionary, buffers(field.format(), node)?)
    };
    let children = match (field.format().starts_with('+'), field.children.first(), node.children.first()) {
        // SAFETY: the caller's obligation; a child is a part of the array.
        (true, Some(field), Some(node)) => vec![unsafe { lend(field, node)? }],
        _ => Vec::new(),
    };
    Ok(Array {
        format: Cow::Borrowed(field.format()),
        length: node.length,
        offset: node.offset,
        validity: validity.map(|bits| Bitmap { bits, offset: node.offset }),
        buffers,
        children,
        dictionary,
    })
}

/// The buffers behind the validity bitmap of an array of this format; none for a format that columns do not support.
///
/// # Safety
/// As [`lend`].
unsafe fn buffers<'a>(format: &str, node: &Node) -> Result<Vec<&'a [u8]>, String> {
    let end = node.offset.checked_add(node.length).ok_or(TOO_LONG)?;
    let bytes = |width: usize| end.checked_mul(width).ok_or(TOO_LONG);
    // SAFETY: the interface defines which buffers arrays of a format have, and their lengths; the rest is the caller's
    // obligation.
    unsafe {
        Ok(match format {
            "b" => vec![buffer(node, 1, end.div_ceil(8))?],
            "c" | "C" => vec![buffer(node, 1, end)?],
            "s" | "S" | "e" => vec![buffer(node, 1, bytes(2)?)?],
            "i" | "I" | "f" => vec![buffer(node, 1, bytes(4)?)?],
            "l" | "L" | "g" => vec![buffer(node, 1, bytes(8)?)?],
            "vz" => views(node, bytes(16)?)?,
            "z" => {
                let offsets = offsets(node, 4)?;
                let last = offsets.last_chunk().map_or(0, |&bytes| i64::from(i32::from_ne_bytes(bytes)));
                vec![offsets, buffer(node, 2, end_of_bytes(last)?)?]
            }
            "Z" => {
                let offsets = offsets(node, 8)?;
                let last = offsets.last_chunk().map_or(0, |&bytes| i64::from_ne_bytes(bytes));
                vec![offsets, buffer(node, 2, end_of_bytes(last)?)?]
            }
            "+l" => vec![offsets(node, 4)?],
            "+L" => vec![offsets(node, 8)?],
            _ => match element_width(format) {
                Some(width) => vec![buffer(node, 1, bytes(width)?)?],
                None => Vec::new(),
            },
        })
    }
}

/// The bytes of an element of binary values of fixed size, `w:12`, or of decimals, `d:10,2` or `d:10,2,256`.
fn element_width(format: &str) -> Option<usize> {
    if let Some(size) = format.strip_prefix("w:") {
        return size.parse().ok();
    }
    match format.strip_prefix("d:")?.split(',').nth(2).map_or(Ok(128), str::parse) {
        Ok(bits @ (32 | 64 | 128 | 256)) => Some(bits / 8),
        _ => None,
    }
}

fn end_of_bytes(last: i64) -> Result<usize, String> {
    usize::try_from(last).map_err(|_| "an Arrow array has a negative offset".to_owned())
}

/// The offsets buffer of an array of lists, which has one more entry than there are lists. An array of length 0 may
/// lack it.
///
/// # Safety
/// As [`lend`].
unsafe fn offsets<'a>(node: &Node, width: usize) -> Result<&'a [u8], String> {
    let count = (node.offset + node.length).checked_add(1).and_then(|count| count.checked_mul(width));
    match node.length {
        0 => Ok(&[]),
        // SAFETY: the caller's obligation.
        _ => unsafe { buffer(node, 1, count.ok_or(TOO_LONG)?) },
    }
}

/// The views of an array, and the buffers that they are of.
///
/// # Safety
/// As [`lend`].
unsafe fn views<'a>(node: &Node, bytes: usize) -> Result<Vec<&'a [u8]>, String> {
    let count = node.buffers.len().saturating_sub(3);
    // SAFETY: an array of views has the validity, the views, any number of buffers, and the sizes of these buffers; the
    // rest is the caller's obligation.
    unsafe {
        let sizes: &[i64] = buffer(node, count + 2, count)?;
        let mut buffers = vec![buffer(node, 1, bytes)?];
        for (i, &size) in sizes.iter().enumerate() {
            let size = usize::try_from(size).map_err(|_| "an Arrow array has a negative size".to_owned())?;
            buffers.push(buffer(node, i + 2, size)?);
        }
        Ok(buffers)
    }
}

/// The type and the addresses of a new array; its buffers are added to `owned`, which must live as long.
pub(super) fn take_over(array: BuiltArray, owned: &mut Vec<AlignedBuffer>) -> (Field, Node) {
    let (fields, nodes) = array.items.map(|items| take_over(*items, owned)).into_iter().unzip();
    let mut addresses: Vec<*const c_void> =
        vec![array.validity.as_ref().map_or(ptr::null(), |bits| bits.as_ptr().cast())];
    addresses.extend(array.buffers.iter().map(|bytes| bytes.as_ptr().cast::<c_void>()));
    owned.extend(array.validity);
    owned.extend(array.buffers);
    let field = Field::new(&array.format, &array.name, fields);
    (field, Node::new(array.length, array.null_count, addresses, nodes))
}

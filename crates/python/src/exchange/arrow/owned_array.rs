//! Creates Arrow arrays from computed columns.

use super::field::Field;
use super::node::Node;
use crate::errors::{Failure, Result};
use pteron::tensor::AlignedBuffer;
use pteron::{ScalarType, Shape, bf16};
use pteron_toolbox::batch::{Cells, OutputColumn};
use std::ffi::c_void;
use std::ptr;

/// The Arrow list type that is used for rows of several elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    /// Fixed-size lists, with the sizes that the output has in every row.
    Fixed,
    /// Variable-size lists, also for fixed sizes, for engines without fixed-size lists.
    Any,
}

/// A new array with its buffers.
pub(crate) struct OwnedArray {
    pub(super) field: Field,
    pub(super) node: Node,
    pub(super) buffers: Vec<AlignedBuffer>,
}

impl OwnedArray {
    /// Copies `bytes` to a new buffer, appends that to `buffers`, and returns the buffer's address.
    fn push_buffer(buffers: &mut Vec<AlignedBuffer>, bytes: &[u8]) -> Result<*const c_void> {
        let buffer = AlignedBuffer::from_slice(bytes)?;
        let start = buffer.as_ptr().cast();
        buffers.push(buffer);
        Ok(start)
    }

    /// Adds the rows' validity bitmap to `buffers`; returns its address (null if all are valid) and the null count.
    fn push_validity(buffers: &mut Vec<AlignedBuffer>, valid: &[bool]) -> Result<(*const c_void, usize)> {
        let nulls = valid.iter().filter(|&&valid| !valid).count();
        match nulls {
            0 => Ok((ptr::null(), 0)),
            _ => Ok((Self::push_buffer(buffers, &pack_bits(valid.iter().copied()))?, nulls)),
        }
    }

    /// The column of an output.
    ///
    /// # Errors
    /// If Arrow lacks the element type, if rows do not have the fixed sizes of the list type, or if there are more
    /// elements than Arrow's offsets can count.
    pub(crate) fn from_output(column: &OutputColumn, name: &str, lists: Lists) -> Result<Self> {
        let mut buffers = Vec::new();
        let rows = column.valid.len();
        let wrong = |row: &Shape| {
            Failure::Input(format!(
                "output `{name}` has rows of the sizes {:?}, and its column lists of {:?}: write it with lists=\"any\"",
                &row[..],
                column.spec.row
            ))
        };
        let fixed: &[usize] = match (&column.cells, lists) {
            (Cells::Equal { row, .. }, Lists::Fixed) if **row != *column.spec.row => return Err(wrong(row)),
            (Cells::Ragged { rows, .. }, Lists::Fixed) => {
                let row =
                    rows.iter().zip(&column.valid).find(|(row, valid)| **valid && ***row != *column.spec.row);
                return Err(wrong(row.map_or(&Shape::default(), |(row, _)| row)));
            }
            (Cells::Equal { row, .. }, _) => row,
            (Cells::Ragged { .. }, _) => &[],
        };
        let (format, elements) = arrow_elements(column.spec.dtype, column.cells.bytes(), name)?;
        let count = column.cells.bytes().len() / column.spec.dtype.size();
        let data = Self::push_buffer(&mut buffers, &elements)?;
        let rank = column.spec.row.len();
        let (validity, nulls) = Self::push_validity(&mut buffers, &column.valid)?;
        let top = |depth: usize| if depth == 0 { (validity, nulls) } else { (ptr::null(), 0) };
        let (start, missing) = top(rank);
        let mut field = Field::new(format, if rank == 0 { name } else { "item" }, Vec::new());
        let mut node = Node::new(count, missing, vec![start, data], Vec::new());
        for depth in (0..rank).rev() {
            let name = if depth == 0 { name } else { "item" };
            let (start, missing) = top(depth);
            match lists {
                Lists::Fixed => {
                    let length = rows * fixed[..depth].iter().product::<usize>();
                    field = Field::new(&format!("+w:{}", fixed[depth]), name, vec![field]);
                    node = Node::new(length, missing, vec![start], vec![node]);
                }
                Lists::Any => {
                    let offsets = offset_bytes(&column.cells, rows, depth, name)?;
                    let length = offsets.len() / size_of::<i32>() - 1;
                    let offsets = Self::push_buffer(&mut buffers, &offsets)?;
                    field = Field::new("+l", name, vec![field]);
                    node = Node::new(length, missing, vec![start, offsets], vec![node]);
                }
            }
        }
        Ok(Self { field, node, buffers })
    }

    /// A nullable column of strings.
    pub(crate) fn from_texts(name: &str, texts: &[Option<String>]) -> Result<Self> {
        let mut buffers = Vec::new();
        let valid: Vec<bool> = texts.iter().map(Option::is_some).collect();
        let (validity, nulls) = Self::push_validity(&mut buffers, &valid)?;
        let (mut bytes, mut offsets) = (Vec::new(), vec![0; size_of::<i32>()]);
        for text in texts {
            bytes.extend_from_slice(text.as_deref().unwrap_or_default().as_bytes());
            offsets.extend(checked_offset(bytes.len(), name)?.to_ne_bytes());
        }
        let (offsets, bytes) =
            (Self::push_buffer(&mut buffers, &offsets)?, Self::push_buffer(&mut buffers, &bytes)?);
        let field = Field::new("u", name, Vec::new());
        let node = Node::new(texts.len(), nulls, vec![validity, offsets, bytes], Vec::new());
        Ok(Self { field, node, buffers })
    }
}

impl OwnedArray {
    /// A column of the labels that an output has the indices of: strings, or lists of strings.
    ///
    /// # Errors
    /// If there are more indices than Arrow's offsets can count.
    pub(crate) fn from_labels(column: &OutputColumn, labels: &[String], name: &str) -> Result<Self> {
        let indices = column.cells.bytes().chunks_exact(size_of::<i64>());
        let indices = indices.map(index_of);
        let texts: Vec<Option<String>> = indices.map(|index| labels.get(index).cloned()).collect();
        if column.spec.row.is_empty() {
            let valid = texts.into_iter().zip(&column.valid).map(|(text, valid)| text.filter(|_| *valid));
            return Self::from_texts(name, &valid.collect::<Vec<_>>());
        }
        let Self { field, node, mut buffers } = Self::from_texts("item", &texts)?;
        let (validity, nulls) = Self::push_validity(&mut buffers, &column.valid)?;
        let offsets =
            Self::push_buffer(&mut buffers, &offset_bytes(&column.cells, column.valid.len(), 0, name)?)?;
        let node = Node::new(column.valid.len(), nulls, vec![validity, offsets], vec![node]);
        Ok(Self { field: Field::new("+l", name, vec![field]), node, buffers })
    }
}

/// Decodes an index that `top` has found; `usize::MAX` if it is invalid.
fn index_of(bytes: &[u8]) -> usize {
    let bytes = bytes.try_into().unwrap_or([0xff; size_of::<i64>()]);
    usize::try_from(i64::from_ne_bytes(bytes)).unwrap_or(usize::MAX)
}

/// Packs booleans into bits.
fn pack_bits(values: impl ExactSizeIterator<Item = bool>) -> Vec<u8> {
    let mut bits = vec![0; values.len().div_ceil(8)];
    for (i, value) in values.enumerate() {
        bits[i / 8] |= u8::from(value) << (i % 8);
    }
    bits
}

/// The Arrow format string of the elements, and the elements' bytes in that format.
fn arrow_elements<'a>(
    dtype: ScalarType,
    bytes: &'a [u8],
    name: &str,
) -> Result<(&'static str, std::borrow::Cow<'a, [u8]>)> {
    let format = match dtype {
        ScalarType::Char => "c",
        ScalarType::Byte => "C",
        ScalarType::Short => "s",
        ScalarType::UInt16 => "S",
        ScalarType::Int => "i",
        ScalarType::UInt32 => "I",
        ScalarType::Long => "l",
        ScalarType::UInt64 => "L",
        ScalarType::Half => "e",
        ScalarType::Float => "f",
        ScalarType::Double => "g",
        ScalarType::Bool => return Ok(("b", pack_bits(bytes.iter().map(|&byte| byte != 0)).into())),
        // Arrow lacks bfloat16: convert it to float32, which is exact.
        ScalarType::BFloat16 => {
            let wide = bytes.chunks_exact(2).map(|pair| bf16::from_ne_bytes([pair[0], pair[1]]).to_f32());
            return Ok(("f", wide.flat_map(f32::to_ne_bytes).collect::<Vec<_>>().into()));
        }
        other => {
            return Err(Failure::Input(format!("output `{name}` is {other}, which Arrow does not have")));
        }
    };
    Ok((format, bytes.into()))
}

fn checked_offset(n: usize, name: &str) -> Result<i32> {
    i32::try_from(n).map_err(|_| {
        Failure::Input(format!(
            "column `{name}` has more than 2,147,483,647 elements: give it fewer rows at a time"
        ))
    })
}

/// The offsets of the lists at nesting level `depth`, as the bytes of an Arrow offset buffer.
fn offset_bytes(cells: &Cells, rows: usize, depth: usize, name: &str) -> Result<Vec<u8>> {
    let mut all = vec![0; size_of::<i32>()];
    let mut end = 0;
    for i in 0..rows {
        let row = match cells {
            Cells::Equal { row, .. } => row,
            Cells::Ragged { rows, .. } => &rows[i],
        };
        for _ in 0..row[..depth].iter().product() {
            end += row[depth];
            all.extend(checked_offset(end, name)?.to_ne_bytes());
        }
    }
    Ok(all)
}

//! Reads rows of elements from Arrow columns.

use super::buffers::{buffer, is_set, validity};
use super::encoded::{Indices, Views, decimals};
use super::field::Field;
use super::node::Node;
use pteron::tensor::memory;
use pteron::{ScalarType, Shape};
use pteron_toolbox::batch::{Column, Fault, Row};

/// An Arrow column whose rows can be read, with borrowed memory.
pub(crate) struct ArrowColumn<'a> {
    name: String,
    levels: Vec<Level<'a>>,
    dtype: ScalarType,
    /// The elements of the innermost level, as bytes.
    elements: Elements<'a>,
    /// The rows of a column of binary views, whose bytes are not in `elements`.
    views: Option<Views<'a>>,
    /// The positions of the rows, if the column is dictionary-encoded; the levels are those of the dictionary.
    indices: Option<Indices<'a>>,
    rows: usize,
}

enum Elements<'a> {
    Lent(&'a [u8]),
    /// Booleans, which Arrow packs into bits, as a byte each, or converted decimals.
    OwnedArray(Vec<u8>),
}

/// One level of nested lists. Levels are ordered outermost first; the last one holds the elements.
struct Level<'a> {
    kind: Kind<'a>,
    offset: usize,
    length: usize,
    /// The validity bitmap of the level; `None` if no value is null.
    validity: Option<&'a [u8]>,
}

enum Kind<'a> {
    /// Lists that all have this number of items.
    Fixed(usize),
    /// Lists of different lengths, by the offset at which each begins and the end of the last.
    Lists(&'a [i32]),
    LargeLists(&'a [i64]),
    Elements,
}

/// The error message for a column whose type is not supported.
fn unsupported_type(name: &str, field: &Field) -> String {
    format!(
        "column `{name}` is of the Arrow type `{}`; columns are numbers, truth values or bytes, and lists of them",
        field.format()
    )
}

/// The offsets buffer of an array of lists, which has one more entry than there are lists. An array of length 0 may
/// lack it.
///
/// # Safety
/// As [`buffer`].
unsafe fn offsets<'a, T>(node: &Node) -> Result<&'a [T], String> {
    match node.length {
        0 => Ok(&[]),
        // SAFETY: the caller's obligation.
        _ => unsafe { buffer(node, 1, (node.offset + node.length).saturating_add(1)) },
    }
}

impl<'a> ArrowColumn<'a> {
    /// A column with a name for messages, if its type is supported.
    ///
    /// # Safety
    /// The field must be that of the array, and the array's memory must be valid and not written to during `'a`.
    pub(super) unsafe fn new(name: String, field: &Field, node: &Node) -> Result<Self, String> {
        let mut column = Self {
            name,
            levels: Vec::new(),
            dtype: ScalarType::Byte,
            elements: Elements::Lent(&[]),
            views: None,
            indices: None,
            rows: node.length,
        };
        // SAFETY: the caller's obligation; the dictionary is a part of the array.
        unsafe {
            match (field.dictionary(), node.dictionary()) {
                (None, _) => column.descend(field, node)?,
                (Some(values), Some(dictionary)) => {
                    let indices = Indices::new(field.format(), node)?;
                    column.indices = Some(indices.ok_or_else(|| unsupported_type(&column.name, field))?);
                    column.descend(values, dictionary)?;
                }
                (Some(_), None) => return Err("an Arrow array lacks its dictionary".to_owned()),
            }
        }
        Ok(column)
    }

    /// Adds the levels of an array and its children.
    ///
    /// # Safety
    /// As [`Self::new`].
    unsafe fn descend(&mut self, field: &Field, node: &Node) -> Result<(), String> {
        let end = node.offset + node.length;
        let format = field.format();
        let mut level =
            Level { kind: Kind::Elements, offset: node.offset, length: node.length, validity: None };
        // SAFETY: the caller's obligation.
        level.validity = unsafe { validity(node)? };
        if field.has_dictionary() {
            return Err(unsupported_type(&self.name, field));
        }
        let fixed = |prefix: &str| format.strip_prefix(prefix).and_then(|n| n.parse::<usize>().ok());
        // SAFETY: the interface defines which buffers arrays of a format have, and their lengths.
        unsafe {
            if let Some(dtype) = dtype_of(format) {
                self.dtype = dtype;
                let bytes = end.checked_mul(dtype.size()).ok_or("an Arrow array is too long")?;
                self.elements = Elements::Lent(buffer(node, 1, bytes)?);
            } else if format == "b" {
                self.dtype = ScalarType::Bool;
                let bits: &[u8] = buffer(node, 1, end.div_ceil(8))?;
                let expanded = (0..end).map(|i| u8::from(is_set(bits, i)));
                self.elements = Elements::OwnedArray(memory::collected(expanded).map_err(|e| e.to_string())?);
            } else if let Some((dtype, numbers)) = decimals(format, node)? {
                self.dtype = dtype;
                self.elements = Elements::OwnedArray(numbers);
            } else if format == "vz" && self.levels.is_empty() {
                self.views = Some(Views::new(node)?);
            } else if let Some(size) = fixed("w:") {
                level.kind = Kind::Fixed(size);
                self.levels.push(level);
                let bytes = end.checked_mul(size).ok_or("an Arrow array is too long")?;
                self.push_byte_level(buffer(node, 1, bytes)?);
                return Ok(());
            } else if format == "z" || format == "Z" {
                let last;
                if format == "z" {
                    let offsets: &[i32] = offsets(node)?;
                    last = offsets.last().map_or(Ok(0), |&n| usize::try_from(n));
                    level.kind = Kind::Lists(offsets);
                } else {
                    let offsets: &[i64] = offsets(node)?;
                    last = offsets.last().map_or(Ok(0), |&n| usize::try_from(n));
                    level.kind = Kind::LargeLists(offsets);
                }
                self.levels.push(level);
                self.push_byte_level(buffer(
                    node,
                    2,
                    last.map_err(|_| "an Arrow array has a negative offset")?,
                )?);
                return Ok(());
            } else {
                level.kind = match (format, fixed("+w:")) {
                    (_, Some(size)) => Kind::Fixed(size),
                    ("+l", _) => Kind::Lists(offsets(node)?),
                    ("+L", _) => Kind::LargeLists(offsets(node)?),
                    _ => return Err(unsupported_type(&self.name, field)),
                };
                self.levels.push(level);
                let (Some(field), Some(node)) = (field.children.first(), node.children.first()) else {
                    return Err(unsupported_type(&self.name, field));
                };
                return self.descend(field, node);
            }
        }
        self.levels.push(level);
        Ok(())
    }

    /// Adds the innermost level for binary values: their bytes.
    fn push_byte_level(&mut self, bytes: &'a [u8]) {
        self.elements = Elements::Lent(bytes);
        let kind = Kind::Elements;
        self.levels.push(Level { kind, offset: 0, length: bytes.len(), validity: None });
    }

    fn elements(&self) -> &[u8] {
        match &self.elements {
            Elements::Lent(bytes) => bytes,
            Elements::OwnedArray(bytes) => bytes,
        }
    }
}

/// The element type of a primitive format.
fn dtype_of(format: &str) -> Option<ScalarType> {
    Some(match format {
        "c" => ScalarType::Char,
        "C" => ScalarType::Byte,
        "s" => ScalarType::Short,
        "S" => ScalarType::UInt16,
        "i" => ScalarType::Int,
        "I" => ScalarType::UInt32,
        "l" => ScalarType::Long,
        "L" => ScalarType::UInt64,
        "e" => ScalarType::Half,
        "f" => ScalarType::Float,
        "g" => ScalarType::Double,
        _ => return None,
    })
}

/// The position of the first element of `count` lists, their total number of elements, and the length of each list.
/// Fails if the lists have different lengths.
fn list_offsets<T: Copy + TryInto<usize>>(
    offsets: &[T],
    first: usize,
    count: usize,
) -> Result<(usize, usize, usize), String> {
    let broken = || "its offsets are not valid".to_owned();
    if count == 0 {
        return Ok((0, 0, 0)); // an array of no lists may lack its offsets
    }
    let at = |i: usize| offsets.get(i).and_then(|&n| n.try_into().ok()).ok_or_else(broken);
    let (start, end) = (at(first)?, at(first + count)?);
    let size = at(first + 1)?.checked_sub(start).ok_or_else(broken)?;
    for i in 0..count {
        if at(first + i + 1)?.checked_sub(at(first + i)?).ok_or_else(broken)? != size {
            return Err("its lists have different lengths".to_owned());
        }
    }
    Ok((start, end - start, size))
}

impl Column for ArrowColumn<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn dtype(&self) -> ScalarType {
        self.dtype
    }

    fn row(&self, index: usize) -> Result<Row<'_>, Fault> {
        let index = match &self.indices {
            Some(indices) => indices.get(index)?,
            None => index,
        };
        Ok(self.row_at(index)?)
    }
}

impl ArrowColumn<'_> {
    /// The row with this index, or this position of the dictionary.
    fn row_at(&self, index: usize) -> Result<Row<'_>, String> {
        let behind = || "its lists end behind their elements".to_owned();
        let (mut first, mut count) = (index, 1usize);
        let mut sizes = Shape::default();
        for (depth, level) in self.levels.iter().enumerate() {
            if first.checked_add(count).is_none_or(|end| end > level.length) {
                return Err(behind());
            }
            // No overflow: the sum of offset and length was checked.
            first += level.offset;
            if let Some(bits) = level.validity
                && let Some(null) = (first..first + count).find(|&i| !is_set(bits, i))
            {
                return Err(match depth {
                    0 => "it is null".to_owned(),
                    _ => format!("its element {} is null", null - first),
                });
            }
            let size = match level.kind {
                Kind::Elements => continue,
                Kind::Fixed(size) => {
                    first = first.checked_mul(size).ok_or_else(behind)?;
                    count = count.checked_mul(size).ok_or_else(behind)?;
                    size
                }
                Kind::Lists(offsets) => {
                    let size;
                    (first, count, size) = list_offsets(offsets, first, count)?;
                    size
                }
                Kind::LargeLists(offsets) => {
                    let size;
                    (first, count, size) = list_offsets(offsets, first, count)?;
                    size
                }
            };
            sizes.push(size).map_err(|e| e.to_string())?;
        }
        if let Some(views) = &self.views {
            let bytes = views.get(first)?;
            return Ok(Row { bytes, sizes: Shape::new(&[bytes.len()]).map_err(|e| e.to_string())? });
        }
        let width = self.dtype.size();
        let end = first.checked_add(count).and_then(|end| end.checked_mul(width));
        let bytes = end.and_then(|end| self.elements().get(first * width..end));
        Ok(Row { bytes: bytes.ok_or_else(behind)?, sizes })
    }
}

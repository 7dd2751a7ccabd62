use crate::array::{Array, Bitmap, TOO_LONG, is_set};
use crate::encoded::{Indices, Views, decimals};
use pteron_tensor::{ScalarType, Shape, memory};
use pteron_toolbox::batch::{Column, Fault, Row};

/// The maximum nesting of lists.
const MAX_DEPTH: usize = 64;

/// An Arrow column whose rows are numbers, booleans or bytes, or nested lists of them.
pub struct ArrowColumn<'a> {
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
    Owned(Vec<u8>),
}

/// One level of nested lists. Levels are ordered outermost first; the last one holds the elements.
struct Level<'a> {
    kind: Kind<'a>,
    offset: usize,
    length: usize,
    /// The validity bitmap of the level; `None` if no value is null.
    validity: Option<Bitmap<'a>>,
}

enum Kind<'a> {
    /// Lists that all have this number of items.
    Fixed(usize),
    /// Lists of different lengths.
    Lists(Offsets<'a>),
    Elements,
}

/// The positions at which lists begin, and the end of the last one: int32, or int64 if they are `large`.
#[derive(Clone, Copy)]
struct Offsets<'a> {
    bytes: &'a [u8],
    is_large: bool,
}

impl<'a> Offsets<'a> {
    /// The offsets of an array of lists. An array of length 0 may lack them.
    fn of(array: &Array<'a>, is_large: bool) -> Result<Self, String> {
        let width = if is_large { 8 } else { 4 };
        let bytes = match array.length {
            0 => Some(0),
            _ => array.end()?.checked_add(1).and_then(|count| count.checked_mul(width)),
        };
        Ok(Self { bytes: array.buffer(0, bytes.ok_or(TOO_LONG)?)?, is_large })
    }

    fn get(&self, index: usize) -> Result<usize, String> {
        let found = match self.is_large {
            true => self.read(index).and_then(|bytes| usize::try_from(i64::from_ne_bytes(bytes)).ok()),
            false => self.read(index).and_then(|bytes| usize::try_from(i32::from_ne_bytes(bytes)).ok()),
        };
        found.ok_or_else(|| "its offsets are not valid".to_owned())
    }

    fn read<const N: usize>(&self, index: usize) -> Option<[u8; N]> {
        let start = index.checked_mul(N)?;
        self.bytes.get(start..start.checked_add(N)?)?.try_into().ok()
    }

    /// The position of the first element of `count` lists, their total number of elements, and the length of each list.
    /// Fails if the lists have different lengths.
    fn span(&self, first: usize, count: usize) -> Result<(usize, usize, usize), String> {
        if count == 0 {
            return Ok((0, 0, 0)); // an array of no lists may lack its offsets
        }
        let broken = || "its offsets are not valid".to_owned();
        let start = self.get(first)?;
        let (mut end, mut size) = (start, 0);
        for i in 0..count {
            let next = self.get(first + i + 1)?;
            let own = next.checked_sub(end).ok_or_else(broken)?;
            if i == 0 {
                size = own;
            } else if own != size {
                return Err("its lists have different lengths".to_owned());
            }
            end = next;
        }
        Ok((start, end - start, size))
    }
}

/// The error message for a column whose type is not supported.
fn unsupported_type(name: &str, array: &Array<'_>) -> String {
    format!(
        "column `{name}` is of the Arrow type `{}`; columns are numbers, truth values or bytes, and lists of them",
        array.format
    )
}

impl<'a> ArrowColumn<'a> {
    /// A column with a name for messages.
    ///
    /// # Errors
    /// If the type is not supported, or the array lacks a part.
    pub fn new(name: impl Into<String>, array: &Array<'a>) -> Result<Self, String> {
        let mut column = Self {
            name: name.into(),
            levels: Vec::new(),
            dtype: ScalarType::Byte,
            elements: Elements::Lent(&[]),
            views: None,
            indices: None,
            rows: array.length,
        };
        match &array.dictionary {
            None => column.descend(array)?,
            Some(values) => {
                column.indices =
                    Some(Indices::new(array)?.ok_or_else(|| unsupported_type(&column.name, array))?);
                column.descend(values)?;
            }
        }
        Ok(column)
    }

    /// Adds the levels of an array and its children.
    fn descend(&mut self, array: &Array<'a>) -> Result<(), String> {
        let (end, format) = (array.end()?, &*array.format);
        let mut level = Level {
            kind: Kind::Elements,
            offset: array.offset,
            length: array.length,
            validity: array.validity,
        };
        if self.levels.len() >= MAX_DEPTH || !self.levels.is_empty() && array.dictionary.is_some() {
            return Err(unsupported_type(&self.name, array));
        }
        let fixed = |prefix: &str| format.strip_prefix(prefix).and_then(|n| n.parse::<usize>().ok());
        if let Some(dtype) = dtype_of(format) {
            self.dtype = dtype;
            let bytes = end.checked_mul(dtype.size()).ok_or(TOO_LONG)?;
            self.elements = Elements::Lent(array.buffer(0, bytes)?);
        } else if format == "b" {
            self.dtype = ScalarType::Bool;
            let bits = array.buffer(0, end.div_ceil(8))?;
            let expanded = (0..end).map(|i| u8::from(is_set(bits, i)));
            self.elements = Elements::Owned(memory::collected(expanded).map_err(|e| e.to_string())?);
        } else if let Some((dtype, numbers)) = decimals(array)? {
            self.dtype = dtype;
            self.elements = Elements::Owned(numbers);
        } else if format == "vz" && self.levels.is_empty() {
            self.views = Some(Views::new(array)?);
        } else if let Some(size) = fixed("w:") {
            level.kind = Kind::Fixed(size);
            self.levels.push(level);
            let bytes = end.checked_mul(size).ok_or(TOO_LONG)?;
            self.push_byte_level(array.buffer(0, bytes)?);
            return Ok(());
        } else if matches!(format, "z" | "Z") {
            level.kind = Kind::Lists(Offsets::of(array, format == "Z")?);
            self.levels.push(level);
            self.push_byte_level(array.buffer(1, 0)?);
            return Ok(());
        } else {
            level.kind = match (format, fixed("+w:")) {
                (_, Some(size)) => Kind::Fixed(size),
                ("+l", _) => Kind::Lists(Offsets::of(array, false)?),
                ("+L", _) => Kind::Lists(Offsets::of(array, true)?),
                _ => return Err(unsupported_type(&self.name, array)),
            };
            self.levels.push(level);
            let items = array.children.first().ok_or_else(|| unsupported_type(&self.name, array))?;
            return self.descend(items);
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
            Elements::Owned(bytes) => bytes,
        }
    }

    /// The row with this index, or this position of the dictionary.
    fn row_at(&self, index: usize) -> Result<Row<'_>, String> {
        let behind = || "its lists end behind their elements".to_owned();
        let (mut first, mut count) = (index, 1usize);
        let mut sizes = Shape::default();
        for (depth, level) in self.levels.iter().enumerate() {
            if first.checked_add(count).is_none_or(|end| end > level.length) {
                return Err(behind());
            }
            if let Some(validity) = &level.validity
                && let Some(null) = (0..count).find(|&i| !validity.is_set(first + i))
            {
                return Err(match depth {
                    0 => "it is null".to_owned(),
                    _ => format!("its element {null} is null"),
                });
            }
            // No overflow: the sum of offset and length was checked.
            first += level.offset;
            let size = match &level.kind {
                Kind::Elements => continue,
                Kind::Fixed(size) => {
                    first = first.checked_mul(*size).ok_or_else(behind)?;
                    count = count.checked_mul(*size).ok_or_else(behind)?;
                    *size
                }
                Kind::Lists(offsets) => {
                    let size;
                    (first, count, size) = offsets.span(first, count)?;
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

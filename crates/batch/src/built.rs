use pteron_tensor::{AlignedBuffer, ScalarType, Shape, bf16};
use pteron_toolbox::batch::{Cells, OutputColumn};
use pteron_toolbox::{Error, Result};

/// The Arrow list type that is used for rows of several elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lists {
    /// Fixed-size lists, with the sizes that the output has in every row.
    Fixed,
    /// Variable-size lists, also for fixed sizes, for engines without fixed-size lists.
    Any,
}

/// A new nullable Arrow array with its buffers.
pub struct BuiltArray {
    /// The type as a format string of Arrow's C data interface: a number, `b`, `u`, `+l` or `+w:N`.
    pub format: String,
    /// The name of the column; `item` for the elements of lists.
    pub name: String,
    /// The number of elements.
    pub length: usize,
    /// The number of elements that are null.
    pub null_count: usize,
    /// The validity bitmap; `None` if no element is null.
    pub validity: Option<AlignedBuffer>,
    /// The buffers behind the validity bitmap, in the order of the C data interface.
    pub buffers: Vec<AlignedBuffer>,
    /// The elements of lists.
    pub items: Option<Box<BuiltArray>>,
}

impl BuiltArray {
    fn new(format: &str, name: &str, length: usize, valid: Option<&[bool]>) -> Result<Self> {
        let null_count = valid.map_or(0, |valid| valid.iter().filter(|&&valid| !valid).count());
        let validity = match valid {
            Some(valid) if null_count > 0 => {
                Some(AlignedBuffer::from_slice(&pack_bits(valid.iter().copied()))?)
            }
            _ => None,
        };
        let (format, name) = (format.to_owned(), name.to_owned());
        Ok(Self { format, name, length, null_count, validity, buffers: Vec::new(), items: None })
    }

    fn with_buffer(mut self, bytes: &[u8]) -> Result<Self> {
        self.buffers.push(AlignedBuffer::from_slice(bytes)?);
        Ok(self)
    }

    /// The column of an output.
    ///
    /// # Errors
    /// If Arrow lacks the element type, if rows do not have the fixed sizes of the list type, or if there are more
    /// elements than Arrow's offsets can count.
    pub fn from_output(column: &OutputColumn, name: &str, lists: Lists) -> Result<Self> {
        let rows = column.valid.len();
        let fixed = match lists {
            Lists::Fixed => fixed_sizes(column, name)?,
            Lists::Any => &[],
        };
        let (format, elements) = arrow_elements(column.spec.dtype, column.cells.bytes(), name)?;
        let count = column.cells.bytes().len() / column.spec.dtype.size();
        let rank = column.spec.row.len();
        let valid = |depth: usize| (depth == 0).then_some(&column.valid[..]);
        let name_at = |depth: usize| if depth == 0 { name } else { "item" };
        let mut array = Self::new(format, name_at(rank), count, valid(rank))?.with_buffer(&elements)?;
        for depth in (0..rank).rev() {
            let list = match lists {
                Lists::Fixed => {
                    let length = rows * fixed[..depth].iter().product::<usize>();
                    Self::new(&format!("+w:{}", fixed[depth]), name_at(depth), length, valid(depth))?
                }
                Lists::Any => {
                    let offsets = offset_bytes(&column.cells, rows, depth, name)?;
                    let length = offsets.len() / size_of::<i32>() - 1;
                    Self::new("+l", name_at(depth), length, valid(depth))?.with_buffer(&offsets)?
                }
            };
            array = Self { items: Some(Box::new(array)), ..list };
        }
        Ok(array)
    }

    /// A column of strings.
    ///
    /// # Errors
    /// If there are more bytes than Arrow's offsets can count.
    pub fn from_texts(name: &str, texts: &[Option<String>]) -> Result<Self> {
        let valid: Vec<bool> = texts.iter().map(Option::is_some).collect();
        let (mut bytes, mut offsets) = (Vec::new(), vec![0; size_of::<i32>()]);
        for text in texts {
            bytes.extend_from_slice(text.as_deref().unwrap_or_default().as_bytes());
            offsets.extend(checked_offset(bytes.len(), name)?.to_ne_bytes());
        }
        Self::new("u", name, texts.len(), Some(&valid))?.with_buffer(&offsets)?.with_buffer(&bytes)
    }

    /// A column of the labels that an output has the indices of: strings, or lists of strings.
    ///
    /// # Errors
    /// If there are more indices than Arrow's offsets can count.
    pub fn from_labels(column: &OutputColumn, labels: &[String], name: &str) -> Result<Self> {
        let indices = column.cells.bytes().chunks_exact(size_of::<i64>());
        let texts: Vec<Option<String>> = indices.map(|index| labels.get(index_of(index)).cloned()).collect();
        if column.spec.row.is_empty() {
            let valid = texts.into_iter().zip(&column.valid).map(|(text, valid)| text.filter(|_| *valid));
            return Self::from_texts(name, &valid.collect::<Vec<_>>());
        }
        let rows = column.valid.len();
        let list = Self::new("+l", name, rows, Some(&column.valid))?.with_buffer(&offset_bytes(
            &column.cells,
            rows,
            0,
            name,
        )?)?;
        Ok(Self { items: Some(Box::new(Self::from_texts("item", &texts)?)), ..list })
    }
}

/// The sizes that all rows of a column of fixed-size lists have.
fn fixed_sizes<'c>(column: &'c OutputColumn, name: &str) -> Result<&'c [usize]> {
    let other = match &column.cells {
        Cells::Equal { row, .. } if **row == *column.spec.row => return Ok(&column.spec.row),
        Cells::Equal { row, .. } => Some(row),
        Cells::Ragged { rows, .. } => rows
            .iter()
            .zip(&column.valid)
            .find(|(row, valid)| **valid && ***row != *column.spec.row)
            .map(|(row, _)| row),
    };
    Err(Error::Input(format!(
        "output `{name}` has rows of the sizes {:?}, and its column lists of {:?}: write it with lists=\"any\"",
        other.map_or(&[][..], |row| row),
        column.spec.row
    )))
}

/// An index that `top` has found.
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
            return Err(Error::Input(format!("output `{name}` is {other}, which Arrow does not have")));
        }
    };
    Ok((format, bytes.into()))
}

fn checked_offset(n: usize, name: &str) -> Result<i32> {
    i32::try_from(n).map_err(|_| {
        Error::Input(format!(
            "column `{name}` has more than 2,147,483,647 elements: give it fewer rows at a time"
        ))
    })
}

/// The offsets of the lists at nesting level `depth`, as the bytes of an Arrow offset buffer.
fn offset_bytes(cells: &Cells, rows: usize, depth: usize, name: &str) -> Result<Vec<u8>> {
    let mut all = vec![0; size_of::<i32>()];
    let mut end = 0;
    for i in 0..rows {
        let row: &Shape = match cells {
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

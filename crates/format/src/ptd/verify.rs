use super::read::{decode, locate, read_flat_tensor_with};
use super::{FlatTensor, Header, NamedData};
use crate::container::{add_offsets_to_errors, check_segments, check_tables, segment_range};
use crate::flatbuffer::Path;
use crate::shape::Shape;
use crate::{Error, ErrorKind, Limits, Result};
use std::collections::HashMap;
use std::ops::{Deref, Range};

/// Checks everything that the tables of a `.ptd` file say: the schema version, that segments are in bounds of the file,
/// segment indices, tensor layouts, that tensors are in bounds of their segments, and duplicate keys.
///
/// Returns the first error, with its path; [`VerifiedFlatTensor::read`], which has the bytes, adds the byte offset.
pub fn verify(tables: &FlatTensor, header: &Header, limits: &Limits) -> Result<()> {
    run(tables, header, limits, 1).into_iter().next().map_or(Ok(()), Err)
}

/// All errors that [`verify`] would report one at a time, up to [`Limits::errors`].
pub fn verify_all(tables: &FlatTensor, header: &Header, limits: &Limits) -> Vec<Error> {
    run(tables, header, limits, limits.errors)
}

fn run(tables: &FlatTensor, header: &Header, limits: &Limits, most: usize) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut push = |error| {
        if errors.len() < most {
            errors.push(error);
        }
        errors.len() < most
    };
    let root = Path::ROOT;
    if tables.version > 0 {
        let expected = "0, the schema version this reader supports";
        push(Error::new(ErrorKind::Newer, "version", expected, tables.version));
    }
    check_segments(&tables.segments, &header.segment_space(), limits, &mut push);
    let named_data = root.field("named_data");
    let mut keys = HashMap::new();
    for (index, entry) in tables.named_data.iter().enumerate() {
        let path = named_data.index(index);
        if let Some(first) = keys.insert(entry.key.as_str(), index) {
            let expected = format!("a key other than that of named_data[{first}]");
            let path = path.field("key").to_string();
            push(Error::new(ErrorKind::Invalid, path, expected, format_args!("`{}`", entry.key)));
        }
        let Some(segment) = tables.segments.get(entry.segment_index as usize) else {
            let expected = format!("an index into the {} segments", tables.segments.len());
            let path = path.field("segment_index").to_string();
            if !push(Error::new(ErrorKind::Invalid, path, expected, entry.segment_index)) {
                break;
            }
            continue;
        };
        let mut more = true;
        let nbytes = match &entry.tensor_layout {
            None => Some(0),
            Some(layout) => {
                let shape = Shape {
                    scalar_type: layout.scalar_type,
                    sizes: &layout.sizes,
                    dim_order: &layout.dim_order,
                };
                let report = |error| more = push(error);
                shape
                    .check(limits.tensor_bytes, path.field("tensor_layout"), report)
                    .map(|(_, nbytes)| nbytes)
            }
        };
        let end = nbytes.map(|nbytes| entry.segment_offset.checked_add(nbytes));
        if let Some(end) = end
            && end.is_none_or(|end| end > segment.size)
        {
            let actual = format!("segments[{}] of {} bytes", entry.segment_index, segment.size);
            let expected = format!(
                "a segment that holds the {} bytes of `{}`, from its byte {} on",
                nbytes.unwrap_or_default(),
                pteron_text::text(&entry.key),
                entry.segment_offset
            );
            more = push(Error::new(
                ErrorKind::Invalid,
                path.field("segment_index").to_string(),
                expected,
                actual,
            ));
        }
        if !more {
            break;
        }
    }
    errors
}

/// The tables of a `.ptd` file, for which everything that [`verify`] checks holds.
///
/// Derefs to [`FlatTensor`], without mutable access.
#[derive(Debug, Clone)]
pub struct VerifiedFlatTensor {
    tables: FlatTensor,
    header: Header,
    unknown_fields: Vec<String>,
    /// The indices of the entries, sorted by key.
    order: Vec<usize>,
}

impl VerifiedFlatTensor {
    /// Decodes and verifies the tables of a file. `tables` are the bytes of
    /// [`Header::tables_range`]. Errors name the byte of the file and the field.
    pub fn read(tables: &[u8], header: &Header, limits: &Limits) -> Result<Self> {
        check_tables(tables, header.tables_size, limits)?;
        let (decoded, unknown_fields) = decode(tables, limits)?;
        let verified = Self::new(decoded, header.clone(), limits).map_err(|error| {
            let mut errors = [error];
            add_offsets_to_errors(&mut errors, tables, |path| locate(tables, limits, path));
            let [error] = errors;
            error
        })?;
        Ok(Self { unknown_fields, ..verified })
    }

    /// All errors for which [`read`](Self::read) would reject the file, up to [`Limits::errors`]. An error in the
    /// structure of the flatbuffer hides all later ones.
    pub fn errors(tables: &[u8], header: &Header, limits: &Limits) -> Vec<Error> {
        let decoded = check_tables(tables, header.tables_size, limits)
            .and_then(|()| read_flat_tensor_with(tables, limits));
        let mut errors = match decoded {
            Ok(decoded) => verify_all(&decoded, header, limits),
            Err(error) => vec![error],
        };
        add_offsets_to_errors(&mut errors, tables, |path| locate(tables, limits, path));
        errors
    }

    /// Verifies tables that are already decoded. Errors name the field.
    pub fn new(tables: FlatTensor, header: Header, limits: &Limits) -> Result<Self> {
        verify(&tables, &header, limits)?;
        let mut order: Vec<usize> = (0..tables.named_data.len()).collect();
        order.sort_by(|&a, &b| tables.named_data[a].key.cmp(&tables.named_data[b].key));
        Ok(Self { tables, header, unknown_fields: Vec::new(), order })
    }

    /// The paths of fields that this reader does not know; if there are any, the file has a newer schema. At most a thousand.
    pub fn unknown_fields(&self) -> &[String] {
        &self.unknown_fields
    }

    /// The verified tables of the file.
    pub fn tables(&self) -> &FlatTensor {
        &self.tables
    }

    /// The header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The tables and the header, to be modified.
    pub fn into_parts(self) -> (FlatTensor, Header) {
        (self.tables, self.header)
    }

    /// The entry with this key.
    pub fn get(&self, key: &str) -> Option<&NamedData> {
        let entries = &self.tables.named_data;
        let position = self.order.binary_search_by(|&index| entries[index].key.as_str().cmp(key)).ok()?;
        Some(&entries[self.order[position]])
    }

    /// The byte range in the file of the entry with this key.
    pub fn data(&self, key: &str) -> Option<Range<u64>> {
        self.get(key).map(|entry| self.data_range(entry))
    }

    /// The byte range in the file of an entry of these tables: for a tensor, as many bytes as its layout requires; for
    /// a blob, its whole segment. `0..0` if it is empty.
    pub fn data_range(&self, entry: &NamedData) -> Range<u64> {
        let segment = self.tables.segments.get(entry.segment_index as usize);
        let segment_bytes =
            segment.and_then(|segment| segment_range(segment, self.header.segment_base_offset));
        let Some(segment_bytes) = segment_bytes else {
            return 0..0;
        };
        let start = segment_bytes.start.saturating_add(entry.segment_offset);
        let end = match &entry.tensor_layout {
            Some(layout) => start.saturating_add(layout.nbytes().unwrap_or(0)),
            None => segment_bytes.end,
        };
        if start < end { start..end } else { 0..0 }
    }
}

impl Deref for VerifiedFlatTensor {
    type Target = FlatTensor;
    fn deref(&self) -> &FlatTensor {
        &self.tables
    }
}

use super::Scalar;
use crate::{Error, ErrorKind, Result};
use std::collections::HashMap;

/// The maximum size of a flatbuffer in bytes: its offsets between tables are signed.
const MAX_LEN: usize = i32::MAX as usize;

/// Builds a flatbuffer, children before their parents.
///
/// The offsets of a flatbuffer point forward, so it is built from its end: bytes are kept in reverse order, and
/// reversed when the buffer is finished. Equal vtables are written once; strings and vectors are not shared. Everything
/// is aligned, relative to the start of the buffer, to its own size or to the alignment that is asked for.
#[derive(Debug, Default)]
pub struct Writer {
    reversed: Vec<u8>,
    vtables: HashMap<Vec<u8>, usize>,
    max_alignment: usize,
    overflow: bool,
}

/// A reference to something in a [`Writer`]: the distance of its start from the end of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ref(usize);

/// A finished flatbuffer.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The bytes: root offset, file identifier, tables.
    pub bytes: Vec<u8>,
    /// The largest alignment that any part of the buffer needs; the length is a multiple of it.
    pub alignment: usize,
}

impl Writer {
    /// A writer with an empty buffer.
    pub fn new() -> Self {
        Self { max_alignment: 4, ..Self::default() }
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.reversed.len() + bytes.len() > MAX_LEN {
            self.overflow = true;
        } else {
            self.reversed.extend(bytes.iter().rev());
        }
    }

    /// Pads so that the position after `then` more bytes is aligned.
    fn align(&mut self, alignment: usize, then: usize) {
        self.max_alignment = self.max_alignment.max(alignment);
        let padded = (self.reversed.len() + then).next_multiple_of(alignment) - then;
        if padded <= MAX_LEN {
            self.reversed.resize(padded, 0);
        }
    }

    fn end_ref(&self) -> Ref {
        Ref(self.reversed.len())
    }

    /// Writes the offset from its own position to `target`.
    fn push_ref(&mut self, target: Ref) {
        let offset = self.reversed.len() + 4 - target.0;
        self.push(&(offset as u32).to_le_bytes());
    }

    /// Writes a string.
    pub fn string(&mut self, text: &str) -> Ref {
        self.align(4, text.len() + 1);
        self.push(&[0]);
        self.push(text.as_bytes());
        self.push(&(text.len() as u32).to_le_bytes());
        self.end_ref()
    }

    /// Writes a vector of scalars.
    pub fn scalars<S: Scalar>(&mut self, numbers: &[S]) -> Ref {
        let bytes = numbers.len().saturating_mul(S::SIZE);
        self.align(4, bytes);
        self.align(S::SIZE, bytes);
        for number in numbers.iter().rev() {
            self.push(number.to_le_bytes().as_ref());
        }
        self.push(&(numbers.len() as u32).to_le_bytes());
        self.end_ref()
    }

    /// Writes a vector of bytes whose first byte is aligned.
    pub fn bytes(&mut self, bytes: &[u8], alignment: usize) -> Ref {
        self.align(alignment.max(4), bytes.len());
        self.push(bytes);
        self.push(&(bytes.len() as u32).to_le_bytes());
        self.end_ref()
    }

    /// Writes a vector of references to tables or strings.
    pub fn refs(&mut self, items: &[Ref]) -> Ref {
        self.align(4, 0);
        for &item in items.iter().rev() {
            self.push_ref(item);
        }
        self.push(&(items.len() as u32).to_le_bytes());
        self.end_ref()
    }

    /// Writes a vector of tables; `write` writes the table for each of `items`.
    pub fn tables<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T) -> Ref) -> Ref {
        let all: Vec<Ref> = items.iter().map(|item| write(self, item)).collect();
        self.refs(&all)
    }

    /// Writes a table with these fields. Fields that are absent, or equal to their default, are omitted.
    pub fn table(&mut self, fields: &[Field]) -> Ref {
        // Fields are pushed from the widest to the narrowest, so that only narrower ones can need padding.
        let mut order: Vec<usize> = (0..fields.len()).filter(|&id| fields[id].size() > 0).collect();
        order.sort_by_key(|&id| std::cmp::Reverse(fields[id].size()));
        let widest = order.first().map_or(4, |&id| fields[id].size());
        self.align(widest.max(4), widest);
        let end = self.reversed.len();
        let mut places = vec![0usize; fields.len()];
        for id in order {
            let field = &fields[id];
            self.align(field.size(), field.size());
            match *field {
                Field::Absent => {}
                Field::Number { le, size } => self.push(&le[..size]),
                Field::Ref(target) => self.push_ref(target),
            }
            places[id] = self.reversed.len();
        }
        self.align(4, 4);
        let start = self.reversed.len() + 4;
        let used = fields.iter().rposition(|field| field.size() > 0).map_or(0, |last| last + 1);
        let mut vtable = Vec::with_capacity(4 + 2 * used);
        vtable.extend((4 + 2 * used as u16).to_le_bytes());
        vtable.extend(((start - end) as u16).to_le_bytes());
        for &place in &places[..used] {
            let offset = if place == 0 { 0 } else { start - place };
            vtable.extend((offset as u16).to_le_bytes());
        }
        let at = self.vtables.get(&vtable).copied();
        // The vtable is stored right before its table, unless an equal one has been written already.
        let at = at.unwrap_or(start + vtable.len());
        self.push(&((at as i64 - start as i64) as i32).to_le_bytes());
        let table = self.end_ref();
        if at == start + vtable.len() {
            self.push(&vtable);
            self.vtables.insert(vtable, at);
        }
        table
    }

    /// Finishes the buffer: `root` is its root table.
    pub fn finish(mut self, root: Ref, identifier: [u8; 4]) -> Result<Finished> {
        self.align(self.max_alignment, 8);
        self.push(&identifier);
        self.push_ref(root);
        self.into_finished()
    }

    /// Finishes the buffer with a size prefix, as in ETDump files.
    pub fn finish_size_prefixed(mut self, root: Ref, identifier: [u8; 4]) -> Result<Finished> {
        self.align(self.max_alignment, 12);
        self.push(&identifier);
        self.push_ref(root);
        let len = self.reversed.len();
        self.push(&(len as u32).to_le_bytes());
        self.into_finished()
    }

    fn into_finished(mut self) -> Result<Finished> {
        if self.overflow {
            let expected = format!("tables of at most {MAX_LEN} bytes, all that a flatbuffer can hold");
            return Err(Error::new(ErrorKind::Limit, "", expected, "more")
                .hint("put bulk data into segments and not inline"));
        }
        self.reversed.reverse();
        Ok(Finished { bytes: self.reversed, alignment: self.max_alignment })
    }
}

/// A field of a table to be written; its id is its index in the list.
#[derive(Debug, Clone, Copy, Default)]
pub enum Field {
    /// Absent, or equal to its default.
    #[default]
    Absent,
    /// A scalar, as its little-endian bytes.
    Number {
        /// The little-endian bytes; unused ones are zero.
        le: [u8; 8],
        /// How many of the bytes are used.
        size: usize,
    },
    /// A string, vector or table.
    Ref(Ref),
}

impl Field {
    /// A scalar, omitted if it equals the schema's default.
    pub fn scalar<S: Scalar + PartialEq>(value: S, default: S) -> Self {
        if value == default { Self::Absent } else { Self::required_scalar(value) }
    }

    /// A scalar that is written even if it is the default.
    pub fn required_scalar<S: Scalar>(value: S) -> Self {
        let mut le = [0; 8];
        le[..S::SIZE].copy_from_slice(value.to_le_bytes().as_ref());
        Self::Number { le, size: S::SIZE }
    }

    fn size(&self) -> usize {
        match self {
            Self::Absent => 0,
            Self::Number { size, .. } => *size,
            Self::Ref(_) => 4,
        }
    }
}

impl From<Ref> for Field {
    fn from(target: Ref) -> Self {
        Self::Ref(target)
    }
}

impl From<Option<Ref>> for Field {
    fn from(target: Option<Ref>) -> Self {
        target.map_or(Self::Absent, Self::Ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::flatbuffer::Reader;

    #[test]
    fn written_buffers_are_read_back() {
        let mut w = Writer::new();
        let name = w.string("größer");
        let longs = w.scalars(&[1i64, -2, i64::MAX]);
        let blob = w.bytes(&[1, 2, 3], 16);
        let children: Vec<Ref> = (0..3i8)
            .map(|i| w.table(&[Field::scalar(i, 0), Field::Absent, Field::required_scalar(7u64)]))
            .collect();
        let children = w.refs(&children);
        let root = w.table(&[
            Field::scalar(true, false),
            name.into(),
            longs.into(),
            blob.into(),
            children.into(),
            Field::Absent,
        ]);
        let Finished { bytes, alignment } = w.finish(root, *b"TEST").unwrap();
        assert_eq!((alignment, bytes.len() % 16, &bytes[4..8]), (16, 0, &b"TEST"[..]));
        let limits = Limits::default();
        let reader = Reader::new(&bytes, 100, &limits);
        reader
            .root(|t| {
                assert_eq!(t.field_slots(), 5);
                assert!(t.get(0, "flag", false)?);
                assert_eq!(t.required_string(1, "name")?, "größer");
                assert_eq!(t.scalars::<i64>(2, "longs")?, [1, -2, i64::MAX]);
                let range = t.byte_range(3, "blob")?.unwrap();
                assert_eq!(((range.start - 100) % 16, range.end - range.start), (0, 3));
                let mut next = 0;
                t.tables(4, "children", |t| {
                    assert_eq!(t.get(0, "i", 0i8)?, next);
                    assert_eq!(t.get(2, "seven", 0u64)?, 7);
                    next += 1;
                    Ok(())
                })?;
                assert_eq!(next, 3);
                assert_eq!(t.string(5, "none")?, None);
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn equal_vtables_are_written_once() {
        let len = |tables: usize| {
            let mut w = Writer::new();
            let all: Vec<Ref> = (0..tables).map(|i| w.table(&[Field::required_scalar(i as u32)])).collect();
            let root = w.refs(&all);
            let root = w.table(&[Field::Absent, root.into()]);
            w.finish(root, *b"TEST").unwrap().bytes.len()
        };
        assert_eq!(len(101) - len(1), 100 * 12);
    }

    #[test]
    fn eight_byte_numbers_are_aligned() {
        for shift in 0..4 {
            let mut w = Writer::new();
            w.string(&"x".repeat(shift));
            let root = w.table(&[
                Field::required_scalar(1u8),
                Field::required_scalar(0x0102_0304_0506_0708u64),
                Field::required_scalar(3u16),
            ]);
            let bytes = w.finish(root, *b"TEST").unwrap().bytes;
            let at = bytes.windows(8).position(|window| window == [8, 7, 6, 5, 4, 3, 2, 1]).unwrap();
            assert_eq!(at % 8, 0);
        }
    }
}

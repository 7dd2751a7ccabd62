use super::Scalar;
use super::layout::FieldKind;
use std::ops::Range;

/// The bytes of a flatbuffer. Reads out of bounds return `None`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

/// Where a table and its vtable are in the buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawTable {
    pub(super) at: usize,
    pub(super) vtable: usize,
    /// Length of the vtable, in bytes.
    pub(super) vtable_len: usize,
    /// Length of the table, in bytes.
    pub(super) len: usize,
}

/// The entries of a vector.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawVector {
    /// The position of the first entry.
    pub(super) start: usize,
    /// The number of entries.
    pub(super) count: usize,
}

impl<'a> Raw<'a> {
    pub(super) fn get<S: Scalar>(self, at: usize) -> Option<S> {
        self.0.get(at..at.checked_add(S::SIZE)?).map(S::from_le_slice)
    }

    pub(super) fn slice(self, range: Range<usize>) -> Option<&'a [u8]> {
        self.0.get(range)
    }

    /// The position that the offset at `at` points to.
    pub(super) fn follow(self, at: usize) -> Option<usize> {
        let offset: u32 = self.get(at)?;
        let target = at.checked_add(offset as usize)?;
        (offset != 0 && target < self.0.len()).then_some(target)
    }

    pub(super) fn table(self, at: usize) -> Option<RawTable> {
        let back: i32 = self.get(at)?;
        let vtable = usize::try_from(at as i64 - i64::from(back)).ok()?;
        let vtable_len = usize::from(self.get::<u16>(vtable)?);
        let len = usize::from(self.get::<u16>(vtable.checked_add(2)?)?);
        self.slice(vtable..vtable + vtable_len)?;
        self.slice(at..at + len)?;
        let sound = vtable_len >= 4 && vtable_len.is_multiple_of(2) && len >= 4;
        sound.then_some(RawTable { at, vtable, vtable_len, len })
    }

    /// The position of field `id`, if it is present and its `size` bytes are within the table.
    pub(super) fn field(self, table: RawTable, id: usize, size: usize) -> Option<usize> {
        let offset = self.slot(table, id)?;
        (offset >= 4 && offset + size <= table.len).then_some(table.at + offset)
    }

    /// The offset of field `id` within its table, as the vtable gives it; `None` if it is absent.
    pub(super) fn slot(self, table: RawTable, id: usize) -> Option<usize> {
        let at = 4 + 2 * id;
        if at + 2 > table.vtable_len {
            return None;
        }
        self.get::<u16>(table.vtable + at).map(usize::from).filter(|&offset| offset != 0)
    }

    /// The vector at `at`, with entries of `size` bytes.
    pub(super) fn vector(self, at: usize, size: usize) -> Option<RawVector> {
        let count = self.get::<u32>(at)? as usize;
        let start = at.checked_add(4)?;
        self.slice(start..start.checked_add(count.checked_mul(size)?)?)?;
        Some(RawVector { start, count })
    }

    /// The bytes of a string or a vector of scalars at `at`.
    pub(super) fn contents(self, at: usize, size: usize) -> Option<&'a [u8]> {
        let vector = self.vector(at, size)?;
        self.slice(vector.start..vector.start + vector.count * size)
    }

    /// Whether a field is absent or has the value that an absent field has.
    pub(super) fn is_default(self, table: RawTable, id: usize, kind: FieldKind) -> bool {
        let Some(at) = self.field(table, id, kind.size()) else { return true };
        match kind {
            FieldKind::Scalar(size) => self.0[at..at + size].iter().all(|&byte| byte == 0),
            FieldKind::Union(_) => self.0[at] == 0,
            FieldKind::Text | FieldKind::Scalars(_) | FieldKind::Bulk | FieldKind::Tables(_) => {
                self.follow(at).and_then(|at| self.get::<u32>(at)).is_none_or(|count| count == 0)
            }
            FieldKind::Table(_) | FieldKind::Member => self.follow(at).is_none(),
        }
    }
}

//! The attribute table of a module.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::attribute::{Attribute, AttributeRef, AttributeType};
use crate::error::Result;
use crate::ids::AttributeId;
use crate::limits::Limits;
use crate::region::Region;

/// Attribute values in the order in which they are written; an [`AttributeId`] is a position.
///
/// A file without the AttributeTypes section does not record the types of its attributes. A table that was read from
/// such a file starts with [`UntypedAttributes`], and values can be added after them.
#[derive(Clone, Debug, Default)]
pub struct AttributeTable<'a> {
    untyped: Option<UntypedAttributes<'a>>,
    values: Vec<Attribute<'a>>,
    /// Positions in `values`, by the hash of the value. Values are not copied into the map, since they can be large.
    known: HashMap<u64, Vec<u32>>,
    /// Number of values that `known` covers.
    hashed: usize,
}

/// The bytes of an Attributes section whose types are unknown, kept unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntypedAttributes<'a> {
    /// The bytes of the section.
    pub bytes: Cow<'a, [u8]>,
    /// Alignment of the section's start in bytes: a power of two.
    pub alignment: u8,
    /// The offsets that kernels refer to, by [`AttributeId`].
    pub offsets: Vec<u64>,
}

impl UntypedAttributes<'_> {
    /// Decodes the value at `offset` as a `kind`, for callers that guess its type. Also returns the offset of its end.
    ///
    /// # Errors
    /// If the bytes there are not a valid value of this type.
    pub fn read_as(&self, offset: u64, kind: AttributeType) -> Result<(Attribute<'_>, u64)> {
        let nesting = Limits::default().effective_attribute_nesting();
        AttributeRef::new(Region::new(&self.bytes, 0), offset, nesting).decode_with_end(kind)
    }
}

impl<'a> AttributeTable<'a> {
    /// A table that starts with attributes of unknown types.
    pub fn with_untyped(untyped: UntypedAttributes<'a>) -> Self {
        AttributeTable { untyped: Some(untyped), ..Self::default() }
    }

    /// The attributes of unknown types, if the table was read from a file that does not record types.
    pub fn untyped(&self) -> Option<&UntypedAttributes<'a>> {
        self.untyped.as_ref()
    }

    /// The attributes of known types, which come after the attributes of unknown types if there are any.
    pub fn values(&self) -> &[Attribute<'a>] {
        &self.values
    }

    /// Number of attributes, those of unknown types included.
    pub fn len(&self) -> usize {
        self.first_value_position() + self.values.len()
    }

    /// Whether there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of attribute `id`; `None` if there is none, or its type is unknown.
    pub fn get(&self, id: AttributeId) -> Option<&Attribute<'a>> {
        self.values.get(id.index().checked_sub(self.first_value_position())?)
    }

    /// Appends an attribute, even if an equal one exists: for callers with a finer notion of equality, such as MLIR's,
    /// where `1 : i32` and `1 : si32` differ.
    pub fn push(&mut self, value: Attribute<'a>) -> AttributeId {
        self.values.push(value);
        AttributeId(self.len() as u32 - 1)
    }

    /// The first attribute with this value; appends it if there is none.
    pub fn intern(&mut self, value: Attribute<'a>) -> AttributeId {
        for (index, value) in self.values.iter().enumerate().skip(self.hashed) {
            self.known.entry(hash(value)).or_default().push(index as u32);
        }
        self.hashed = self.values.len();
        let same_hash = self.known.entry(hash(&value)).or_default();
        if let Some(&index) = same_hash.iter().find(|&&index| self.values[index as usize] == value) {
            return AttributeId(self.first_value_position() as u32 + index);
        }
        same_hash.push(self.values.len() as u32);
        self.hashed += 1;
        self.push(value)
    }

    /// Position of the first attribute of a known type.
    fn first_value_position(&self) -> usize {
        self.untyped.as_ref().map_or(0, |untyped| untyped.offsets.len())
    }
}

/// Hashes only the ends of long payloads; candidates are then compared for equality.
fn hash(value: &Attribute<'_>) -> u64 {
    const END: usize = 64;
    let mut hasher = DefaultHasher::new();
    let payload = match value {
        Attribute::Dense(dense) => {
            (dense.dtype(), dense.dims()).hash(&mut hasher);
            dense.bytes()
        }
        Attribute::Array(array) => {
            array.element_type().hash(&mut hasher);
            array.bytes()
        }
        other => {
            other.hash(&mut hasher);
            &[]
        }
    };
    payload.len().hash(&mut hasher);
    payload[..payload.len().min(END)].hash(&mut hasher);
    payload[payload.len().saturating_sub(END)..].hash(&mut hasher);
    hasher.finish()
}

impl<'a> From<Vec<Attribute<'a>>> for AttributeTable<'a> {
    fn from(values: Vec<Attribute<'a>>) -> Self {
        AttributeTable { values, ..Self::default() }
    }
}

impl PartialEq for AttributeTable<'_> {
    fn eq(&self, other: &Self) -> bool {
        (&self.untyped, &self.values) == (&other.untyped, &other.values)
    }
}

impl Eq for AttributeTable<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_interned_once_and_interning_finds_pushed_values() {
        let mut table = AttributeTable::default();
        let first = table.push(Attribute::I32(1));
        let second = table.push(Attribute::I32(1));
        assert_ne!(first, second);
        assert_eq!(table.intern(Attribute::I32(1)), first);
        let other = table.intern(Attribute::UI32(1));
        assert_eq!((other, table.intern(Attribute::UI32(1))), (AttributeId(2), other));
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn values_follow_attributes_of_unknown_types() {
        let untyped = UntypedAttributes { bytes: vec![1, 2].into(), alignment: 1, offsets: vec![0, 1] };
        let mut table = AttributeTable::with_untyped(untyped);
        let id = table.intern(Attribute::I1(true));
        assert_eq!((id, table.intern(Attribute::I1(true))), (AttributeId(2), id));
        assert_eq!(table.get(AttributeId(1)), None);
        assert_eq!(table.get(id), Some(&Attribute::I1(true)));
    }
}

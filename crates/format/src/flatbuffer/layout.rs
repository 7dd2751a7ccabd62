/// The fields that a schema declares for a table, by id.
///
/// The decoders know the meaning of fields; a layout knows only where offsets are, which is what code needs that
/// copies, compares or patches tables without decoding them.
#[derive(Debug)]
pub(crate) struct Layout(pub(crate) &'static [(&'static str, FieldKind)]);

/// How a field is stored. Every scalar of these schemas has the default 0.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FieldKind {
    /// A scalar of this many bytes.
    Scalar(usize),
    /// A string.
    Text,
    /// A vector of scalars of this many bytes each.
    Scalars(usize),
    /// A vector of bulk bytes, which may be aligned more strictly than scalars.
    Bulk,
    /// A table.
    Table(&'static Layout),
    /// A vector of tables.
    Tables(&'static Layout),
    /// The type of a union, whose members are numbered from 1. The next field is its table.
    Union(&'static [Layout]),
    /// The table of a union; the field before it holds the union's type.
    Member,
}

impl FieldKind {
    /// The number of bytes that the field occupies in its table.
    pub(super) const fn size(self) -> usize {
        match self {
            Self::Scalar(size) => size,
            Self::Union(_) => 1,
            _ => 4,
        }
    }
}

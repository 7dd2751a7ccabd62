//! Attributes: constant data attached to operations.

use std::sync::Arc;

use super::{DenseElements, DialectSymbol, FloatKind, Location, Text, Type};

/// An attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// `unit`; printed as just the name in a dictionary.
    Unit,
    /// An integer or boolean, `5 : i32`, `true`.
    Integer {
        /// Integer type or `index`.
        ty: Type,
        /// The value; sign-extended for signless and signed types, 0 or 1 for `i1`.
        value: i128,
    },
    /// A floating-point number, `1.0 : f32`.
    Float {
        /// The format.
        kind: FloatKind,
        /// The bits in that format.
        bits: u128,
    },
    /// A string, rarely with a type.
    String(Text, Option<Arc<Type>>),
    /// A type.
    Type(Type),
    /// `[...]`.
    Array(Arc<[Attribute]>),
    /// `{...}`, sorted by name.
    Dictionary(Arc<[NamedAttribute]>),
    /// `@root::@nested`.
    SymbolRef {
        /// The first symbol.
        root: Text,
        /// The symbols after `::`.
        nested: Arc<[Text]>,
    },
    /// `dense<...> : tensor<...>`.
    Dense(Arc<DenseElements>),
    /// `array<i32: 1, 2>`.
    DenseArray(Type, Arc<[Attribute]>),
    /// `#corert.shape<...>`: dimensions, `-1` for an unknown one; absent if the rank is unknown.
    Shape(Option<Arc<[i64]>>),
    /// `loc(...)` as an attribute.
    Location(Arc<Location>),
    /// A dialect attribute without special handling, `#dialect.body`.
    Dialect(Arc<DialectSymbol>),
    /// An attribute kept as its text: `affine_map<...>`, `affine_set<...>`, `strided<...>`, `sparse<...>`.
    Verbatim(Arc<str>),
}

/// An attribute with its name.
pub type NamedAttribute = (Text, Attribute);

impl Attribute {
    /// A signless integer attribute of this width.
    pub fn int(width: u32, value: i128) -> Attribute {
        Attribute::Integer { ty: Type::int(width), value }
    }

    /// A bool attribute: `true` or `false`.
    pub fn bool(value: bool) -> Attribute {
        Attribute::int(1, i128::from(value))
    }

    /// A string without a type.
    pub fn string(text: impl Into<Text>) -> Attribute {
        Attribute::String(text.into(), None)
    }

    /// A reference to the symbol `@name`.
    pub fn symbol(name: impl Into<Text>) -> Attribute {
        Attribute::SymbolRef { root: name.into(), nested: Arc::from([]) }
    }

    /// An array attribute, `[elements]`.
    pub fn array(elements: Vec<Attribute>) -> Attribute {
        Attribute::Array(elements.into())
    }

    /// The name in `@name`; absent for anything else, nested references included.
    pub fn as_flat_symbol(&self) -> Option<&Text> {
        match self {
            Attribute::SymbolRef { root, nested } if nested.is_empty() => Some(root),
            _ => None,
        }
    }

    /// How deep lists are nested: 1 for an attribute that is no list.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Attribute::Array(elements) => 1 + elements.iter().map(Attribute::depth).max().unwrap_or(0),
            _ => 1,
        }
    }

    /// The integer's value, signed or unsigned according to its type.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Attribute::Integer { value, .. } => Some(*value),
            _ => None,
        }
    }

    /// The string's bytes.
    pub fn as_text(&self) -> Option<&Text> {
        match self {
            Attribute::String(text, _) => Some(text),
            _ => None,
        }
    }
}

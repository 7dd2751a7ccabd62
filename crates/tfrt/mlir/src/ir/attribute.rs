//! Attributes: constant data attached to operations.

use std::sync::Arc;

use super::{DenseElements, DialectSymbol, FloatKind, Location, Text, Type};

/// An MLIR attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// The unit attribute, printed in a dictionary as just its name.
    Unit,
    /// An integer or boolean, `5 : i32`, `true`.
    Integer {
        /// The integer's type: an integer type or `index`.
        ty: Type,
        /// The integer's value: sign-extended for signless and signed types, zero-extended for unsigned types and `i1`.
        value: i128,
    },
    /// A floating-point number, `1.0 : f32`.
    Float {
        /// The number's floating-point format.
        kind: FloatKind,
        /// The number's bits in that format, in the low bits of the word.
        bits: u128,
    },
    /// A string; the type is absent except in `"text" : type`.
    String(Text, Option<Arc<Type>>),
    /// A type as an attribute.
    Type(Type),
    /// A list of attributes, `[...]`.
    Array(Arc<[Attribute]>),
    /// Named attributes `{...}`, sorted by name.
    Dictionary(Arc<[NamedAttribute]>),
    /// A reference to a symbol, `@root::@nested`.
    SymbolRef {
        /// The symbol before the first `::`.
        root: Text,
        /// The symbols after `root`, from the outermost to the innermost.
        nested: Arc<[Text]>,
    },
    /// A constant tensor, `dense<...> : tensor<...>`.
    Dense(Arc<DenseElements>),
    /// A list of numbers of one type, `array<i32: 1, 2>`: the type, then the numbers.
    DenseArray(Type, Arc<[Attribute]>),
    /// A shape, `#corert.shape<...>`: dimensions, `-1` for an unknown one; absent if the rank is unknown.
    Shape(Option<Arc<[i64]>>),
    /// A location as an attribute, `loc(...)`.
    Location(Arc<Location>),
    /// An attribute of a dialect whose attributes are kept as text, `#dialect.body`.
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

    /// The nesting depth of lists in the attribute: 1 for an attribute that is not a list.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Attribute::Array(elements) => 1 + elements.iter().map(Attribute::depth).max().unwrap_or(0),
            _ => 1,
        }
    }

    /// The value of an integer attribute, signed or unsigned according to its type; absent for other attributes.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Attribute::Integer { value, .. } => Some(*value),
            _ => None,
        }
    }

    /// The bytes of a string attribute; absent for other attributes.
    pub fn as_text(&self) -> Option<&Text> {
        match self {
            Attribute::String(text, _) => Some(text),
            _ => None,
        }
    }
}

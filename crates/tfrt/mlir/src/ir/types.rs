//! Types, with MLIR's syntax.

use std::sync::Arc;

use super::{Attribute, FloatKind};

/// The signedness of an integer type: signless `i32`, signed `si32` or unsigned `ui32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signedness {
    /// `iN`: whether a value is signed depends on the operation that uses it.
    Signless,
    /// `siN`.
    Signed,
    /// `uiN`.
    Unsigned,
}

/// A type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// An integer type of any width: `i32`, `si8`, `ui64`.
    Integer {
        /// Width in bits.
        width: u32,
        /// The signedness.
        signedness: Signedness,
    },
    /// `index`.
    Index,
    /// A floating-point type: `f16`, `bf16`, `f32`, `f64`, or a rarer one.
    Float(FloatKind),
    /// `none`.
    None,
    /// `complex<T>`.
    Complex(Arc<Type>),
    /// `(inputs) -> results`.
    Function(Arc<FunctionType>),
    /// `tuple<...>`.
    Tuple(Arc<[Type]>),
    /// `tensor<...>`, `vector<...>` or `memref<...>`.
    Shaped(Arc<ShapedType>),
    /// A type of a dialect: `!dialect.body`.
    Dialect(Arc<DialectSymbol>),
}

/// Inputs and results of a function or of an operation in generic form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FunctionType {
    /// Argument types.
    pub inputs: Vec<Type>,
    /// Result types.
    pub results: Vec<Type>,
}

/// The kinds of shaped types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShapedKind {
    /// `tensor`.
    Tensor,
    /// `vector`.
    Vector,
    /// `memref`.
    MemRef,
}

/// A shaped type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShapedType {
    /// The kind.
    pub kind: ShapedKind,
    /// Dimensions, `-1` for a dynamic one (`?`); absent if unranked (`*`).
    pub shape: Option<Vec<i64>>,
    /// For each dimension, whether it is scalable (`[4]`); empty if none is. Vectors only.
    pub scalable: Vec<bool>,
    /// Element type.
    pub element: Type,
    /// The encoding of a tensor; the layout and memory space of a memref; empty if none is given.
    pub extra: Vec<Attribute>,
}

impl ShapedType {
    /// Number of elements of a static shape; absent if the shape is dynamic or unranked, or the number exceeds `u64`.
    pub fn num_elements(&self) -> Option<u64> {
        self.shape.as_ref()?.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?))
    }
}

/// A dialect type or attribute: the dialect's name, and the text after it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DialectSymbol {
    /// The dialect.
    pub dialect: String,
    /// The text after the dialect's name: `chain` in `!tfrt.chain`, `shape<2>` in `#corert.shape<2>`.
    pub body: String,
}

impl DialectSymbol {
    /// Appends the text after the `!` or `#`: `dialect.body` if that can be parsed back, otherwise `dialect<body>`.
    pub(crate) fn write(&self, out: &mut String) {
        out.push_str(&self.dialect);
        if is_pretty_body(&self.body) {
            out.push('.');
            out.push_str(&self.body);
        } else {
            out.push('<');
            out.push_str(&self.body);
            out.push('>');
        }
    }
}

/// Whether `body` can follow `dialect.` without outer brackets: an identifier, perhaps with one `<...>` group at the
/// end.
fn is_pretty_body(body: &str) -> bool {
    if !body.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return false;
    }
    // A hyphen before the closing `>` would be parsed as an arrow.
    if body.ends_with('-') {
        return body.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'$' | b'-'));
    }
    let rest = body.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_');
    rest.is_empty() || (rest.starts_with('<') && rest.ends_with('>') && is_balanced(rest.as_bytes()))
}

/// Whether the brackets of `text` are balanced and the outermost pair closes at its end.
fn is_balanced(text: &[u8]) -> bool {
    let mut open = Vec::new();
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b @ (b'<' | b'(' | b'[' | b'{') => open.push(b),
            b'-' if text.get(at + 1) == Some(&b'>') => at += 1,
            b'"' => {
                at += 1;
                while at < text.len() && text[at] != b'"' {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                if at >= text.len() {
                    return false;
                }
            }
            close @ (b'>' | b')' | b']' | b'}') => {
                let want = match close {
                    b'>' => b'<',
                    b')' => b'(',
                    b']' => b'[',
                    _ => b'{',
                };
                if open.pop() != Some(want) || (open.is_empty() && at + 1 != text.len()) {
                    return false;
                }
            }
            _ => {}
        }
        at += 1;
    }
    open.is_empty()
}

impl Type {
    /// The signless integer type of this width.
    pub const fn int(width: u32) -> Type {
        Type::Integer { width, signedness: Signedness::Signless }
    }

    /// The unsigned integer type of this width.
    pub const fn uint(width: u32) -> Type {
        Type::Integer { width, signedness: Signedness::Unsigned }
    }

    /// A dialect type, `!dialect.body`.
    pub fn dialect(dialect: &str, body: &str) -> Type {
        Type::Dialect(Arc::new(DialectSymbol { dialect: dialect.into(), body: body.into() }))
    }

    /// A function type.
    pub fn function(inputs: Vec<Type>, results: Vec<Type>) -> Type {
        Type::Function(Arc::new(FunctionType { inputs, results }))
    }

    /// The type `complex<element>`.
    pub fn complex(element: Type) -> Type {
        Type::Complex(Arc::new(element))
    }

    /// The type `tensor<shape x element>`.
    pub fn tensor(shape: Vec<i64>, element: Type) -> Type {
        Type::Shaped(Arc::new(ShapedType {
            kind: ShapedKind::Tensor,
            shape: Some(shape),
            scalable: Vec::new(),
            element,
            extra: Vec::new(),
        }))
    }

    /// Whether this is the dialect type `!dialect.body`.
    pub fn is_dialect(&self, dialect: &str, body: &str) -> bool {
        matches!(self, Type::Dialect(symbol) if symbol.dialect == dialect && symbol.body == body)
    }
}

/// Normalizes `value` to the representation of [`Attribute::Integer`](super::Attribute::Integer): sign-extended from
/// the width of `ty`, or zero-extended for unsigned types and `i1`.
pub(crate) fn canonical_int(ty: &Type, value: i128) -> i128 {
    let (width, unsigned) = match ty {
        Type::Integer { width, signedness } => (
            *width,
            *signedness == Signedness::Unsigned || (*width == 1 && *signedness == Signedness::Signless),
        ),
        _ => (64, false),
    };
    if width == 0 {
        return 0;
    }
    if width >= 128 {
        return value;
    }
    let shift = 128 - width;
    if unsigned { ((value as u128) << shift >> shift) as i128 } else { value << shift >> shift }
}

#[cfg(test)]
mod tests {
    use crate::{PrintOptions, parse, print};

    #[test]
    fn a_name_that_ends_with_a_hyphen_reads_back() {
        let text = "\"x.op\"() {t = !corert.variant-} : () -> ()\n";
        let module = parse(text, "test").unwrap();
        let printed = print(&module, PrintOptions::default());
        assert!(printed.contains("!corert.variant-}"), "{printed}");
        assert_eq!(print(&parse(&printed, "test").unwrap(), PrintOptions::default()), printed);
    }
}

//! Human-readable attribute values: floating-point bits as numbers, and bytes as text.

use super::{Array, Attribute, Dense, ElementType, Shape, SymbolRef};
use half::{bf16, f16};
use std::fmt;

impl fmt::Display for Attribute<'_> {
    /// Writes one element at a time, so that an `f` that fails after a maximum length ends the printing of a long value
    /// early.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::UI8(v) => v.fmt(f),
            Attribute::UI16(v) => v.fmt(f),
            Attribute::UI32(v) => v.fmt(f),
            Attribute::UI64(v) => v.fmt(f),
            Attribute::I1(v) => v.fmt(f),
            Attribute::I8(v) => v.fmt(f),
            Attribute::I16(v) => v.fmt(f),
            Attribute::I32(v) => v.fmt(f),
            Attribute::I64(v) => v.fmt(f),
            Attribute::F16(v) => write!(f, "{:?}", f16::from_bits(*v).to_f32()),
            Attribute::BF16(v) => write!(f, "{:?}", bf16::from_bits(*v).to_f32()),
            Attribute::F32(v) => write!(f, "{:?}", f32::from_bits(*v)),
            Attribute::F64(v) => write!(f, "{:?}", f64::from_bits(*v)),
            Attribute::Complex64(v) => write!(f, "{:?} + {:?}i", f32::from_bits(v.re), f32::from_bits(v.im)),
            Attribute::Complex128(v) => write!(f, "{:?} + {:?}i", f64::from_bits(v.re), f64::from_bits(v.im)),
            Attribute::String(v) => write!(f, "{:?}", String::from_utf8_lossy(v)),
            Attribute::Func(v) => write!(f, "@{}", String::from_utf8_lossy(v)),
            Attribute::Type(v) => v.fmt(f),
            Attribute::Shape(v) => v.fmt(f),
            Attribute::Dense(v) => v.fmt(f),
            Attribute::Array(v) => v.fmt(f),
            Attribute::Aggregate(v) => list(f, v.iter()),
            Attribute::SymbolRef(v) => v.fmt(f),
        }
    }
}

/// Prints `[first, second, ...]`.
fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: impl Iterator<Item = T>) -> fmt::Result {
    f.write_str("[")?;
    for (i, item) in items.enumerate() {
        write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
    }
    f.write_str("]")
}

impl fmt::Display for Array<'_> {
    /// Prints the element type, then the elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.element_type() {
            ElementType::Data(dtype) => write!(f, "{dtype} ")?,
            ElementType::Type => f.write_str("types ")?,
        }
        list(f, self.elements())
    }
}

impl fmt::Display for Dense<'_> {
    /// Prints the sizes, the element type, then the elements in row-major order.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dense {:?} {} ", self.dims(), self.dtype())?;
        list(f, self.elements())
    }
}

impl fmt::Display for Shape {
    /// Prints the sizes, with `?` for an unknown size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Unranked => f.write_str("unranked"),
            Shape::Ranked(dims) => {
                let dim = |&dim: &i64| if dim < 0 { "?".to_owned() } else { dim.to_string() };
                list(f, dims.iter().map(dim))
            }
        }
    }
}

impl fmt::Display for SymbolRef<'_> {
    /// Prints the symbol's full path: `@outer::@inner`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.root)?;
        self.nested.iter().try_for_each(|name| write!(f, "::@{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Complex, DType};
    use super::*;

    #[test]
    fn values_are_shown_as_numbers_and_text() {
        let dense = Dense::new(DType::F16, vec![2, 1], vec![0x00, 0x3c, 0x00, 0xc0]).unwrap();
        for (attribute, text) in [
            (Attribute::I8(-3), "-3"),
            (Attribute::f32(2.0), "2.0"),
            (Attribute::BF16(0x3f80), "1.0"),
            (Attribute::Complex64(Complex { re: 1f32.to_bits(), im: (-0.5f32).to_bits() }), "1.0 + -0.5i"),
            (Attribute::string("a\n"), "\"a\\n\""),
            (Attribute::Func(b"main"[..].into()), "@main"),
            (Attribute::Array(Array::from_bools(&[true, false])), "I1 [true, false]"),
            (Attribute::Array(Array::from_types(&[DType::F32])), "types [F32]"),
            (Attribute::Dense(dense), "dense [2, 1] F16 [1.0, -2.0]"),
            (Attribute::Shape(Shape::Ranked(vec![3, -1])), "[3, ?]"),
            (Attribute::Aggregate(vec![Attribute::I1(true), Attribute::Aggregate(Vec::new())]), "[true, []]"),
        ] {
            assert_eq!(attribute.to_string(), text);
        }
    }
}

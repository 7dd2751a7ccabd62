//! Attributes of kernel calls, used where they lie: text and payloads borrow from the program's file.

use crate::source::{Decoded, ProgramSource};
use pteron_bef::attribute::{Array, Attribute, AttributeType, DType, Dense, ElementType, Shape};
use std::sync::OnceLock;

/// An attribute of one kernel call in a function, read from the file on first access.
///
/// A file without optional sections does not record attribute types; then the type that the kernel first asks for
/// decides.
pub(crate) struct SiteAttribute {
    value: OnceLock<Decoded>,
    /// The attribute's offset in the file, and its type if the file records it.
    source: Option<(u64, Option<AttributeType>)>,
}

impl SiteAttribute {
    pub(crate) fn from_value(value: Attribute<'static>) -> Self {
        Self { value: OnceLock::from(Decoded::Small(value)), source: None }
    }

    pub(crate) fn from_offset(offset: u64, kind: Option<AttributeType>) -> Self {
        Self { value: OnceLock::new(), source: Some((offset, kind)) }
    }

    /// The attribute as a `T`; if it has not been read before, it is decoded from `program`, the file of the calling
    /// module.
    pub(crate) fn get<'a, T: AttributeValue<'a>>(
        &'a self,
        program: Option<&ProgramSource>,
    ) -> Result<T, String> {
        if let Some(value) = self.value.get() {
            return read_as(value.get());
        }
        let Some((offset, kind)) = self.source else { return Err("it has no value".into()) };
        let Some(program) = program else { return Err("the function comes from no file".into()) };
        let mut problem = format!("the file does not record its type, expected {}", T::EXPECTED);
        for &kind in kind.as_slice().iter().chain(T::TYPES.iter().filter(|_| kind.is_none())) {
            match program.attribute(offset, kind) {
                Ok(value) => return read_as(self.value.get_or_init(|| value).get()),
                Err(e) => problem = e,
            }
        }
        Err(problem)
    }
}

/// Converts the attribute to a Rust type that may borrow from it.
fn read_as<'a, T: AttributeValue<'a>>(value: &'a Attribute<'a>) -> Result<T, String> {
    let kind = value.attribute_type();
    T::from_attribute(value).ok_or_else(|| format!("found {kind:?}, expected {}", T::EXPECTED))
}

/// A Rust type that a kernel can read an attribute as.
pub trait AttributeValue<'a>: Sized {
    /// The expected attribute type, for error messages.
    const EXPECTED: &'static str;
    /// The types to try to decode an attribute as, in order, if the file does not record its type.
    const TYPES: &'static [AttributeType];
    /// The attribute as this type, or `None` if it is of another type.
    fn from_attribute(attribute: &'a Attribute<'a>) -> Option<Self>;
}

macro_rules! scalars {
    ($($ty:ty, $variant:ident, $dtype:ident, $v:ident => $e:expr, $expected:literal;)*) => {$(
        impl AttributeValue<'_> for $ty {
            const EXPECTED: &'static str = $expected;
            const TYPES: &'static [AttributeType] = &[AttributeType::Scalar(DType::$dtype)];
            #[inline]
            fn from_attribute(attribute: &Attribute<'_>) -> Option<Self> {
                if let Attribute::$variant($v) = attribute { Some($e) } else { None }
            }
        }
    )*};
}

scalars! {
    u8, UI8, UI8, v => *v, "ui8";
    u16, UI16, UI16, v => *v, "ui16";
    u32, UI32, UI32, v => *v, "ui32";
    u64, UI64, UI64, v => *v, "ui64";
    bool, I1, I1, v => *v, "i1";
    i8, I8, I8, v => *v, "i8";
    i16, I16, I16, v => *v, "i16";
    i32, I32, I32, v => *v, "i32";
    i64, I64, I64, v => *v, "i64";
    f32, F32, F32, v => f32::from_bits(*v), "f32";
    f64, F64, F64, v => f64::from_bits(*v), "f64";
}

/// Raw bits of an `f16` attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct F16Bits(pub u16);

/// Raw bits of a `bf16` attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bf16Bits(pub u16);

scalars! {
    F16Bits, F16, F16, v => F16Bits(*v), "f16";
    Bf16Bits, BF16, BF16, v => Bf16Bits(*v), "bf16";
}

impl<'a> AttributeValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string of UTF-8";
    const TYPES: &'static [AttributeType] = &[AttributeType::String];
    fn from_attribute(attribute: &'a Attribute<'a>) -> Option<Self> {
        if let Attribute::String(bytes) = attribute { std::str::from_utf8(bytes).ok() } else { None }
    }
}

impl<'a> AttributeValue<'a> for &'a [u8] {
    const EXPECTED: &'static str = "a string";
    const TYPES: &'static [AttributeType] = &[AttributeType::String];
    fn from_attribute(attribute: &'a Attribute<'a>) -> Option<Self> {
        if let Attribute::String(bytes) = attribute { Some(bytes) } else { None }
    }
}

impl AttributeValue<'_> for String {
    const EXPECTED: &'static str = "a string";
    const TYPES: &'static [AttributeType] = &[AttributeType::String];
    fn from_attribute(attribute: &Attribute<'_>) -> Option<Self> {
        if let Attribute::String(bytes) = attribute {
            Some(String::from_utf8_lossy(bytes).into())
        } else {
            None
        }
    }
}

impl AttributeValue<'_> for DType {
    const EXPECTED: &'static str = "a type";
    const TYPES: &'static [AttributeType] = &[AttributeType::Type];
    fn from_attribute(attribute: &Attribute<'_>) -> Option<Self> {
        if let Attribute::Type(v) = attribute { Some(*v) } else { None }
    }
}

macro_rules! references {
    ($a:lifetime: $($ty:ty, $variant:ident, $types:expr, $expected:literal;)*) => {$(
        impl<$a> AttributeValue<$a> for &$a $ty {
            const EXPECTED: &'static str = $expected;
            const TYPES: &'static [AttributeType] = $types;
            fn from_attribute(attribute: &$a Attribute<$a>) -> Option<Self> {
                if let Attribute::$variant(v) = attribute { Some(v) } else { None }
            }
        }
    )*};
}

references! {
    'a:
    Shape, Shape, &[AttributeType::Shape], "a shape";
    Dense<'a>, Dense, &[AttributeType::Dense], "a dense attribute";
    Array<'a>, Array, &[], "an array of numbers whose type the file records";
    [Attribute<'a>], Aggregate, &[AttributeType::Aggregate], "an aggregate";
}

macro_rules! vectors {
    ($($ty:ty, $dtype:ident, $array:ident => $e:expr, $expected:literal;)*) => {$(
        impl AttributeValue<'_> for Vec<$ty> {
            const EXPECTED: &'static str = $expected;
            const TYPES: &'static [AttributeType] = &[AttributeType::Array(ElementType::Data(DType::$dtype))];
            fn from_attribute(attribute: &Attribute<'_>) -> Option<Self> {
                match attribute {
                    // An empty array is recorded as an array of i32, whatever its element type was.
                    Attribute::Array(array) if array.is_empty() => Some(Vec::new()),
                    Attribute::Array($array) => $e,
                    _ => None,
                }
            }
        }
    )*};
}

vectors! {
    u8, UI8, a => Some(a.u8s()?.collect()), "an array of ui8";
    u16, UI16, a => Some(a.u16s()?.collect()), "an array of ui16";
    u32, UI32, a => Some(a.u32s()?.collect()), "an array of ui32";
    u64, UI64, a => Some(a.u64s()?.collect()), "an array of ui64";
    bool, I1, a => Some(a.bools()?.collect()), "an array of i1";
    i8, I8, a => Some(a.i8s()?.collect()), "an array of i8";
    i16, I16, a => Some(a.i16s()?.collect()), "an array of i16";
    i32, I32, a => Some(a.i32s()?.collect()), "an array of i32";
    i64, I64, a => Some(a.i64s()?.collect()), "an array of i64";
    f32, F32, a => Some(a.f32s()?.collect()), "an array of f32";
    f64, F64, a => Some(a.f64s()?.collect()), "an array of f64";
    F16Bits, F16, a => Some(a.f16_bits()?.map(F16Bits).collect()), "an array of f16";
    Bf16Bits, BF16, a => Some(a.bf16_bits()?.map(Bf16Bits).collect()), "an array of bf16";
}

impl<'a> AttributeValue<'a> for &'a Attribute<'a> {
    const EXPECTED: &'static str = "an attribute whose type the file records";
    const TYPES: &'static [AttributeType] = &[];
    fn from_attribute(attribute: &'a Attribute<'a>) -> Option<Self> {
        Some(attribute)
    }
}

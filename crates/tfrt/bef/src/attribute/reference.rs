//! Attributes in a file, read as a type that the caller chooses.

use super::{
    Array, Attribute, AttributeType, Complex, DType, Dense, ElementType, Shape, SymbolRef, array, dense,
    scalar, shape, string, symbol_ref,
};
use crate::error::Result;
use crate::region::Region;

/// An offset in the Attributes section.
///
/// The bytes there carry no type: the kernel knows which type it expects, and the optional AttributeTypes section
/// records it. Every read checks bounds, alignment (of the file offset) and well-formedness.
#[derive(Clone, Copy, Debug)]
pub struct AttributeRef<'a> {
    pub(super) region: Region<'a>,
    /// Offset of the attribute, relative to the region.
    pub(super) offset: u64,
    pub(super) nesting_left: u32,
}

macro_rules! numbers {
    ($($name:ident, $type:ty, $doc:literal;)*) => {$(
        #[doc = concat!("The value, as ", $doc, ".")]
        ///
        /// # Errors
        /// If it is out of bounds or misaligned.
        #[inline]
        pub fn $name(&self) -> Result<$type> {
            const SIZE: usize = size_of::<$type>();
            let bytes = scalar::bytes::<SIZE>(self.region, self.offset, SIZE as u64)?;
            Ok(<$type>::from_le_bytes(bytes))
        }
    )*};
}

impl<'a> AttributeRef<'a> {
    /// Refers to the attribute at `offset`, clamped to the section's end, where every read fails.
    pub(crate) fn new(section: Region<'a>, offset: u64, nesting_left: u32) -> Self {
        AttributeRef { region: section, offset: offset.min(section.len()), nesting_left }
    }

    /// Absolute offset in the file.
    pub fn file_offset(&self) -> u64 {
        self.region.start() + self.offset
    }

    numbers! {
        u8, u8, "`u8`";
        u16, u16, "`u16`";
        u32, u32, "`u32`";
        u64, u64, "`u64`";
        i8, i8, "`i8`";
        i16, i16, "`i16`";
        i32, i32, "`i32`";
        i64, i64, "`i64`";
        f32, f32, "`f32`";
        f64, f64, "`f64`";
        f16_bits, u16, "the bits of an `f16`";
        bf16_bits, u16, "the bits of a `bf16`";
    }

    /// The value, as a bool.
    ///
    /// # Errors
    /// When the byte is neither 0 nor 1.
    pub fn bool(&self) -> Result<bool> {
        scalar::bool(self.region, self.offset)
    }

    /// The value, as two `f32`.
    ///
    /// # Errors
    /// If it is out of bounds or misaligned.
    pub fn complex64(&self) -> Result<Complex<f32>> {
        let bits = scalar::complex64(self.region, self.offset)?;
        Ok(Complex { re: f32::from_bits(bits.re), im: f32::from_bits(bits.im) })
    }

    /// The value, as two `f64`.
    ///
    /// # Errors
    /// If it is out of bounds or misaligned.
    pub fn complex128(&self) -> Result<Complex<f64>> {
        let bits = scalar::complex128(self.region, self.offset)?;
        Ok(Complex { re: f64::from_bits(bits.re), im: f64::from_bits(bits.im) })
    }

    /// The value, as a data type.
    ///
    /// # Errors
    /// If the byte is not the number of a data type.
    pub fn dtype(&self) -> Result<DType> {
        scalar::dtype(self.region, self.offset)
    }

    /// The bytes of a string attribute.
    ///
    /// # Errors
    /// When it runs past the section or is misaligned.
    pub fn string_bytes(&self) -> Result<&'a [u8]> {
        string::read(self.region, self.offset).map(|bytes| bytes.bytes())
    }

    /// The text of a string attribute.
    ///
    /// # Errors
    /// As [`string_bytes`](Self::string_bytes), and when it is not UTF-8.
    pub fn string(&self) -> Result<&'a str> {
        string::read(self.region, self.offset).and_then(string::text)
    }

    /// The function name of a func attribute.
    ///
    /// # Errors
    /// As [`string`](Self::string).
    pub fn func(&self) -> Result<&'a str> {
        self.string()
    }

    /// The shape.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn shape(&self) -> Result<Shape> {
        shape::read(self.region, self.offset).map(|(shape, _)| shape)
    }

    /// The tensor; its elements are borrowed from the file.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn dense(&self) -> Result<Dense<'a>> {
        dense::read(self.region, self.offset).map(|(dense, _)| dense)
    }

    /// The array; its elements are borrowed from the file. An empty array can be read as any element type.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn array(&self, element_type: ElementType) -> Result<Array<'a>> {
        array::read(self.region, self.offset, element_type).map(|(array, _)| array)
    }

    /// The symbol in a compiled module.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn symbol_ref(&self) -> Result<SymbolRef<'a>> {
        symbol_ref::read(self.region, self.offset).map(|(symbol, _)| symbol)
    }

    /// Decodes the whole value as a `kind`.
    ///
    /// # Errors
    /// When it is malformed, or nested deeper than the limits allow.
    pub fn decode(&self, kind: AttributeType) -> Result<Attribute<'a>> {
        self.decode_with_end(kind).map(|(value, _)| value)
    }

    /// The value and the offset of its end, relative to the region.
    pub(crate) fn decode_with_end(&self, kind: AttributeType) -> Result<(Attribute<'a>, u64)> {
        let (region, offset) = (self.region, self.offset);
        Ok(match kind {
            AttributeType::Scalar(dtype) => scalar::read(region, offset, dtype)?,
            AttributeType::String => {
                let bytes = string::read(region, offset)?;
                (Attribute::String(bytes.bytes().into()), offset + 4 + bytes.len())
            }
            AttributeType::Func => {
                let bytes = string::read(region, offset)?;
                (Attribute::Func(bytes.bytes().into()), offset + 4 + bytes.len())
            }
            AttributeType::Type => (Attribute::Type(self.dtype()?), offset + 1),
            AttributeType::Shape => with_variant(shape::read(region, offset)?, Attribute::Shape),
            AttributeType::Dense => with_variant(dense::read(region, offset)?, Attribute::Dense),
            AttributeType::Array(element) => {
                with_variant(array::read(region, offset, element)?, Attribute::Array)
            }
            AttributeType::SymbolRef => with_variant(symbol_ref::read(region, offset)?, |symbol| {
                Attribute::SymbolRef(Box::new(symbol))
            }),
            AttributeType::Aggregate => {
                let aggregate = self.aggregate()?;
                let mut elements = Vec::with_capacity(aggregate.len() as usize);
                let size = aggregate.walk_elements(|kind, element| {
                    let (value, end) = element.decode_with_end(kind)?;
                    elements.push(value);
                    Ok(end)
                })?;
                (Attribute::Aggregate(elements), offset + size)
            }
        })
    }

    /// Checks the whole value as a `kind` without building it, and returns the offset of its end, relative to the
    /// region.
    #[inline]
    pub(crate) fn check(&self, kind: AttributeType) -> Result<u64> {
        match kind {
            AttributeType::Scalar(dtype) => scalar::check(self.region, self.offset, dtype),
            AttributeType::Aggregate => {
                let size = self.aggregate()?.walk_elements(|kind, element| element.check(kind))?;
                Ok(self.offset + size)
            }
            leaf => self.decode_with_end(leaf).map(|(_, end)| end),
        }
    }
}

fn with_variant<T, A>((value, end): (T, u64), variant: impl FnOnce(T) -> A) -> (A, u64) {
    (variant(value), end)
}

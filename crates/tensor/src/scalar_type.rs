use std::fmt;

macro_rules! scalar_types {
    ($($variant:ident = $value:literal, $size:literal, $name:literal, $short:literal;)*) => {
        /// The type of a tensor's elements, with the numbers of `scalar_type.fbs` and c10.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(i8)]
        #[non_exhaustive]
        pub enum ScalarType { $(#[doc = $name] $variant = $value,)* }

        impl ScalarType {
            /// Every scalar type, in numeric order.
            pub const ALL: &'static [ScalarType] = &[$(ScalarType::$variant),*];

            /// The size of an element in bytes.
            pub const fn size(self) -> usize { match self { $(Self::$variant => $size,)* } }

            /// PyTorch's name: `float32`, `int64`, `bool`.
            pub const fn name(self) -> &'static str { match self { $(Self::$variant => $name,)* } }

            /// The short name of the command line: `f32`, `i64`, `b1`.
            pub const fn short_name(self) -> &'static str { match self { $(Self::$variant => $short,)* } }

            /// Parses PyTorch's name or the short name of a scalar type; `None` for any other text.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name | $short => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

scalar_types! {
    Byte = 0, 1, "uint8", "u8";
    Char = 1, 1, "int8", "i8";
    Short = 2, 2, "int16", "i16";
    Int = 3, 4, "int32", "i32";
    Long = 4, 8, "int64", "i64";
    Half = 5, 2, "float16", "f16";
    Float = 6, 4, "float32", "f32";
    Double = 7, 8, "float64", "f64";
    ComplexHalf = 8, 4, "complex32", "c32";
    ComplexFloat = 9, 8, "complex64", "c64";
    ComplexDouble = 10, 16, "complex128", "c128";
    Bool = 11, 1, "bool", "b1";
    QInt8 = 12, 1, "qint8", "qi8";
    QUInt8 = 13, 1, "quint8", "qu8";
    QInt32 = 14, 4, "qint32", "qi32";
    BFloat16 = 15, 2, "bfloat16", "bf16";
    QUInt4x2 = 16, 1, "quint4x2", "qu4x2";
    QUInt2x4 = 17, 1, "quint2x4", "qu2x4";
    Bits1x8 = 18, 1, "bits1x8", "b1x8";
    Bits2x4 = 19, 1, "bits2x4", "b2x4";
    Bits4x2 = 20, 1, "bits4x2", "b4x2";
    Bits8 = 21, 1, "bits8", "b8";
    Bits16 = 22, 2, "bits16", "b16";
    Float8E5M2 = 23, 1, "float8_e5m2", "f8e5m2";
    Float8E4M3FN = 24, 1, "float8_e4m3fn", "f8e4m3fn";
    Float8E5M2FNUZ = 25, 1, "float8_e5m2fnuz", "f8e5m2fnuz";
    Float8E4M3FNUZ = 26, 1, "float8_e4m3fnuz", "f8e4m3fnuz";
    UInt16 = 27, 2, "uint16", "u16";
    UInt32 = 28, 4, "uint32", "u32";
    UInt64 = 29, 8, "uint64", "u64";
}

impl ScalarType {
    /// The alignment of an element in bytes.
    pub const fn alignment(self) -> usize {
        match self {
            Self::ComplexHalf => 2,
            Self::ComplexFloat => 4,
            Self::ComplexDouble => 8,
            other => other.size(),
        }
    }

    /// Whether this is float16, bfloat16, float32 or float64.
    pub const fn is_floating(self) -> bool {
        matches!(self, Self::Half | Self::Float | Self::Double | Self::BFloat16)
    }

    /// Whether this is a complex type.
    pub const fn is_complex(self) -> bool {
        matches!(self, Self::ComplexHalf | Self::ComplexFloat | Self::ComplexDouble)
    }

    /// Whether this is an integer type; bool is not.
    pub const fn is_integral(self) -> bool {
        matches!(
            self,
            Self::Byte
                | Self::Char
                | Self::Short
                | Self::Int
                | Self::Long
                | Self::UInt16
                | Self::UInt32
                | Self::UInt64
        )
    }

    /// The type of the real and imaginary parts of a complex type; for any other type, the type itself.
    pub const fn to_real(self) -> Self {
        match self {
            Self::ComplexHalf => Self::Half,
            Self::ComplexFloat => Self::Float,
            Self::ComplexDouble => Self::Double,
            other => other,
        }
    }

    /// The type that two operand types promote to, by the table of `torch.promote_types`; `None` if there is none.
    ///
    /// Quantized, bits, float8 and the wide unsigned types promote only with themselves, as in c10.
    pub fn promote(self, other: Self) -> Option<Self> {
        use ScalarType::*;
        if self == other {
            return Some(self);
        }
        // Rows and columns of the table: u1 i1 i2 i4 i8 f2 f4 f8 c2 c4 c8 b1 bf.
        let index = |t: Self| match t {
            Byte | Char | Short | Int | Long | Half | Float | Double | ComplexHalf | ComplexFloat
            | ComplexDouble | Bool => Some(t as usize),
            BFloat16 => Some(12),
            _ => None,
        };
        let (a, b) = (index(self)?, index(other)?);
        Some(PROMOTION[a.min(b)][a.max(b) - a.min(b)])
    }

    /// Whether a result of type `self` may be stored as `to`: `torch.can_cast`.
    pub const fn can_cast(self, to: Self) -> bool {
        if self.is_complex() && !to.is_complex() {
            return false;
        }
        if (self.is_floating() || self.is_complex()) && (to.is_integral() || matches!(to, Self::Bool)) {
            return false;
        }
        matches!(self, Self::Bool) || !matches!(to, Self::Bool)
    }
}

/// The upper triangle of c10's promotion table; each row starts at the diagonal.
const PROMOTION: [&[ScalarType]; 13] = {
    use ScalarType::{
        BFloat16 as bf, Bool as b1, Byte as u1, Char as i1, ComplexDouble as c8, ComplexFloat as c4,
        ComplexHalf as c2, Double as f8, Float as f4, Half as f2, Int as i4, Long as i8, Short as i2,
    };
    [
        &[u1, i2, i2, i4, i8, f2, f4, f8, c2, c4, c8, u1, bf],
        &[i1, i2, i4, i8, f2, f4, f8, c2, c4, c8, i1, bf],
        &[i2, i4, i8, f2, f4, f8, c2, c4, c8, i2, bf],
        &[i4, i8, f2, f4, f8, c2, c4, c8, i4, bf],
        &[i8, f2, f4, f8, c2, c4, c8, i8, bf],
        &[f2, f4, f8, c2, c4, c8, f2, f4],
        &[f4, f8, c4, c4, c8, f4, f4],
        &[f8, c8, c8, c8, f8, f8],
        &[c2, c4, c8, c2, c4],
        &[c4, c8, c4, c4],
        &[c8, c8, c8],
        &[b1, bf],
        &[bf],
    ]
};

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::ScalarType::{self, *};

    #[test]
    fn promotion_follows_the_c10_table() {
        assert_eq!(Byte.promote(Char), Some(Short));
        assert_eq!(Char.promote(Byte), Some(Short));
        assert_eq!(Half.promote(BFloat16), Some(Float));
        assert_eq!(BFloat16.promote(Long), Some(BFloat16));
        assert_eq!(Bool.promote(Byte), Some(Byte));
        assert_eq!(ComplexHalf.promote(Float), Some(ComplexFloat));
        assert_eq!(ComplexHalf.promote(Double), Some(ComplexDouble));
        assert_eq!(Double.promote(ComplexFloat), Some(ComplexDouble));
        assert_eq!(Bool.promote(BFloat16), Some(BFloat16));
        assert_eq!(QInt8.promote(QInt8), Some(QInt8));
        assert_eq!(QInt8.promote(Float), None);
        for &a in ScalarType::ALL {
            for &b in ScalarType::ALL {
                assert_eq!(a.promote(b), b.promote(a));
            }
        }
    }

    #[test]
    fn numbers_and_names_round_trip() {
        for &t in ScalarType::ALL {
            assert_eq!(ScalarType::from_i8(t as i8), Ok(t));
            assert_eq!(ScalarType::parse(t.name()), Some(t));
            assert_eq!(ScalarType::parse(t.short_name()), Some(t));
        }
        assert!(ScalarType::from_i8(30).is_err());
        assert!(ScalarType::from_i8(-1).is_err());
    }
}

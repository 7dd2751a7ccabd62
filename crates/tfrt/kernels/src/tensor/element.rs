use crate::format::Exponent;
use half::{bf16, f16};
use num_complex::Complex;
use pteron_bef::DType;

/// A Rust type of tensor elements, converted explicitly to and from little-endian bytes.
pub(crate) trait Element: Copy + PartialEq + Send + Sync + 'static {
    const DTYPE: DType;
    const SIZE: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    fn is_zero(self) -> bool;
    /// Whether two elements are equal or, if they are `f32`, `f64` or complex, nearly so: by the reference's formula,
    /// which admits a difference of `ulp * EPSILON * |x + y|`.
    fn is_close(self, other: Self, _ulp: u32) -> bool {
        self == other
    }
}

macro_rules! numbers {
    ($($ty:ty, $dtype:ident $(, $close:expr)?;)*) => {$(
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            const SIZE: usize = size_of::<$ty>();
            fn read(bytes: &[u8]) -> Self {
                bytes.first_chunk().map_or(<$ty>::default(), |b| <$ty>::from_le_bytes(*b))
            }
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            fn is_zero(self) -> bool {
                self == <$ty>::default()
            }
            $(fn is_close(self, other: Self, ulp: u32) -> bool {
                $close(self, other, ulp)
            })?
        }
    )*};
}

macro_rules! close {
    ($ty:ty) => {
        |x: $ty, y: $ty, ulp: u32| {
            (x - y).abs() <= <$ty>::EPSILON * (x + y).abs() * ulp as $ty
                || (x - y).abs() < <$ty>::MIN_POSITIVE
        }
    };
}

numbers! {
    u8, UI8; u16, UI16; u32, UI32; u64, UI64;
    i8, I8; i16, I16; i32, I32; i64, I64;
    f16, F16; bf16, BF16;
    f32, F32, close!(f32);
    f64, F64, close!(f64);
}

impl Element for bool {
    const DTYPE: DType = DType::I1;
    const SIZE: usize = 1;
    fn read(bytes: &[u8]) -> Self {
        bytes.first().is_some_and(|&b| b != 0)
    }
    fn write(self, bytes: &mut [u8]) {
        bytes.fill(u8::from(self));
    }
    fn is_zero(self) -> bool {
        !self
    }
}

macro_rules! complex {
    ($ty:ty, $dtype:ident) => {
        impl Element for Complex<$ty> {
            const DTYPE: DType = DType::$dtype;
            const SIZE: usize = 2 * size_of::<$ty>();
            fn read(bytes: &[u8]) -> Self {
                let (re, im) = bytes.split_at(bytes.len() / 2);
                Complex::new(<$ty>::read(re), <$ty>::read(im))
            }
            fn write(self, bytes: &mut [u8]) {
                let (re, im) = bytes.split_at_mut(size_of::<$ty>());
                self.re.write(re);
                self.im.write(im);
            }
            fn is_zero(self) -> bool {
                self.re == 0.0 && self.im == 0.0
            }
            fn is_close(self, other: Self, ulp: u32) -> bool {
                self.re.is_close(other.re, ulp) && self.im.is_close(other.im, ulp)
            }
        }
    };
}

complex!(f32, Complex64);
complex!(f64, Complex128);

/// The name of a data type in printed tensors.
pub(crate) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::UI8 => "u8",
        DType::UI16 => "u16",
        DType::UI32 => "u32",
        DType::UI64 => "u64",
        DType::I1 => "i1",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::Complex64 => "complex64",
        DType::Complex128 => "complex128",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::String => "str",
        DType::Resource => "resource",
        DType::Variant => "variant",
        DType::QUI8 => "qu8",
        DType::QUI16 => "qu16",
        DType::QI8 => "qi8",
        DType::QI16 => "qi16",
        DType::QI32 => "qi32",
    }
}

/// The text of an element, given as bytes, in printed tensors.
pub(crate) fn format_element(dtype: DType, bytes: &[u8]) -> String {
    let complex = |re: f64, im: f64| format!("({},{})", Exponent(re), Exponent(im));
    match dtype {
        DType::UI8 | DType::QUI8 => u8::read(bytes).to_string(),
        DType::UI16 | DType::QUI16 => u16::read(bytes).to_string(),
        DType::UI32 => u32::read(bytes).to_string(),
        DType::UI64 => u64::read(bytes).to_string(),
        DType::I1 => u8::from(bool::read(bytes)).to_string(),
        DType::I8 | DType::QI8 => i8::read(bytes).to_string(),
        DType::I16 | DType::QI16 => i16::read(bytes).to_string(),
        DType::I32 | DType::QI32 => i32::read(bytes).to_string(),
        DType::I64 => i64::read(bytes).to_string(),
        DType::F32 => Exponent(f32::read(bytes).into()).to_string(),
        DType::F64 => Exponent(f64::read(bytes)).to_string(),
        DType::F16 => format!("fp16({})", u16::read(bytes)),
        DType::BF16 => format!("bf16({})", u16::read(bytes)),
        DType::Complex64 => {
            let v = Complex::<f32>::read(bytes);
            complex(v.re.into(), v.im.into())
        }
        DType::Complex128 => {
            let v = Complex::<f64>::read(bytes);
            complex(v.re, v.im)
        }
        DType::String | DType::Resource | DType::Variant => "?".to_owned(),
    }
}

//! Element types: conversions, the few types that operators compute in, and dispatch.

use half::{bf16, f16};
use num_complex::Complex;
use pteron_operator::{DtypeSet, Error, Result};
use pteron_tensor::{Bool, Element, Scalar, ScalarType};

/// The type that complex operators compute in.
pub(crate) type C64 = Complex<f64>;

/// Conversion of an element from and to each type that operators compute in, with PyTorch's semantics.
///
/// Integers wrap. Conversion from floating-point to integer truncates; if the value does not
/// fit, the result is that of x86: the smallest 32-bit or 64-bit integer, truncated to the type's width.
pub(crate) trait Cast: Element {
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn to_i64(self) -> i64;
    fn to_complex(self) -> C64;
    fn from_f32(x: f32) -> Self;
    fn from_f64(x: f64) -> Self;
    fn from_i64(x: i64) -> Self;
    fn from_complex(x: C64) -> Self;
}

#[inline]
fn trunc_i64(x: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&x) { x as i64 } else { i64::MIN }
}

#[inline]
fn trunc_i32(x: f64) -> i32 {
    if x > -2_147_483_649.0 && x < 2_147_483_648.0 { x as i32 } else { i32::MIN }
}

macro_rules! cast_integers {
    ($($type:ident by $trunc:ident),* $(,)?) => { $(
        impl Cast for $type {
            #[inline] fn to_f32(self) -> f32 { self as f32 }
            #[inline] fn to_f64(self) -> f64 { self as f64 }
            #[inline] fn to_i64(self) -> i64 { self as i64 }
            #[inline] fn to_complex(self) -> C64 { C64::new(self as f64, 0.0) }
            #[inline] fn from_f32(x: f32) -> Self { $trunc(x as f64) as $type }
            #[inline] fn from_f64(x: f64) -> Self { $trunc(x) as $type }
            #[inline] fn from_i64(x: i64) -> Self { x as $type }
            #[inline] fn from_complex(x: C64) -> Self { $trunc(x.re) as $type }
        }
    )* };
}

cast_integers! {
    u8 by trunc_i64, i8 by trunc_i64, i16 by trunc_i64, i32 by trunc_i32, i64 by trunc_i64,
    u16 by trunc_i64, u32 by trunc_i64, u64 by trunc_i64,
}

macro_rules! cast_floats {
    ($($type:ident: $to_f32:expr, $to_f64:expr, $from_f32:expr, $from_f64:expr;)*) => { $(
        impl Cast for $type {
            #[inline] fn to_f32(self) -> f32 { $to_f32(self) }
            #[inline] fn to_f64(self) -> f64 { $to_f64(self) }
            #[inline] fn to_i64(self) -> i64 { trunc_i64($to_f64(self)) }
            #[inline] fn to_complex(self) -> C64 { C64::new($to_f64(self), 0.0) }
            #[inline] fn from_f32(x: f32) -> Self { $from_f32(x) }
            #[inline] fn from_f64(x: f64) -> Self { $from_f64(x) }
            #[inline] fn from_i64(x: i64) -> Self { $from_f64(x as f64) }
            #[inline] fn from_complex(x: C64) -> Self { $from_f64(x.re) }
        }
    )* };
}

cast_floats! {
    f32: |x| x, |x| x as f64, |x| x, |x| x as f32;
    f64: |x| x as f32, |x| x, |x| x as f64, |x| x;
    f16: f16::to_f32, f16::to_f64, f16::from_f32, |x| f16::from_f32(x as f32);
    bf16: bf16::to_f32, bf16::to_f64, bf16::from_f32, |x| bf16::from_f32(x as f32);
}

impl Cast for Bool {
    #[inline]
    fn to_f32(self) -> f32 {
        self.get() as u8 as f32
    }
    #[inline]
    fn to_f64(self) -> f64 {
        self.get() as u8 as f64
    }
    #[inline]
    fn to_i64(self) -> i64 {
        self.get() as i64
    }
    #[inline]
    fn to_complex(self) -> C64 {
        C64::new(self.to_f64(), 0.0)
    }
    #[inline]
    fn from_f32(x: f32) -> Self {
        (x != 0.0).into()
    }
    #[inline]
    fn from_f64(x: f64) -> Self {
        (x != 0.0).into()
    }
    #[inline]
    fn from_i64(x: i64) -> Self {
        (x != 0).into()
    }
    #[inline]
    fn from_complex(x: C64) -> Self {
        (x.re != 0.0 || x.im != 0.0).into()
    }
}

macro_rules! cast_complex {
    ($($part:ident),*) => { $(
        impl Cast for Complex<$part> {
            #[inline] fn to_f32(self) -> f32 { self.re.to_f32() }
            #[inline] fn to_f64(self) -> f64 { self.re.to_f64() }
            #[inline] fn to_i64(self) -> i64 { Cast::to_i64(self.re) }
            #[inline] fn to_complex(self) -> C64 { C64::new(self.re.to_f64(), self.im.to_f64()) }
            #[inline] fn from_f32(x: f32) -> Self { Self::new(Cast::from_f32(x), Cast::from_f32(0.0)) }
            #[inline] fn from_f64(x: f64) -> Self { Self::new(Cast::from_f64(x), Cast::from_f64(0.0)) }
            #[inline] fn from_i64(x: i64) -> Self { Self::from_f64(x as f64) }
            #[inline] fn from_complex(x: C64) -> Self { Self::new(Cast::from_f64(x.re), Cast::from_f64(x.im)) }
        }
    )* };
}

cast_complex!(f16, f32, f64);

/// Reads the elements at `start`, `start + stride`, ... (in elements) from a tensor's bytes.
pub(crate) type Load<C> = fn(bytes: &[u8], start: usize, stride: isize, into: &mut [C]);

/// Writes all elements of `from` to the start of `bytes`.
pub(crate) type Store<C> = fn(from: &[C], bytes: &mut [u8]);

/// A type that operators compute in: f32 (for float16, bfloat16, float32), f64, i64 (for all
/// integers and bool) or [`C64`] (for complex types).
pub(crate) trait Compute: Cast + Default {
    /// Converts an element of type `T` to this type.
    fn of<T: Cast>(element: T) -> Self;
    /// Converts the value to an element of type `T`.
    fn into<T: Cast>(self) -> T;
    /// Converts a scalar to this type.
    fn from_scalar(s: Scalar) -> Self;
    /// One for true, zero for false.
    fn from_bool(b: bool) -> Self {
        Self::from_i64(b as i64)
    }
    /// Whether the value is nonzero; true for NaN.
    fn is_true(self) -> bool {
        self != Self::default()
    }

    /// The function that reads elements of a type. The bytes must have the type's alignment.
    fn loader(dtype: ScalarType) -> Result<Load<Self>> {
        Ok(dispatch!("a tensor", dtype, ALL, T => load::<T, Self>))
    }

    /// The function that writes elements of a type. The bytes must have the type's alignment.
    fn storer(dtype: ScalarType) -> Result<Store<Self>> {
        Ok(dispatch!("a tensor", dtype, ALL, T => store::<T, Self>))
    }
}

macro_rules! compute_types {
    ($($type:ident: $of:ident, $into:ident, $scalar:expr;)*) => { $(
        impl Compute for $type {
            #[inline] fn of<T: Cast>(element: T) -> Self { element.$of() }
            #[inline] fn into<T: Cast>(self) -> T { T::$into(self) }
            #[inline] fn from_scalar(s: Scalar) -> Self { $scalar(s) }
        }
    )* };
}

compute_types! {
    f32: to_f32, from_f32, |s: Scalar| s.to_f64() as f32;
    f64: to_f64, from_f64, |s: Scalar| s.to_f64();
    i64: to_i64, from_i64, |s: Scalar| s.to_i64();
    C64: to_complex, from_complex, |s: Scalar| C64::new(s.to_f64(), 0.0);
}

/// For Fourier transforms, which compute in the precision of their operands.
impl Compute for Complex<f32> {
    #[inline]
    fn of<T: Cast>(element: T) -> Self {
        Cast::from_complex(element.to_complex())
    }
    #[inline]
    fn into<T: Cast>(self) -> T {
        T::from_complex(self.to_complex())
    }
    #[inline]
    fn from_scalar(s: Scalar) -> Self {
        Self::new(s.to_f64() as f32, 0.0)
    }
}

fn load<T: Cast, C: Compute>(bytes: &[u8], start: usize, stride: isize, into: &mut [C]) {
    let from: &[T] = bytemuck::cast_slice(bytes);
    match stride {
        1 => into.iter_mut().zip(&from[start..]).for_each(|(c, &t)| *c = C::of(t)),
        0 => into.fill(C::of(from[start])),
        _ => {
            let mut at = start as isize;
            for c in into {
                *c = C::of(from[at as usize]);
                at += stride;
            }
        }
    }
}

fn store<T: Cast, C: Compute>(from: &[C], bytes: &mut [u8]) {
    let into: &mut [T] = bytemuck::cast_slice_mut(bytes);
    into.iter_mut().zip(from).for_each(|(t, &c)| *t = c.into());
}

/// The conversion of an element of type `from`, held as `C`, to the values of type `to`. `None` if leaving it out
/// changes no later result, as for integers, which wrap whenever they are stored.
pub(crate) fn conversion<C: Compute>(from: ScalarType, to: ScalarType) -> Option<fn(C) -> C> {
    fn convert_through<C: Compute, T: Cast>(x: C) -> C {
        C::of::<T>(x.into())
    }
    match to {
        _ if from == to => None,
        ScalarType::Half => Some(convert_through::<C, f16>),
        ScalarType::BFloat16 => Some(convert_through::<C, bf16>),
        ScalarType::Float => Some(convert_through::<C, f32>),
        ScalarType::Bool => Some(convert_through::<C, Bool>),
        ScalarType::ComplexHalf => Some(convert_through::<C, Complex<f16>>),
        ScalarType::ComplexFloat => Some(convert_through::<C, Complex<f32>>),
        _ => None,
    }
}

/// The type in which operators compute with tensors of type `dtype`.
pub(crate) const fn compute_type(dtype: ScalarType) -> ScalarType {
    match dtype {
        ScalarType::Half | ScalarType::BFloat16 | ScalarType::Float => ScalarType::Float,
        ScalarType::Double => ScalarType::Double,
        d if d.is_complex() => ScalarType::ComplexDouble,
        _ => ScalarType::Long,
    }
}

/// The intermediate type of a conversion; it loses nothing that the result type can hold.
pub(crate) const fn conversion_type(from: ScalarType, to: ScalarType) -> ScalarType {
    match from {
        // The only case in which i64 cannot hold the value.
        ScalarType::UInt64 if !to.is_integral() => ScalarType::Double,
        // i64 to f32 rounds once; i64 to f16 goes through f64, as in PyTorch.
        from => compute_type(from),
    }
}

/// The type itself if it is floating-point or complex; float32, PyTorch's default, for integers and bool.
pub(crate) const fn float_type(dtype: ScalarType) -> ScalarType {
    if dtype.is_floating() || dtype.is_complex() { dtype } else { ScalarType::Float }
}

/// The error for a scalar type that an operator does not support.
#[cold]
pub(crate) fn unsupported_type(argument: &str, dtype: ScalarType, supported: DtypeSet) -> Error {
    Error::UnsupportedType { argument: argument.to_owned(), dtype, supported: supported.to_string() }
}

/// Fails for a type outside the set.
pub(crate) fn expect_dtype(argument: &str, dtype: ScalarType, supported: DtypeSet) -> Result<()> {
    if supported.contains(dtype) { Ok(()) } else { Err(unsupported_type(argument, dtype, supported)) }
}

/// Evaluates an expression with a type name bound to the Rust type of a scalar type, or returns
/// [`unsupported_type`]: `dispatch!("self", dtype, REAL_BOOL, T => f::<T>(x))`.
///
/// The set is the name of a constant of [`DtypeSet`], or `COMPUTE`, `COMPUTE_REAL` or `COMPUTE_FLOAT` for the types of
/// [`Compute`], for those that are not complex, or for f32 and f64.
macro_rules! dispatch {
    ($name:expr, $dtype:expr, INTEGRAL, $T:ident => $body:expr) => {
        dispatch!(@ INTEGRAL, $name, $dtype, $T => $body, Byte u8, Char i8, Short i16, Int i32, Long i64)
    };
    ($name:expr, $dtype:expr, FLOATING, $T:ident => $body:expr) => {
        dispatch!(@ FLOATING, $name, $dtype, $T => $body, Half half::f16, BFloat16 half::bf16, Float f32, Double f64)
    };
    ($name:expr, $dtype:expr, REAL, $T:ident => $body:expr) => {
        dispatch!(@ REAL, $name, $dtype, $T => $body, Byte u8, Char i8, Short i16, Int i32, Long i64,
            Half half::f16, BFloat16 half::bf16, Float f32, Double f64)
    };
    ($name:expr, $dtype:expr, REAL_BOOL, $T:ident => $body:expr) => {
        dispatch!(@ REAL_BOOL, $name, $dtype, $T => $body, Byte u8, Char i8, Short i16, Int i32, Long i64,
            Half half::f16, BFloat16 half::bf16, Float f32, Double f64, Bool pteron_tensor::Bool)
    };
    ($name:expr, $dtype:expr, ALL, $T:ident => $body:expr) => {
        dispatch!(@ ALL, $name, $dtype, $T => $body, Byte u8, Char i8, Short i16, Int i32, Long i64,
            Half half::f16, BFloat16 half::bf16, Float f32, Double f64, Bool pteron_tensor::Bool,
            UInt16 u16, UInt32 u32, UInt64 u64,
            ComplexHalf num_complex::Complex<half::f16>, ComplexFloat num_complex::Complex<f32>,
            ComplexDouble num_complex::Complex<f64>)
    };
    ($name:expr, $dtype:expr, COMPUTE, $T:ident => $body:expr) => {
        dispatch!(@ ALL, $name, $dtype, $T => $body, Float f32, Double f64, Long i64,
            ComplexDouble num_complex::Complex<f64>)
    };
    ($name:expr, $dtype:expr, COMPUTE_REAL, $T:ident => $body:expr) => {
        dispatch!(@ REAL_BOOL, $name, $dtype, $T => $body, Float f32, Double f64, Long i64)
    };
    ($name:expr, $dtype:expr, COMPUTE_FLOAT, $T:ident => $body:expr) => {
        dispatch!(@ FLOATING, $name, $dtype, $T => $body, Float f32, Double f64)
    };
    (@ $set:ident, $name:expr, $dtype:expr, $T:ident => $body:expr, $($variant:ident $type:ty),*) => {
        match $dtype {
            $(pteron_tensor::ScalarType::$variant => {
                type $T = $type;
                $body
            })*
            other => {
                return Err($crate::support::dtype::unsupported_type($name, other, pteron_operator::DtypeSet::$set))
            }
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_convert_to_integers_as_on_x86() {
        assert_eq!(u8::from_f32(-1.0), 255);
        assert_eq!(u8::from_f32(300.7), 44);
        assert_eq!(i32::from_f32(f32::NAN), i32::MIN);
        assert_eq!(i32::from_f64(3e9), i32::MIN);
        assert_eq!(i32::from_f64(-2_147_483_648.5), i32::MIN);
        assert_eq!(i64::from_f64(f64::INFINITY), i64::MIN);
        assert_eq!(i16::from_f32(-2.9), -2);
        assert!(Bool::from_f32(f32::NAN).get());
        assert_eq!(Cast::to_complex(2.5f32), C64::new(2.5, 0.0));
    }

    #[test]
    fn loading_follows_the_stride() {
        let bytes: Vec<u8> = (0..10).collect();
        let load = f32::loader(ScalarType::Byte).unwrap();
        let mut out = [0f32; 3];
        load(&bytes, 1, 3, &mut out);
        assert_eq!(out, [1.0, 4.0, 7.0]);
        load(&bytes, 9, -4, &mut out);
        assert_eq!(out, [9.0, 5.0, 1.0]);
        load(&bytes, 2, 0, &mut out);
        assert_eq!(out, [2.0; 3]);
        assert!(f32::loader(ScalarType::QInt8).is_err());
    }
}

//! Converts column elements to the type of an input. Integers are range-checked; only floating-point precision may be lost.

use pteron_tensor::{ScalarType, bf16, f16};

/// Elements converted per chunk.
const CHUNK: usize = 256;

/// Whether a column can have this element type: booleans, integers and floats.
pub(super) fn is_number(dtype: ScalarType) -> bool {
    dtype == ScalarType::Bool || is_float(dtype) || is_int(dtype)
}

pub(super) fn is_float(dtype: ScalarType) -> bool {
    use ScalarType as T;
    matches!(dtype, T::Half | T::BFloat16 | T::Float | T::Double)
}

fn is_int(dtype: ScalarType) -> bool {
    use ScalarType as T;
    matches!(dtype, T::Byte | T::Char | T::Short | T::Int | T::Long | T::UInt16 | T::UInt32 | T::UInt64)
}

/// Whether a column of type `from` can be given to an input of type `to`: booleans and integers convert to any integer or
/// float type, floats only to floats.
pub(super) fn is_allowed(from: ScalarType, to: ScalarType) -> bool {
    from == to
        || (to != ScalarType::Bool && is_number(from) && (is_float(to) || (is_int(to) && !is_float(from))))
}

macro_rules! typed {
    ($dtype:expr, $run:ident!$arguments:tt, $($variant:ident: $type:ty),*) => {
        match $dtype {
            $(ScalarType::$variant => $run!($type, $arguments),)*
            _ => {}
        }
    };
}

macro_rules! read {
    ($type:ty, ($bytes:ident, $numbers:ident, $convert:ident)) => {
        for (number, bytes) in $numbers.iter_mut().zip($bytes.chunks_exact(size_of::<$type>())) {
            *number = Numeric::$convert(bytemuck::pod_read_unaligned::<$type>(bytes));
        }
    };
}

macro_rules! write {
    ($type:ty, ($bytes:ident, $numbers:ident)) => {
        for (number, bytes) in $numbers.iter().zip($bytes.chunks_exact_mut(size_of::<$type>())) {
            let Some(number) = <$type>::narrow(*number) else { return Err(*number) };
            bytes.copy_from_slice(bytemuck::bytes_of(&number));
        }
    };
}

/// An element type that converts to `f64` and `i128`.
trait Numeric: Copy {
    fn to_f64(self) -> f64;
    fn to_i128(self) -> i128;
}

/// An element type to which numbers of type `N` narrow. `narrow` gives `None` if the number is out of range.
trait Narrow<N>: Sized {
    fn narrow(number: N) -> Option<Self>;
}

macro_rules! ints {
    ($($type:ty),*) => {$(
        impl Numeric for $type {
            fn to_f64(self) -> f64 { self as f64 }
            fn to_i128(self) -> i128 { i128::from(self) }
        }
        impl Narrow<i128> for $type {
            fn narrow(number: i128) -> Option<Self> { Self::try_from(number).ok() }
        }
    )*};
}
ints!(u8, i8, u16, i16, u32, i32, u64, i64);

macro_rules! floats {
    ($($type:ty: $to:expr, $from:expr);*) => {$(
        impl Numeric for $type {
            fn to_f64(self) -> f64 { let convert: fn($type) -> f64 = $to; convert(self) }
            fn to_i128(self) -> i128 { self.to_f64() as i128 }
        }
        impl Narrow<f64> for $type {
            fn narrow(number: f64) -> Option<Self> { let convert: fn(f64) -> $type = $from; Some(convert(number)) }
        }
    )*};
}
floats!(f32: f64::from, |x| x as f32; f64: |x| x, |x| x; f16: f16::to_f64, f16::from_f64; bf16: bf16::to_f64, bf16::from_f64);

fn read_floats(dtype: ScalarType, bytes: &[u8], numbers: &mut [f64]) {
    typed!(dtype, read!(bytes, numbers, to_f64),
        Bool: u8, Byte: u8, Char: i8, UInt16: u16, Short: i16, UInt32: u32, Int: i32, UInt64: u64, Long: i64,
        Half: f16, BFloat16: bf16, Float: f32, Double: f64);
}

fn read_ints(dtype: ScalarType, bytes: &[u8], numbers: &mut [i128]) {
    typed!(dtype, read!(bytes, numbers, to_i128),
        Bool: u8, Byte: u8, Char: i8, UInt16: u16, Short: i16, UInt32: u32, Int: i32, UInt64: u64, Long: i64);
}

fn write_floats(dtype: ScalarType, numbers: &[f64], bytes: &mut [u8]) -> Result<(), f64> {
    typed!(dtype, write!(bytes, numbers), Half: f16, BFloat16: bf16, Float: f32, Double: f64);
    Ok(())
}

fn write_ints(dtype: ScalarType, numbers: &[i128], bytes: &mut [u8]) -> Result<(), i128> {
    typed!(dtype, write!(bytes, numbers),
        Byte: u8, Char: i8, UInt16: u16, Short: i16, UInt32: u32, Int: i32, UInt64: u64, Long: i64);
    Ok(())
}

/// Converts elements from one type to another; [`is_allowed`] must hold for the types.
///
/// # Errors
/// A message that names the integer that is out of range for `to`.
pub(super) fn convert(from: ScalarType, bytes: &[u8], to: ScalarType, out: &mut [u8]) -> Result<(), String> {
    if from == to {
        out.copy_from_slice(bytes);
        return Ok(());
    }
    let pieces = bytes.chunks(CHUNK * from.size()).zip(out.chunks_mut(CHUNK * to.size()));
    for (bytes, out) in pieces {
        let count = bytes.len() / from.size();
        if is_float(to) {
            let mut numbers = [0.0; CHUNK];
            read_floats(from, bytes, &mut numbers[..count]);
            write_floats(to, &numbers[..count], out).map_err(|x| format!("{x} is no {to}"))?;
        } else {
            let mut numbers = [0; CHUNK];
            read_ints(from, bytes, &mut numbers[..count]);
            write_ints(to, &numbers[..count], out).map_err(|x| format!("{x} is no {to}"))?;
        }
    }
    Ok(())
}

/// The reason why [`convert`] would fail on these elements; `None` if it would succeed.
pub(super) fn conversion_problem(from: ScalarType, bytes: &[u8], to: ScalarType) -> Option<String> {
    if from == to || is_float(to) {
        return None;
    }
    let mut numbers = [0; CHUNK];
    let mut out = [0; CHUNK * size_of::<i64>()];
    bytes
        .chunks(CHUNK * from.size())
        .find_map(|bytes| {
            let count = bytes.len() / from.size();
            read_ints(from, bytes, &mut numbers[..count]);
            write_ints(to, &numbers[..count], &mut out[..count * to.size()]).err()
        })
        .map(|x| format!("{x} is no {to}"))
}

/// The elements, converted to `f64`.
pub(super) fn elements_as_f64(dtype: ScalarType, bytes: &[u8]) -> Vec<f64> {
    let mut numbers = vec![0.0; bytes.len() / dtype.size()];
    read_floats(dtype, bytes, &mut numbers);
    numbers
}

/// The elements of integers or booleans, converted to `i128`, which has all of them.
pub(super) fn elements_as_i128(dtype: ScalarType, bytes: &[u8]) -> Vec<i128> {
    let mut numbers = vec![0; bytes.len() / dtype.size()];
    read_ints(dtype, bytes, &mut numbers);
    numbers
}

/// The first element that is NaN or infinite, and its value; elements that are not floats are finite.
pub(super) fn first_nonfinite(dtype: ScalarType, bytes: &[u8]) -> Option<(usize, f64)> {
    if !is_float(dtype) {
        return None;
    }
    let mut numbers = [0.0; CHUNK];
    for (chunk, bytes) in bytes.chunks(CHUNK * dtype.size()).enumerate() {
        let numbers = &mut numbers[..bytes.len() / dtype.size()];
        read_floats(dtype, bytes, numbers);
        if let Some(at) = numbers.iter().position(|number| !number.is_finite()) {
            return Some((chunk * CHUNK + at, numbers[at]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarType as T;

    #[test]
    fn integers_are_range_checked() {
        let elements: Vec<u8> = [-3i64, 0, 7, 1 << 40].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let mut out = [0; 4 * 4];
        convert(T::Long, &elements, T::Float, &mut out).unwrap();
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&out), [-3.0, 0.0, 7.0, (1u64 << 40) as f32]);
        assert_eq!(conversion_problem(T::Long, &elements, T::Float), None);
        assert_eq!(conversion_problem(T::Long, &elements, T::Int).unwrap(), "1099511627776 is no int32");
        assert_eq!(conversion_problem(T::Long, &elements[..24], T::Int), None);
        assert_eq!(conversion_problem(T::Long, &elements[..24], T::Byte).unwrap(), "-3 is no uint8");
    }

    #[test]
    fn several_chunks_are_converted() {
        let elements: Vec<u8> = (0..1000u32).flat_map(|n| f64::from(n).to_ne_bytes()).collect();
        let mut out = [0; 4000];
        convert(T::Double, &elements, T::Float, &mut out).unwrap();
        let expected: Vec<f32> = (0..1000u16).map(f32::from).collect();
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&out), expected);
    }

    #[test]
    fn floats_do_not_convert_to_integers() {
        assert!(
            is_allowed(T::Double, T::Half) && is_allowed(T::Bool, T::Long) && is_allowed(T::Byte, T::Float)
        );
        assert!(
            !is_allowed(T::Float, T::Long)
                && !is_allowed(T::Long, T::Bool)
                && !is_allowed(T::ComplexFloat, T::Float)
        );
    }
}

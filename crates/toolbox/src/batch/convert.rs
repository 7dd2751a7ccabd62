//! Elements of one type as elements of another, where nothing but digits behind the point is lost.

use tensor::{ScalarType, bf16, f16};

/// Elements that are converted at a time.
const PIECE: usize = 256;

/// Whether elements of a type are numbers or truth values, of which columns are made.
pub(super) fn is_number(dtype: ScalarType) -> bool {
    dtype == ScalarType::Bool || is_real(dtype) || is_int(dtype)
}

fn is_real(dtype: ScalarType) -> bool {
    use ScalarType as T;
    matches!(dtype, T::Half | T::BFloat16 | T::Float | T::Double)
}

fn is_int(dtype: ScalarType) -> bool {
    use ScalarType as T;
    matches!(dtype, T::Byte | T::Char | T::Short | T::Int | T::Long | T::UInt16 | T::UInt32 | T::UInt64)
}

/// Whether a column of one type can be given to an input of another: integers and truth values to any numbers, numbers
/// with a point to such.
pub(super) fn is_allowed(from: ScalarType, to: ScalarType) -> bool {
    from == to
        || (to != ScalarType::Bool && is_number(from) && (is_real(to) || (is_int(to) && !is_real(from))))
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
            let Some(number) = <$type>::made(*number) else { return Err(*number) };
            bytes.copy_from_slice(bytemuck::bytes_of(&number));
        }
    };
}

/// A type of numbers, read as one of two that hold them.
trait Numeric: Copy {
    fn real(self) -> f64;
    fn int(self) -> i128;
}

/// A type of numbers, made of one of those.
trait Made<N>: Sized {
    fn made(number: N) -> Option<Self>;
}

macro_rules! ints {
    ($($type:ty),*) => {$(
        impl Numeric for $type {
            fn real(self) -> f64 { self as f64 }
            fn int(self) -> i128 { i128::from(self) }
        }
        impl Made<i128> for $type {
            fn made(number: i128) -> Option<Self> { Self::try_from(number).ok() }
        }
    )*};
}
ints!(u8, i8, u16, i16, u32, i32, u64, i64);

macro_rules! reals {
    ($($type:ty: $to:expr, $from:expr);*) => {$(
        impl Numeric for $type {
            fn real(self) -> f64 { let convert: fn($type) -> f64 = $to; convert(self) }
            fn int(self) -> i128 { self.real() as i128 }
        }
        impl Made<f64> for $type {
            fn made(number: f64) -> Option<Self> { let convert: fn(f64) -> $type = $from; Some(convert(number)) }
        }
    )*};
}
reals!(f32: f64::from, |x| x as f32; f64: |x| x, |x| x; f16: f16::to_f64, f16::from_f64; bf16: bf16::to_f64, bf16::from_f64);

fn read_reals(dtype: ScalarType, bytes: &[u8], numbers: &mut [f64]) {
    typed!(dtype, read!(bytes, numbers, real),
        Bool: u8, Byte: u8, Char: i8, UInt16: u16, Short: i16, UInt32: u32, Int: i32, UInt64: u64, Long: i64,
        Half: f16, BFloat16: bf16, Float: f32, Double: f64);
}

fn read_ints(dtype: ScalarType, bytes: &[u8], numbers: &mut [i128]) {
    typed!(dtype, read!(bytes, numbers, int),
        Bool: u8, Byte: u8, Char: i8, UInt16: u16, Short: i16, UInt32: u32, Int: i32, UInt64: u64, Long: i64);
}

fn write_reals(dtype: ScalarType, numbers: &[f64], bytes: &mut [u8]) -> Result<(), f64> {
    typed!(dtype, write!(bytes, numbers), Half: f16, BFloat16: bf16, Float: f32, Double: f64);
    Ok(())
}

fn write_ints(dtype: ScalarType, numbers: &[i128], bytes: &mut [u8]) -> Result<(), i128> {
    typed!(dtype, write!(bytes, numbers),
        Byte: u8, Char: i8, UInt16: u16, Short: i16, UInt32: u32, Int: i32, UInt64: u64, Long: i64);
    Ok(())
}

/// Converts elements to those of another type, if [`is_allowed`] says that this can be.
///
/// # Errors
/// An integer that the other type has not, in words.
pub(super) fn convert(from: ScalarType, bytes: &[u8], to: ScalarType, out: &mut [u8]) -> Result<(), String> {
    if from == to {
        out.copy_from_slice(bytes);
        return Ok(());
    }
    let pieces = bytes.chunks(PIECE * from.size()).zip(out.chunks_mut(PIECE * to.size()));
    for (bytes, out) in pieces {
        let count = bytes.len() / from.size();
        if is_real(to) {
            let mut numbers = [0.0; PIECE];
            read_reals(from, bytes, &mut numbers[..count]);
            write_reals(to, &numbers[..count], out).map_err(|x| format!("{x} is no {to}"))?;
        } else {
            let mut numbers = [0; PIECE];
            read_ints(from, bytes, &mut numbers[..count]);
            write_ints(to, &numbers[..count], out).map_err(|x| format!("{x} is no {to}"))?;
        }
    }
    Ok(())
}

/// Why elements cannot be converted, if they cannot.
pub(super) fn problem(from: ScalarType, bytes: &[u8], to: ScalarType) -> Option<String> {
    if from == to || is_real(to) {
        return None;
    }
    let mut numbers = [0; PIECE];
    let mut out = [0; PIECE * size_of::<i64>()];
    bytes
        .chunks(PIECE * from.size())
        .find_map(|bytes| {
            let count = bytes.len() / from.size();
            read_ints(from, bytes, &mut numbers[..count]);
            write_ints(to, &numbers[..count], &mut out[..count * to.size()]).err()
        })
        .map(|x| format!("{x} is no {to}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarType as T;

    #[test]
    fn numbers_keep_their_values() {
        let given: Vec<u8> = [-3i64, 0, 7, 1 << 40].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let mut out = [0; 4 * 4];
        convert(T::Long, &given, T::Float, &mut out).unwrap();
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&out), [-3.0, 0.0, 7.0, (1u64 << 40) as f32]);
        assert_eq!(problem(T::Long, &given, T::Float), None);
        assert_eq!(problem(T::Long, &given, T::Int).unwrap(), "1099511627776 is no int32");
        assert_eq!(problem(T::Long, &given[..24], T::Int), None);
        assert_eq!(problem(T::Long, &given[..24], T::Byte).unwrap(), "-3 is no uint8");
    }

    #[test]
    fn pieces_are_joined() {
        let given: Vec<u8> = (0..1000u32).flat_map(|n| f64::from(n).to_ne_bytes()).collect();
        let mut out = [0; 4000];
        convert(T::Double, &given, T::Float, &mut out).unwrap();
        let expected: Vec<f32> = (0..1000u16).map(f32::from).collect();
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&out), expected);
    }

    #[test]
    fn points_are_not_cut_off() {
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

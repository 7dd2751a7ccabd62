//! Compares computed values with recorded ones, within a tolerance.
//!
//! | element type | single operator | whole network |
//! | --- | --- | --- |
//! | float32, float64, complex | 1e-5 + 1e-5·\|expected\| | 1e-4 of the largest output |
//! | float16 | 2e-3 + 2e-3·\|expected\| | 2e-3 of the largest output |
//! | bfloat16 | 2e-2 + 2e-2·\|expected\| | 2e-2 of the largest output |
//! | integers, bool | equal | equal |
//! | 8 and 16-bit integers of a quantized program | 1 | 1 |
//!
//! If the record has the difference between the reference and PyTorch (the reference rounds intermediate results to 16
//! bits), the tolerance of float16 and bfloat16 results increases by it.
//!
//! NaN equals NaN; an infinity equals only itself. A case, and the caller, may override the tolerance by `atol` and
//! `rtol`.

use crate::show;
use pteron_operator::EValue;
use pteron_tensor::{Bool, Complex, DimOrder, ScalarType, Tensor, bf16, f16};
use std::fmt;

/// The scope of a comparison, which determines the tolerance of floating-point results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// The result of a single operator.
    #[default]
    Operator,
    /// The result of several operators, whose rounding errors accumulate.
    Network,
}

/// The tolerance of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tolerance {
    /// The scope of the comparison.
    pub scope: Scope,
    /// Whether integers of 8 and 16 bits are quantized values, which may be off by one.
    pub quantized: bool,
    /// The largest difference between the reference and PyTorch; float16 and bfloat16 results are allowed that much more.
    pub rounding: f64,
    /// The coarsest type to which two runs have rounded intermediate values at different places. The tolerance of all floating-point
    /// results is then twice that of this type, also for float32 results that were computed from float16.
    pub rounded_to: Option<ScalarType>,
    /// `atol` and `rtol`, which replace all other tolerances if given.
    pub explicit: Option<(f64, f64)>,
}

/// The allowed absolute difference at an element: `atol + rtol·|expected| + of_largest·|largest|`.
#[derive(Debug, Clone, Copy)]
struct Bound {
    atol: f64,
    rtol: f64,
    of_largest: f64,
}

impl Tolerance {
    fn bound(&self, dtype: ScalarType) -> Bound {
        if let Some((atol, rtol)) = self.explicit {
            return Bound { atol, rtol, of_largest: 0.0 };
        }
        let of_type = |dtype: ScalarType| match dtype.to_real() {
            ScalarType::Half => (2e-3, 2e-3),
            ScalarType::BFloat16 => (2e-2, 2e-2),
            _ => (1e-5, 1e-4),
        };
        let (one, network) = match self.rounded_to.map(of_type) {
            Some((one, network)) => (2.0 * one, 2.0 * network),
            None => of_type(dtype),
        };
        let half = matches!(dtype.to_real(), ScalarType::Half | ScalarType::BFloat16);
        let rounding = if half { self.rounding } else { 0.0 };
        match self.scope {
            Scope::Operator => Bound { atol: one + rounding, rtol: one, of_largest: 0.0 },
            Scope::Network => Bound { atol: rounding, rtol: 0.0, of_largest: network },
        }
    }
}

/// How two values differ.
#[derive(Debug, Clone, PartialEq)]
pub enum Difference {
    /// The values differ in kind, type or sizes, or are unequal values that are not tensors.
    Value {
        /// The computed value.
        found: String,
        /// The recorded value.
        expected: String,
    },
    /// Elements differ by more than the tolerance.
    Elements {
        /// The number of elements beyond the tolerance.
        count: usize,
        /// The number of all elements.
        of: usize,
        /// The index of the first element beyond the tolerance.
        first: Vec<usize>,
        /// The computed element at the index `first`.
        found: String,
        /// The recorded element at the index `first`.
        expected: String,
        /// The largest absolute difference of all pairs of elements; infinite if one of an unequal pair is not finite.
        largest: f64,
        /// The allowed difference at the first element beyond the tolerance.
        allowed: f64,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { found, expected } => write!(f, "got {found}, expected {expected}"),
            Self::Elements { count, of, first, found, expected, largest, allowed } => {
                write!(
                    f,
                    "{count} of {of} elements differ, first at {first:?}: got {found}, expected {expected}"
                )?;
                match (*allowed == 0.0, largest.is_finite()) {
                    (true, _) => Ok(()),
                    (_, true) => {
                        write!(f, " (allowed ±{allowed:.2e}, the largest difference is {largest:.2e})")
                    }
                    (_, false) => write!(f, " (allowed ±{allowed:.2e})"),
                }
            }
        }
    }
}

/// Compares a computed value with the recorded one. Tensors are compared in logical order, whatever their dim orders.
pub fn compare(actual: &EValue, expected: &EValue, tolerance: &Tolerance) -> Result<(), Difference> {
    let different = || Err(Difference::Value { found: short_text(actual), expected: short_text(expected) });
    match (actual, expected) {
        (EValue::None, EValue::None) => Ok(()),
        (EValue::Tensor(a), EValue::Tensor(b)) => {
            if a.dtype() != b.dtype() || a.sizes() != b.sizes() {
                return different();
            }
            compare_tensors(a, b, tolerance)
        }
        (EValue::Int(a), EValue::Int(b)) if a == b => Ok(()),
        (EValue::Bool(a), EValue::Bool(b)) if a == b => Ok(()),
        (EValue::String(a), EValue::String(b)) if a == b => Ok(()),
        (EValue::Double(a), EValue::Double(b)) => {
            let bound = tolerance.bound(ScalarType::Double);
            let limit = bound.atol + (bound.rtol + bound.of_largest) * b.abs();
            match is_within(abs_diff(*a, *b), limit) {
                true => Ok(()),
                false => different(),
            }
        }
        (EValue::ListInt(a), EValue::ListInt(b)) if a == b => Ok(()),
        (EValue::ListBool(a), EValue::ListBool(b)) if a == b => Ok(()),
        (EValue::ListDouble(a), EValue::ListDouble(b)) if a.len() == b.len() => {
            let pairs = || a.iter().zip(b).map(|(a, b)| (EValue::Double(*a), EValue::Double(*b)));
            match pairs().all(|(a, b)| compare(&a, &b, tolerance).is_ok()) {
                true => Ok(()),
                false => different(),
            }
        }
        _ => different(),
    }
}

/// A short description of a value.
fn short_text(value: &EValue) -> String {
    match value {
        EValue::Tensor(t) => t.meta().to_string(),
        other => show::value(other),
    }
}

/// Whether a difference is allowed. If the limit is infinite or NaN, the expected value is not finite, and only that
/// value is allowed.
fn is_within(difference: f64, limit: f64) -> bool {
    difference == 0.0 || (limit.is_finite() && difference <= limit)
}

/// `|a - b|`, where NaN equals NaN and each infinity equals itself.
fn abs_diff(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    let d = (a - b).abs();
    if d.is_nan() { f64::INFINITY } else { d }
}

fn compare_tensors(actual: &Tensor, expected: &Tensor, tolerance: &Tolerance) -> Result<(), Difference> {
    let row_major = |t: &Tensor| t.to_dim_order(DimOrder::contiguous(t.rank()));
    let (Ok(actual), Ok(expected)) = (row_major(actual), row_major(expected)) else {
        return Err(Difference::Value { found: "too much for memory".into(), expected: "a tensor".into() });
    };
    let bound = tolerance.bound(expected.dtype());
    let step = if tolerance.quantized { 1.0 } else { 0.0 };

    macro_rules! floats {
        ($type:ty, $to_f64:expr) => {
            compare_elements::<$type>(
                &actual,
                &expected,
                |a, b| abs_diff($to_f64(a), $to_f64(b)),
                |b, largest| bound.atol + bound.rtol * $to_f64(b).abs() + bound.of_largest * largest,
                |v| $to_f64(v).abs(),
            )
        };
    }
    macro_rules! integers {
        ($type:ty, $step:expr) => {
            compare_elements::<$type>(&actual, &expected, |a, b| a.abs_diff(b) as f64, |_, _| $step, |_| 0.0)
        };
    }
    macro_rules! complexes {
        ($type:ty, $to_f64:expr) => {
            compare_elements::<Complex<$type>>(
                &actual,
                &expected,
                |a, b| abs_diff($to_f64(a.re), $to_f64(b.re)).max(abs_diff($to_f64(a.im), $to_f64(b.im))),
                |b, largest| {
                    let size = $to_f64(b.re).hypot($to_f64(b.im));
                    bound.atol + bound.rtol * size + bound.of_largest * largest
                },
                |v| $to_f64(v.re).hypot($to_f64(v.im)),
            )
        };
    }
    match expected.dtype() {
        ScalarType::Float => floats!(f32, f64::from),
        ScalarType::Double => floats!(f64, f64::from),
        ScalarType::Half => floats!(f16, f16::to_f64),
        ScalarType::BFloat16 => floats!(bf16, bf16::to_f64),
        ScalarType::ComplexFloat => complexes!(f32, f64::from),
        ScalarType::ComplexDouble => complexes!(f64, f64::from),
        ScalarType::ComplexHalf => complexes!(f16, f16::to_f64),
        ScalarType::Byte => integers!(u8, step),
        ScalarType::Char => integers!(i8, step),
        ScalarType::Short => integers!(i16, step),
        ScalarType::UInt16 => integers!(u16, step),
        ScalarType::Int => integers!(i32, 0.0),
        ScalarType::Long => integers!(i64, 0.0),
        ScalarType::UInt32 => integers!(u32, 0.0),
        ScalarType::UInt64 => integers!(u64, 0.0),
        ScalarType::Bool => compare_elements::<Bool>(
            &actual,
            &expected,
            |a, b| f64::from(u8::from(a != b)),
            |_, _| 0.0,
            |_| 0.0,
        ),
        _ if actual.bytes() == expected.bytes() => Ok(()),
        _ => Err(Difference::Value { found: "other bytes".into(), expected: expected.meta().to_string() }),
    }
}

fn compare_elements<T: pteron_tensor::Element>(
    actual: &Tensor,
    expected: &Tensor,
    abs_diff: impl Fn(T, T) -> f64,
    allowed: impl Fn(T, f64) -> f64,
    size: impl Fn(T) -> f64,
) -> Result<(), Difference> {
    let unreadable = |e: pteron_tensor::Error| Difference::Value {
        found: format!("elements that cannot be read: {e}"),
        expected: expected.meta().to_string(),
    };
    let a = actual.as_slice::<T>().map_err(unreadable)?;
    let b = expected.as_slice::<T>().map_err(unreadable)?;
    let scale = b.iter().map(|&v| size(v)).filter(|v| v.is_finite()).fold(0.0, f64::max);
    let mut first = None;
    let (mut count, mut largest) = (0, 0.0f64);
    for (i, (&x, &y)) in a.iter().zip(b).enumerate() {
        let d = abs_diff(x, y);
        largest = largest.max(d);
        let limit = allowed(y, scale);
        if !is_within(d, limit) {
            count += 1;
            first.get_or_insert((i, if limit.is_finite() { limit } else { 0.0 }));
        }
    }
    let Some((i, allowed)) = first else { return Ok(()) };
    let text = |t| show::elements(t).map_or_else(String::new, |show| show(i));
    let (mut at, mut rest) = (vec![0; expected.rank()], i);
    for (d, slot) in at.iter_mut().enumerate().rev() {
        *slot = rest % expected.sizes()[d];
        rest /= expected.sizes()[d];
    }
    Err(Difference::Elements {
        count,
        of: expected.numel(),
        first: at,
        found: text(actual),
        expected: text(expected),
        largest,
        allowed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(v: &[f32]) -> EValue {
        Tensor::from_slice(&[v.len()], v).unwrap().into()
    }

    fn check(a: EValue, b: EValue, tolerance: Tolerance) -> Result<(), String> {
        compare(&a, &b, &tolerance).map_err(|d| d.to_string())
    }

    #[test]
    fn nan_equals_nan_and_infinities_must_match() {
        let t = Tolerance::default();
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
        assert_eq!(check(floats(&special), floats(&special), t), Ok(()));
        assert_eq!(check(floats(&[-0.0]), floats(&[0.0]), t), Ok(()));
        for (a, b) in
            [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::INFINITY, f32::NEG_INFINITY), (1e30, f32::INFINITY)]
        {
            assert!(check(floats(&[a]), floats(&[b]), t).is_err(), "{a} {b}");
        }
    }

    #[test]
    fn non_finite_scalars_must_match_exactly() {
        let t = Tolerance::default();
        let double = |a, b| check(EValue::Double(a), EValue::Double(b), t);
        assert_eq!(double(f64::INFINITY, f64::INFINITY), Ok(()));
        assert_eq!(double(f64::NAN, f64::NAN), Ok(()));
        for (a, b) in [
            (1.0, f64::INFINITY),
            (f64::NEG_INFINITY, f64::INFINITY),
            (f64::NAN, f64::INFINITY),
            (f64::INFINITY, 1.0),
            (1.0, f64::NAN),
        ] {
            assert!(double(a, b).is_err(), "{a} {b}");
            let list = |v| EValue::ListDouble(vec![0.0, v]);
            assert!(check(list(a), list(b), t).is_err(), "{a} {b}");
            assert_eq!(check(list(b), list(b), t), Ok(()));
        }
    }

    #[test]
    fn unreadable_elements_are_a_difference() {
        let (a, b) = (Tensor::scalar(1.0f32).unwrap(), Tensor::scalar(1.0f32).unwrap());
        let e = compare_elements::<f64>(&a, &b, |a, b| (a - b).abs(), |_, _| 0.0, |v| v).unwrap_err();
        assert!(e.to_string().contains("cannot be read"), "{e}");
    }

    #[test]
    fn operators_are_compared_by_element_and_networks_by_the_largest_element() {
        let (a, b) = (floats(&[1000.0, 0.01]), floats(&[1000.0, 0.0]));
        let e = check(a.clone(), b.clone(), Tolerance::default()).unwrap_err();
        assert!(e.contains("1 of 2 elements differ, first at [1]: got 0.01, expected 0"), "{e}");
        assert_eq!(check(a, b, Tolerance { scope: Scope::Network, ..Tolerance::default() }), Ok(()));
        assert!(
            check(
                floats(&[1.0002]),
                floats(&[1.0]),
                Tolerance { scope: Scope::Network, ..Tolerance::default() }
            )
            .is_err()
        );
    }

    #[test]
    fn integers_are_exact_unless_quantized() {
        let bytes = |v: &[i8]| EValue::from(Tensor::from_slice(&[1, v.len()], v).unwrap());
        let e = check(bytes(&[1, -128]), bytes(&[1, 127]), Tolerance::default()).unwrap_err();
        assert_eq!(e, "1 of 2 elements differ, first at [0, 1]: got -128, expected 127");
        let quantized = Tolerance { quantized: true, ..Tolerance::default() };
        assert_eq!(check(bytes(&[1, 2]), bytes(&[2, 1]), quantized), Ok(()));
        assert!(check(bytes(&[3]), bytes(&[1]), quantized).is_err());
        let longs = |v: i64| EValue::from(Tensor::scalar(v).unwrap());
        assert!(check(longs(1), longs(2), quantized).is_err());
    }

    #[test]
    fn explicit_tolerances_replace_all_others() {
        let loose = Tolerance { explicit: Some((0.5, 0.0)), ..Tolerance::default() };
        assert_eq!(check(floats(&[1.4]), floats(&[1.0]), loose), Ok(()));
        assert!(check(floats(&[1.6]), floats(&[1.0]), loose).is_err());
        assert!(check(EValue::Int(1), EValue::Int(2), loose).is_err());
    }

    #[test]
    fn the_rounding_of_the_reference_widens_half_precision_tolerances() {
        let halves = |v: f32| EValue::from(Tensor::scalar(f16::from_f32(v)).unwrap());
        let rounding = Tolerance { rounding: 0.25, ..Tolerance::default() };
        assert!(check(halves(1.25), halves(1.0), Tolerance::default()).is_err());
        assert_eq!(check(halves(1.25), halves(1.0), rounding), Ok(()));
        assert!(check(floats(&[1.25]), floats(&[1.0]), rounding).is_err());
    }

    #[test]
    fn kinds_types_and_sizes_must_agree() {
        let t = Tolerance::default();
        assert_eq!(
            check(floats(&[1.0]), EValue::Double(1.0), t).unwrap_err(),
            "got float32[1], expected double 1"
        );
        assert_eq!(
            check(floats(&[1.0]), floats(&[1.0, 2.0]), t).unwrap_err(),
            "got float32[1], expected float32[2]"
        );
    }

    #[test]
    fn dim_orders_do_not_matter() {
        let t = Tensor::from_slice(&[1, 2, 1, 2], &[1i32, 2, 3, 4]).unwrap();
        let other = t.to_dim_order(DimOrder::channels_last(4)).unwrap();
        assert_eq!(compare(&other.into(), &t.into(), &Tolerance::default()), Ok(()));
    }
}

use super::super::isa::Isa;
use super::{MAX_LANES, Op, Rounding, Simd, dispatch};

/// Values with special cases of every operation in each position.
fn values(seed: usize) -> [f32; MAX_LANES] {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.5, -2.5, 1e30];
    std::array::from_fn(|i| match (i + seed) % 3 {
        0 => special[(i * 5 + seed) % special.len()],
        _ => ((i * 31 + seed * 17) % 101) as f32 / 8.0 - 6.0,
    })
}

fn assert_lanes<S: Simd>(s: S, name: &str, got: S::F, want: impl Fn(usize) -> f32) {
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: no vector has more lanes.
    unsafe { s.store(lanes.as_mut_ptr(), got) };
    for (i, got) in lanes[..S::LANES].iter().enumerate() {
        let want = want(i);
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(same, "{name} of {} in lane {i}: {got}, not {want}", S::NAME);
    }
}

struct Arithmetic;

impl Op for Arithmetic {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for seed in 0..24 {
            let [a, b, c] = [values(seed), values(seed + 5), values(seed * 3 + 1)];
            // SAFETY: arrays have as many elements as the longest vector.
            let [x, y, z] = [&a, &b, &c].map(|v| unsafe { s.load(v.as_ptr()) });
            assert_lanes(s, "add", s.add(x, y), |i| a[i] + b[i]);
            assert_lanes(s, "sub", s.sub(x, y), |i| a[i] - b[i]);
            assert_lanes(s, "mul", s.mul(x, y), |i| a[i] * b[i]);
            assert_lanes(s, "max", s.max(x, y), |i| if a[i] > b[i] { a[i] } else { b[i] });
            assert_lanes(s, "max_or_nan", s.max_or_nan(x, y), |i| {
                if b[i] > a[i] || b[i].is_nan() { b[i] } else { a[i] }
            });
            assert_lanes(s, "min", s.min(x, y), |i| if a[i] < b[i] { a[i] } else { b[i] });
            // The sign of a zero is unspecified.
            let clamped = s.add(s.clamp(x, s.splat(-2.0), s.splat(0.0)), s.splat(0.0));
            assert_lanes(
                s,
                "clamp",
                clamped,
                |i| if a[i].is_nan() { a[i] } else { a[i].clamp(-2.0, 0.0) + 0.0 },
            );
            assert_lanes(s, "clamp", s.clamp(x, s.splat(3.0), s.splat(1.0)), |i| {
                if a[i].is_nan() { a[i] } else { 1.0 }
            });
            assert_lanes(s, "mul_add", s.mul_add(x, y, z), |i| s.mul_add_scalar(a[i], b[i], c[i]));
            assert_lanes(s, "lane 0", s.mul_add_lane::<0>(x, y, z), |i| s.mul_add_scalar(a[0], b[i], c[i]));
            assert_lanes(s, "lane 3", s.mul_add_lane::<3>(x, y, z), |i| s.mul_add_scalar(a[3], b[i], c[i]));
        }
    }
}

#[test]
fn arithmetic_is_that_of_scalars() {
    Isa::available().for_each(|isa| dispatch(isa, Arithmetic));
}

struct Integers;

impl Op for Integers {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let a: [i32; MAX_LANES] = std::array::from_fn(|i| (i as i32 - 7) * 123_456_789);
        let f: [f32; MAX_LANES] = std::array::from_fn(|i| (i as f32 - 8.0) * 1000.5);
        // SAFETY: arrays have as many elements as the longest vector.
        unsafe {
            let x = s.load_int(a.as_ptr());
            for n in [0, 4, 31] {
                let mut out = [0; MAX_LANES];
                s.store_int(out.as_mut_ptr(), s.shift_right(x, n));
                assert!((0..S::LANES).all(|i| out[i] == a[i] >> n), "shift by {n} of {}", S::NAME);
            }
            assert_lanes(s, "to_float", s.to_float(x), |i| a[i] as f32);
            let rounded = s.to_float(s.round(s.load(f.as_ptr())));
            assert_lanes(s, "round", rounded, |i| (f[i].round_ties_even() as i32) as f32);
        }
    }
}

#[test]
fn integers_shift_convert_and_round() {
    Isa::available().for_each(|isa| dispatch(isa, Integers));
}

struct Bytes;

impl Op for Bytes {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let special = [f32::INFINITY, f32::NEG_INFINITY, 3e9, -3e9, 40_000.5, -40_000.5, -0.0, 127.5, 126.5];
        let y = |seed: usize| -> [f32; 4 * MAX_LANES] {
            std::array::from_fn(|i| match (i + seed) % 3 {
                0 => special[(i + seed) % special.len()],
                _ => ((i * 37 + seed * 101) % 1999) as f32 / 2.0 - 500.0,
            })
        };
        for (zero, low, high) in [
            (0, -128, 127),
            (-3, -128, 126),
            (128, 0, 255),
            (7, 5, 5),
            (32_000, 0, 200),
            (-32_000, -128, 127),
        ] {
            let to = Rounding::new(zero, low, high).expect("narrow bounds");
            for seed in 0..20 {
                let (y, mut bytes) = (y(seed), [0; 4 * MAX_LANES]);
                // SAFETY: the arrays have as many elements as four of the longest vectors.
                unsafe {
                    let at = |v: usize| s.load(y.as_ptr().add(v * S::LANES));
                    match to.is_signed() {
                        true => {
                            s.store_rounded::<true>(bytes.as_mut_ptr(), [at(0), at(1), at(2), at(3)], &to)
                        }
                        false => {
                            s.store_rounded::<false>(bytes.as_mut_ptr(), [at(0), at(1), at(2), at(3)], &to)
                        }
                    }
                }
                for (i, &y) in y[..4 * S::LANES].iter().enumerate() {
                    let want =
                        (f64::from(y).round_ties_even() + f64::from(zero)).clamp(low.into(), high.into());
                    assert_eq!(bytes[i], want as i32 as u8, "{y} by {to:?} with {}", S::NAME);
                }
            }
        }
    }
}

#[test]
fn values_are_rounded_to_bytes() {
    assert!(Rounding::new(0, -1, 128).is_none() && Rounding::new(40_000, 0, 1).is_none());
    Isa::available().for_each(|isa| dispatch(isa, Bytes));
}

struct Parts;

impl Op for Parts {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let a: [f32; MAX_LANES] = std::array::from_fn(|i| i as f32 + 0.5);
        for n in 0..=S::LANES {
            let (mut out, mut bytes) = ([-1.0; MAX_LANES], [0xee; MAX_LANES]);
            // SAFETY: `n` elements are read and written, and arrays have as many.
            unsafe {
                let x = s.load_first(a.as_ptr(), n);
                assert_lanes(s, "load_first", x, |i| if i < n { a[i] } else { 0.0 });
                s.store_first(out.as_mut_ptr(), n, s.load(a.as_ptr()));
                let rounded = s.add_int(s.round(s.mul(s.load(a.as_ptr()), s.splat(2.0))), s.splat_int(256));
                s.store_bytes_first(bytes.as_mut_ptr(), n, rounded);
            }
            for i in 0..MAX_LANES {
                assert_eq!(out[i], if i < n { a[i] } else { -1.0 }, "{} of {n}: {i}", S::NAME);
                assert_eq!(bytes[i], if i < n { 2 * i as u8 + 1 } else { 0xee }, "{} of {n}: {i}", S::NAME);
            }
        }
    }
}

#[test]
fn parts_of_vectors_are_loaded_and_stored() {
    Isa::available().for_each(|isa| dispatch(isa, Parts));
}

struct Widening;

impl Op for Widening {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for first in (0..=u16::MAX).step_by(MAX_LANES) {
            let values: [u16; MAX_LANES] = std::array::from_fn(|i| first + i as u16);
            let bytes = values.map(|x| x as i8);
            let f16 = values.map(half::f16::from_bits);
            // SAFETY: arrays have as many elements as the longest vector.
            unsafe {
                if f16[0].is_finite() && f16[MAX_LANES - 1].is_finite() {
                    assert_lanes(s, "load_f16", s.load_f16(values.as_ptr()), |i| f16[i].to_f32());
                }
                assert_lanes(s, "load_bf16", s.load_bf16(values.as_ptr()), |i| {
                    half::bf16::from_bits(values[i]).to_f32()
                });
                assert_lanes(s, "load_i8", s.load_i8(bytes.as_ptr()), |i| f32::from(bytes[i]));
            }
        }
    }
}

#[test]
fn narrow_values_are_widened_exactly() {
    Isa::available().for_each(|isa| dispatch(isa, Widening));
}

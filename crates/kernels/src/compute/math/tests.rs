use super::*;
use pteron_operator::formula::{self, Algebra};

/// The distance between neighbouring f32 values at `x`.
fn ulp(x: f64) -> f64 {
    let x = (x.abs() as f32).clamp(f32::MIN_POSITIVE, f32::MAX);
    f64::from(f32::from_bits(x.to_bits() + 1).min(f32::MAX) - x).max(f64::from(f32::MIN_POSITIVE) * 1.2e-7)
}

/// Finite values of all exponents between `low` and `high`.
fn walk(low: f32, high: f32) -> Vec<f32> {
    let mut xs: Vec<f32> = (0..=u32::MAX / 20_011)
        .map(|i| f32::from_bits(i * 20_011))
        .filter(|x| (low..=high).contains(x))
        .collect();
    let span = f64::from(high.min(1e6)) - f64::from(low.max(-1e6));
    xs.extend((0..100_000).map(|i| (f64::from(low.max(-1e6)) + span * f64::from(i) / 1e5) as f32));
    xs
}

fn largest_error(op: Unary, exact: impl Fn(f64) -> f64, unit: impl Fn(f64, f64) -> f64, xs: &[f32]) -> f64 {
    let mut worst = 0.0f64;
    for isa in Isa::available() {
        let mut out = vec![0.0; xs.len()];
        unary(&Pool::new(2), isa, op, xs, &mut out);
        for (&x, &y) in xs.iter().zip(&out) {
            let want = exact(f64::from(x));
            if want.abs() > f64::from(f32::MAX) {
                assert!(y.is_infinite() || y == f32::MAX, "{op:?}({x}) is {y}");
                continue;
            }
            worst = worst.max((f64::from(y) - want).abs() / unit(f64::from(x), want));
        }
    }
    worst
}

#[test]
fn logarithms_are_exact_to_one_ulp_and_at_their_limits() {
    let cases: [(Logarithm, f32, fn(f64) -> f64); 3] = [
        (Logarithm::Ten, 1e-45, f64::log10),
        (Logarithm::Two, 1e-45, f64::log2),
        (Logarithm::OnePlus, -0.999_999_9, f64::ln_1p),
    ];
    for (of, low, exact) in cases {
        let xs = walk(low, f32::MAX);
        for isa in Isa::available() {
            let mut out = vec![0.0; xs.len()];
            logarithm(isa, of, &xs, &mut out);
            for (&x, &y) in xs.iter().zip(&out) {
                let want = exact(f64::from(x));
                assert!((f64::from(y) - want).abs() <= ulp(want), "{of:?}({x}) is {y}, not {want}");
            }
            let at = |x: f32| {
                let mut y = [0.0];
                logarithm(isa, of, &[x], &mut y);
                y[0]
            };
            let zero = if of == Logarithm::OnePlus { -1.0 } else { 0.0 };
            assert_eq!((at(zero), at(f32::INFINITY)), (f32::NEG_INFINITY, f32::INFINITY), "{of:?}");
            assert!(at(zero - 0.5).is_nan() && at(f32::NAN).is_nan() && at(f32::NEG_INFINITY).is_nan());
        }
    }
    let mut y = [0.0; 4];
    logarithm(Isa::default(), Logarithm::Ten, &[1.0, 1000.0, 0.1, 1e-10], &mut y);
    assert_eq!(y, [0.0, 3.0, -1.0, -10.0]);
    logarithm(Isa::default(), Logarithm::Two, &[1.0, 1024.0, 0.125, 1e-45], &mut y);
    assert_eq!(y, [0.0, 10.0, -3.0, -149.0]);
    logarithm(Isa::default(), Logarithm::OnePlus, &[0.0, -0.0, 1e-30, -1e-45], &mut y);
    assert_eq!(y.map(f32::to_bits), [0.0f32, -0.0, 1e-30, -1e-45].map(f32::to_bits));
}

#[test]
fn errors_do_not_exceed_the_stated_ulp() {
    let own = |_: f64, y: f64| ulp(y);
    let gelu_tanh =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
    let of_x = |x: f64, y: f64| if x < 0.0 { ulp(x.abs().max(1.0)) } else { ulp(y) };
    let everywhere = walk(f32::MIN, f32::MAX);
    let mut wrong = Vec::new();
    let mut check = |op, stated, got: f64| {
        if got > stated {
            wrong.push(format!("{op:?}: {got} ulp, stated {stated}"));
        }
    };
    check(Unary::Exp, 1.0, largest_error(Unary::Exp, f64::exp, own, &walk(-110.0, 90.0)));
    check(Unary::Log, 1.0, largest_error(Unary::Log, f64::ln, own, &walk(1e-45, f32::MAX)));
    check(Unary::Tanh, 2.0, largest_error(Unary::Tanh, f64::tanh, own, &everywhere));
    check(Unary::Sigmoid, 3.0, largest_error(Unary::Sigmoid, Algebra::sigmoid, own, &walk(-87.0, f32::MAX)));
    check(Unary::Silu, 4.0, largest_error(Unary::Silu, formula::silu, own, &walk(-87.0, f32::MAX)));
    check(Unary::Erf, 2.0, largest_error(Unary::Erf, Algebra::erf, own, &everywhere));
    check(Unary::Gelu, 4.0, largest_error(Unary::Gelu, formula::gelu, of_x, &everywhere));
    check(Unary::GeluTanh, 4.0, largest_error(Unary::GeluTanh, gelu_tanh, of_x, &everywhere));
    check(Unary::Sin, 1.5, largest_error(Unary::Sin, f64::sin, own, &everywhere));
    check(Unary::Cos, 1.5, largest_error(Unary::Cos, f64::cos, own, &everywhere));
    let near = |x: f64, y: f64| ulp(y.abs().max((x + 3.0).abs().min(1.0) * 1e-6).max(1.2e-7));
    check(
        Unary::Hardsigmoid,
        1.0,
        largest_error(Unary::Hardsigmoid, formula::hardsigmoid, near, &walk(-10.0, 10.0)),
    );
    let by_sixth = largest_error(Unary::HardswishBySixth, formula::hardswish, of_x, &everywhere);
    check(Unary::HardswishBySixth, 2.0, by_sixth);
    check(Unary::Rsqrt, 1.5, largest_error(Unary::Rsqrt, |x| 1.0 / x.sqrt(), own, &walk(1e-38, f32::MAX)));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nan_infinity_and_signed_zero_follow_the_definitions() {
    let inf = f32::INFINITY;
    for isa in Isa::available() {
        let one = |op, x: f32| {
            let mut y = [x; 37];
            unary_in_place(&Pool::serial(), isa, op, &mut y);
            let mut z = [0.0; 37];
            unary(&Pool::serial(), isa, op, &[x; 37], &mut z);
            assert!(y.iter().chain(&z).all(|v| v.to_bits() == y[0].to_bits() || v.is_nan()), "{op:?} of {x}");
            y[0]
        };
        for op in [
            Unary::Neg,
            Unary::Abs,
            Unary::Relu,
            Unary::Reciprocal,
            Unary::Sqrt,
            Unary::Rsqrt,
            Unary::Square,
            Unary::Exp,
            Unary::Log,
            Unary::Sin,
            Unary::Cos,
            Unary::Tanh,
            Unary::Sigmoid,
            Unary::Silu,
            Unary::Erf,
            Unary::Gelu,
            Unary::GeluTanh,
            Unary::Hardsigmoid,
            Unary::Hardswish,
            Unary::HardswishBySixth,
        ] {
            assert!(one(op, f32::NAN).is_nan(), "{op:?} of NaN at {isa:?}");
        }
        assert_eq!((one(Unary::Exp, inf), one(Unary::Exp, -inf), one(Unary::Exp, 0.0)), (inf, 0.0, 1.0));
        assert_eq!((one(Unary::Log, inf), one(Unary::Log, 0.0), one(Unary::Log, 1.0)), (inf, -inf, 0.0));
        assert!(one(Unary::Log, -1.0).is_nan() && one(Unary::Log, -inf).is_nan());
        assert_eq!((one(Unary::Tanh, inf), one(Unary::Tanh, -inf)), (1.0, -1.0));
        assert_eq!((one(Unary::Erf, inf), one(Unary::Erf, -inf)), (1.0, -1.0));
        assert_eq!((one(Unary::Sigmoid, inf), one(Unary::Sigmoid, -inf)), (1.0, 0.0));
        assert!(one(Unary::Sin, inf).is_nan() && one(Unary::Cos, -inf).is_nan());
        assert_eq!(one(Unary::Gelu, inf), inf);
        for zero in [0.0f32, -0.0] {
            let same = [Unary::Sqrt, Unary::Sin, Unary::Tanh, Unary::Silu, Unary::Erf, Unary::Hardswish];
            for op in same.into_iter().chain([Unary::Gelu, Unary::GeluTanh, Unary::RoundToHalf]) {
                assert_eq!(one(op, zero).to_bits(), zero.to_bits(), "{op:?} of {zero:?} at {isa:?}");
            }
            assert_eq!(one(Unary::Neg, zero).to_bits(), (-zero).to_bits());
            assert_eq!(one(Unary::Abs, zero).to_bits(), 0);
            assert_eq!(one(Unary::Reciprocal, zero), inf.copysign(zero));
            assert_eq!(one(Unary::Rsqrt, zero), inf.copysign(zero));
        }
    }
}

#[test]
fn binary_functions_match_their_definitions_and_keep_nan() {
    for isa in Isa::available() {
        let a: Vec<f32> = (0..100).map(|i| i as f32 - 50.0).collect();
        let b: Vec<f32> = (0..100).map(|i| if i == 7 { f32::NAN } else { 3.0 - i as f32 }).collect();
        let pool = Pool::new(2);
        let mut out = vec![0.0; 100];
        binary(&pool, isa, Binary::Maximum, &a, &b, &mut out);
        assert!(out[7].is_nan() && out[8] == -5.0f32.max(3.0 - 8.0) && out[99] == 49.0);
        binary(&pool, isa, Binary::Maximum, &b, &a, &mut out);
        assert!(out[7].is_nan());
        binary(&pool, isa, Binary::Minimum, &b, &a, &mut out);
        assert!(out[7].is_nan() && out[99] == -96.0);
        binary(&pool, isa, Binary::Sub, &a, &b, &mut out);
        assert_eq!(out[60], 10.0 + 57.0);
        binary_scalar(&pool, isa, Binary::Div, &a, 2.0, &mut out);
        assert_eq!(out[60], 5.0);
        scale_add(&pool, isa, 2.0, &a, &a, &mut out);
        assert_eq!(out[61], 33.0);
    }
}

#[test]
fn rounding_to_half_types_is_to_nearest_even() {
    let (mut xs, mut ties) = (walk(f32::MIN, f32::MAX), Vec::new());
    for bits in 0..=u16::MAX {
        for x in [half::f16::from_bits(bits).to_f32(), half::bf16::from_bits(bits).to_f32()] {
            ties.extend([-1i32, 0, 1].map(|d| f32::from_bits((x.to_bits() as i32).wrapping_add(d) as u32)));
            ties.extend(
                [0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001].map(|d| f32::from_bits(x.to_bits() | d)),
            );
        }
    }
    xs.extend(ties);
    xs.extend([65_519.99, 65_520.0, 3.395e38, f32::INFINITY, f32::NAN, -0.0, 2e-8, 2.98e-8, 2.981e-8, 1e-40]);
    let expected: [(Unary, fn(f32) -> f32); 2] = [
        (Unary::RoundToHalf, |x| half::f16::from_f32(x).to_f32()),
        (Unary::RoundToBfloat16, |x| half::bf16::from_f32(x).to_f32()),
    ];
    for (op, expected) in expected {
        for isa in Isa::available() {
            let mut out = vec![0.0; xs.len()];
            unary(&Pool::serial(), isa, op, &xs, &mut out);
            for (&x, &y) in xs.iter().zip(&out) {
                let want = expected(x);
                assert!(
                    y.to_bits() == want.to_bits() || y.is_nan() && want.is_nan(),
                    "{op:?}({x:e}) is {y:e}"
                );
            }
        }
    }
}

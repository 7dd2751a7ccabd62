//! Half precision: rounding after every call.

use crate::both::*;
use proptest::prelude::*;
use pteron_tensor::{Scalar, ScalarType};

/// Rounding is observable in cancelling sums, overflow, poles and comparisons.
#[test]
fn chains_in_half_precision_equal_the_calls() {
    for dtype in [ScalarType::Half, ScalarType::BFloat16] {
        let mut both = Both::of(dtype, 1);
        let n = [64];
        let x = both.input(&n, 1);
        let big = both.call("aten::mul.Scalar_out", &[value(x), number(60_000.0)], &n).unwrap();
        let back = both.call("aten::div.Scalar_out", &[value(big), number(60_000.0)], &n).unwrap();
        let sum = both.call("aten::add.Scalar_out", &[value(x), number(1000.0), one()], &n).unwrap();
        let rest = both.call("aten::sub.Scalar_out", &[value(sum), number(1000.0), one()], &n).unwrap();
        let inverse = both.call("aten::reciprocal.out", &[value(rest)], &n).unwrap();
        let bool_of = [(ScalarType::Bool, &n[..])];
        let same = both.call_typed("aten::eq.Tensor_out", &[value(rest), value(x)], &bool_of).unwrap()[0];
        let zero = both.call_typed("aten::eq.Scalar_out", &[value(rest), number(0.0)], &bool_of).unwrap()[0];
        let infinite = both.call_typed("aten::isinf.out", &[value(big)], &bool_of).unwrap()[0];
        let finite = [value(big), Given::None, Given::None, Given::None];
        let finite = both.call("aten::nan_to_num.out", &finite, &n).unwrap();
        let floor = both.call("aten::floor.out", &[value(sum)], &n).unwrap();
        let args = [value(rest), int(0), Given::Scalar(Scalar::Bool(false))];
        let at = both.call_typed("aten::argmax.out", &args, &[(ScalarType::Long, &[])]).unwrap()[0];
        both.check(&[back, rest, inverse, same, zero, infinite, finite, floor, at], 0.0);
    }
}

/// A matrix multiplication with rounding and clamp is one step.
#[test]
fn clamps_are_fused_into_rounded_matrix_multiplications() {
    for (dtype, tolerance) in [(ScalarType::Half, 1e-3), (ScalarType::BFloat16, 8e-3)] {
        let mut both = Both::of(dtype, 2);
        let (x, w) = (both.input(&[5, 8], 1), both.constant(&[7, 8], 2));
        let y = both.call("aten::linear.out", &[value(x), value(w), Given::None], &[5, 7]).unwrap();
        let y = both.call("aten::relu.out", &[value(y)], &[5, 7]).unwrap();
        let w = both.constant(&[9, 7], 3);
        let z = both.call("aten::linear.out", &[value(y), value(w), Given::None], &[5, 9]).unwrap();
        let z = both.call("aten::hardtanh.out", &[value(z), number(-0.5), number(0.25)], &[5, 9]).unwrap();
        assert!(floats(&both.values[&z]).contains(&0.25));
        // The input and the result are cast.
        assert_eq!(both.check(&[z], tolerance), 4, "{dtype}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Random chains of operators that round once give the same bits when lowered, whichever values are outputs.
    #[test]
    fn random_chains_in_half_precision(
        steps in prop::collection::vec((0usize..16, 0usize..100, 0usize..100, 0usize..6), 1..10),
        wide in any::<bool>(),
    ) {
        let dtype = if wide { ScalarType::BFloat16 } else { ScalarType::Half };
        let mut both = Both::of(dtype, 1);
        let n = [3, 40];
        let mut values = vec![both.input(&n, 1), both.input(&n, 2), both.input(&[40], 3)];
        let mut masks = Vec::new();
        for (kind, a, b, s) in steps {
            let (x, y) = (values[a % values.len()], values[b % values.len()]);
            let sizes = if *both.graph.meta(x).sizes() == *both.graph.meta(y).sizes() {
                both.graph.meta(x).sizes().to_vec()
            } else {
                n.to_vec()
            };
            let own = both.graph.meta(x).sizes().to_vec();
            let number = number([0.1, 3.0, 60_000.0, -0.5, 1e-3, 1000.0][s]);
            let new = match kind {
                0 => both.call("aten::add.out", &[value(x), value(y), one()], &sizes),
                1 => both.call("aten::sub.out", &[value(x), value(y), one()], &sizes),
                2 => both.call("aten::mul.out", &[value(x), value(y)], &sizes),
                3 => both.call("aten::div.out", &[value(x), value(y)], &sizes),
                4 => both.call("aten::mul.Scalar_out", &[value(x), number], &own),
                5 => both.call("aten::div.Scalar_out", &[value(x), number], &own),
                6 => both.call("aten::add.Scalar_out", &[value(x), number, one()], &own),
                7 => both.call("aten::clamp.out", &[value(x), number, Given::None], &own),
                8 => both.call("aten::relu.out", &[value(x)], &own),
                9 => both.call("aten::maximum.out", &[value(x), value(y)], &sizes),
                10 => both.call("aten::floor.out", &[value(x)], &own),
                11 => both.call("aten::nan_to_num.out", &[value(x), Given::None, Given::None, Given::None], &own),
                12 => both.call("aten::reciprocal.out", &[value(x)], &own),
                13 => both.call("aten::sqrt.out", &[value(x)], &own),
                _ => {
                    let out = [(ScalarType::Bool, &sizes[..])];
                    let name = if kind == 14 { "aten::lt.Tensor_out" } else { "aten::eq.Tensor_out" };
                    let mask = both.call_typed(name, &[value(x), value(y)], &out).unwrap()[0];
                    masks.push(mask);
                    both.call("aten::where.self_out", &[value(mask), value(y), value(x)], &sizes)
                }
            };
            values.extend(new);
        }
        masks.extend([values[values.len() - 1], values[values.len() / 2]]);
        both.check(&masks, 0.0);
    }
}

/// Elements that are equal in bfloat16 are ties for `argmax`, too.
#[test]
fn indices_of_equal_half_precision_elements_equal_the_calls() {
    let mut both = Both::of(ScalarType::BFloat16, 1);
    let x = both.input(&[16, 40], 1);
    let y = both.call("aten::sigmoid.out", &[value(x)], &[16, 40]).unwrap();
    let z = both.call("aten::mul.out", &[value(y), value(y)], &[16, 40]).unwrap();
    let args = [value(z), int(1), Given::Scalar(Scalar::Bool(false))];
    let at = both.call_typed("aten::argmax.out", &args, &[(ScalarType::Long, &[16])]).unwrap()[0];
    both.check(&[at, z], 0.0);
}

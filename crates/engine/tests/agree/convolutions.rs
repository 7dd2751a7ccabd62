//! Convolutions with the nodes that are fused into them.

use crate::both::*;
use pteron_engine::ValueId;
use pteron_tensor::{DimOrder, Scalar, ScalarType};

#[test]
fn convolutions_with_norms_residuals_and_clamps() {
    for (channels, kernel, stride, groups) in [(8, 3, 1, 1), (8, 1, 1, 1), (8, 3, 2, 8), (16, 5, 2, 4)] {
        convolutions(Both::new(2), (channels, kernel, stride, groups), 1e-4);
    }
}

/// In half precision, results are rounded after every call: only the order of accumulation may differ.
#[test]
fn convolutions_in_half_precision() {
    for (dtype, tolerance) in [(ScalarType::Half, 1e-3), (ScalarType::BFloat16, 8e-3)] {
        let steps = convolutions(Both::of(dtype, 2), (8, 3, 1, 1), tolerance);
        let in_f32 = convolutions(Both::new(2), (8, 3, 1, 1), 1e-4);
        // Casts of an input and two results, and up to three steps for the norm, the residual and the mean, which
        // follow a rounding.
        assert!(steps <= in_f32 + 6, "{steps} steps in {dtype}, {in_f32} in f32");
    }
}

/// Checks a network of two convolutions. Returns the number of its steps.
fn convolutions(
    mut both: Both,
    (channels, kernel, stride, groups): (usize, usize, usize, usize),
    tolerance: f32,
) -> usize {
    let x = both.input(&[2, 4, 13, 11], 1);
    let stem = both.constant(&[channels, 4, 3, 3], 2);
    let first = [2, channels, 13, 11];
    let y = both.conv(x, stem, 1, 1, &first);
    let parameters: Vec<ValueId> = (0..3).map(|i| both.constant(&[channels], 10 + i)).collect();
    let variance = both.call("aten::exp.out", &[value(parameters[2])], &[channels]).unwrap();
    let norm = [
        value(y),
        value(parameters[0]),
        value(parameters[1]),
        value(parameters[2]),
        value(variance),
        Given::Scalar(Scalar::Double(0.1)),
        Given::Scalar(Scalar::Double(1e-5)),
    ];
    let name = "aten::_native_batch_norm_legit_no_training.out";
    let normed = both.call_with(name, &norm, &[&first, &[0], &[0]]).unwrap()[0];
    let relu = both.call("aten::relu.out", &[value(normed)], &first).unwrap();
    let w = both.constant(&[channels, channels / groups, kernel, kernel], 3);
    let side = |n: usize| (n + 2 * (kernel / 2) - kernel) / stride + 1;
    let second = [2, channels, side(13), side(11)];
    let z = both.conv(relu, w, stride as i64, groups as i64, &second);
    let last = if second == first {
        let sum = both.call("aten::add.out", &[value(z), value(relu), one()], &second).unwrap();
        both.call("aten::relu.out", &[value(sum)], &second).unwrap()
    } else {
        z
    };
    let mean_args = [value(last), ints(&[-1, -2]), Given::Scalar(Scalar::Bool(true)), Given::None];
    let mean = both.call("aten::mean.out", &mean_args, &[2, channels, 1, 1]).unwrap();
    let flat = [value(mean), ints(&[2, channels as i64])];
    let flat = both.call("aten::view_copy.out", &flat, &[2, channels]).unwrap();
    let w = both.constant(&[10, channels], 4);
    let w = both.call("aten::permute_copy.out", &[value(w), ints(&[1, 0])], &[channels, 10]).unwrap();
    let bias = both.constant(&[10], 5);
    let args = [value(bias), value(flat), value(w), one(), one()];
    let logits = both.call("aten::addmm.out", &args, &[2, 10]).unwrap();
    both.check(&[logits, last], tolerance)
}

#[test]
fn weights_may_have_any_dim_order() {
    let mut both = Both::new(1);
    let x = both.input(&[1, 3, 6, 5], 1);
    let w = both.constant_in(&[4, 3, 3, 3], 2, DimOrder::channels_last(4));
    let y = both.conv(x, w, 1, 1, &[1, 4, 6, 5]);
    let y = both.call("aten::relu.out", &[value(y)], &[1, 4, 6, 5]).unwrap();
    both.check(&[y], 1e-4);
}

#[test]
fn group_norms_between_convolutions() {
    for affine in [false, true] {
        let mut both = Both::new(2);
        let x = both.input(&[2, 8, 9, 7], 1);
        let sizes = [2, 12, 9, 7];
        let w = both.constant(&[12, 8, 3, 3], 2);
        let y = both.conv(x, w, 1, 1, &sizes);
        let (weight, bias) = (both.constant(&[12], 3), both.constant(&[12], 4));
        let factor = |v| if affine { value(v) } else { Given::None };
        let [n, c, pixels, groups] = [2, 12, 63, 4].map(|v| Given::Scalar(Scalar::Int(v)));
        let eps = Given::Scalar(Scalar::Double(1e-5));
        let args = [value(y), factor(weight), factor(bias), n, c, pixels, groups, eps];
        let outs = both.call_with("aten::native_group_norm.out", &args, &[&sizes, &[2, 4], &[2, 4]]).unwrap();
        let gate = both.call("aten::sigmoid.out", &[value(outs[0])], &sizes).unwrap();
        let silu = both.call("aten::mul.out", &[value(outs[0]), value(gate)], &sizes).unwrap();
        let w = both.constant(&[12, 12, 3, 3], 5);
        let z = both.conv(silu, w, 1, 1, &sizes);
        both.check(&[z], 1e-4);
    }
}

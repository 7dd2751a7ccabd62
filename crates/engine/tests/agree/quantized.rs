//! Quantized networks, and matrix multiplications with transposed weights.

use crate::both::*;
use pteron_engine::ValueId;
use pteron_tensor::{Scalar, ScalarType, Tensor};

/// Dequantized constant weights of these sizes, quantized to -127..=127 with one scale for each index of the first
/// dimension or one for all.
fn weights(both: &mut Both, sizes: &[usize], per_channel: bool, seed: u64) -> ValueId {
    let numbers: Vec<i8> =
        random(sizes, seed).storage::<f32>().unwrap().iter().map(|x| (x * 63.0) as i8).collect();
    let numbers = both.constant_of(Tensor::from_slice(sizes, &numbers).unwrap());
    let bounds = [int(-127), int(127), int(1), Given::None];
    let (name, params) = if per_channel {
        let scales: Vec<f32> = (0..sizes[0]).map(|i| 0.002 + 0.0001 * i as f32).collect();
        let scales = both.constant_of(Tensor::from_slice(&[sizes[0]], &scales).unwrap());
        let zeros = both.constant_of(Tensor::from_slice(&[sizes[0]], &vec![0i64; sizes[0]]).unwrap());
        ("dequantize_per_channel.out", vec![value(scales), value(zeros), int(0)])
    } else {
        ("dequantize_per_tensor.out", vec![number(0.003), int(0)])
    };
    let args: Vec<Given> = [value(numbers)].into_iter().chain(params).chain(bounds).collect();
    both.call(&format!("{QUANTIZED}{name}"), &args, sizes).unwrap()
}

/// Quantizes and dequantizes with known parameters.
fn fake_quantize(both: &mut Both, x: ValueId, scale: f64, zero: i64, sizes: &[usize]) -> ValueId {
    let params = || [number(scale), int(zero), int(-128), int(127), int(1)];
    let args: Vec<Given> = [value(x)].into_iter().chain(params()).collect();
    let q =
        both.call_typed(&format!("{QUANTIZED}quantize_per_tensor.out"), &args, &[(CHAR, sizes)]).unwrap()[0];
    let args: Vec<Given> = [value(q)].into_iter().chain(params()).chain([Given::None]).collect();
    both.call(&format!("{QUANTIZED}dequantize_per_tensor.out"), &args, sizes).unwrap()
}

fn addmm(both: &mut Both, bias: ValueId, x: ValueId, w: ValueId, sizes: &[usize]) -> ValueId {
    let [n, k] = **both.graph.meta(w).sizes() else { panic!("a matrix of weights") };
    let t = both.call("aten::permute_copy.out", &[value(w), ints(&[1, 0])], &[k, n]).unwrap();
    both.call("aten::addmm.out", &[value(bias), value(x), value(t), one(), one()], sizes).unwrap()
}

#[test]
fn statically_quantized_networks() {
    for per_channel in [false, true] {
        let mut both = Both::new(2);
        let first = [2, 6, 11, 9];
        let x = both.input(&[2, 3, 11, 9], 1);
        let x = fake_quantize(&mut both, x, 0.02, 3, &[2, 3, 11, 9]);
        let w = weights(&mut both, &[6, 3, 3, 3], per_channel, 2);
        let y = both.conv(x, w, 1, 1, &first);
        let y = both.call("aten::relu.out", &[value(y)], &first).unwrap();
        let y = fake_quantize(&mut both, y, 0.02, -128, &first);
        let w = weights(&mut both, &[6, 1, 3, 3], per_channel, 3);
        let y = both.conv(y, w, 1, 6, &first);
        let y = fake_quantize(&mut both, y, 0.02, -10, &first);
        let y = both.call("aten::hardtanh.out", &[value(y), number(0.0), number(1.5)], &first).unwrap();
        let y = fake_quantize(&mut both, y, 0.02, -10, &first);
        let w = weights(&mut both, &[6, 6, 1, 1], per_channel, 6);
        let y = both.conv(y, w, 1, 1, &first);
        let y = fake_quantize(&mut both, y, 0.02, 0, &first);
        let flat = both.call("aten::view_copy.out", &[value(y), ints(&[12, 99])], &[12, 99]).unwrap();
        let (w, bias) = (weights(&mut both, &[40, 99], per_channel, 4), both.constant(&[40], 5));
        let z = addmm(&mut both, bias, flat, w, &[12, 40]);
        let z = fake_quantize(&mut both, z, 0.05, 7, &[12, 40]);
        // Quantize, three convolutions between two relayouts, a matrix multiplication, dequantize.
        assert_eq!(both.check(&[z], 0.02), 8, "per channel: {per_channel}");
    }
}

#[test]
fn max_pooling_of_quantized_images() {
    let (before, half) = ([2, 6, 11, 9], [2, 6, 6, 5]);
    let mut both = Both::new(2);
    let x = both.input(&[2, 3, 11, 9], 1);
    let x = fake_quantize(&mut both, x, 0.02, 3, &[2, 3, 11, 9]);
    let w = weights(&mut both, &[6, 3, 3, 3], true, 2);
    let y = both.conv(x, w, 1, 1, &before);
    let y = fake_quantize(&mut both, y, 0.02, -10, &before);
    let no = Given::Scalar(Scalar::Bool(false));
    let args = [value(y), ints(&[3, 3]), ints(&[2, 2]), ints(&[1, 1]), ints(&[1, 1]), no];
    let outputs: [(ScalarType, &[usize]); 2] = [(ScalarType::Float, &half), (ScalarType::Long, &half)];
    let y = both.call_typed("aten::max_pool2d_with_indices.out", &args, &outputs).unwrap()[0];
    let y = fake_quantize(&mut both, y, 0.02, -10, &half);
    let w = weights(&mut both, &[6, 6, 1, 1], false, 3);
    let y = both.conv(y, w, 1, 1, &half);
    let y = fake_quantize(&mut both, y, 0.02, 0, &half);
    // Quantize, relayout, convolution, pooling, convolution, relayout, dequantize.
    assert_eq!(both.check(&[y], 0.02), 7);
}

#[test]
fn dynamically_quantized_matrix_multiplications() {
    for by_row in [false, true] {
        let mut both = Both::new(2);
        let sizes = [5, 70];
        let x = both.input(&sizes, 1);
        let mut both_ways = |x: ValueId, sizes: &[usize]| {
            let params = if by_row { vec![sizes[0], 1] } else { vec![1] };
            let (choose, args, suffix): (_, Vec<Given>, _) = if by_row {
                ("choose_qparams_per_token_asymmetric.out", vec![value(x), int(1)], "per_token.out")
            } else {
                let bounds = [value(x), int(-128), int(127), number(1e-5), int(1)];
                ("choose_qparams.Tensor_out", bounds.into(), "per_tensor.Tensor_out")
            };
            let outs = [(ScalarType::Double, &params[..]), (ScalarType::Long, &params[..])];
            let chosen = both.call_typed(&format!("{QUANTIZED}{choose}"), &args, &outs).unwrap();
            let rest = || [value(chosen[0]), value(chosen[1]), int(-128), int(127), int(1)];
            let args: Vec<Given> = [value(x)].into_iter().chain(rest()).collect();
            let name = format!("{QUANTIZED}quantize_{suffix}");
            let q = both.call_typed(&name, &args, &[(CHAR, sizes)]).unwrap()[0];
            let last = if by_row { int(6) } else { Given::None };
            let args: Vec<Given> = [value(q)].into_iter().chain(rest()).chain([last]).collect();
            let x = both.call(&format!("{QUANTIZED}dequantize_{suffix}"), &args, sizes).unwrap();
            let w = weights(&mut both, &[sizes[1] - 9, sizes[1]], true, 2);
            let bias = both.constant(&[sizes[1] - 9], 3);
            let y = addmm(&mut both, bias, x, w, &[sizes[0], sizes[1] - 9]);
            both.call("aten::relu.out", &[value(y)], &[sizes[0], sizes[1] - 9]).unwrap()
        };
        let y = both_ways(x, &sizes);
        let z = both_ways(y, &[5, 61]);
        assert_eq!(both.check(&[z], 0.01), 2, "by row: {by_row}");
    }
}

/// Each convolution reads floats, which it quantizes with one range for all images.
#[test]
fn dynamically_quantized_convolutions() {
    for groups in [1, 2] {
        let mut both = Both::new(2);
        let (mut sizes, mut y) = ([2, 4, 7, 9], both.input(&[2, 4, 7, 9], 1));
        for (outputs, seed) in [(6, 2), (4, 3)] {
            let bounds = [value(y), int(-128), int(127), number(1e-5), int(1)];
            let outs = [(ScalarType::Double, &[1][..]), (ScalarType::Long, &[1][..])];
            let chosen =
                both.call_typed(&format!("{QUANTIZED}choose_qparams.Tensor_out"), &bounds, &outs).unwrap();
            let rest = || [value(chosen[0]), value(chosen[1]), int(-128), int(127), int(1)];
            let args: Vec<Given> = [value(y)].into_iter().chain(rest()).collect();
            let name = format!("{QUANTIZED}quantize_per_tensor.Tensor_out");
            let q = both.call_typed(&name, &args, &[(CHAR, &sizes)]).unwrap()[0];
            let args: Vec<Given> = [value(q)].into_iter().chain(rest()).chain([Given::None]).collect();
            let x =
                both.call(&format!("{QUANTIZED}dequantize_per_tensor.Tensor_out"), &args, &sizes).unwrap();
            let w = weights(&mut both, &[outputs, sizes[1] / groups, 3, 3], true, seed);
            sizes[1] = outputs;
            let conv = both.conv(x, w, 1, groups as i64, &sizes);
            y = both.call("aten::relu.out", &[value(conv)], &sizes).unwrap();
        }
        // Two convolutions between two relayouts.
        assert_eq!(both.check(&[y], 0.01), 4, "{groups} groups");
    }
}

/// Products of two computed matrices run on the quantized values if the second zero point is 0.
#[test]
fn products_of_quantized_values() {
    for (zero, steps) in [(0, 4), (3, 7)] {
        let mut both = Both::new(2);
        let (m, k, n) = (9, 40, 21);
        let (a, b) = (both.input(&[3, m, k], 1), both.input(&[3, k, n], 2));
        let a = fake_quantize(&mut both, a, 0.01, -7, &[3, m, k]);
        let b = fake_quantize(&mut both, b, 0.01, zero, &[3, k, n]);
        let y = both.call("aten::bmm.out", &[value(a), value(b)], &[3, m, n]).unwrap();
        let y = fake_quantize(&mut both, y, 0.05, 4, &[3, m, n]);
        // Two quantizations, the product, dequantization; otherwise, the operands are dequantized and the result is quantized.
        assert_eq!(both.check(&[y], 0.051), steps, "zero point {zero}");
    }
    let mut both = Both::new(2);
    let (a, b) = (both.input(&[5, 70], 1), both.input(&[70, 6], 2));
    let a = fake_quantize(&mut both, a, 0.01, 100, &[5, 70]);
    let b = fake_quantize(&mut both, b, 0.01, 0, &[70, 6]);
    let y = both.call("aten::mm.out", &[value(a), value(b)], &[5, 6]).unwrap();
    assert_eq!(both.check(&[y], 1e-4), 3);
}

/// Each row of the first matrix is quantized when the product runs.
#[test]
fn products_of_dynamically_quantized_rows() {
    let mut both = Both::new(2);
    let sizes = [3, 9, 40];
    let (a, b) = (both.input(&[27, 40], 1), both.input(&[3, 40, 21], 2));
    let outs = [(ScalarType::Double, &[3, 9, 1][..]), (ScalarType::Long, &[3, 9, 1][..])];
    let name = format!("{QUANTIZED}choose_qparams_per_token_asymmetric.out");
    // Each reader of the matrices has its own view of them.
    let view =
        |both: &mut Both| both.call("aten::view_copy.out", &[value(a), ints(&[3, 9, 40])], &sizes).unwrap();
    let (x, a) = (view(&mut both), view(&mut both));
    let chosen = both.call_typed(&name, &[value(x), int(1)], &outs).unwrap();
    let rest = || [value(chosen[0]), value(chosen[1]), int(-128), int(127), int(1)];
    let args: Vec<Given> = [value(a)].into_iter().chain(rest()).collect();
    let q =
        both.call_typed(&format!("{QUANTIZED}quantize_per_token.out"), &args, &[(CHAR, &sizes)]).unwrap()[0];
    let args: Vec<Given> = [value(q)].into_iter().chain(rest()).chain([int(6)]).collect();
    let a = both.call(&format!("{QUANTIZED}dequantize_per_token.out"), &args, &sizes).unwrap();
    let b = fake_quantize(&mut both, b, 0.01, 0, &[3, 40, 21]);
    let y = both.call("aten::bmm.out", &[value(a), value(b)], &[3, 9, 21]).unwrap();
    // Quantization of the second matrix, and the product.
    assert_eq!(both.check(&[y], 1e-4), 2);
}

/// Transposed weights that are read by matrix multiplications only, by others as well, by others only, and by an
/// `addmm` whose bias does not fit a [`Linear`](pteron_engine::Linear).
#[test]
fn matrix_multiplications_read_transposed_weights() {
    for readers in 0..4 {
        let mut both = Both::new(2);
        let (m, k, n) = (5, 7, 6);
        let (x, w) = (both.input(&[m, k], 1), both.constant(&[n, k], 2));
        let (name, swap) = match readers {
            0 => ("aten::t_copy.out", vec![value(w)]),
            1 => ("aten::transpose_copy.int_out", vec![value(w), int(-1), int(0)]),
            _ => ("aten::permute_copy.out", vec![value(w), ints(&[-1, -2])]),
        };
        let t = both.call(name, &swap, &[k, n]).unwrap();
        let mut results = Vec::new();
        if readers != 2 {
            results.push(both.call("aten::mm.out", &[value(x), value(t)], &[m, n]).unwrap());
            let bias = both.constant(&[n], 3);
            results.push(
                both.call("aten::addmm.out", &[value(bias), value(x), value(t), one(), one()], &[m, n])
                    .unwrap(),
            );
        }
        if readers > 0 {
            let y = both.input(&[k, n], 4);
            results.push(both.call("aten::mul.out", &[value(y), value(t)], &[k, n]).unwrap());
        }
        if readers == 3 {
            // This bias is per row, not per column.
            let bias = both.constant(&[m, 1], 5);
            results.push(
                both.call("aten::addmm.out", &[value(bias), value(x), value(t), one(), one()], &[m, n])
                    .unwrap(),
            );
        }
        both.check(&results, 1e-5);
    }
}

//! Attention in the form that exporters write.

use crate::both::*;
use pteron_engine::ValueId;
use pteron_tensor::{Scalar, ScalarType};

/// `softmax(q k^T / sqrt(width) + mask) v` of `heads` heads that share `groups` heads of keys and values, in the form
/// that exporters write: `bmm` for the scores, `expand` to repeat heads, and the factor in a constant.
fn attention(both: &mut Both, queries: usize, keys: usize, heads: usize, groups: usize) -> ValueId {
    let (batch, width) = (2, 8);
    let view = |both: &mut Both, x, sizes: &[usize]| {
        let list: Vec<i64> = sizes.iter().map(|&n| n as i64).collect();
        both.call("aten::view_copy.out", &[value(x), Given::Ints(list)], sizes).unwrap()
    };
    let permute = |both: &mut Both, x, order: [i64; 4], sizes: &[usize]| {
        both.call("aten::permute_copy.out", &[value(x), ints(&order)], sizes).unwrap()
    };
    let repeated = |both: &mut Both, seed| {
        let x = both.input(&[batch, keys, groups, width], seed);
        let x = permute(both, x, [0, 2, 1, 3], &[batch, groups, keys, width]);
        let x = view(both, x, &[batch, groups, 1, keys, width]);
        let sizes = [batch, groups, heads / groups, keys, width];
        let list = Given::Ints(sizes.iter().map(|&n| n as i64).collect());
        let no = Given::Scalar(Scalar::Bool(false));
        let x = both.call("aten::expand_copy.out", &[value(x), list, no], &sizes).unwrap();
        view(both, x, &[batch, heads, keys, width])
    };
    let q = both.input(&[batch, queries, heads, width], 1);
    let q = permute(both, q, [0, 2, 1, 3], &[batch, heads, queries, width]);
    let q = view(both, q, &[batch * heads, queries, width]);
    let k = repeated(both, 2);
    let k = permute(both, k, [0, 1, 3, 2], &[batch, heads, width, keys]);
    let k = view(both, k, &[batch * heads, width, keys]);
    let v = repeated(both, 3);
    let v = view(both, v, &[batch * heads, keys, width]);
    let (product, scores) = ([batch * heads, queries, keys], [batch, heads, queries, keys]);
    let s = both.call("aten::bmm.out", &[value(q), value(k)], &product).unwrap();
    let s = view(both, s, &scores);
    let root = both.constant(&[], 4);
    let s = both.call("aten::div.out", &[value(s), value(root)], &scores).unwrap();
    let mask = both.input(&[queries, keys], 5);
    let s = both.call("aten::add.out", &[value(s), value(mask), one()], &scores).unwrap();
    let last = [value(s), Given::Scalar(Scalar::Int(-1)), Given::Scalar(Scalar::Bool(false))];
    let p = both.call("aten::_softmax.out", &last, &scores).unwrap();
    let p = view(both, p, &product);
    let y = both.call("aten::bmm.out", &[value(p), value(v)], &[batch * heads, queries, width]).unwrap();
    let y = view(both, y, &[batch, heads, queries, width]);
    let y = permute(both, y, [0, 2, 1, 3], &[batch, queries, heads, width]);
    view(both, y, &[batch, queries, heads * width])
}

#[test]
fn attention_is_one_step() {
    for (queries, keys, heads, groups) in
        [(5, 7, 4, 4), (64, 64, 4, 2), (3, 200, 6, 1), (1, 33, 4, 2), (75, 80, 3, 3), (150, 40, 2, 1)]
    {
        // Two threads get an item each; three divide the heads of each, or its queries if there are as many blocks of them.
        for threads in [2, 3] {
            let mut both = Both::new(threads);
            let y = attention(&mut both, queries, keys, heads, groups);
            assert_eq!(both.check(&[y], 1e-5), 1, "{queries} queries, {heads} heads of {groups}");
        }
    }
}

#[test]
fn attention_in_half_precision_is_one_step() {
    for (dtype, tolerance) in [(ScalarType::Half, 2e-3), (ScalarType::BFloat16, 1e-2)] {
        let mut both = Both::of(dtype, 2);
        let y = attention(&mut both, 5, 7, 4, 4);
        // Casts of four inputs (three of them permuted first, one in two steps) and of the result.
        assert_eq!(both.check(&[y], tolerance), 10, "{dtype}");
    }
}

/// Scores beyond the range of float16 are infinite, and the results are NaN.
#[test]
fn attention_in_half_precision_overflows() {
    let mut both = Both::of(ScalarType::Half, 1);
    let large = both.input(&[2, 5, 8], 1);
    let large = both.call("aten::mul.Scalar_out", &[value(large), number(400.0)], &[2, 5, 8]).unwrap();
    let args = [value(large), int(1), int(2)];
    let k = both.call("aten::transpose_copy.int_out", &args, &[2, 8, 5]).unwrap();
    let s = both.call("aten::bmm.out", &[value(large), value(k)], &[2, 5, 5]).unwrap();
    let s = both.call("aten::mul.Scalar_out", &[value(s), number(0.125)], &[2, 5, 5]).unwrap();
    let last = [value(s), int(-1), Given::Scalar(Scalar::Bool(false))];
    let p = both.call("aten::_softmax.out", &last, &[2, 5, 5]).unwrap();
    let v = both.input(&[2, 5, 8], 2);
    let y = both.call("aten::bmm.out", &[value(p), value(v)], &[2, 5, 8]).unwrap();
    assert!(floats(&both.values[&y]).iter().any(|x| x.is_nan()));
    both.check(&[y], 2e-3);
}

//! All decompositions of activations.

use crate::both::*;
use pteron_engine::ValueId;

/// Adds the calls of an activation of `x`, which has these sizes.
type Spelling = fn(&mut Both, ValueId, &[usize]) -> ValueId;

fn bounded(both: &mut Both, x: ValueId, sizes: &[usize]) -> ValueId {
    let sum = both.call("aten::add.Scalar_out", &[value(x), number(3.0), one()], sizes).unwrap();
    let low = both.call("aten::clamp.out", &[value(sum), number(0.0), Given::None], sizes).unwrap();
    both.call("aten::clamp.out", &[value(low), Given::None, number(6.0)], sizes).unwrap()
}

const SPELLINGS: [(&str, Spelling); 7] = [
    ("relu", |b, x, sizes| b.call("aten::relu.out", &[value(x)], sizes).unwrap()),
    ("relu to 1", |b, x, sizes| {
        let relu = b.call("aten::relu.out", &[value(x)], sizes).unwrap();
        b.call("aten::clamp.out", &[value(relu), Given::None, number(1.0)], sizes).unwrap()
    }),
    ("gelu", |b, x, sizes| {
        let none = Given::Str("none".into());
        b.call("aten::gelu.out", &[value(x), none], sizes).unwrap()
    }),
    ("silu", |b, x, sizes| {
        let gate = b.call("aten::sigmoid.out", &[value(x)], sizes).unwrap();
        b.call("aten::mul.out", &[value(gate), value(x)], sizes).unwrap()
    }),
    ("hardsigmoid", |b, x, sizes| {
        let bounded = bounded(b, x, sizes);
        b.call("aten::mul.Scalar_out", &[value(bounded), number(1.0 / 6.0)], sizes).unwrap()
    }),
    ("hardswish, divided last", |b, x, sizes| {
        let bounded = bounded(b, x, sizes);
        let product = b.call("aten::mul.out", &[value(x), value(bounded)], sizes).unwrap();
        b.call("aten::div.Scalar_out", &[value(product), number(6.0)], sizes).unwrap()
    }),
    ("hardswish, divided first", |b, x, sizes| {
        let bounded = bounded(b, x, sizes);
        let gate = b.call("aten::div.Scalar_out", &[value(bounded), number(6.0)], sizes).unwrap();
        b.call("aten::mul.out", &[value(gate), value(x)], sizes).unwrap()
    }),
];

#[test]
fn activations_are_fused_into_their_producers() {
    for (name, spell) in SPELLINGS {
        let mut both = Both::new(2);
        let x = both.input(&[1, 6, 9, 8], 1);
        let (w, depthwise) = (both.constant(&[12, 6, 1, 1], 2), both.constant(&[12, 1, 3, 3], 3));
        let sizes = [1, 12, 9, 8];
        let y = both.conv(x, w, 1, 1, &sizes);
        let y = spell(&mut both, y, &sizes);
        let y = both.conv(y, depthwise, 1, 12, &sizes);
        let y = spell(&mut both, y, &sizes);
        let rows = both.call("aten::view_copy.out", &[value(y), ints(&[108, 8])], &[108, 8]).unwrap();
        let w = both.constant(&[7, 8], 4);
        let z = both.call("aten::linear.out", &[value(rows), value(w), Given::None], &[108, 7]).unwrap();
        let z = spell(&mut both, z, &[108, 7]);
        // Two relayouts, two convolutions and a matrix multiplication.
        assert_eq!(both.check(&[z], 1e-5), 5, "{name}");
    }
}

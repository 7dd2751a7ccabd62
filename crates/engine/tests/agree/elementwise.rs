//! Chains of elementwise operators, and reductions.

use crate::both::*;
use proptest::prelude::*;
use pteron_engine::ValueId;
use pteron_tensor::Scalar;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Elementwise operators with all kinds of broadcasts, and values that are used once, several times, and as
    /// outputs.
    #[test]
    fn elementwise_chains(
        steps in prop::collection::vec((0usize..9, 0usize..100, 0usize..100, 0usize..5), 1..14),
        threads in 1usize..3,
    ) {
        let mut both = Both::new(threads);
        let full = [2, 3, 4, 5];
        let mut values = vec![both.input(&full, 1), both.input(&full, 2)];
        let small: Vec<ValueId> = vec![
            both.constant(&[], 3),
            both.constant(&[5], 4),
            both.constant(&[3, 1, 1], 5),
            both.input(&[4, 1], 6),
            both.input(&[2, 1, 1, 5], 7),
        ];
        for (kind, a, b, s) in steps {
            let (x, y) = (values[a % values.len()], values[b % values.len()]);
            let new = match kind {
                0 => both.call("aten::relu.out", &[value(x)], &full),
                1 => both.call("aten::sigmoid.out", &[value(x)], &full),
                2 => both.call("aten::add.out", &[value(x), value(y), one()], &full),
                3 => both.call("aten::mul.out", &[value(x), value(small[s])], &full),
                4 => both.call("aten::sub.out", &[value(small[s]), value(x), one()], &full),
                5 => both.call("aten::maximum.out", &[value(x), value(y)], &full),
                6 => both.call("aten::tanh.out", &[value(x)], &full),
                7 => {
                    let bounds = [Given::Scalar(Scalar::Double(-0.5)), Given::Scalar(Scalar::Double(1.0))];
                    let [low, high] = bounds;
                    both.call("aten::hardtanh.out", &[value(x), low, high], &full)
                }
                _ => both.call("aten::mul.out", &[value(x), value(y)], &full),
            };
            values.extend(new);
        }
        let results = [values[values.len() - 1], values[values.len() / 2]];
        both.check(&results, 1e-5);
    }
}

#[test]
fn the_mean_of_an_empty_space_is_nan() {
    let mut both = Both::new(1);
    let x = both.input(&[2, 3, 0, 4], 1);
    let args = [value(x), ints(&[2, 3]), Given::Scalar(Scalar::Bool(false)), Given::None];
    let mean = both.call("aten::mean.out", &args, &[2, 3]).unwrap();
    let twice = both.call("aten::add.out", &[value(mean), value(mean), one()], &[2, 3]).unwrap();
    both.check(&[mean, twice], 0.0);
}

//! Elementwise operators on slices, selections, permutations and reshapes of values that are updated in part.

use crate::both::*;
use proptest::prelude::*;
use pteron_engine::ValueId;
use pteron_tensor::Scalar;

fn int(v: usize) -> Given {
    Given::Scalar(Scalar::Int(v as i64))
}

/// A value and its sizes.
type Sized = (ValueId, Vec<usize>);

/// One random call, or a few that belong together.
fn grow(both: &mut Both, kind: usize, (x, sizes): &Sized, other: &Sized, at: usize) -> Option<Sized> {
    let (x, rank) = (*x, sizes.len());
    let dim = at % rank.max(1);
    let cut = |sizes: &[usize]| {
        let (n, step) = (sizes[dim], 1 + at / 7 % 2);
        let start = at / 3 % n;
        let mut new = sizes.to_vec();
        new[dim] = (n - start).div_ceil(step);
        (new, [int(dim), int(start), int(n), int(step)])
    };
    let (viewed, sizes) = match kind {
        0 | 1 if rank > 0 => {
            let (new, [dim, start, end, step]) = cut(sizes);
            (both.call("aten::slice_copy.Tensor_out", &[value(x), dim, start, end, step], &new), new)
        }
        2 if rank > 1 => {
            let mut new = sizes.clone();
            let n = new.remove(dim);
            (both.call("aten::select_copy.int_out", &[value(x), int(dim), int(at / 3 % n)], &new), new)
        }
        3 if rank > 1 => {
            let order: Vec<usize> = (0..rank).map(|d| (d + dim) % rank).collect();
            let new: Vec<usize> = order.iter().map(|&d| sizes[d]).collect();
            let order: Vec<i64> = order.iter().map(|&d| d as i64).collect();
            (both.call("aten::permute_copy.out", &[value(x), ints(&order)], &new), new)
        }
        4 if rank > 1 => {
            let mut new = sizes.clone();
            let last = new.pop()?;
            *new.last_mut()? *= last;
            let list: Vec<i64> = new.iter().map(|&n| n as i64).collect();
            (both.call("aten::view_copy.out", &[value(x), ints(&list)], &new), new)
        }
        5 | 6 if rank > 0 => {
            let (new, [dim, start, end, step]) = cut(sizes);
            let args = [value(x), dim, start, end, step];
            let part = both.call("aten::slice_copy.Tensor_out", &args, &new)?;
            let part = both.call("aten::tanh.out", &[value(part)], &new)?;
            let [x, dim, start, end, step] = args;
            let args = [x, value(part), dim, start, end, step];
            (both.call("aten::slice_scatter.out", &args, sizes), sizes.clone())
        }
        7 if other.1 == *sizes => {
            (both.call("aten::mul.out", &[value(x), value(other.0)], sizes), sizes.clone())
        }
        8 if other.1.len() < rank && sizes.ends_with(&other.1) => {
            (both.call("aten::add.out", &[value(x), value(other.0), one()], sizes), sizes.clone())
        }
        _ => (both.call("aten::sigmoid.out", &[value(x)], sizes), sizes.clone()),
    };
    Some((viewed?, sizes))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn views_of_updated_values(
        steps in prop::collection::vec((0usize..11, 0usize..100, 0usize..100, 0usize..1000), 1..20),
        threads in 1usize..3,
    ) {
        let mut both = Both::new(threads);
        let mut values: Vec<Sized> =
            [(&[3, 4, 8][..], 1), (&[3, 4, 8], 2), (&[4, 8], 3)].map(|(s, seed)| (both.input(s, seed), s.to_vec())).into();
        for (kind, a, b, at) in steps {
            // Mostly the newest values, so that chains become long.
            let pick = |i: usize, len: usize| if i.is_multiple_of(3) { i % len } else { len - 1 - i % 4.min(len) };
            let (x, other) = (values[pick(a, values.len())].clone(), values[pick(b, values.len())].clone());
            values.extend(grow(&mut both, kind, &x, &other, at));
        }
        let results = [values[values.len() - 1].0, values[values.len() / 2].0];
        both.check(&results, 1e-6);
    }
}

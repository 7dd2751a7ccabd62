//! All operations with operands in all dim orders.

use crate::both::*;
use pteron_engine::ValueId;
use pteron_tensor::{DimOrder, Scalar, ScalarType, TensorMeta};

/// All orders of `rank` dimensions.
fn orders(rank: usize) -> Vec<DimOrder> {
    let mut all: Vec<Vec<u8>> = vec![vec![]];
    for d in 0..rank as u8 {
        let longer = all
            .iter()
            .flat_map(|order| (0..=order.len()).map(move |at| [&order[..at], &[d], &order[at..]].concat()));
        all = longer.collect();
    }
    all.iter().map(|order| DimOrder::new(order).unwrap()).collect()
}

/// Adds calls on an input with these sizes; the outs have this dim order. Returns the results.
type Kind = fn(&mut Both, ValueId, &[usize], DimOrder) -> Option<Vec<ValueId>>;

fn meta(sizes: &[usize], order: DimOrder) -> TensorMeta {
    TensorMeta::new(ScalarType::Float, sizes, order).unwrap()
}

fn unary(both: &mut Both, name: &str, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    both.call_into(name, &[value(x)], vec![meta(sizes, order)])
}

fn mean_over_space(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let space: Vec<i64> = (2..sizes.len() as i64).collect();
    let mean_sizes: Vec<usize> = sizes.iter().enumerate().map(|(d, &n)| if d < 2 { n } else { 1 }).collect();
    let args = [value(x), Given::Ints(space), Given::Scalar(Scalar::Bool(true)), Given::None];
    let mean = both.call_into("aten::mean.out", &args, vec![meta(&mean_sizes, order)])?;
    unary(both, "aten::relu.out", mean[0], &mean_sizes, order)
}

fn group_norm(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let (weight, bias) = (both.constant(&[4], 3), both.constant(&[4], 4));
    let pixels = sizes[2..].iter().product::<usize>() as i64;
    let args = [
        value(x),
        value(weight),
        value(bias),
        int(sizes[0] as i64),
        int(4),
        int(pixels),
        int(2),
        number(1e-5),
    ];
    let statistics = meta(&[sizes[0], 2], DimOrder::contiguous(2));
    let outs = vec![meta(sizes, order), statistics.clone(), statistics];
    let normed = both.call_into("aten::native_group_norm.out", &args, outs)?;
    unary(both, "aten::relu.out", normed[0], sizes, order)
}

fn batch_norm(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let factors: Vec<ValueId> = (0..3).map(|i| both.constant(&[4], 3 + i)).collect();
    let variance = both.call("aten::exp.out", &[value(factors[2])], &[4])?;
    let args = [x, factors[0], factors[1], factors[2], variance].into_iter().map(value);
    let args: Vec<Given> = args.chain([number(0.1), number(1e-5)]).collect();
    let none = meta(&[0], DimOrder::contiguous(1));
    let name = "aten::_native_batch_norm_legit_no_training.out";
    let normed = both.call_into(name, &args, vec![meta(sizes, order), none.clone(), none])?;
    unary(both, "aten::relu.out", normed[0], sizes, order)
}

fn convolution(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let space = sizes.len() - 2;
    let (kernel, ones, zeros) = (vec![3; space], vec![1; space], vec![0; space]);
    let mut y = x;
    for groups in [1, 2, 4] {
        let w = both.constant(&[&[4, 4 / groups], &kernel[..]].concat(), 5 + groups as u64);
        let sides = [&ones, &ones, &ones].map(|v| Given::Ints(v.clone()));
        let last = [Given::Scalar(Scalar::Bool(false)), Given::Ints(zeros.clone()), int(groups as i64)];
        let args = [value(y), value(w), Given::None].into_iter().chain(sides).chain(last);
        let args: Vec<Given> = args.collect();
        y = both.call_into("aten::convolution.out", &args, vec![meta(sizes, order)])?[0];
    }
    let sum = both.call_into("aten::add.out", &[value(y), value(x), one()], vec![meta(sizes, order)])?;
    let args = [value(sum[0]), number(-0.5), number(0.5)];
    let mut outs = both.call_into("aten::hardtanh.out", &args, vec![meta(sizes, order)])?;
    outs.extend(mean_over_space(both, sum[0], sizes, order)?);
    Some(outs)
}

fn pools(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let y = convolution(both, x, sizes, order)?[0];
    let args = [value(y), ints(&[3, 3]), ints(&[2, 2]), ints(&[1, 1]), ints(&[1, 1])];
    let half = [sizes[0], sizes[1], sizes[2].div_ceil(2), sizes[3].div_ceil(2)];
    let places = TensorMeta::new(ScalarType::Long, &half, order).unwrap();
    let args: Vec<Given> = args.into_iter().chain([Given::Scalar(Scalar::Bool(false))]).collect();
    let name = "aten::max_pool2d_with_indices.out";
    let max = both.call_into(name, &args, vec![meta(&half, order), places])?[0];
    let no = || Given::Scalar(Scalar::Bool(false));
    let args = [value(y), ints(&[3, 3]), ints(&[2, 2]), ints(&[1, 1]), no(), no(), Given::None];
    let mean = both.call_into("aten::avg_pool2d.out", &args, vec![meta(&half, order)])?[0];
    Some(vec![max, mean])
}

fn elementwise(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let rank = sizes.len();
    let channels: Vec<usize> = (0..rank).map(|d| if d == 1 { sizes[1] } else { 1 }).collect();
    let other = both.constant_in(sizes, 6, *both.graph.meta(x).dim_order());
    let few = both.input_in(&channels, 7, order);
    let row = both.constant(&sizes[rank - 1..], 8);
    let y = both.call_into("aten::mul.out", &[value(x), value(other)], vec![meta(sizes, order)])?[0];
    let y = both.call_into("aten::sub.out", &[value(few), value(y), one()], vec![meta(sizes, order)])?[0];
    let back = *both.graph.meta(x).dim_order();
    let z = both.call_into("aten::add.out", &[value(y), value(row), one()], vec![meta(sizes, back)])?[0];
    Some(vec![y, z])
}

fn copies(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let plain = DimOrder::contiguous(sizes.len());
    let list = Given::Ints(order.iter().map(|&d| d.into()).collect());
    let no = Given::Scalar(Scalar::Bool(false));
    let name = "dim_order_ops::_clone_dim_order.out";
    let y = both.call_into(name, &[value(x), no, list], vec![meta(sizes, order)])?[0];
    let flat = [sizes.iter().product()];
    let all = ints(&[-1]);
    let z =
        both.call_into("aten::view_copy.out", &[value(y), all], vec![meta(&flat, DimOrder::contiguous(1))])?;
    let sum = both.call_into("aten::add.out", &[value(y), value(x), one()], vec![meta(sizes, plain)])?[0];
    Some(vec![z[0], sum])
}

fn shuffles(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let rank = sizes.len();
    let (plain, deep) = (DimOrder::contiguous(rank), DimOrder::contiguous(rank + 1));
    let (mut y, mut parts) = (convolution(both, x, sizes, plain)?[0], Vec::new());
    for groups in [2, 4, 1] {
        let (n, space) = (sizes[0], &sizes[2..]);
        let apart = [&[n, groups, 4 / groups], space].concat();
        let turned = [&[n, 4 / groups, groups], space].concat();
        let dims: Vec<i64> = [0, 2, 1].into_iter().chain(3..=rank as i64).collect();
        let into = |sizes: &[usize]| Given::Ints(sizes.iter().map(|&n| n as i64).collect());
        y = both.call_into("aten::view_copy.out", &[value(y), into(&apart)], vec![meta(&apart, deep)])?[0];
        y = both.call_into(
            "aten::permute_copy.out",
            &[value(y), Given::Ints(dims)],
            vec![meta(&turned, deep)],
        )?[0];
        y = both.call_into("aten::view_copy.out", &[value(y), into(sizes)], vec![meta(sizes, plain)])?[0];
        y = both.call_into("aten::add.out", &[value(y), value(x), one()], vec![meta(sizes, plain)])?[0];
        let part = meta(&[&[n, 2], space].concat(), plain);
        let slice = |both: &mut Both, start: i64, step: i64| {
            let args = [value(y), int(1), int(start), int(start + 2 * step), int(step)];
            Some(both.call_into("aten::slice_copy.Tensor_out", &args, vec![part.clone()])?[0])
        };
        let (a, b) = (slice(both, 1, 2)?, slice(both, 0, 1)?);
        parts.push(both.call_into("aten::add.out", &[value(a), value(b), one()], vec![part.clone()])?[0]);
    }
    let z = convolution(both, y, sizes, order)?[0];
    parts.extend([y, z]);
    Some(parts)
}

fn quantized(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let params = || [number(0.05), int(3), int(-128), int(127), int(1)];
    let args: Vec<Given> = [value(x)].into_iter().chain(params()).collect();
    let numbers = TensorMeta::new(CHAR, sizes, order).unwrap();
    let q = both.call_into(&format!("{QUANTIZED}quantize_per_tensor.out"), &args, vec![numbers])?[0];
    let args: Vec<Given> = [value(q)].into_iter().chain(params()).chain([Given::None]).collect();
    let name = format!("{QUANTIZED}dequantize_per_tensor.out");
    both.call_into(&name, &args, vec![meta(sizes, *both.graph.meta(x).dim_order())])
}

fn rows(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let w = both.constant(&[7, sizes[sizes.len() - 1]], 9);
    let out = [&sizes[..sizes.len() - 1], &[7]].concat();
    let y =
        both.call_into("aten::linear.out", &[value(x), value(w), Given::None], vec![meta(&out, order)])?;
    unary(both, "aten::sigmoid.out", y[0], &out, order)
}

/// Each operation runs with every dim order of its input and several of its output.
#[test]
fn operations_accept_every_dim_order() {
    let kinds: [(&str, std::ops::RangeInclusive<usize>, Kind); 10] = [
        ("mean over space", 3..=5, mean_over_space),
        ("group norm", 3..=5, group_norm),
        ("batch norm", 2..=5, batch_norm),
        ("convolution", 3..=5, convolution),
        ("pools", 4..=4, pools),
        ("elementwise", 2..=5, elementwise),
        ("copies", 2..=5, copies),
        ("shuffles", 3..=4, shuffles),
        ("quantized", 2..=5, quantized),
        ("rows", 2..=5, rows),
    ];
    for (name, ranks, kind) in kinds {
        for rank in ranks {
            let all = orders(rank);
            let mut num_accepted = 0;
            for (i, &order) in all.iter().enumerate() {
                let outs = [all[(i * 7 + 3) % all.len()], order, DimOrder::contiguous(rank)];
                for sizes in [[2, 4, 3, 5, 2], [1, 4, 3, 1, 2]] {
                    let sizes = &sizes[..rank];
                    // Rank 5 has 120 orders.
                    for &out in &outs[..if rank < 5 { 3 } else { 1 + i % 2 }] {
                        let mut both = Both::new(1);
                        let x = both.input_in(sizes, 1, order);
                        if let Some(results) = kind(&mut both, x, sizes, out) {
                            both.check(&results, 1e-5);
                            num_accepted += 1;
                        }
                    }
                }
            }
            assert!(
                num_accepted > all.len() / 2,
                "{name} of rank {rank} took {num_accepted} of {} orders",
                all.len()
            );
        }
    }
}

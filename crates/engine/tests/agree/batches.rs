//! Batches that are computed in parts.

use crate::both::*;
use pteron_engine::{Executable, ValueId};
use pteron_operator::KernelContext;
use pteron_pool::Pool;
use pteron_tensor::{DimOrder, Scalar, ScalarType, Tensor, TensorMeta};
use pteron_trace::{EventTracer, Place, Span, Tracer};
use std::collections::HashMap;
use std::sync::Mutex;

/// Adds dense layers on two inputs, their concatenation and a softmax to `both`, for a batch of `rows`.
fn dense(both: &mut Both, rows: usize) -> [ValueId; 2] {
    let layer = |both: &mut Both, x: ValueId, from: usize, to: usize| {
        let [weights, bias] = [both.constant(&[to, from], 7 + from as u64), both.constant(&[to], 9)];
        let product = [value(x), value(weights), value(bias)];
        let product = both.call("aten::linear.out", &product, &[rows, to]).unwrap();
        both.call("aten::relu.out", &[value(product)], &[rows, to]).unwrap()
    };
    let (x, y) = (both.input(&[rows, 12], 1), both.input(&[rows, 20], 2));
    let (x, y) = (layer(both, x, 12, 24), layer(both, y, 20, 24));
    let sum = both.call("aten::add.out", &[value(x), value(y), one()], &[rows, 24]).unwrap();
    let hidden = layer(both, sum, 24, 40);
    let hidden = layer(both, hidden, 40, 5);
    let shares = both
        .call("aten::_softmax.out", &[value(hidden), int(-1), Given::Scalar(Scalar::Bool(false))], &[rows, 5])
        .unwrap();
    [hidden, shares]
}

#[test]
fn dense_layers_of_many_rows() {
    for rows in [48, 96, 1000, 2500] {
        let mut both = Both::new(2);
        let results = dense(&mut both, rows);
        both.check(&results, 1e-4);
    }
}

#[test]
fn images_of_many_rows() {
    for (rows, layout) in [(9, 0), (64, 0), (100, 1)] {
        let mut both = Both::new(3);
        let order = if layout == 0 { DimOrder::contiguous(4) } else { DimOrder::channels_last(4) };
        let x = both.input_in(&[rows, 3, 14, 14], 1, order);
        let (first, second) = (both.constant(&[8, 3, 3, 3], 2), both.constant(&[16, 8, 3, 3], 3));
        let y = both.conv(x, first, 1, 1, &[rows, 8, 14, 14]);
        let y = both.call("aten::relu.out", &[value(y)], &[rows, 8, 14, 14]).unwrap();
        let y = both.conv(y, second, 2, 1, &[rows, 16, 7, 7]);
        let y = both.call("aten::relu.out", &[value(y)], &[rows, 16, 7, 7]).unwrap();
        let flat = [value(y), ints(&[rows as i64, 784])];
        let flat = both.call("aten::view_copy.out", &flat, &[rows, 784]).unwrap();
        let weights = both.constant(&[10, 784], 4);
        let bias = both.constant(&[10], 5);
        let args = [value(flat), value(weights), value(bias)];
        let out = both.call("aten::linear.out", &args, &[rows, 10]).unwrap();
        both.check(&[out, y], 1e-4);
    }
}

/// Rows that depend on each other are not computed in parts.
#[test]
fn sums_over_the_batch() {
    for dim in [0, 1] {
        let mut both = Both::new(2);
        let [hidden, shares] = dense(&mut both, 2000);
        let sizes = if dim == 0 { [1, 5] } else { [2000, 1] };
        let mean = [value(shares), ints(&[dim]), Given::Scalar(Scalar::Bool(true)), Given::None];
        let mean = both.call("aten::mean.out", &mean, &sizes).unwrap();
        let softmax = [value(hidden), int(dim), Given::Scalar(Scalar::Bool(false))];
        let softmax = both.call("aten::_softmax.out", &softmax, &[2000, 5]).unwrap();
        both.check(&[mean, softmax, shares], 1e-5);
    }
    // A constant for each row, and one with as many columns as there are rows.
    let mut both = Both::new(2);
    let x = both.input(&[512, 512], 1);
    let (rows, columns) = (both.constant(&[512, 1], 2), both.constant(&[512], 3));
    let y = both.call("aten::mul.out", &[value(x), value(rows)], &[512, 512]).unwrap();
    let y = both.call("aten::sin.out", &[value(y)], &[512, 512]).unwrap();
    let y = both.call("aten::add.out", &[value(y), value(columns), one()], &[512, 512]).unwrap();
    both.check(&[y], 1e-5);
}

/// Lowers the graph of [`dense`] for `pool`, and runs it.
fn run(both: &Both, pool: &Pool, tracer: Tracer<'_>, results: [ValueId; 2]) -> (usize, Vec<Vec<u8>>) {
    let ctx = KernelContext::new(pool, &both.scratch, &both.generator);
    let executable = Executable::new(both.graph.clone(), &ctx).unwrap();
    let workspace = executable.workspace_bytes();
    let mut outs = results.map(|v| Tensor::zeros(both.values[&v].meta().clone()).unwrap());
    let inputs: Vec<_> = both.inputs.iter().map(Tensor::view).collect();
    for mut executable in [executable.fork().unwrap(), executable] {
        let mut views: Vec<_> = outs.iter_mut().map(Tensor::view_mut).collect();
        executable.run(&ctx, tracer, &inputs, &mut views).unwrap();
        if tracer.is_enabled() {
            break;
        }
    }
    (workspace, outs.iter().map(|out| out.bytes().to_vec()).collect())
}

#[test]
fn threads_and_parts_do_not_change_bits() {
    let mut both = Both::new(1);
    let results = dense(&mut both, 3000);
    results.into_iter().for_each(|v| both.graph.output(v));
    let all = [1, 2, 5].map(|threads| run(&both, &Pool::new(threads), Tracer::NONE, results).1);
    assert!(all.iter().all(|bytes| *bytes == all[0]));
}

#[test]
fn the_workspace_is_that_of_a_part() {
    let workspace = |rows| {
        let mut both = Both::new(1);
        let results = dense(&mut both, rows);
        results.into_iter().for_each(|v| both.graph.output(v));
        run(&both, &Pool::serial(), Tracer::NONE, results).0
    };
    let (few, many) = (workspace(4800), workspace(48000));
    assert!(many <= 2 * few, "{few} bytes for 4,800 rows, {many} for ten times as many");
}

/// What a listener is told of each value: its sizes and bytes.
#[derive(Default)]
struct Values(Mutex<HashMap<Place, (Vec<usize>, Vec<u8>)>>);

impl EventTracer for Values {
    fn span(&self, _: &Span<'_>) {}

    fn wants_values(&self) -> bool {
        true
    }

    fn value(&self, _: &str, place: Place, _: usize, _: &str, sizes: &[usize], bytes: &[u8]) {
        let old = self.0.lock().unwrap().insert(place, (sizes.into(), bytes.into()));
        assert!(old.is_none(), "{place:?} is reported twice");
    }
}

#[test]
fn a_listener_is_told_of_whole_values() {
    let mut both = Both::new(2);
    let results = dense(&mut both, 1003);
    results.into_iter().for_each(|v| both.graph.output(v));
    for (i, node) in both.graph.order().into_iter().enumerate() {
        let place = Place::instruction(0, i as u32);
        both.graph.set_origins(node, &[place]);
        both.graph.set_value_origin(both.graph.node(node).outputs()[0], place);
    }
    let values = Values::default();
    let (_, outs) = run(&both, &Pool::new(2), Tracer::new(&values), results);
    let values = values.0.into_inner().unwrap();
    assert!(values.values().all(|(sizes, bytes)| sizes[0] == 1003 && bytes.len() == sizes[1] * 1003 * 4));
    for (result, bytes) in results.iter().zip(outs) {
        assert_eq!(values[&both.graph.value(*result).origin()].1, bytes);
    }
}

#[test]
fn outputs_may_have_another_layout() {
    let mut both = Both::new(2);
    let results = dense(&mut both, 1000);
    results.into_iter().for_each(|v| both.graph.output(v));
    let ctx = KernelContext::new(&both.pool, &both.scratch, &both.generator);
    let mut executable = Executable::new(both.graph.clone(), &ctx).unwrap();
    let order = DimOrder::new(&[1, 0]).unwrap();
    let mut outs = [order, DimOrder::contiguous(2)]
        .map(|order| Tensor::zeros(TensorMeta::new(ScalarType::Float, &[1000, 5], order).unwrap()).unwrap());
    let inputs: Vec<_> = both.inputs.iter().map(Tensor::view).collect();
    let mut views: Vec<_> = outs.iter_mut().map(Tensor::view_mut).collect();
    executable.run(&ctx, Tracer::NONE, &inputs, &mut views).unwrap();
    for (v, out) in results.iter().zip(&outs) {
        let pairs = floats(&both.values[v]).into_iter().zip(floats(out));
        assert!(pairs.into_iter().all(|(e, f)| (e - f).abs() < 1e-4));
    }
    let short = Tensor::zeros(TensorMeta::contiguous(ScalarType::Float, &[999, 12]).unwrap()).unwrap();
    let mut views: Vec<_> = outs.iter_mut().map(Tensor::view_mut).collect();
    let error = executable.run(&ctx, Tracer::NONE, &[short.view(), inputs[1]], &mut views).unwrap_err();
    assert!(error.to_string().contains("lowered for"), "{error}");
}

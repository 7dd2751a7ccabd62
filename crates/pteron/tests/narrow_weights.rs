//! Weights in fewer bits: results are those of the float32 program with the same weights, and packed weights are smaller.

use pteron::compile::exported::{Argument, ExportedProgram, TensorSpec};
use pteron::compile::{self, Compiled, GraphBuilder, OperatorTable, Options, WeightType};
use pteron::data::PackStore;
use pteron::{BytesLoader, Isa, Module, Pool, ScalarType, Tensor};
use std::sync::Arc;

const TYPES: [WeightType; 3] = [WeightType::Float16, WeightType::BFloat16, WeightType::Int8];

/// Multiples of 1/64 of which each type represents all: the largest of each output is 127/64, so that its scale is 1/64.
fn weights(sizes: &[usize], seed: usize) -> Vec<f32> {
    let inner: usize = sizes[1..].iter().product();
    let number = |i: usize| {
        if i.is_multiple_of(inner) { 127.0 } else { ((i * 7919 + seed * 31) % 255) as f32 - 127.0 }
    };
    (0..sizes[0] * inner).map(|i| number(i) / 64.0).collect()
}

fn spec(sizes: &[usize]) -> TensorSpec {
    TensorSpec::contiguous(ScalarType::Float, sizes.iter().map(|&n| (n as i64).into()).collect())
}

fn constant(graph: &mut GraphBuilder, name: &str, sizes: &[usize], seed: usize) -> Argument {
    let elements = weights(sizes, seed).iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    graph.constant(Some(name), spec(sizes), Arc::new(elements)).unwrap().into()
}

const CHANNELS: usize = 24;
const WIDTH: usize = 160;

/// A network of `rows` pictures: convolutions of several kinds, then linear layers, and an embedding that is added.
fn network(rows: usize) -> ExportedProgram {
    let mut graph = GraphBuilder::new("forward", &pteron::kernel_registry());
    let image = graph.input("image", spec(&[rows, 3, 9, 9])).unwrap();
    let ids = TensorSpec { dtype: ScalarType::Long, ..spec(&[rows]) };
    let ids = graph.input("ids", ids).unwrap();
    let mut x = image;
    let kernels: [(&str, [usize; 4], i64); 4] = [
        ("first", [CHANNELS, 3, 3, 3], 1),
        ("depthwise", [CHANNELS, 1, 3, 3], CHANNELS as i64),
        ("pointwise", [2 * CHANNELS, CHANNELS, 1, 1], 1),
        ("grouped", [CHANNELS, CHANNELS, 3, 3], 2),
    ];
    for (name, sizes, groups) in kernels {
        let weight = constant(&mut graph, name, &sizes, groups as usize);
        let pad = Argument::ints(&[(sizes[2] / 2) as i64; 2]);
        let named = [("padding", pad), ("groups", Argument::Int(groups))];
        x = graph.call("aten.conv2d", &[x.into(), weight], &named).unwrap()[0];
        x = graph.call("aten.relu", &[x.into()], &[]).unwrap()[0];
        x = graph.call("aten.mul.Scalar", &[x.into(), Argument::Float(0.125)], &[]).unwrap()[0];
    }
    x = graph.call("aten.flatten.using_ints", &[x.into(), Argument::Int(1)], &[]).unwrap()[0];
    for (name, sizes) in [("wide", [WIDTH, CHANNELS * 81]), ("square", [WIDTH, WIDTH])] {
        let weight = constant(&mut graph, name, &sizes, 5);
        x = graph.call("aten.linear", &[x.into(), weight], &[]).unwrap()[0];
        x = graph.call("aten.tanh", &[x.into()], &[]).unwrap()[0];
    }
    let table = constant(&mut graph, "table", &[40, WIDTH], 3);
    let looked_up = graph.call("aten.embedding", &[table.clone(), ids.into()], &[]).unwrap()[0];
    x = graph.call("aten.add.Tensor", &[x.into(), looked_up.into()], &[]).unwrap()[0];
    // The table is the weights of the last layer, too.
    let logits = graph.call("aten.linear", &[x.into(), table], &[]).unwrap()[0];
    graph.output(logits).unwrap();
    graph.finish().unwrap()
}

fn compiled(rows: usize, weights: Option<WeightType>) -> Compiled {
    let table = OperatorTable::preferring_portable(&pteron::kernel_registry());
    let options = Options { weights, ..Options::default() };
    compile::compile_exported(vec![network(rows)], &table, &options, &mut |_, _, _| {}).unwrap()
}

/// The bits of the result, and the bytes of packed weights.
fn run(compiled: &Compiled, rows: usize, isa: Isa, threads: usize) -> (Vec<u32>, usize) {
    let mut program = Vec::new();
    compiled.program.write_to(&mut program).unwrap();
    let store = PackStore::new();
    let options = pteron::load_options().packed(store.clone()).isa(isa).pool(Pool::new(threads));
    let mut module = Module::load(Arc::new(BytesLoader::new(program)), options).unwrap();
    let pixels: Vec<f32> = (0..rows * 243).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let ids: Vec<i64> = (0..rows).map(|i| (i * 7 % 40) as i64).collect();
    let image = Tensor::from_slice(&[rows, 3, 9, 9], &pixels).unwrap();
    let outputs = module.forward(&[image.into(), Tensor::from_slice(&[rows], &ids).unwrap().into()]).unwrap();
    let bits = outputs[0].to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect();
    (bits, store.bytes())
}

#[test]
fn results_are_those_of_the_same_weights_in_float32() {
    for rows in [1, 5, 40] {
        let (wide, narrow) = (compiled(rows, None), TYPES.map(|ty| (ty, compiled(rows, Some(ty)))));
        for isa in Isa::available() {
            let (want, bytes) = run(&wide, rows, isa, 1);
            for (ty, narrow) in &narrow {
                assert!(narrow.methods[0].wide_weights.is_empty(), "{:?}", narrow.methods[0].wide_weights);
                for threads in [1, 2] {
                    let (got, packed) = run(narrow, rows, isa, threads);
                    assert!(got == want, "{rows} rows, {ty}, {isa}, {threads} threads");
                    let factor = if *ty == WeightType::Int8 { 3 } else { 2 };
                    assert!(
                        packed * factor < bytes * 11 / 10,
                        "{ty}: {packed} bytes packed instead of {bytes}"
                    );
                }
            }
        }
    }
}

#[test]
fn programs_are_smaller_and_run_on_the_reference() {
    let size = |weights| compiled(1, weights).program.header().file_len;
    let wide = size(None);
    assert!(size(Some(WeightType::Float16)) * 2 < wide * 11 / 10);
    assert!(size(Some(WeightType::Int8)) * 3 < wide);
    for ty in [WeightType::Float16, WeightType::BFloat16] {
        assert!(compiled(1, Some(ty)).methods[0].not_on_reference.is_empty());
    }
}

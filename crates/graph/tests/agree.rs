//! A lowered graph computes what its calls compute one by one: random graphs of operator calls, run
//! both ways.

use operator::{Arg, Args, Generator, KernelContext, KernelRegistry, Out, Outs, Scratch};
use pool::Pool;
use proptest::prelude::*;
use pteron_graph::{Call, CallArg, CallOut, Constant, Executable, Graph, Isa, Op, ValueId};
use std::collections::HashMap;
use std::sync::Arc;
use tensor::{DimOrder, Scalar, ScalarType, Tensor, TensorMeta, bf16, f16};
use trace::Tracer;

/// A graph that grows together with the values that its calls give when they are made at once.
struct Both {
    /// The type of all tensors that nothing else is said of.
    dtype: ScalarType,
    registry: KernelRegistry,
    graph: Graph,
    values: HashMap<ValueId, Tensor>,
    inputs: Vec<Tensor>,
    pool: Pool,
    scratch: Scratch,
    generator: Generator,
}

/// An argument of a call under test.
enum Given {
    Value(ValueId),
    Ints(Vec<i64>),
    Scalar(Scalar),
    Str(Arc<str>),
    None,
}

impl Both {
    fn new(threads: usize) -> Self {
        Self::of(ScalarType::Float, threads)
    }

    fn of(dtype: ScalarType, threads: usize) -> Self {
        Self {
            dtype,
            registry: kernels::registry(),
            graph: Graph::new(),
            values: HashMap::new(),
            inputs: Vec::new(),
            pool: Pool::new(threads),
            scratch: Scratch::new(64 << 20),
            generator: Generator::default(),
        }
    }

    fn input(&mut self, sizes: &[usize], seed: u64) -> ValueId {
        let tensor = in_type(self.dtype, random(sizes, seed));
        let id = self.graph.input(tensor.meta().clone());
        self.inputs.push(tensor.clone());
        self.values.insert(id, tensor);
        id
    }

    fn constant(&mut self, sizes: &[usize], seed: u64) -> ValueId {
        self.constant_in(sizes, seed, DimOrder::contiguous(sizes.len()))
    }

    fn constant_in(&mut self, sizes: &[usize], seed: u64, order: DimOrder) -> ValueId {
        self.constant_of(in_type(self.dtype, random(sizes, seed)).to_dim_order(order).unwrap())
    }

    fn constant_of(&mut self, tensor: Tensor) -> ValueId {
        let id = self.graph.constant(tensor.meta().clone(), Constant::Computed(Arc::new(tensor.clone())));
        self.values.insert(id, tensor);
        id
    }

    /// Makes a call with one out of these sizes, both ways. `None` if the library lacks the operator.
    fn call(&mut self, name: &str, given: &[Given], sizes: &[usize]) -> Option<ValueId> {
        self.call_with(name, given, &[sizes]).map(|outs| outs[0])
    }

    fn call_with(&mut self, name: &str, given: &[Given], sizes: &[&[usize]]) -> Option<Vec<ValueId>> {
        let outs: Vec<_> = sizes.iter().map(|&sizes| (self.dtype, sizes)).collect();
        self.call_typed(name, given, &outs)
    }

    /// Makes a call with outs of these types and sizes, both ways.
    fn call_typed(
        &mut self,
        name: &str,
        given: &[Given],
        outs: &[(ScalarType, &[usize])],
    ) -> Option<Vec<ValueId>> {
        let kernel = self.registry.get(name)?;
        let mut tensors: Vec<Tensor> = outs
            .iter()
            .map(|&(dtype, sizes)| Tensor::zeros(TensorMeta::contiguous(dtype, sizes).unwrap()).unwrap())
            .collect();
        let outs = tensors.len();
        let list = given.iter().map(|g| match g {
            Given::Value(v) => Arg::Tensor(self.values[v].view()),
            Given::Ints(v) => Arg::Ints(v.as_slice().into()),
            Given::Scalar(Scalar::Int(v)) => Arg::Int(*v),
            Given::Scalar(Scalar::Double(v)) => Arg::Double(*v),
            Given::Scalar(Scalar::Bool(v)) => Arg::Bool(*v),
            Given::Str(s) => Arg::Str(s),
            Given::None => Arg::None,
        });
        let args = Args::new(kernel.schema(), list.chain((0..outs).map(Arg::Out)).collect());
        let mut written = Outs::new(tensors.iter_mut().map(|t| Out::Tensor(t.view_mut())).collect());
        let ctx = KernelContext::new(&self.pool, &self.scratch, &self.generator);
        kernel.execute(&ctx, &args, &mut written).unwrap();
        drop((args, written));

        let inputs =
            given.iter().filter_map(|g| if let Given::Value(v) = g { Some(*v) } else { None }).collect();
        let args = given.iter().map(|g| match g {
            Given::Value(_) => CallArg::Tensor,
            Given::Ints(v) => CallArg::Ints(v.clone()),
            Given::Scalar(s) => CallArg::Scalar(*s),
            Given::Str(s) => CallArg::Str(Arc::clone(s)),
            Given::None => CallArg::None,
        });
        let args = args.chain((0..outs).map(CallArg::Out)).collect();
        let ids: Vec<ValueId> = tensors.iter().map(|t| self.graph.value(t.meta().clone())).collect();
        let call = Call { kernel, prepared: None, args, outs: vec![CallOut::Tensor; outs] };
        self.graph.node(Op::Call(call), inputs, ids.clone());
        self.values.extend(ids.iter().copied().zip(tensors));
        Some(ids)
    }

    /// Convolves with a kernel of the second argument, padded by half of it.
    fn conv(&mut self, x: ValueId, w: ValueId, stride: i64, groups: i64, sizes: &[usize]) -> ValueId {
        let half = |size: usize| (size / 2) as i64;
        let w_sizes = *self.graph.meta(w).sizes();
        let args = [
            value(x),
            value(w),
            Given::None,
            ints(&[stride, stride]),
            ints(&[half(w_sizes[2]), half(w_sizes[3])]),
            ints(&[1, 1]),
            Given::Scalar(Scalar::Bool(false)),
            ints(&[0, 0]),
            Given::Scalar(Scalar::Int(groups)),
        ];
        self.call("aten::convolution.out", &args, sizes).unwrap()
    }

    /// Lowers the graph with these results and compares them with those of the single calls: the number
    /// of steps that were left.
    fn check(mut self, results: &[ValueId], tolerance: f32) -> usize {
        let mut steps = 0;
        results.iter().for_each(|&v| self.graph.output(v));
        let ctx = KernelContext::new(&self.pool, &self.scratch, &self.generator);
        for isa in Isa::available() {
            let ctx = ctx.with_isa(isa);
            let mut executable = Executable::new(self.graph.clone(), &ctx).unwrap();
            steps = executable.num_steps();
            let mut outs: Vec<Tensor> =
                results.iter().map(|v| Tensor::zeros(self.values[v].meta().clone()).unwrap()).collect();
            let inputs: Vec<_> = self.inputs.iter().map(Tensor::view).collect();
            for _ in 0..2 {
                let mut views: Vec<_> = outs.iter_mut().map(Tensor::view_mut).collect();
                executable.run(&ctx, Tracer::NONE, &inputs, &mut views).unwrap();
            }
            for (v, found) in results.iter().zip(&outs) {
                let (expected, found) = (floats(&self.values[v]), floats(found));
                let largest = expected.iter().fold(1.0f32, |m, x| m.max(x.abs()));
                for (i, (e, f)) in expected.iter().zip(&found).enumerate() {
                    let close = (e - f).abs() <= tolerance * largest || (e.is_nan() && f.is_nan());
                    assert!(close, "element {i}: {e} one by one, {f} lowered\n{}", self.graph);
                }
            }
        }
        steps
    }
}

/// Elements of (-2, 2).
fn random(sizes: &[usize], seed: u64) -> Tensor {
    let generator = Generator::new(seed);
    let n = sizes.iter().product();
    let elements: Vec<f32> = (0..n).map(|_| (generator.uniform() * 4.0 - 2.0) as f32).collect();
    Tensor::from_slice(sizes, &elements).unwrap()
}

/// The same elements in a floating-point type.
fn in_type(dtype: ScalarType, x: Tensor) -> Tensor {
    let elements = x.storage::<f32>().unwrap().iter();
    match dtype {
        ScalarType::Half => {
            Tensor::from_slice(x.sizes(), &elements.map(|&e| f16::from_f32(e)).collect::<Vec<_>>()).unwrap()
        }
        ScalarType::BFloat16 => {
            Tensor::from_slice(x.sizes(), &elements.map(|&e| bf16::from_f32(e)).collect::<Vec<_>>()).unwrap()
        }
        _ => x,
    }
}

/// The elements in f32.
fn floats(x: &Tensor) -> Vec<f32> {
    match x.dtype() {
        ScalarType::Half => x.storage::<f16>().unwrap().iter().map(|e| e.to_f32()).collect(),
        ScalarType::BFloat16 => x.storage::<bf16>().unwrap().iter().map(|e| e.to_f32()).collect(),
        ScalarType::Long => x.storage::<i64>().unwrap().iter().map(|&e| e as f32).collect(),
        _ => x.storage::<f32>().unwrap().to_vec(),
    }
}

fn value(v: ValueId) -> Given {
    Given::Value(v)
}

fn ints(v: &[i64]) -> Given {
    Given::Ints(v.to_vec())
}

fn one() -> Given {
    Given::Scalar(Scalar::Int(1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Elementwise operators with every kind of broadcast, values used once, twice and as results.
    #[test]
    fn elementwise_chains(
        steps in prop::collection::vec((0usize..9, 0usize..100, 0usize..100, 0usize..5), 1..14),
        threads in 1usize..3,
    ) {
        let mut both = Both::new(threads);
        let full = [2, 3, 4, 5];
        let mut made = vec![both.input(&full, 1), both.input(&full, 2)];
        let small: Vec<ValueId> = vec![
            both.constant(&[], 3),
            both.constant(&[5], 4),
            both.constant(&[3, 1, 1], 5),
            both.input(&[4, 1], 6),
            both.input(&[2, 1, 1, 5], 7),
        ];
        for (kind, a, b, s) in steps {
            let (x, y) = (made[a % made.len()], made[b % made.len()]);
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
            made.extend(new);
        }
        let results = [made[made.len() - 1], made[made.len() / 2]];
        both.check(&results, 1e-5);
    }
}

#[test]
fn convolutions_with_norms_residuals_and_clamps() {
    for (channels, kernel, stride, groups) in [(8, 3, 1, 1), (8, 1, 1, 1), (8, 3, 2, 8), (16, 5, 2, 4)] {
        convolutions(Both::new(2), (channels, kernel, stride, groups), 1e-4);
    }
}

/// In half precision: one by one, results are rounded after every call.
#[test]
fn convolutions_in_half_precision() {
    for (dtype, tolerance) in [(ScalarType::Half, 2e-3), (ScalarType::BFloat16, 2e-2)] {
        let steps = convolutions(Both::of(dtype, 2), (8, 3, 1, 1), tolerance);
        let in_f32 = convolutions(Both::new(2), (8, 3, 1, 1), 1e-4);
        assert!(
            steps <= in_f32 + 3,
            "{steps} steps in {dtype}, {in_f32} in f32: an input and two results are cast"
        );
    }
}

/// A network of two convolutions: the number of its steps.
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
fn weights_may_lie_in_any_order() {
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

/// Spells an activation of `x`, of the sizes given.
type Spelling = fn(&mut Both, ValueId, &[usize]) -> ValueId;

fn number(x: f64) -> Given {
    Given::Scalar(Scalar::Double(x))
}

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
fn activations_follow_what_they_are_applied_to() {
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
        // Two changes of the image's layout, three products.
        assert_eq!(both.check(&[z], 1e-5), 5, "{name}");
    }
}

/// `softmax(q k^T / sqrt(width) + mask) v` of `heads` heads that share `groups` heads of keys and values, as an
/// exporter spells it: scores by products of batches, heads repeated by expanding, the factor in a constant.
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
    for (queries, keys, heads, groups) in [(5, 7, 4, 4), (64, 64, 4, 2), (3, 200, 6, 1), (1, 33, 4, 2)] {
        let mut both = Both::new(2);
        let y = attention(&mut both, queries, keys, heads, groups);
        assert_eq!(both.check(&[y], 1e-5), 1, "{queries} queries, {heads} heads of {groups}");
    }
}

const QUANTIZED: &str = "quantized_decomposed::";
const CHAR: ScalarType = ScalarType::Char;

fn int(x: i64) -> Given {
    Given::Scalar(Scalar::Int(x))
}

/// Weights from -127 to 127, of these sizes, and the value that they are dequantized to: with a scale for each
/// of the first dimension, or one.
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

/// Quantizes by known parameters, and back.
fn there_and_back(both: &mut Both, x: ValueId, scale: f64, zero: i64, sizes: &[usize]) -> ValueId {
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
        let x = there_and_back(&mut both, x, 0.02, 3, &[2, 3, 11, 9]);
        let w = weights(&mut both, &[6, 3, 3, 3], per_channel, 2);
        let y = both.conv(x, w, 1, 1, &first);
        let y = both.call("aten::relu.out", &[value(y)], &first).unwrap();
        let y = there_and_back(&mut both, y, 0.02, -128, &first);
        let w = weights(&mut both, &[6, 1, 3, 3], per_channel, 3);
        let y = both.conv(y, w, 1, 6, &first);
        let y = there_and_back(&mut both, y, 0.02, -10, &first);
        let y = both.call("aten::hardtanh.out", &[value(y), number(0.0), number(1.5)], &first).unwrap();
        let y = there_and_back(&mut both, y, 0.02, -10, &first);
        let w = weights(&mut both, &[6, 6, 1, 1], per_channel, 6);
        let y = both.conv(y, w, 1, 1, &first);
        let y = there_and_back(&mut both, y, 0.02, 0, &first);
        let flat = both.call("aten::view_copy.out", &[value(y), ints(&[12, 99])], &[12, 99]).unwrap();
        let (w, bias) = (weights(&mut both, &[40, 99], per_channel, 4), both.constant(&[40], 5));
        let z = addmm(&mut both, bias, flat, w, &[12, 40]);
        let z = there_and_back(&mut both, z, 0.05, 7, &[12, 40]);
        // Quantized, three convolutions with a change of layout before and after, a product, and dequantized.
        assert_eq!(both.check(&[z], 0.02), 8, "per channel: {per_channel}");
    }
}

#[test]
fn dynamically_quantized_products() {
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

/// Transposes of weights: read by products alone, by products and something else, by something else alone, and
/// of a product whose shape the graph does not know as one with weights.
#[test]
fn products_read_transposed_weights() {
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
            // The bias is not one of columns.
            let bias = both.constant(&[m, 1], 5);
            results.push(
                both.call("aten::addmm.out", &[value(bias), value(x), value(t), one(), one()], &[m, n])
                    .unwrap(),
            );
        }
        both.check(&results, 1e-5);
    }
}

/// Elements that are equal in bfloat16 stay so where their places are asked for.
#[test]
fn places_of_equal_halves_are_those_of_the_calls() {
    let mut both = Both::of(ScalarType::BFloat16, 1);
    let x = both.input(&[16, 40], 1);
    let y = both.call("aten::sigmoid.out", &[value(x)], &[16, 40]).unwrap();
    let z = both.call("aten::mul.out", &[value(y), value(y)], &[16, 40]).unwrap();
    let args = [value(z), int(1), Given::Scalar(Scalar::Bool(false))];
    let at = both.call_typed("aten::argmax.out", &args, &[(ScalarType::Long, &[16])]).unwrap()[0];
    both.check(&[at, z], 0.0);
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

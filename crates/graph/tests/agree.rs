//! A lowered graph computes what its calls compute one by one: random graphs of operator calls, run
//! both ways.

use operator::{Arg, Args, Generator, KernelContext, KernelRegistry, Out, Outs, Scratch};
use pool::Pool;
use proptest::prelude::*;
use pteron_graph::{Call, CallArg, CallOut, Constant, Executable, Graph, Isa, ValueId};
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
        self.input_in(sizes, seed, DimOrder::contiguous(sizes.len()))
    }

    fn input_in(&mut self, sizes: &[usize], seed: u64, order: DimOrder) -> ValueId {
        self.input_of(in_type(self.dtype, random(sizes, seed)).to_dim_order(order).unwrap())
    }

    fn input_of(&mut self, tensor: Tensor) -> ValueId {
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
        let outs = outs.iter().map(|&(dtype, sizes)| TensorMeta::contiguous(dtype, sizes).unwrap());
        self.registry.get(name)?;
        Some(self.call_into(name, given, outs.collect()).unwrap())
    }

    /// Makes a call with outs that lie so, both ways. `None` if the kernel refuses.
    fn call_into(&mut self, name: &str, given: &[Given], outs: Vec<TensorMeta>) -> Option<Vec<ValueId>> {
        let kernel = self.registry.get(name)?;
        let mut tensors: Vec<Tensor> = outs.into_iter().map(|meta| Tensor::zeros(meta).unwrap()).collect();
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
        kernel.execute(&ctx, &args, &mut written).ok()?;
        drop((args, written));

        let inputs = given
            .iter()
            .filter_map(|g| if let Given::Value(v) = g { Some(*v) } else { None })
            .collect::<Vec<_>>();
        let args = given.iter().map(|g| match g {
            Given::Value(_) => CallArg::Tensor,
            Given::Ints(v) => CallArg::Ints(v.clone()),
            Given::Scalar(s) => CallArg::Scalar(*s),
            Given::Str(s) => CallArg::Str(Arc::clone(s)),
            Given::None => CallArg::None,
        });
        let args = args.chain((0..outs).map(CallArg::Out)).collect();
        let call = Call::new(kernel, args, vec![CallOut::Tensor; outs]);
        let node = self.graph.append(call, &inputs, tensors.iter().map(|t| t.meta().clone()));
        let ids: Vec<ValueId> = self.graph.node(node).outputs().to_vec();
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
                let finite = expected.iter().filter(|x| x.is_finite());
                let largest = finite.fold(1.0f32, |m, x| m.max(x.abs()));
                for (i, (e, f)) in expected.iter().zip(&found).enumerate() {
                    let same = e == f || (e.is_nan() && f.is_nan());
                    let close = same || (e - f).abs() <= tolerance * largest;
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

/// The elements in f32, in the order of their indices.
fn floats(x: &Tensor) -> Vec<f32> {
    let x = &x.to_dim_order(DimOrder::contiguous(x.sizes().len())).unwrap();
    match x.dtype() {
        ScalarType::Half => x.storage::<f16>().unwrap().iter().map(|e| e.to_f32()).collect(),
        ScalarType::BFloat16 => x.storage::<bf16>().unwrap().iter().map(|e| e.to_f32()).collect(),
        ScalarType::Bool => x.bytes().iter().map(|&e| f32::from(e)).collect(),
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

/// In half precision results are rounded after every call: only sums may be taken in another order.
#[test]
fn convolutions_in_half_precision() {
    for (dtype, tolerance) in [(ScalarType::Half, 1e-3), (ScalarType::BFloat16, 8e-3)] {
        let steps = convolutions(Both::of(dtype, 2), (8, 3, 1, 1), tolerance);
        let in_f32 = convolutions(Both::new(2), (8, 3, 1, 1), 1e-4);
        // An input and two results are cast; a norm, a residual and the mean follow what is rounded.
        assert!(steps <= in_f32 + 6, "{steps} steps in {dtype}, {in_f32} in f32");
    }
}

/// What rounding shows: sums that cancel, overflow, poles, comparisons.
#[test]
fn chains_in_half_precision_are_those_of_the_calls() {
    for dtype in [ScalarType::Half, ScalarType::BFloat16] {
        let mut both = Both::of(dtype, 1);
        let n = [64];
        let x = both.input(&n, 1);
        let big = both.call("aten::mul.Scalar_out", &[value(x), number(60_000.0)], &n).unwrap();
        let back = both.call("aten::div.Scalar_out", &[value(big), number(60_000.0)], &n).unwrap();
        let sum = both.call("aten::add.Scalar_out", &[value(x), number(1000.0), one()], &n).unwrap();
        let rest = both.call("aten::sub.Scalar_out", &[value(sum), number(1000.0), one()], &n).unwrap();
        let inverse = both.call("aten::reciprocal.out", &[value(rest)], &n).unwrap();
        let bool_of = [(ScalarType::Bool, &n[..])];
        let same = both.call_typed("aten::eq.Tensor_out", &[value(rest), value(x)], &bool_of).unwrap()[0];
        let zero = both.call_typed("aten::eq.Scalar_out", &[value(rest), number(0.0)], &bool_of).unwrap()[0];
        let infinite = both.call_typed("aten::isinf.out", &[value(big)], &bool_of).unwrap()[0];
        let finite = [value(big), Given::None, Given::None, Given::None];
        let finite = both.call("aten::nan_to_num.out", &finite, &n).unwrap();
        let floor = both.call("aten::floor.out", &[value(sum)], &n).unwrap();
        let args = [value(rest), int(0), Given::Scalar(Scalar::Bool(false))];
        let at = both.call_typed("aten::argmax.out", &args, &[(ScalarType::Long, &[])]).unwrap()[0];
        both.check(&[back, rest, inverse, same, zero, infinite, finite, floor, at], 0.0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Random chains of operators that round once give the same bits lowered, whatever is seen of them.
    #[test]
    fn random_chains_in_half_precision(
        steps in prop::collection::vec((0usize..16, 0usize..100, 0usize..100, 0usize..6), 1..10),
        wide in any::<bool>(),
    ) {
        let dtype = if wide { ScalarType::BFloat16 } else { ScalarType::Half };
        let mut both = Both::of(dtype, 1);
        let n = [3, 40];
        let mut made = vec![both.input(&n, 1), both.input(&n, 2), both.input(&[40], 3)];
        let mut masks = Vec::new();
        for (kind, a, b, s) in steps {
            let (x, y) = (made[a % made.len()], made[b % made.len()]);
            let sizes = if *both.graph.meta(x).sizes() == *both.graph.meta(y).sizes() {
                both.graph.meta(x).sizes().to_vec()
            } else {
                n.to_vec()
            };
            let own = both.graph.meta(x).sizes().to_vec();
            let number = number([0.1, 3.0, 60_000.0, -0.5, 1e-3, 1000.0][s]);
            let new = match kind {
                0 => both.call("aten::add.out", &[value(x), value(y), one()], &sizes),
                1 => both.call("aten::sub.out", &[value(x), value(y), one()], &sizes),
                2 => both.call("aten::mul.out", &[value(x), value(y)], &sizes),
                3 => both.call("aten::div.out", &[value(x), value(y)], &sizes),
                4 => both.call("aten::mul.Scalar_out", &[value(x), number], &own),
                5 => both.call("aten::div.Scalar_out", &[value(x), number], &own),
                6 => both.call("aten::add.Scalar_out", &[value(x), number, one()], &own),
                7 => both.call("aten::clamp.out", &[value(x), number, Given::None], &own),
                8 => both.call("aten::relu.out", &[value(x)], &own),
                9 => both.call("aten::maximum.out", &[value(x), value(y)], &sizes),
                10 => both.call("aten::floor.out", &[value(x)], &own),
                11 => both.call("aten::nan_to_num.out", &[value(x), Given::None, Given::None, Given::None], &own),
                12 => both.call("aten::reciprocal.out", &[value(x)], &own),
                13 => both.call("aten::sqrt.out", &[value(x)], &own),
                _ => {
                    let out = [(ScalarType::Bool, &sizes[..])];
                    let name = if kind == 14 { "aten::lt.Tensor_out" } else { "aten::eq.Tensor_out" };
                    let mask = both.call_typed(name, &[value(x), value(y)], &out).unwrap()[0];
                    masks.push(mask);
                    both.call("aten::where.self_out", &[value(mask), value(y), value(x)], &sizes)
                }
            };
            made.extend(new);
        }
        masks.extend([made[made.len() - 1], made[made.len() / 2]]);
        both.check(&masks, 0.0);
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

#[test]
fn attention_in_half_precision_is_one_step() {
    for (dtype, tolerance) in [(ScalarType::Half, 2e-3), (ScalarType::BFloat16, 1e-2)] {
        let mut both = Both::of(dtype, 2);
        let y = attention(&mut both, 5, 7, 4, 4);
        // Four inputs are cast, three of them once they are permuted, one twice; and the result.
        assert_eq!(both.check(&[y], tolerance), 10, "{dtype}");
    }
}

/// Scores beyond float16 are infinite, and what they weigh is not a number.
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

/// All orders of so many dimensions.
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

/// Calls of a kind on the input that is given first, of these sizes, with outs that lie as the second order says:
/// what they give.
type Kind = fn(&mut Both, ValueId, &[usize], DimOrder) -> Option<Vec<ValueId>>;

fn meta(sizes: &[usize], order: DimOrder) -> TensorMeta {
    TensorMeta::new(ScalarType::Float, sizes, order).unwrap()
}

fn unary(both: &mut Both, name: &str, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    both.call_into(name, &[value(x)], vec![meta(sizes, order)])
}

fn mean_over_space(both: &mut Both, x: ValueId, sizes: &[usize], order: DimOrder) -> Option<Vec<ValueId>> {
    let space: Vec<i64> = (2..sizes.len() as i64).collect();
    let kept: Vec<usize> = sizes.iter().enumerate().map(|(d, &n)| if d < 2 { n } else { 1 }).collect();
    let args = [value(x), Given::Ints(space), Given::Scalar(Scalar::Bool(true)), Given::None];
    let mean = both.call_into("aten::mean.out", &args, vec![meta(&kept, order)])?;
    unary(both, "aten::relu.out", mean[0], &kept, order)
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

/// Each kind of node is tried with every dim order of its input and several of its output.
#[test]
fn every_kind_of_node_in_every_dim_order() {
    let kinds: [(&str, std::ops::RangeInclusive<usize>, Kind); 9] = [
        ("mean over space", 3..=5, mean_over_space),
        ("group norm", 3..=5, group_norm),
        ("batch norm", 2..=5, batch_norm),
        ("convolution", 3..=5, convolution),
        ("pools", 4..=4, pools),
        ("elementwise", 2..=5, elementwise),
        ("copies", 2..=5, copies),
        ("quantized", 2..=5, quantized),
        ("rows", 2..=5, rows),
    ];
    for (name, ranks, kind) in kinds {
        for rank in ranks {
            let all = orders(rank);
            let mut taken = 0;
            for (i, &order) in all.iter().enumerate() {
                let outs = [all[(i * 7 + 3) % all.len()], order, DimOrder::contiguous(rank)];
                for sizes in [[2, 4, 3, 5, 2], [1, 4, 3, 1, 2]] {
                    let sizes = &sizes[..rank];
                    // Of rank 5 there are 120 orders.
                    for &out in &outs[..if rank < 5 { 3 } else { 1 + i % 2 }] {
                        let mut both = Both::new(1);
                        let x = both.input_in(sizes, 1, order);
                        if let Some(results) = kind(&mut both, x, sizes, out) {
                            both.check(&results, 1e-5);
                            taken += 1;
                        }
                    }
                }
            }
            assert!(taken > all.len() / 2, "{name} of rank {rank} took {taken} of {} orders", all.len());
        }
    }
}

//! The harness of all cases: a graph together with the results of its calls executed one by one.

use pteron_engine::{Call, CallArg, CallOut, Constant, Executable, Graph, Isa, ValueId};
use pteron_operator::{Arg, Args, Generator, KernelContext, KernelRegistry, Out, Outs, Scratch};
use pteron_pool::Pool;
use pteron_tensor::{DimOrder, Scalar, ScalarType, Tensor, TensorMeta, bf16, f16};
use pteron_trace::Tracer;
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) const QUANTIZED: &str = "quantized_decomposed::";
pub(crate) const CHAR: ScalarType = ScalarType::Char;

/// A graph under construction, together with the results of its calls, which are executed immediately.
pub(crate) struct Both {
    /// The default element type of tensors.
    pub(crate) dtype: ScalarType,
    pub(crate) registry: KernelRegistry,
    pub(crate) graph: Graph,
    pub(crate) values: HashMap<ValueId, Tensor>,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) pool: Pool,
    pub(crate) scratch: Scratch,
    pub(crate) generator: Generator,
}

/// An argument of a call under test.
pub(crate) enum Given {
    Value(ValueId),
    Ints(Vec<i64>),
    Scalar(Scalar),
    Str(Arc<str>),
    None,
}

impl Both {
    pub(crate) fn new(threads: usize) -> Self {
        Self::of(ScalarType::Float, threads)
    }

    pub(crate) fn of(dtype: ScalarType, threads: usize) -> Self {
        Self {
            dtype,
            registry: pteron_kernels::registry(),
            graph: Graph::new(),
            values: HashMap::new(),
            inputs: Vec::new(),
            pool: Pool::new(threads),
            scratch: Scratch::new(64 << 20),
            generator: Generator::default(),
        }
    }

    pub(crate) fn input(&mut self, sizes: &[usize], seed: u64) -> ValueId {
        self.input_in(sizes, seed, DimOrder::contiguous(sizes.len()))
    }

    pub(crate) fn input_in(&mut self, sizes: &[usize], seed: u64, order: DimOrder) -> ValueId {
        self.input_of(in_type(self.dtype, random(sizes, seed)).to_dim_order(order).unwrap())
    }

    pub(crate) fn input_of(&mut self, tensor: Tensor) -> ValueId {
        let id = self.graph.input(tensor.meta().clone());
        self.inputs.push(tensor.clone());
        self.values.insert(id, tensor);
        id
    }

    pub(crate) fn constant(&mut self, sizes: &[usize], seed: u64) -> ValueId {
        self.constant_in(sizes, seed, DimOrder::contiguous(sizes.len()))
    }

    pub(crate) fn constant_in(&mut self, sizes: &[usize], seed: u64, order: DimOrder) -> ValueId {
        self.constant_of(in_type(self.dtype, random(sizes, seed)).to_dim_order(order).unwrap())
    }

    pub(crate) fn constant_of(&mut self, tensor: Tensor) -> ValueId {
        let id = self.graph.constant(tensor.meta().clone(), Constant::from(tensor.clone()));
        self.values.insert(id, tensor);
        id
    }

    /// Adds a call with one out of these sizes and executes it. `None` if the library lacks the operator.
    pub(crate) fn call(&mut self, name: &str, args: &[Given], sizes: &[usize]) -> Option<ValueId> {
        self.call_with(name, args, &[sizes]).map(|outs| outs[0])
    }

    pub(crate) fn call_with(
        &mut self,
        name: &str,
        args: &[Given],
        sizes: &[&[usize]],
    ) -> Option<Vec<ValueId>> {
        let outs: Vec<_> = sizes.iter().map(|&sizes| (self.dtype, sizes)).collect();
        self.call_typed(name, args, &outs)
    }

    /// Adds a call with outs of these types and sizes and executes it.
    pub(crate) fn call_typed(
        &mut self,
        name: &str,
        args: &[Given],
        outs: &[(ScalarType, &[usize])],
    ) -> Option<Vec<ValueId>> {
        let outs = outs.iter().map(|&(dtype, sizes)| TensorMeta::contiguous(dtype, sizes).unwrap());
        self.registry.get(name)?;
        Some(self.call_into(name, args, outs.collect()).unwrap())
    }

    /// Adds a call with outs of these metas and executes it. `None` if the kernel fails.
    pub(crate) fn call_into(
        &mut self,
        name: &str,
        operands: &[Given],
        outs: Vec<TensorMeta>,
    ) -> Option<Vec<ValueId>> {
        let kernel = self.registry.get(name)?;
        let mut tensors: Vec<Tensor> = outs.into_iter().map(|meta| Tensor::zeros(meta).unwrap()).collect();
        let outs = tensors.len();
        let list = operands.iter().map(|g| match g {
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

        let inputs = operands
            .iter()
            .filter_map(|g| if let Given::Value(v) = g { Some(*v) } else { None })
            .collect::<Vec<_>>();
        let args = operands.iter().map(|g| match g {
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

    /// A 2-d convolution of `x` with weights `w`, padded by half of the kernel.
    pub(crate) fn conv(
        &mut self,
        x: ValueId,
        w: ValueId,
        stride: i64,
        groups: i64,
        sizes: &[usize],
    ) -> ValueId {
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

    /// Lowers the graph with these results, for every available instruction set, and compares them with those of the
    /// single calls. Returns the number of steps.
    pub(crate) fn check(mut self, results: &[ValueId], tolerance: f32) -> usize {
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
            for (v, actual) in results.iter().zip(&outs) {
                let (expected, actual) = (floats(&self.values[v]), floats(actual));
                let finite = expected.iter().filter(|x| x.is_finite());
                let largest = finite.fold(1.0f32, |m, x| m.max(x.abs()));
                for (i, (e, f)) in expected.iter().zip(&actual).enumerate() {
                    let same = e == f || (e.is_nan() && f.is_nan());
                    let close = same || (e - f).abs() <= tolerance * largest;
                    assert!(close, "element {i}: {e} one by one, {f} lowered\n{}", self.graph);
                }
            }
        }
        steps
    }
}

/// Random elements in `[-2, 2)`.
pub(crate) fn random(sizes: &[usize], seed: u64) -> Tensor {
    let generator = Generator::new(seed);
    let n = sizes.iter().product();
    let elements: Vec<f32> = (0..n).map(|_| (generator.uniform() * 4.0 - 2.0) as f32).collect();
    Tensor::from_slice(sizes, &elements).unwrap()
}

/// The elements converted to a floating-point type.
pub(crate) fn in_type(dtype: ScalarType, x: Tensor) -> Tensor {
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
pub(crate) fn floats(x: &Tensor) -> Vec<f32> {
    let x = &x.to_dim_order(DimOrder::contiguous(x.sizes().len())).unwrap();
    match x.dtype() {
        ScalarType::Half => x.storage::<f16>().unwrap().iter().map(|e| e.to_f32()).collect(),
        ScalarType::BFloat16 => x.storage::<bf16>().unwrap().iter().map(|e| e.to_f32()).collect(),
        ScalarType::Bool => x.bytes().iter().map(|&e| f32::from(e)).collect(),
        ScalarType::Long => x.storage::<i64>().unwrap().iter().map(|&e| e as f32).collect(),
        _ => x.storage::<f32>().unwrap().to_vec(),
    }
}

pub(crate) fn value(v: ValueId) -> Given {
    Given::Value(v)
}

pub(crate) fn ints(v: &[i64]) -> Given {
    Given::Ints(v.to_vec())
}

pub(crate) fn one() -> Given {
    Given::Scalar(Scalar::Int(1))
}

pub(crate) fn number(x: f64) -> Given {
    Given::Scalar(Scalar::Double(x))
}

pub(crate) fn int(x: i64) -> Given {
    Given::Scalar(Scalar::Int(x))
}

//! Adds nodes to a graph. All other code of `raise` goes through this.

use crate::error::{Error, Result, fail};
use pteron_engine::{Call, CallArg, CallOut, Graph, OpKind, Operation, Reshape, ValueId};
use pteron_operator::{Budget, KernelRegistry};
use pteron_tensor::{Scalar, ScalarType, Tensor, TensorMeta};

/// An argument of an operator call.
#[derive(Debug, Clone)]
pub(crate) enum Arg {
    Absent,
    Tensor(ValueId),
    Tensors(Vec<ValueId>),
    Int(i64),
    Double(f64),
    Bool(bool),
    Ints(Vec<i64>),
    Str(&'static str),
}

impl Arg {
    /// A pair of integers: height and width.
    pub(crate) fn pair(sizes: [usize; 2]) -> Self {
        Self::Ints(sizes.map(|n| n as i64).to_vec())
    }
}

/// A graph under construction.
pub(crate) struct Emit<'k> {
    pub(crate) graph: Graph,
    kernels: &'k KernelRegistry,
    /// The number of bytes that further nodes may write.
    bytes: usize,
}

impl<'k> Emit<'k> {
    /// An empty graph, whose nodes may write `bytes` bytes in total. Computed constants are charged to `budget`.
    pub(crate) fn new(kernels: &'k KernelRegistry, bytes: usize, budget: &Budget) -> Self {
        let mut graph = Graph::new();
        graph.set_budget(budget.clone());
        Self { graph, kernels, bytes }
    }

    /// The contiguous meta of a value that a node writes; its size is deducted from the limit.
    fn output_meta(&mut self, dtype: ScalarType, sizes: &[usize]) -> Result<TensorMeta> {
        let meta = TensorMeta::contiguous(dtype, sizes)?;
        let left = self.bytes.checked_sub(meta.nbytes());
        self.bytes = left.ok_or_else(|| {
            let needed = meta.nbytes();
            Error::new(format!(
                "a result of {needed} bytes, of which `Limits::backend_bytes` leaves {}",
                self.bytes
            ))
        })?;
        Ok(meta)
    }

    /// Type, sizes and layout of a value.
    pub(crate) fn meta(&self, value: ValueId) -> &TensorMeta {
        self.graph.meta(value)
    }

    /// The sizes of a value.
    pub(crate) fn sizes(&self, value: ValueId) -> Vec<usize> {
        self.meta(value).sizes().to_vec()
    }

    /// The type of a value's elements.
    pub(crate) fn dtype(&self, value: ValueId) -> ScalarType {
        self.meta(value).dtype()
    }

    /// Adds a constant that was computed while raising; its bytes are charged to the budget.
    pub(crate) fn computed_constant(&mut self, tensor: Tensor) -> Result<ValueId> {
        Ok(self.graph.computed_constant(tensor)?)
    }

    /// Adds a fused graph node with one contiguous result.
    pub(crate) fn node(
        &mut self,
        operation: impl Operation,
        inputs: Vec<ValueId>,
        dtype: ScalarType,
        sizes: &[usize],
    ) -> Result<ValueId> {
        let free = (&operation as &dyn std::any::Any).is::<Reshape>();
        let meta = if free { TensorMeta::contiguous(dtype, sizes)? } else { self.output_meta(dtype, sizes)? };
        let node = self.graph.append(OpKind::new(operation), &inputs, [meta]);
        Ok(self.graph.node(node).outputs()[0])
    }

    /// Adds an operator call with one contiguous result.
    pub(crate) fn call(
        &mut self,
        name: &str,
        args: Vec<Arg>,
        dtype: ScalarType,
        sizes: &[usize],
    ) -> Result<ValueId> {
        let outs = self.call_with_outputs(name, args, &[(dtype, sizes)])?;
        Ok(outs[0])
    }

    /// Adds an operator call with several contiguous results. `args` are the arguments that the operator only reads.
    pub(crate) fn call_with_outputs(
        &mut self,
        name: &str,
        args: Vec<Arg>,
        outs: &[(ScalarType, &[usize])],
    ) -> Result<Vec<ValueId>> {
        let kernel = self
            .kernels
            .get(name)
            .ok_or_else(|| Error::new(format!("it needs the operator {name}, which is not registered")))?;
        let (mut inputs, mut args, mut written) = (Vec::new(), args.into_iter(), 0);
        let mut list = Vec::with_capacity(kernel.schema().args.len());
        for arg in &kernel.schema().args {
            if arg.written {
                list.push(CallArg::Out(written));
                written += 1;
                continue;
            }
            list.push(match args.next().unwrap_or(Arg::Absent) {
                Arg::Absent => CallArg::None,
                Arg::Tensor(v) => {
                    inputs.push(v);
                    CallArg::Tensor
                }
                Arg::Tensors(vs) => {
                    inputs.extend_from_slice(&vs);
                    CallArg::Tensors(vs.len())
                }
                Arg::Int(v) => CallArg::Scalar(Scalar::Int(v)),
                Arg::Double(v) => CallArg::Scalar(Scalar::Double(v)),
                Arg::Bool(v) => CallArg::Scalar(Scalar::Bool(v)),
                Arg::Ints(v) => CallArg::Ints(v),
                Arg::Str(v) => CallArg::Str(v.into()),
            });
        }
        if args.next().is_some() || written != outs.len() {
            return fail(format!(
                "the operator {name} that is registered has another schema: {}",
                kernel.schema().name
            ));
        }
        let metas =
            outs.iter().map(|(dtype, sizes)| self.output_meta(*dtype, sizes)).collect::<Result<Vec<_>>>()?;
        let call = Call::new(kernel, list, vec![CallOut::Tensor; outs.len()]);
        let node = self.graph.append(call, &inputs, metas);
        Ok(self.graph.node(node).outputs().to_vec())
    }

    /// Reshapes a value.
    pub(crate) fn view(&mut self, value: ValueId, sizes: &[usize]) -> Result<ValueId> {
        if self.meta(value).sizes()[..] == *sizes {
            return Ok(value);
        }
        let dtype = self.dtype(value);
        self.node(Reshape, vec![value], dtype, sizes)
    }

    /// Broadcasts a value.
    pub(crate) fn expand(&mut self, value: ValueId, sizes: &[usize]) -> Result<ValueId> {
        if self.meta(value).sizes()[..] == *sizes {
            return Ok(value);
        }
        let dtype = self.dtype(value);
        let to = sizes.iter().map(|&n| n as i64).collect();
        let args = vec![Arg::Tensor(value), Arg::Ints(to), Arg::Bool(false)];
        self.call("aten::expand_copy.out", args, dtype, sizes)
    }

    /// Slices a value along a dimension.
    pub(crate) fn slice(
        &mut self,
        value: ValueId,
        dim: usize,
        start: usize,
        length: usize,
    ) -> Result<ValueId> {
        let mut sizes = self.sizes(value);
        if sizes[dim] == length {
            return Ok(value);
        }
        sizes[dim] = length;
        let dtype = self.dtype(value);
        let ints = [dim, start, start + length, 1].map(|n| Arg::Int(n as i64));
        let args = std::iter::once(Arg::Tensor(value)).chain(ints).collect();
        self.call("aten::slice_copy.Tensor_out", args, dtype, &sizes)
    }

    /// Permutes dimensions: `perm` gives for each dimension of the result the dimension of the input.
    pub(crate) fn permute(&mut self, value: ValueId, perm: &[usize]) -> Result<ValueId> {
        if perm.iter().copied().eq(0..perm.len()) {
            return Ok(value);
        }
        let from = self.sizes(value);
        let sizes: Vec<usize> = perm.iter().map(|&d| from[d]).collect();
        let dims = perm.iter().map(|&d| d as i64).collect();
        let dtype = self.dtype(value);
        self.call("aten::permute_copy.out", vec![Arg::Tensor(value), Arg::Ints(dims)], dtype, &sizes)
    }

    /// Casts a value to another type.
    pub(crate) fn cast(&mut self, value: ValueId, dtype: ScalarType) -> Result<ValueId> {
        if self.dtype(value) == dtype {
            return Ok(value);
        }
        let sizes = self.sizes(value);
        let args = vec![Arg::Tensor(value), Arg::Bool(false), Arg::Absent];
        self.call("aten::_to_copy.out", args, dtype, &sizes)
    }
}

//! Raises a payload to the graph of a delegate call.

use crate::data::Data;
use crate::error::{Error, Result, fail};
use crate::kinds;
use crate::payload::{Arg, Expression, Node, Number, Op, Payload, Type, Value, outs};
use pteron_engine::{Call, Constant, Graph, ValueId};
use pteron_operator::{KernelRegistry, Results};
use pteron_runtime::GraphRequest;
use pteron_tensor::TensorMeta;
use pteron_trace::Place;
use std::sync::Arc;

/// Raises a payload to the graph of a delegate call with the metas of `request`.
///
/// # Errors
/// The metas of the call do not match the payload's, a constant's bytes are missing, a node cannot run or needs an
/// operator that is not registered, or the results of the nodes exceed the limit of `request`.
pub(crate) fn raise(
    payload: &Payload,
    data: &Data,
    kernels: &KernelRegistry,
    request: &GraphRequest<'_>,
) -> Result<Graph> {
    let mut raise = Raise {
        payload,
        kernels,
        numbers: evaluate_expressions(payload, request.inputs)?,
        graph: Graph::new(),
        values: vec![None; payload.values.len()],
        bytes: request.bytes,
    };
    raise.graph.set_name(payload.name.as_str());
    raise.graph.set_budget(request.budget.clone());
    raise.add_inputs(request.inputs)?;
    for (index, value) in payload.values.iter().enumerate() {
        raise.add_constant(index, value, data).map_err(|e| Error::new(format!("constant %{index}: {e}")))?;
    }
    for (index, node) in payload.nodes.iter().enumerate() {
        raise.graph.set_origin(Place::node(u32::try_from(index).unwrap_or(u32::MAX)));
        let named = |e: Error| Error::new(format!("node {index} ({}): {e}", node.op.name()));
        raise.add_node(node).map_err(named)?;
    }
    raise.graph.set_origin(Place::default());
    if payload.outputs.len() != request.outputs.len() {
        return fail(format!(
            "the call has {} outputs, the payload {}",
            request.outputs.len(),
            payload.outputs.len()
        ));
    }
    for &output in &payload.outputs {
        let value = raise.value_of_index(output)?;
        raise.graph.output(value);
    }
    Ok(raise.graph)
}

/// The metas of the tensor inputs and outputs, with all symbols at their maxima.
pub(crate) fn max_metas(payload: &Payload) -> Result<[Vec<TensorMeta>; 2]> {
    let symbols: Vec<Option<i64>> = payload.maxima.iter().map(|&max| Some(max)).collect();
    let numbers = values_of_expressions(payload, &symbols);
    let metas = |values: &[usize]| -> Result<Vec<TensorMeta>> {
        let tensors = values.iter().map(|&v| &payload.values[v].ty).filter(|ty| **ty != Type::Number);
        tensors.map(|ty| meta(ty, &numbers)).collect()
    };
    Ok([metas(&(0..payload.inputs).collect::<Vec<_>>())?, metas(&payload.outputs)?])
}

/// Evaluates the expressions for tensor inputs with these metas. The first size that is a single symbol determines the symbol; all other
/// sizes must agree with it.
fn evaluate_expressions(payload: &Payload, inputs: &[TensorMeta]) -> Result<Vec<Result<i64>>> {
    let declared: Vec<_> = payload.values[..payload.inputs].iter().filter_map(tensor_type).collect();
    if declared.len() != inputs.len() {
        return fail(format!("the call has {} input tensors, the payload {}", inputs.len(), declared.len()));
    }
    let mut symbols: Vec<Option<i64>> = vec![None; payload.maxima.len()];
    for (i, ((dtype, sizes, order), meta)) in declared.iter().zip(inputs).enumerate() {
        let is_alike = meta.dtype() == *dtype && meta.rank() == sizes.len();
        if !is_alike || !meta.dim_order().same_layout(order, meta.sizes()) {
            return fail(format!("input {i} is {meta}, the payload's is {}", payload.values[i].ty));
        }
        for (size, &actual) in sizes.iter().zip(meta.sizes().iter()) {
            let Number::Expression(index) = *size else { continue };
            let Some(symbol) = payload.expressions[index].symbol() else { continue };
            let actual = i64::try_from(actual).unwrap_or(i64::MAX);
            if actual > payload.maxima[symbol] {
                let max = payload.maxima[symbol];
                return fail(format!(
                    "input {i} has a size {actual}, the program was exported for at most {max}"
                ));
            }
            symbols[symbol] = symbols[symbol].or(Some(actual));
        }
    }
    let numbers = values_of_expressions(payload, &symbols);
    for (i, ((_, sizes, _), meta)) in declared.iter().zip(inputs).enumerate() {
        for (size, &actual) in sizes.iter().zip(meta.sizes().iter()) {
            let expected = value_of_number(&numbers, *size)?;
            if usize::try_from(expected) != Ok(actual) {
                return fail(format!("input {i} has a size {actual}, the payload's is {expected}"));
            }
        }
    }
    Ok(numbers)
}

/// The values of the payload's expressions; an error in place of each value that cannot be computed.
fn values_of_expressions(payload: &Payload, symbols: &[Option<i64>]) -> Vec<Result<i64>> {
    let value = |e: &Expression| {
        e.evaluate(|symbol| symbols.get(symbol).copied().flatten())
            .ok_or_else(|| Error::new(format!("the size `{e}` has no value")))
    };
    payload.expressions.iter().map(value).collect()
}

fn tensor_type(value: &Value) -> Option<(pteron_tensor::ScalarType, &[Number], pteron_tensor::DimOrder)> {
    match &value.ty {
        Type::Tensor { dtype, sizes, dim_order } => Some((*dtype, sizes, *dim_order)),
        Type::Number => None,
    }
}

fn value_of_number(numbers: &[Result<i64>], number: Number) -> Result<i64> {
    match number {
        Number::Int(v) => Ok(v),
        Number::Expression(index) => numbers
            .get(index)
            .cloned()
            .unwrap_or_else(|| fail("a size refers to an expression that does not exist")),
    }
}

fn meta(ty: &Type, numbers: &[Result<i64>]) -> Result<TensorMeta> {
    let Type::Tensor { dtype, sizes, dim_order } = ty else { return fail("a number is used as a tensor") };
    let size = |&number: &Number| {
        let size = value_of_number(numbers, number)?;
        usize::try_from(size).map_err(|_| Error::new(format!("a size is {size}")))
    };
    let sizes: Vec<usize> = sizes.iter().map(size).collect::<Result<_>>()?;
    Ok(TensorMeta::new(*dtype, &sizes, *dim_order)?)
}

struct Raise<'a> {
    payload: &'a Payload,
    kernels: &'a KernelRegistry,
    /// The values of the payload's expressions.
    numbers: Vec<Result<i64>>,
    graph: Graph,
    /// The graph's value for each value of the payload, once it is defined.
    values: Vec<Option<ValueId>>,
    /// The remaining limit for the results of nodes, in bytes.
    bytes: usize,
}

impl Raise<'_> {
    fn add_inputs(&mut self, inputs: &[TensorMeta]) -> Result<()> {
        let mut metas = inputs.iter();
        for index in 0..self.payload.inputs {
            if self.payload.values[index].ty == Type::Number {
                continue;
            }
            let meta = metas.next().ok_or_else(|| Error::new("too few inputs"))?;
            self.values[index] = Some(self.graph.input(meta.clone()));
        }
        Ok(())
    }

    fn add_constant(&mut self, index: usize, value: &Value, data: &Data) -> Result<()> {
        let Some(constant) = &value.constant else { return Ok(()) };
        let meta = meta(&value.ty, &self.numbers)?;
        if meta.nbytes() as u64 != constant.bytes {
            return fail(format!("its {} bytes are not the size of {}", constant.bytes, value.ty));
        }
        let bytes = data.bytes(constant)?;
        self.values[index] = Some(self.graph.constant(meta, Constant::Shared(bytes)));
        Ok(())
    }

    fn value_of_index(&self, index: usize) -> Result<ValueId> {
        let value = self.values.get(index).copied().flatten();
        value.ok_or_else(|| Error::new(format!("%{index} is not defined")))
    }

    fn add_node(&mut self, node: &Node) -> Result<()> {
        let inputs: Vec<ValueId> =
            node.inputs.iter().map(|&v| self.value_of_index(v)).collect::<Result<_>>()?;
        let mut metas = Vec::with_capacity(node.outputs.len());
        for &output in &node.outputs {
            let meta = meta(&self.payload.values[output].ty, &self.numbers)?;
            self.charge(&meta)?;
            metas.push(meta);
        }
        let appended = match &node.op {
            Op::Call { operator, args } => {
                let call = self.graph_call(operator, args, node.outputs.len())?;
                self.graph.append(call, &inputs, metas)
            }
            Op::Node(kind) => {
                let node = self.graph.append(Arc::clone(kind), &inputs, metas);
                kinds::check(&self.graph, node)?;
                node
            }
        };
        for (&output, &value) in node.outputs.iter().zip(self.graph.node(appended).outputs()) {
            self.values[output] = Some(value);
        }
        Ok(())
    }

    fn graph_call(&self, operator: &str, args: &[Arg], outputs: usize) -> Result<Call> {
        let Some(kernel) = self.kernels.get(operator) else {
            return fail(format!("it needs the operator {operator}, which is not registered"));
        };
        if kernel.results() != Results::Elements {
            return fail("its results depend on more than elements and sizes");
        }
        let outs = outs(kernel.schema(), args, outputs)?;
        let value = |index: usize| value_of_number(&self.numbers, Number::Expression(index));
        let args = args.iter().map(|arg| arg.to_graph(&value)).collect::<Result<_>>()?;
        Ok(Call::new(kernel, args, outs))
    }

    /// Subtracts the bytes of a node's result from the remaining limit; fails if they exceed it.
    fn charge(&mut self, meta: &TensorMeta) -> Result<()> {
        let needed = meta.nbytes();
        let left = self.bytes.checked_sub(needed);
        self.bytes = left.ok_or_else(|| {
            let left = self.bytes;
            Error::new(format!("a result of {needed} bytes, of which `Limits::backend_bytes` leaves {left}"))
        })?;
        Ok(())
    }
}

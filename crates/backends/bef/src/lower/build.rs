//! Builds the payload of a part, as calls, and of an optimized graph.

use super::accept::{Accepted, ArgValue, Reason, bounded_spec};
use crate::data::{ALIGNMENT, Data};
use crate::payload::{Arg, Constant, Expression, LaidOut, Node, Number, Op, Payload, Type, Value};
use pteron_engine::{Graph, OpKind, Reshape, StoredWeights, ValueId};
use pteron_exported::delegate::NamedBytes;
use pteron_exported::{
    Argument, ConstantTensor, ExportedNode, ExportedProgram, IntArgument, Size, VarId, VarType,
};
use pteron_format::Digest;
use pteron_ir::{Bytes, SharedBytes, reopen_or_share};
use pteron_runtime::FreeableBuffer;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The named data of a payload, without duplicates.
#[derive(Default)]
pub(super) struct Blobs {
    list: Vec<NamedBytes>,
    known: HashSet<String>,
    /// The keys of the bytes in `list` that stay in memory, by address range: the same memory is not hashed again.
    by_address: HashMap<Range<*const u8>, String>,
}

impl Blobs {
    /// Adds the bytes of a constant, and returns the reference to them.
    fn add_constant(&mut self, bytes: SharedBytes) -> Constant {
        let len = bytes.len() as u64;
        let key = (len > 0).then(|| self.add_bytes(bytes));
        Constant { key, bytes: len, laid_out: Vec::new() }
    }

    /// Adds bytes, unless equal bytes were added before, and returns their key.
    fn add_bytes(&mut self, bytes: SharedBytes) -> String {
        let key = self.key_of_bytes(reopen_or_share(&bytes).bytes());
        if self.known.insert(key.clone()) {
            if bytes.reopen().is_none() {
                self.by_address.insert(bytes.bytes().as_ptr_range(), key.clone());
            }
            self.list.push(NamedBytes { key: key.clone(), bytes, alignment: ALIGNMENT as u64 });
        }
        key
    }

    /// The key under which `bytes` are stored: their digest, which is not computed again for the same memory.
    fn key_of_bytes(&self, bytes: &[u8]) -> String {
        self.by_address.get(&bytes.as_ptr_range()).cloned().unwrap_or_else(|| Digest::hex_digest(bytes))
    }

    pub(super) fn into_list(self) -> Vec<NamedBytes> {
        self.list
    }
}

/// A payload under construction.
pub(super) struct Builder<'p> {
    part: &'p ExportedProgram,
    payload: Payload,
    value_of: HashMap<VarId, usize>,
    symbols: HashMap<Arc<str>, usize>,
    expressions: HashMap<Expression, usize>,
    /// The bytes of constants, by keys that are local to this builder.
    constants: HashMap<String, SharedBytes>,
}

impl<'p> Builder<'p> {
    pub(super) fn new(part: &'p ExportedProgram) -> Result<Self, Reason> {
        let mut builder = Self {
            part,
            payload: Payload {
                name: part.name.clone(),
                inputs: part.graph.inputs.len(),
                ..Payload::default()
            },
            value_of: HashMap::new(),
            symbols: HashMap::new(),
            expressions: HashMap::new(),
            constants: HashMap::new(),
        };
        for &input in &part.graph.inputs {
            match part.var(input).ty {
                VarType::Tensor(_) => {
                    builder.define(input)?;
                }
                _ => {
                    builder.payload.values.push(Value { ty: Type::Number, constant: None });
                }
            }
        }
        Ok(builder)
    }

    /// The payload, and the bytes of its constants.
    pub(super) fn finish(mut self) -> Result<(Payload, Data), Reason> {
        for output in self.part.graph.outputs.iter().filter_map(Argument::var) {
            let value = self.value_of_tensor(output)?;
            self.payload.outputs.push(value);
        }
        Ok((self.payload, Data::from_bytes_by_key(self.constants)))
    }

    fn size_to_number(&mut self, size: &Size) -> Result<Number, Reason> {
        let expression = match size {
            Size::Int(v) => return Ok(Number::Int(*v)),
            Size::Sym(expression) => expression,
        };
        let (symbols, maxima) = (&mut self.symbols, &mut self.payload.maxima);
        let ranges = &self.part.ranges;
        let mut symbol = |name: &Arc<str>| {
            *symbols.entry(Arc::clone(name)).or_insert_with(|| {
                maxima.push(ranges.get(name).map_or(i64::MAX, |bounds| bounds.max));
                maxima.len() - 1
            })
        };
        let expression = Expression::from_size(expression, &mut symbol)?;
        let list = &mut self.payload.expressions;
        Ok(Number::Expression(*self.expressions.entry(expression).or_insert_with_key(|expression| {
            list.push(expression.clone());
            list.len() - 1
        })))
    }

    fn add_value(&mut self, var: VarId) -> Result<usize, Reason> {
        let spec = bounded_spec(self.part, var)?;
        let (dtype, dim_order) = (spec.dtype, spec.dim_order);
        let sizes = spec.sizes.iter().map(|size| self.size_to_number(size)).collect::<Result<_, _>>()?;
        let ty = Type::Tensor { dtype, sizes, dim_order };
        self.payload.values.push(Value { ty, constant: None });
        Ok(self.payload.values.len() - 1)
    }

    fn define(&mut self, var: VarId) -> Result<usize, Reason> {
        let value = self.add_value(var)?;
        self.value_of.insert(var, value);
        Ok(value)
    }

    /// The payload's index of a tensor's value, which is defined already or is added as a constant.
    fn value_of_tensor(&mut self, var: VarId) -> Result<usize, Reason> {
        if let Some(&known) = self.value_of.get(&var) {
            return Ok(known);
        }
        let name = &self.part.var(var).name;
        let data = self.part.constants.get(&var).ok_or_else(|| format!("%{name} is not defined"))?;
        let bytes = data.range.len() as u64;
        let key = (bytes > 0).then(|| self.constants.len().to_string());
        if let Some(key) = &key {
            self.constants.insert(key.clone(), aligned_bytes(data)?);
        }
        let value = self.define(var)?;
        self.payload.values[value].constant = Some(Constant { key, bytes, laid_out: Vec::new() });
        Ok(value)
    }

    fn variable_to_number(&mut self, var: VarId) -> Result<Number, Reason> {
        let part = self.part;
        match &part.var(var).ty {
            VarType::Int(size) => self.size_to_number(size),
            _ => Err(format!("%{} is not an integer", part.var(var).name)),
        }
    }

    pub(super) fn add_node(&mut self, node: &ExportedNode, accepted: Accepted) -> Result<(), Reason> {
        let (op, inputs) = match accepted {
            Accepted::View(x) => (Op::Node(OpKind::arc(Reshape)), vec![self.value_of_tensor(x)?]),
            Accepted::Call { operator, args, operands } => {
                let args = args.into_iter().map(|arg| self.payload_arg(arg)).collect::<Result<_, _>>()?;
                let inputs =
                    operands.into_iter().map(|v| self.value_of_tensor(v)).collect::<Result<_, _>>()?;
                (Op::Call { operator, args }, inputs)
            }
        };
        let outputs = node.outputs.iter().map(|&v| self.define(v)).collect::<Result<_, _>>()?;
        let source = node.line().map(|line| (line.file.clone(), u64::from(line.line)));
        self.payload.nodes.push(Node { op, inputs, outputs, source });
        Ok(())
    }

    fn payload_arg(&mut self, value: ArgValue) -> Result<Arg, Reason> {
        Ok(match value {
            ArgValue::Known(arg) => arg,
            ArgValue::Number(var) => match self.variable_to_number(var)? {
                Number::Int(v) => Arg::Scalar(pteron_tensor::Scalar::Int(v)),
                Number::Expression(index) => Arg::Expression(index),
            },
            ArgValue::Numbers(list) => {
                let number = |item: &IntArgument| match *item {
                    IntArgument::Int(v) => Ok(Number::Int(v)),
                    IntArgument::Var(var) => self.variable_to_number(var),
                };
                Arg::Ints(list.iter().map(number).collect::<Result<_, _>>()?)
            }
        })
    }
}

/// Owns the bytes of a graph's constant.
struct GraphConstant {
    constant: pteron_engine::Constant,
    len: usize,
}

impl Bytes for GraphConstant {
    fn bytes(&self) -> &[u8] {
        self.constant.bytes().get(..self.len).unwrap_or_default()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn problem(&self) -> Option<String> {
        self.constant.problem()
    }

    fn reopen(&self) -> Option<SharedBytes> {
        let pteron_engine::Constant::Shared(bytes) = &self.constant else { return None };
        let constant = pteron_engine::Constant::Shared(bytes.reopen()?);
        Some(Arc::new(Self { constant, len: self.len }))
    }
}

/// The bytes of an archive's constant, copied only if they are misaligned.
fn aligned_bytes(data: &ConstantTensor) -> Result<SharedBytes, Reason> {
    let data = data.reopened();
    match data.data().as_ptr().addr().is_multiple_of(ALIGNMENT) {
        true => Ok(Arc::new(data.reopened())),
        false => Ok(Arc::new(FreeableBuffer::from_bytes(data.data()).map_err(|e| e.to_string())?)),
    }
}

/// Stores packed weights of a payload's executable with the constants that they were packed from.
pub(super) fn store_weights(payload: &mut Payload, weights: Vec<StoredWeights>, blobs: &mut Blobs) {
    let mut of_key: HashMap<String, Vec<LaidOut>> = HashMap::new();
    for StoredWeights { constant, layout, bytes } in weights {
        let source = blobs.key_of_bytes(constant.reopen().bytes());
        let key = blobs.add_bytes(bytes);
        of_key.entry(source).or_default().push(LaidOut { layout, key });
    }
    for constant in payload.values.iter_mut().filter_map(|value| value.constant.as_mut()) {
        let stored = constant.key.as_ref().and_then(|key| of_key.get(key));
        constant.laid_out = stored.cloned().unwrap_or_default();
    }
}

/// The payload of a static graph; adds the bytes of its constants to `blobs`. `source` is the payload that the graph
/// was raised from. `None` if the graph has nodes that payloads cannot contain, or that could not run.
pub(super) fn payload_of_graph(graph: &Graph, source: &Payload, blobs: &mut Blobs) -> Option<Payload> {
    let mut of: HashMap<ValueId, usize> = HashMap::new();
    let mut payload = Payload { name: source.name.clone(), inputs: source.inputs, ..Payload::default() };
    let mut define = |payload: &mut Payload, value: ValueId, constant: Option<Constant>| {
        let meta = graph.meta(value);
        let sizes =
            meta.sizes().iter().map(|&n| i64::try_from(n).map(Number::Int)).collect::<Result<_, _>>().ok()?;
        let ty = Type::Tensor { dtype: meta.dtype(), sizes, dim_order: *meta.dim_order() };
        payload.values.push(Value { ty, constant });
        of.insert(value, payload.values.len() - 1);
        Some(())
    };
    for &input in graph.inputs() {
        define(&mut payload, input, None)?;
    }
    let order = graph.order();
    let used = order.iter().flat_map(|&node| graph.node(node).inputs()).chain(graph.outputs());
    let mut seen = vec![false; graph.num_values()];
    for &value in used.filter(|&&v| graph.is_constant(v)) {
        if !std::mem::replace(&mut seen[value.index()], true) {
            let (len, constant) = (graph.meta(value).nbytes(), graph.value(value).constant()?.reopen());
            if constant.nbytes() < len {
                return None;
            }
            define(&mut payload, value, Some(blobs.add_constant(Arc::new(GraphConstant { constant, len }))))?;
        }
    }
    for id in order {
        crate::kinds::check(graph, id).ok()?;
        let node = graph.node(id);
        node.outputs().iter().try_for_each(|&v| define(&mut payload, v, None))?;
    }
    let values = |list: &[ValueId]| list.iter().map(|v| of.get(v).copied()).collect::<Option<Vec<usize>>>();
    for id in graph.order() {
        let node = graph.node(id);
        let op = match node.call() {
            Some(call) => {
                let args = call.args.iter().map(Arg::from_graph).collect::<Option<_>>()?;
                Op::Call { operator: call.name().to_owned(), args }
            }
            None => {
                crate::kinds::write(&**node.kind())?;
                Op::Node(Arc::clone(node.kind()))
            }
        };
        let line = node
            .origins()
            .iter()
            .rev()
            .find_map(|place| source.nodes.get(place.node? as usize)?.source.clone());
        let (inputs, outputs) = (values(node.inputs())?, values(node.outputs())?);
        payload.nodes.push(Node { op, inputs, outputs, source: line });
    }
    payload.outputs = values(graph.outputs())?;
    Some(payload)
}

/// Replaces the local keys of a builder's payload by the final ones, and adds the bytes of its constants to `blobs`.
pub(super) fn with_final_keys(
    mut payload: Payload,
    data: &Data,
    blobs: &mut Blobs,
) -> Result<Payload, Reason> {
    for value in &mut payload.values {
        if let Some(constant) = &value.constant {
            let bytes = data.bytes(constant).map_err(|e| e.to_string())?;
            value.constant = Some(blobs.add_constant(bytes));
        }
    }
    Ok(payload)
}

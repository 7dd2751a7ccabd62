//! Converts graphs from JSON to graphs of an exported program: resolves names to values.

use super::expression;
use super::schema::{self, Argument as Json, OptionalTensor, SymArgument, SymInt};
use super::source::Sources;
use crate::{Error, Result};
use pteron_exported::{
    Argument, ExportedGraph, ExportedNode, ExportedProgram, IntArgument, MemoryFormat, Size, TensorSpec,
    VarId, VarType,
};
use pteron_tensor::{DimOrder, ScalarType};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The element type with this number in the schema.
pub(super) fn dtype_from_number(number: u32) -> Result<ScalarType, String> {
    use ScalarType::*;
    Ok(match number {
        1 => Byte,
        2 => Char,
        3 => Short,
        4 => Int,
        5 => Long,
        6 => Half,
        7 => Float,
        8 => Double,
        9 => ComplexHalf,
        10 => ComplexFloat,
        11 => ComplexDouble,
        12 => Bool,
        13 => BFloat16,
        28 => UInt16,
        29 => Float8E4M3FN,
        30 => Float8E5M2,
        31 => Float8E4M3FNUZ,
        32 => Float8E5M2FNUZ,
        34 => UInt32,
        35 => UInt64,
        other => return Err(format!("{other} is no type of elements that is known")),
    })
}

fn memory_format_from_number(number: u32) -> MemoryFormat {
    match number {
        1 => MemoryFormat::Contiguous,
        2 => MemoryFormat::ChannelsLast,
        3 => MemoryFormat::ChannelsLast3d,
        _ => MemoryFormat::Preserve,
    }
}

/// The value of a size that must be static.
pub(super) fn static_size(size: &SymInt) -> Result<usize, String> {
    match size {
        SymInt::AsInt(v) => usize::try_from(*v).map_err(|_| format!("{v} is no size")),
        SymInt::AsExpr(e) => Err(format!("`{}` where a number must be", e.expr_str)),
    }
}

/// Converts a size, which may be symbolic.
fn symbolic_size(size: &SymInt) -> Result<Size, String> {
    match size {
        SymInt::AsInt(v) => Ok(Size::Int(*v)),
        SymInt::AsExpr(e) => expression::parse(&e.expr_str),
    }
}

/// The value of an input or output that is a constant scalar or string.
pub(super) fn fixed_argument(json: &Json) -> Option<Argument> {
    Some(match json {
        Json::AsNone(_) => Argument::None,
        Json::AsInt(v) => Argument::Int(*v),
        Json::AsFloat(v) => Argument::Float(v.0),
        Json::AsBool(v) => Argument::Bool(*v),
        Json::AsString(v) => Argument::Str(v.clone()),
        _ => return None,
    })
}

/// Values by their names.
type Scope = HashMap<String, VarId>;

pub(super) struct GraphReader<'p> {
    program: &'p mut ExportedProgram,
    record: &'p str,
    sources: Sources,
    /// Interned names of arguments and operators.
    words: HashSet<Arc<str>>,
}

impl<'p> GraphReader<'p> {
    pub(super) fn new(program: &'p mut ExportedProgram, record: &'p str) -> Self {
        Self { program, record, sources: Sources::default(), words: HashSet::new() }
    }

    /// The top-level graph, and the values of its constant inputs.
    pub(super) fn read_outermost(
        &mut self,
        json: &schema::Graph,
    ) -> Result<(ExportedGraph, HashMap<VarId, Argument>)> {
        let mut scope = Scope::new();
        let mut inputs = Vec::with_capacity(json.inputs.len());
        let mut fixed = HashMap::new();
        for (i, input) in json.inputs.iter().enumerate() {
            let var = match fixed_argument(input) {
                Some(value) => {
                    let ty = match value {
                        Argument::Int(v) => VarType::Int(v.into()),
                        Argument::Float(_) => VarType::Float,
                        Argument::Bool(_) => VarType::Bool,
                        Argument::Str(_) => VarType::Str,
                        _ => VarType::Opaque,
                    };
                    let var = self.program.add_var(format!("input_{i}"), ty);
                    fixed.insert(var, value);
                    var
                }
                None => self.define_input(json, input, &mut scope)?,
            };
            inputs.push(var);
        }
        Ok((self.read_body(json, inputs, scope)?, fixed))
    }

    fn read_nested(&mut self, json: &schema::Graph) -> Result<ExportedGraph> {
        let mut scope = Scope::new();
        let inputs =
            json.inputs.iter().map(|i| self.define_input(json, i, &mut scope)).collect::<Result<_>>()?;
        self.read_body(json, inputs, scope)
    }

    fn define_input(&mut self, json: &schema::Graph, input: &Json, scope: &mut Scope) -> Result<VarId> {
        match self.define_results(json, input, scope)?.as_slice() {
            [one] => Ok(*one),
            _ => Err(self.record_error("an input of a graph is no single value")),
        }
    }

    fn read_body(
        &mut self,
        json: &schema::Graph,
        inputs: Vec<VarId>,
        mut scope: Scope,
    ) -> Result<ExportedGraph> {
        let mut nodes = Vec::with_capacity(json.nodes.len());
        for node in &json.nodes {
            nodes.push(self.read_node(json, node, &mut scope)?);
        }
        let outputs =
            json.outputs.iter().map(|o| self.read_argument("an output", o, &scope)).collect::<Result<_>>()?;
        Ok(ExportedGraph { inputs, nodes, outputs })
    }

    fn read_node(
        &mut self,
        json: &schema::Graph,
        node: &schema::Node,
        scope: &mut Scope,
    ) -> Result<ExportedNode> {
        let source = self.sources.intern(&node.metadata);
        let target = self.intern(node.target.strip_prefix("torch.ops.").unwrap_or(&node.target));
        let place = || match source.frames.last() {
            Some(line) => format!("a node ({}) at {line}", node.target),
            None => format!("a node ({})", node.target),
        };
        let mut args = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            let arg = self.read_argument(&place(), &input.arg, scope)?;
            args.push((self.intern(&input.name), arg));
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for output in &node.outputs {
            outputs.extend(self.define_results(json, output, scope)?);
        }
        Ok(ExportedNode { target, args, outputs, source })
    }

    fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(word) = self.words.get(text) {
            return Arc::clone(word);
        }
        let word: Arc<str> = text.into();
        self.words.insert(Arc::clone(&word));
        word
    }

    /// Defines the values named by an output of a node or an input of a graph.
    fn define_results(
        &mut self,
        json: &schema::Graph,
        output: &Json,
        scope: &mut Scope,
    ) -> Result<Vec<VarId>> {
        let number = |name: &SymArgument, ty: VarType| match name {
            SymArgument::AsName(name) => Some((name.clone(), ty)),
            _ => None,
        };
        let named = match output {
            Json::AsTensor(t) => vec![(t.name.clone(), self.tensor_type(json, &t.name)?)],
            Json::AsTensors(list) => list
                .iter()
                .map(|t| Ok((t.name.clone(), self.tensor_type(json, &t.name)?)))
                .collect::<Result<_>>()?,
            Json::AsOptionalTensor(OptionalTensor::AsTensor(t)) => {
                vec![(t.name.clone(), self.tensor_type(json, &t.name)?)]
            }
            Json::AsSymInt(sym) => {
                let size = match (sym, sym_name(sym).and_then(|n| json.sym_int_values.get(n))) {
                    (_, Some(json)) => symbolic_size(json).map_err(|problem| self.record_error(&problem))?,
                    (SymArgument::AsName(name), None) => Size::symbol(name.as_str()),
                    _ => return Err(self.record_error("a number is defined without a name")),
                };
                number(sym, VarType::Int(size)).into_iter().collect()
            }
            Json::AsSymFloat(sym) => number(sym, VarType::Float).into_iter().collect(),
            Json::AsSymBool(sym) => number(sym, VarType::Bool).into_iter().collect(),
            Json::AsCustomObj(object) => vec![(object.name.clone(), VarType::Opaque)],
            Json::AsNone(_) | Json::AsOptionalTensor(OptionalTensor::AsNone(_)) => {
                vec![(format!("none_{}", self.program.num_vars()), VarType::Opaque)]
            }
            _ => return Err(self.record_error("a result that is neither a tensor nor a number")),
        };
        let mut vars = Vec::with_capacity(named.len());
        for (name, ty) in named {
            let var = self.program.add_var(name.as_str(), ty);
            if scope.insert(name.clone(), var).is_some() {
                return Err(self.record_error(&format!("`{name}` is defined twice")));
            }
            vars.push(var);
        }
        Ok(vars)
    }

    fn tensor_type(&self, json: &schema::Graph, name: &str) -> Result<VarType> {
        let Some(meta) = json.tensor_values.get(name) else {
            return Err(self.record_error(&format!("the tensor `{name}` is not described in tensor_values")));
        };
        let of = |problem: String| Error::archive(format!("{} (`{name}`)", self.record), problem);
        let dtype = dtype_from_number(meta.dtype).map_err(of)?;
        if meta.sizes.len() > pteron_tensor::MAX_RANK {
            return Err(of(format!("rank {} is above {}", meta.sizes.len(), pteron_tensor::MAX_RANK)));
        }
        let sizes: Vec<Size> = meta.sizes.iter().map(symbolic_size).collect::<Result<_, _>>().map_err(of)?;
        if sizes.iter().any(|s| s.known().is_some_and(|v| v < 0)) {
            return Err(of("a size is negative".into()));
        }
        let dim_order = match is_channels_last(&sizes, &meta.strides) {
            true => DimOrder::channels_last(sizes.len()),
            false => DimOrder::contiguous(sizes.len()),
        };
        Ok(VarType::Tensor(TensorSpec { dtype, sizes, dim_order }))
    }

    fn read_argument(&mut self, place: &str, json: &Json, scope: &Scope) -> Result<Argument> {
        let var = |name: &str| {
            scope.get(name).copied().ok_or_else(|| {
                Error::archive(format!("{}: {place}", self.record), format!("`{name}` is not defined"))
            })
        };
        let optional = |t: &OptionalTensor| match t {
            OptionalTensor::AsTensor(t) => var(&t.name).map(Some),
            OptionalTensor::AsNone(_) => Ok(None),
        };
        let int = |s: &SymArgument| match s {
            SymArgument::AsName(name) => var(name).map(IntArgument::Var),
            SymArgument::AsInt(v) => Ok(IntArgument::Int(*v)),
            SymArgument::AsBool(v) => Ok(IntArgument::Int(i64::from(*v))),
            SymArgument::AsFloat(_) => Err(Error::archive(self.record, "a float in a list of integers")),
        };
        Ok(match json {
            Json::AsNone(_) => Argument::None,
            Json::AsTensor(t) => Argument::Var(var(&t.name)?),
            Json::AsTensors(list) => {
                Argument::Vars(list.iter().map(|t| var(&t.name)).collect::<Result<_>>()?)
            }
            Json::AsInt(v) => Argument::Int(*v),
            Json::AsInts(v) => Argument::ints(v),
            Json::AsFloat(v) => Argument::Float(v.0),
            Json::AsFloats(v) => Argument::Floats(v.iter().map(|f| f.0).collect()),
            Json::AsString(v) | Json::AsOperator(v) => Argument::Str(v.clone()),
            Json::AsStrings(v) => Argument::Strs(v.clone()),
            Json::AsSymInt(s) | Json::AsSymFloat(s) | Json::AsSymBool(s) => match s {
                SymArgument::AsName(name) => Argument::Var(var(name)?),
                SymArgument::AsInt(v) => Argument::Int(*v),
                SymArgument::AsFloat(v) => Argument::Float(v.0),
                SymArgument::AsBool(v) => Argument::Bool(*v),
            },
            Json::AsSymInts(list) | Json::AsSymBools(list) => {
                Argument::Ints(list.iter().map(int).collect::<Result<_>>()?)
            }
            Json::AsSymFloats(list) => {
                let float = |s: &SymArgument| match s {
                    SymArgument::AsFloat(v) => Ok(v.0),
                    SymArgument::AsInt(v) => Ok(*v as f64),
                    _ => {
                        Err(Error::archive(format!("{}: {place}", self.record), "a list of computed floats"))
                    }
                };
                Argument::Floats(list.iter().map(float).collect::<Result<_>>()?)
            }
            Json::AsScalarType(v) => Argument::Dtype(
                dtype_from_number(*v).map_err(|p| Error::archive(format!("{}: {place}", self.record), p))?,
            ),
            Json::AsMemoryFormat(v) => Argument::MemoryFormat(memory_format_from_number(*v)),
            Json::AsLayout(_) | Json::AsDevice(_) => Argument::Ignored,
            Json::AsBool(v) => Argument::Bool(*v),
            Json::AsBools(v) => Argument::Bools(v.clone()),
            Json::AsOptionalTensor(t) => optional(t)?.map_or(Argument::None, Argument::Var),
            Json::AsOptionalTensors(list) => {
                Argument::OptionalVars(list.iter().map(optional).collect::<Result<_>>()?)
            }
            Json::AsComplex(c) => Argument::Complex(c.real.0, c.imag.0),
            Json::AsGraph(graph) => Argument::Graph(Box::new(self.read_nested(&graph.graph)?)),
            Json::AsCustomObj(object) => Argument::Var(var(&object.name)?),
            Json::AsNestedTensors(_)
            | Json::AsIntLists(_)
            | Json::AsFloatLists(_)
            | Json::AsStringToArgument(_) => {
                let place = format!("{}: {place}", self.record);
                return Err(Error::archive(
                    place,
                    "an argument of nested lists, which no operator here takes",
                ));
            }
        })
    }

    fn record_error(&self, problem: &str) -> Error {
        Error::archive(self.record, problem)
    }
}

fn sym_name(sym: &SymArgument) -> Option<&str> {
    if let SymArgument::AsName(name) = sym { Some(name) } else { None }
}

/// Whether strides are channels-last and not also row-major.
fn is_channels_last(sizes: &[Size], strides: &[SymInt]) -> bool {
    let rank = sizes.len();
    if !matches!(rank, 4 | 5) || strides.len() != rank {
        return false;
    }
    let stride = |d: usize| if let SymInt::AsInt(v) = &strides[d] { Some(*v) } else { None };
    let size = |d: usize| sizes[d].known();
    // With a single channel or a single pixel, the two layouts are the same.
    let pixels = (2..rank).map(size).try_fold(1i64, |n, s| n.checked_mul(s?));
    stride(1) == Some(1) && size(1) != Some(1) && pixels != Some(1) && stride(rank - 1) == size(1)
}

//! A program as an exporter saves it: operator calls by name, before kernels, memory and instructions are assigned.
//!
//! An [`ExportedProgram`] is a higher-level IR than [`Graph`](pteron_ir::Graph). Its nodes name operators for which there
//! may be no kernel, take Python's kinds of arguments, have symbolic sizes, and take whole graphs as arguments (a
//! branch, the body of a loop). A partitioner tags it, a backend's preprocess step consumes its parts, and the compiler
//! rewrites it until every node is a call for which there is a kernel.
//!
//! Values are in SSA form and numbered across the whole program, so that a nested graph may use values of the graphs
//! around it.
#![forbid(unsafe_code)]

mod argument;
mod budget;
pub mod containers;
pub mod delegate;
mod expression;
mod input_sizes;
mod layout;
mod parse;
mod print;
mod select;
mod size;
mod verify;

pub use argument::{Argument, IntArgument, MemoryFormat};
pub use budget::CompileBudget;
pub use expression::Expression;
pub use input_sizes::{InputSizes, SizeProblem};
pub use parse::{ParseError, parse};
pub use print::PrintOptions;
pub use select::{Callable, Selection, Slot};
pub use size::{Bounds, Ranges, Size, SymExpr, SymOp};

use pteron_ir::{Bytes, SharedBytes, reopen_or_share};
use pteron_tensor::{DimOrder, ScalarType};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The id of a value of an [`ExportedProgram`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VarId(u32);

impl VarId {
    /// The index, in order of creation.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Element type, sizes and layout of a tensor value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The element type.
    pub dtype: ScalarType,
    /// The sizes, dimension 0 first, whatever the layout.
    pub sizes: Vec<Size>,
    /// The layout.
    pub dim_order: DimOrder,
}

impl TensorSpec {
    /// The spec of a row-major tensor.
    pub fn contiguous(dtype: ScalarType, sizes: Vec<Size>) -> Self {
        let dim_order = DimOrder::contiguous(sizes.len());
        Self { dtype, sizes, dim_order }
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// The sizes, if all are known.
    pub fn known_sizes(&self) -> Option<Vec<i64>> {
        self.sizes.iter().map(Size::known).collect()
    }

    /// The number of elements; symbolic if a size is.
    pub fn numel(&self) -> Size {
        self.sizes.iter().fold(Size::Int(1), |n, s| n.mul(s))
    }
}

/// The type of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum VarType {
    /// A tensor.
    Tensor(TensorSpec),
    /// An integer, known or symbolic.
    Int(Size),
    /// A floating-point number.
    Float,
    /// A boolean.
    Bool,
    /// A string.
    Str,
    /// A value that no node may use: a token, or an output that was not requested.
    Opaque,
}

/// A value: its name in the source program and its type.
#[derive(Debug, Clone, PartialEq)]
pub struct Var {
    /// The name.
    pub name: Arc<str>,
    /// The type.
    pub ty: VarType,
}

/// The place in the source program that a node comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// The Python stack frames, outermost first.
    pub frames: Vec<SourceFrame>,
    /// Path of the module whose `forward` created the node, such as `layers.0.attn`; empty for the root module.
    pub module: String,
}

/// A line of source code.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceFrame {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// The function.
    pub function: String,
    /// The text of the line.
    pub text: String,
}

impl fmt::Display for SourceFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}, in {}: {}", self.file, self.line, self.function, self.text)
    }
}

/// A call of an operator.
#[derive(Debug, Clone)]
pub struct ExportedNode {
    /// The operator: namespace, name and overload, `aten.add.Tensor`.
    pub target: Arc<str>,
    /// The arguments with their names, in order; omitted ones have the default of the schema. The name is empty if the
    /// operator declares none.
    pub args: Vec<(Arc<str>, Argument)>,
    /// The results. A list of tensors is flattened.
    pub outputs: Vec<VarId>,
    /// The place in the source program.
    pub source: Arc<Source>,
}

impl ExportedNode {
    /// An argument by its name.
    pub fn arg(&self, name: &str) -> Option<&Argument> {
        self.args.iter().find(|(n, _)| **n == *name).map(|(_, a)| a)
    }

    /// All values that the node uses itself, without those that only a nested graph uses.
    pub fn operands(&self) -> impl Iterator<Item = VarId> + '_ {
        self.args.iter().flat_map(|(_, arg)| arg.vars())
    }

    /// The nested graphs among the node's arguments.
    pub fn graphs(&self) -> impl Iterator<Item = &ExportedGraph> {
        self.args.iter().filter_map(|(_, a)| if let Argument::Graph(g) = a { Some(&**g) } else { None })
    }

    /// The nested graphs among the node's arguments, mutable.
    pub fn graphs_mut(&mut self) -> impl Iterator<Item = &mut ExportedGraph> {
        self.args
            .iter_mut()
            .filter_map(|(_, a)| if let Argument::Graph(g) = a { Some(&mut **g) } else { None })
    }

    /// The innermost line of source code that created the node.
    pub fn line(&self) -> Option<&SourceFrame> {
        self.source.frames.last()
    }
}

/// Nodes in execution order.
#[derive(Debug, Clone, Default)]
pub struct ExportedGraph {
    /// The inputs.
    pub inputs: Vec<VarId>,
    /// The nodes.
    pub nodes: Vec<ExportedNode>,
    /// The outputs: values, or constants that the exporter knew.
    pub outputs: Vec<Argument>,
}

impl ExportedGraph {
    /// Calls a function with every node. Nodes of nested graphs follow the node that contains them.
    pub fn for_each_node<'a>(&'a self, visit: &mut impl FnMut(&'a ExportedNode)) {
        for node in &self.nodes {
            visit(node);
            node.graphs().for_each(|g| g.for_each_node(visit));
        }
    }

    /// The number of nodes, including those of nested graphs.
    pub fn num_nodes(&self) -> usize {
        let mut count = 0;
        self.for_each_node(&mut |_| count += 1);
        count
    }
}

/// The kind of an input of the outermost graph.
#[derive(Debug, Clone, PartialEq)]
pub enum InputKind {
    /// An input that the caller passes.
    User,
    /// A number or string that the caller passes, and for which the exporter assumed this fixed value.
    Fixed(Argument),
    /// A trainable parameter, with its value in [`ExportedProgram::constants`].
    Parameter,
    /// A constant, or mutable state if the program writes it.
    Buffer,
    /// A constant.
    Constant,
    /// An effect token, which carries no data.
    Token,
}

/// A write that an execution makes to state, for the next execution, or to an input of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mutation {
    /// The input that is written.
    pub input: VarId,
    /// The value that becomes the input's new contents.
    pub value: VarId,
}

/// The bytes of a constant tensor of the program.
#[derive(Clone)]
pub struct ConstantTensor {
    /// The tensor's name in the source model, if it has one.
    pub name: Option<Arc<str>>,
    /// The bytes that contain the tensor, possibly together with others.
    pub bytes: SharedBytes,
    /// The range of this tensor's bytes, in the layout of its [`TensorSpec`].
    pub range: Range<usize>,
}

impl ConstantTensor {
    /// The tensor's bytes. If they are loaded on access, this handle keeps them in memory: see [`Self::reopened`].
    pub fn data(&self) -> &[u8] {
        self.bytes.bytes().get(self.range.clone()).unwrap_or_default()
    }

    /// The same constant through another handle, so that reading its bytes there keeps no loaded bytes in this one: see
    /// [`Bytes::reopen`].
    #[must_use]
    pub fn reopened(&self) -> Self {
        Self { bytes: reopen_or_share(&self.bytes), ..self.clone() }
    }
}

impl Bytes for ConstantTensor {
    fn bytes(&self) -> &[u8] {
        self.data()
    }

    fn len(&self) -> usize {
        self.range.len()
    }

    fn problem(&self) -> Option<String> {
        self.bytes.problem()
    }

    fn reopen(&self) -> Option<SharedBytes> {
        let bytes = self.bytes.reopen()?;
        Some(Arc::new(Self { bytes, ..self.clone() }))
    }

    fn release(&self) {
        self.bytes.release();
    }
}

impl fmt::Debug for ConstantTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConstantTensor({:?}, {} bytes)", self.name, self.range.len())
    }
}

/// A program as an exporter saves it.
#[derive(Debug, Clone, Default)]
pub struct ExportedProgram {
    /// The name of the method that is compiled from the program.
    pub name: String,
    /// The outermost graph.
    pub graph: ExportedGraph,
    /// The kind of each input of the graph, in order.
    pub inputs: Vec<InputKind>,
    /// The writes to state and inputs, in order.
    pub mutations: Vec<Mutation>,
    /// The buffers that this method shares with other methods, and the offset of each in the shared memory. Each has a
    /// [`Mutation`], if only by its own value.
    pub shared: BTreeMap<VarId, u64>,
    /// The size of the memory that methods share, in bytes.
    pub shared_bytes: u64,
    /// The bounds of the symbols.
    pub ranges: Ranges,
    /// The constant values.
    pub constants: BTreeMap<VarId, ConstantTensor>,
    /// The delegation tag of each tagged node, keyed by its first result.
    pub tags: BTreeMap<VarId, Arc<str>>,
    /// The parts that were lowered to backends; delegate calls refer to them by index.
    pub lowered: Vec<Arc<delegate::LoweredModule>>,
    /// The Python containers of the inputs, as pytree JSON.
    pub in_spec: Option<String>,
    /// The Python containers of the outputs, as pytree JSON.
    pub out_spec: Option<String>,
    /// The names of the inputs that the caller passes, in order; empty if they are not known.
    pub input_names: Vec<Option<String>>,
    /// The names of the outputs, in order; empty if they are not known.
    pub output_names: Vec<Option<String>>,
    /// The memory that compiling the program may take, beside the bytes of the source file: copies of weights, folded
    /// constants, nodes. Unlimited by default.
    pub budget: CompileBudget,
    vars: Vec<Var>,
}

impl ExportedProgram {
    /// A program without values.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds a value and returns its id.
    pub fn add_var(&mut self, name: impl Into<Arc<str>>, ty: VarType) -> VarId {
        self.vars.push(Var { name: name.into(), ty });
        VarId(u32::try_from(self.vars.len() - 1).unwrap_or(u32::MAX))
    }

    /// The value with this id.
    pub fn var(&self, id: VarId) -> &Var {
        &self.vars[id.index()]
    }

    /// The value with this id, mutable.
    pub fn var_mut(&mut self, id: VarId) -> &mut Var {
        &mut self.vars[id.index()]
    }

    /// The number of values.
    pub fn num_vars(&self) -> usize {
        self.vars.len()
    }

    /// The ids of all values, in order of creation.
    pub fn var_ids(&self) -> impl Iterator<Item = VarId> + use<> {
        (0..self.vars.len() as u32).map(VarId)
    }

    /// The name of a node: that of its first result.
    pub fn node_name(&self, node: &ExportedNode) -> String {
        node.outputs.first().map_or_else(|| "(no result)".to_owned(), |&v| self.var(v).name.to_string())
    }

    /// The number of uses of each value: by nodes, including those of nested graphs, by graph outputs, and by
    /// mutations.
    pub fn use_counts(&self) -> Vec<u32> {
        fn count_graph_uses(graph: &ExportedGraph, uses: &mut [u32]) {
            for node in &graph.nodes {
                node.operands().for_each(|v| uses[v.index()] += 1);
                node.graphs().for_each(|inner| count_graph_uses(inner, uses));
            }
            graph.outputs.iter().flat_map(Argument::vars).for_each(|v| uses[v.index()] += 1);
        }
        let mut uses = vec![0; self.num_vars()];
        count_graph_uses(&self.graph, &mut uses);
        self.mutations.iter().for_each(|m| uses[m.value.index()] += 1);
        uses
    }

    /// The spec of a value, if it is a tensor.
    pub fn spec(&self, id: VarId) -> Option<&TensorSpec> {
        if let VarType::Tensor(spec) = &self.var(id).ty { Some(spec) } else { None }
    }

    /// Adds a constant tensor.
    pub fn add_constant(
        &mut self,
        name: impl Into<Arc<str>>,
        spec: TensorSpec,
        data: ConstantTensor,
    ) -> VarId {
        let id = self.add_var(name, VarType::Tensor(spec));
        self.constants.insert(id, data);
        id
    }

    /// The inputs that the caller passes, in order.
    pub fn user_inputs(&self) -> impl Iterator<Item = VarId> + '_ {
        let is_user_input = |kind: &InputKind| matches!(kind, InputKind::User | InputKind::Fixed(_));
        self.graph.inputs.iter().zip(&self.inputs).filter(move |(_, k)| is_user_input(k)).map(|(&v, _)| v)
    }

    /// Whether an execution writes this input.
    pub fn is_mutated(&self, input: VarId) -> bool {
        self.mutations.iter().any(|m| m.input == input)
    }
}

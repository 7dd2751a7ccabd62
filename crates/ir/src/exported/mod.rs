//! A program as an exporter saves it: calls of operators by name, before kernels, memory and instructions.
//!
//! An [`ExportedProgram`] stands above [`Graph`](crate::Graph). Its nodes name operators that need no kernel, take
//! Python's kinds of arguments, have sizes that are expressions, and hold whole graphs as arguments (a branch, the
//! body of a loop). A partitioner tags it, a backend's preprocess takes it, and the compiler rewrites it until every
//! node is a call that a kernel can make.
//!
//! Values are single-assignment and numbered for the whole program, so that a nested graph may use those of the
//! graphs around it.

mod argument;
pub mod delegate;
mod print;
mod select;
mod size;
mod verify;

pub use argument::{Argument, IntArgument, MemoryFormat};
pub use print::PrintOptions;
pub use select::{Callable, Selection, Slot};
pub use size::{Bounds, Ranges, Size, SymExpr, SymOp};

use crate::SharedBytes;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tensor::{DimOrder, ScalarType};

/// A value of an [`ExportedProgram`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VarId(u32);

impl VarId {
    /// The index, counted in the order of creation.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Type, sizes and layout of a tensor value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The type of the elements.
    pub dtype: ScalarType,
    /// The sizes, outermost dimension first.
    pub sizes: Vec<Size>,
    /// The layout.
    pub dim_order: DimOrder,
}

impl TensorSpec {
    /// A row-major tensor.
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

    /// The number of elements, an expression where sizes are.
    pub fn numel(&self) -> Size {
        self.sizes.iter().fold(Size::Int(1), |n, s| n.mul(s))
    }
}

/// What a value is.
#[derive(Debug, Clone, PartialEq)]
pub enum VarType {
    /// A tensor.
    Tensor(TensorSpec),
    /// An integer and what is known of it.
    Int(Size),
    /// A floating-point number.
    Float,
    /// A boolean.
    Bool,
    /// A string.
    Str,
    /// A value that no node of a program may use: a token, an output that was not asked for.
    Opaque,
}

/// A value: its name in the source program and what it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Var {
    /// The name.
    pub name: Arc<str>,
    /// What it is.
    pub ty: VarType,
}

/// Where in the source program a node comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// Python's frames, outermost first.
    pub frames: Vec<SourceFrame>,
    /// Path of the module whose `forward` made the node, such as `layers.0.attn`; empty for the outermost.
    pub module: String,
}

/// A line of source code.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceFrame {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The function.
    pub function: String,
    /// The line's text.
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
    /// The arguments by name, in order; those left out have the default of the schema. The name is empty where the
    /// operator declares none.
    pub args: Vec<(Arc<str>, Argument)>,
    /// The results. A list counts as its elements.
    pub outputs: Vec<VarId>,
    /// Where it comes from.
    pub source: Arc<Source>,
}

impl ExportedNode {
    /// An argument by its name.
    pub fn arg(&self, name: &str) -> Option<&Argument> {
        self.args.iter().find(|(n, _)| **n == *name).map(|(_, a)| a)
    }

    /// All values that it uses; not those that only a nested graph uses.
    pub fn operands(&self) -> impl Iterator<Item = VarId> + '_ {
        self.args.iter().flat_map(|(_, arg)| arg.vars())
    }

    /// The nested graphs among its arguments.
    pub fn graphs(&self) -> impl Iterator<Item = &ExportedGraph> {
        self.args.iter().filter_map(|(_, a)| if let Argument::Graph(g) = a { Some(&**g) } else { None })
    }

    /// The nested graphs among its arguments, to be changed.
    pub fn graphs_mut(&mut self) -> impl Iterator<Item = &mut ExportedGraph> {
        self.args
            .iter_mut()
            .filter_map(|(_, a)| if let Argument::Graph(g) = a { Some(&mut **g) } else { None })
    }

    /// The innermost line of source code.
    pub fn line(&self) -> Option<&SourceFrame> {
        self.source.frames.last()
    }
}

/// Nodes in the order in which they run.
#[derive(Debug, Clone, Default)]
pub struct ExportedGraph {
    /// What it is given.
    pub inputs: Vec<VarId>,
    /// The nodes.
    pub nodes: Vec<ExportedNode>,
    /// What it gives: values, or numbers that the exporter knew.
    pub outputs: Vec<Argument>,
}

impl ExportedGraph {
    /// Calls a function with every node, those of nested graphs after the node that holds them.
    pub fn for_each_node<'a>(&'a self, visit: &mut impl FnMut(&'a ExportedNode)) {
        for node in &self.nodes {
            visit(node);
            node.graphs().for_each(|g| g.for_each_node(visit));
        }
    }

    /// The number of nodes, those of nested graphs with them.
    pub fn num_nodes(&self) -> usize {
        let mut count = 0;
        self.for_each_node(&mut |_| count += 1);
        count
    }
}

/// What an input of the outermost graph is.
#[derive(Debug, Clone, PartialEq)]
pub enum InputKind {
    /// The caller gives it.
    User,
    /// The caller gives a number or string that the exporter took for fixed.
    Fixed(Argument),
    /// A constant of [`ExportedProgram::constants`] that training changes.
    Parameter,
    /// A constant, or, if the program writes it, state.
    Buffer,
    /// A constant.
    Constant,
    /// Nothing that computes.
    Token,
}

/// A value that an execution writes for the next execution or into an input of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mutation {
    /// The input that is written.
    pub input: VarId,
    /// What it is afterwards.
    pub value: VarId,
}

/// The bytes of a tensor that the program brings.
#[derive(Clone)]
pub struct ConstantTensor {
    /// Its name in the source model, if it has one.
    pub name: Option<Arc<str>>,
    /// The bytes that hold it, perhaps with others.
    pub bytes: SharedBytes,
    /// Which of them are this tensor's, in the layout of its [`TensorSpec`].
    pub range: Range<usize>,
}

impl ConstantTensor {
    /// The tensor's bytes.
    pub fn data(&self) -> &[u8] {
        self.bytes.bytes().get(self.range.clone()).unwrap_or_default()
    }
}

impl AsRef<[u8]> for ConstantTensor {
    fn as_ref(&self) -> &[u8] {
        self.data()
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
    /// The name of the method that it becomes.
    pub name: String,
    /// The outermost graph.
    pub graph: ExportedGraph,
    /// What each input of the graph is, in order.
    pub inputs: Vec<InputKind>,
    /// What an execution leaves, in order.
    pub mutations: Vec<Mutation>,
    /// How far symbols go.
    pub ranges: Ranges,
    /// The values that are constants.
    pub constants: BTreeMap<VarId, ConstantTensor>,
    /// The delegation tag of each tagged node, by its first result.
    pub tags: BTreeMap<VarId, Arc<str>>,
    /// The parts that backends have taken, by the index with which calls name them.
    pub lowered: Vec<Arc<delegate::LoweredModule>>,
    /// Python's containers around the inputs, as pytree JSON.
    pub in_spec: Option<String>,
    /// Python's containers around the outputs.
    pub out_spec: Option<String>,
    vars: Vec<Var>,
}

impl ExportedProgram {
    /// A program without values.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Makes a value.
    pub fn add_var(&mut self, name: impl Into<Arc<str>>, ty: VarType) -> VarId {
        self.vars.push(Var { name: name.into(), ty });
        VarId(u32::try_from(self.vars.len() - 1).unwrap_or(u32::MAX))
    }

    /// A value.
    pub fn var(&self, id: VarId) -> &Var {
        &self.vars[id.index()]
    }

    /// A value, to be changed.
    pub fn var_mut(&mut self, id: VarId) -> &mut Var {
        &mut self.vars[id.index()]
    }

    /// The number of values.
    pub fn num_vars(&self) -> usize {
        self.vars.len()
    }

    /// Every id.
    pub fn var_ids(&self) -> impl Iterator<Item = VarId> + use<> {
        (0..self.vars.len() as u32).map(VarId)
    }

    /// What a node is called: its first result.
    pub fn node_name(&self, node: &ExportedNode) -> String {
        node.outputs.first().map_or_else(|| "(no result)".to_owned(), |&v| self.var(v).name.to_string())
    }

    /// How often each value is named: by nodes, those of nested graphs with them, by outputs of graphs, and as what is
    /// left for the next execution.
    pub fn use_counts(&self) -> Vec<u32> {
        fn of_graph(graph: &ExportedGraph, uses: &mut [u32]) {
            for node in &graph.nodes {
                node.operands().for_each(|v| uses[v.index()] += 1);
                node.graphs().for_each(|inner| of_graph(inner, uses));
            }
            graph.outputs.iter().flat_map(Argument::vars).for_each(|v| uses[v.index()] += 1);
        }
        let mut uses = vec![0; self.num_vars()];
        of_graph(&self.graph, &mut uses);
        self.mutations.iter().for_each(|m| uses[m.value.index()] += 1);
        uses
    }

    /// The spec of a value that is a tensor.
    pub fn spec(&self, id: VarId) -> Option<&TensorSpec> {
        if let VarType::Tensor(spec) = &self.var(id).ty { Some(spec) } else { None }
    }

    /// Makes a constant tensor.
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

    /// The inputs that the caller gives, in order.
    pub fn user_inputs(&self) -> impl Iterator<Item = VarId> + '_ {
        let given = |kind: &InputKind| matches!(kind, InputKind::User | InputKind::Fixed(_));
        self.graph.inputs.iter().zip(&self.inputs).filter(move |(_, k)| given(k)).map(|(&v, _)| v)
    }

    /// Whether an execution writes this input.
    pub fn is_mutated(&self, input: VarId) -> bool {
        self.mutations.iter().any(|m| m.input == input)
    }
}

//! Payloads: a BEF file of one function, whose kernels are the nodes of a graph.
//!
//! ```text
//! func.func @forward(%0: !pteron.tensor<float32, ?0, 64>) -> !pteron.tensor<float32, ?0, 10> {
//!   "pteron.graph"() {version = 1, expressions = ["s0"], maxima = [32]}
//!   %1 = "pteron.constant"() {bytes = 2560, key = "9f86d0…"} : !pteron.tensor<float32, 10, 64>
//!   %2 = "pteron.call"(%0, %1) {arguments = ["tensor", "tensor", "none", "out:0"], operator = "aten::linear.out"}
//!   tfrt.return %2
//! }
//! ```
//!
//! Registers are the values of the graph, and their types say element type, sizes and dim order. A size `?n` is an
//! expression of the first kernel; its symbols are bound by the sizes of the arguments. Constants are named data.
//! Other kernels are calls of operators, by name, and the kinds of fused nodes (`src/kinds`).

mod call;
mod contents;
mod fields;
mod read;
mod size;
mod types;
mod write;

pub use call::Arg;
pub(crate) use call::outs;
pub(crate) use fields::{Fields, Record};
pub use size::{Expression, Number};

use graph::Kind;
use std::sync::Arc;
use tensor::{DimOrder, ScalarType};

/// The version of payloads that this crate writes and reads.
pub const VERSION: i64 = 1;

/// The kernel that stands first, with what belongs to the whole graph.
pub(crate) const GRAPH: &str = "pteron.graph";
/// The kernel that gives a constant.
pub(crate) const CONSTANT: &str = "pteron.constant";
/// The kernel that calls an operator.
pub(crate) const CALL: &str = "pteron.call";

/// A graph as it is stored.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    /// The name of its function: that of the method.
    pub name: String,
    /// Sizes that follow from those of the inputs.
    pub expressions: Vec<Expression>,
    /// The greatest value of each symbol.
    pub maxima: Vec<i64>,
    /// All values; those that calls of the delegate give come first.
    pub values: Vec<Value>,
    /// The number of inputs.
    pub inputs: usize,
    /// The nodes, in an order in which they can run.
    pub nodes: Vec<Node>,
    /// The values that calls of the delegate take.
    pub outputs: Vec<usize>,
}

/// A value of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// What it is.
    pub ty: Type,
    /// Where its bytes are, if it is a constant.
    pub constant: Option<Constant>,
}

/// What a value of a payload is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// A tensor.
    Tensor {
        /// The type of its elements.
        dtype: ScalarType,
        /// Its sizes.
        sizes: Vec<Number>,
        /// Its layout.
        dim_order: DimOrder,
    },
    /// An input that is no tensor. Nothing reads it: what follows from it follows from sizes, too.
    Number,
}

/// The bytes of a constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// The key of the named data; none of a constant without elements.
    pub key: Option<String>,
    /// How many there are.
    pub bytes: u64,
    /// The same elements laid out for some machines, too.
    pub laid_out: Vec<LaidOut>,
}

/// The elements of a constant, laid out for a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaidOut {
    /// The name of the layout.
    pub layout: String,
    /// The key of the named data.
    pub key: String,
}

/// A node of a payload.
#[derive(Debug, Clone)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// The values that it reads.
    pub inputs: Vec<usize>,
    /// The values that it defines.
    pub outputs: Vec<usize>,
    /// File and line of the source program.
    pub source: Option<(String, u64)>,
}

/// What a node of a payload does.
#[derive(Debug, Clone)]
pub enum Op {
    /// It calls an operator.
    Call {
        /// The operator's full name.
        operator: String,
        /// What stands at each position of the schema.
        args: Vec<Arg>,
    },
    /// It is of one of the graph's own kinds.
    Fused(Arc<dyn Kind>),
}

impl Op {
    /// What is called, or the kind of the node: for listings and errors.
    pub fn name(&self) -> &str {
        match self {
            Self::Call { operator, .. } => operator,
            Self::Fused(kind) => kind.name(),
        }
    }
}

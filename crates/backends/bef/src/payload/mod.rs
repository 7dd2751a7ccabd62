//! Payloads: BEF files of one function, whose kernels are the nodes of a graph.
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
//! Registers are the values of the graph; their types have element type, sizes and dim order. A size `?n` is the `n`th
//! expression of the first kernel, whose symbols are bound by the sizes of the arguments. Constants are named data.
//! Other kernels are operator calls, by name, and operations (`src/kinds`).

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
pub use pteron_exported::Expression;
pub use size::Number;

use pteron_engine::Kind;
use pteron_tensor::{DimOrder, ScalarType};
use std::sync::Arc;

/// The payload version that this crate reads and writes.
pub const VERSION: i64 = 1;

/// The first kernel, with the attributes of the whole graph.
pub(crate) const GRAPH: &str = "pteron.graph";
/// The kernel that defines a constant.
pub(crate) const CONSTANT: &str = "pteron.constant";
/// The kernel that calls an operator.
pub(crate) const CALL: &str = "pteron.call";

/// A stored graph.
#[derive(Debug, Clone, Default)]
pub struct Payload {
    /// The name of the payload's function, which is that of the method.
    pub name: String,
    /// The expressions for dynamic sizes.
    pub expressions: Vec<Expression>,
    /// The maximum of each symbol, inclusive; `i64::MAX` if it has none.
    pub maxima: Vec<i64>,
    /// All values; the inputs of delegate calls come first.
    pub values: Vec<Value>,
    /// The number of the delegate call's inputs, which are the first values.
    pub inputs: usize,
    /// The nodes, in an order in which they can run.
    pub nodes: Vec<Node>,
    /// The values that delegate calls return, by index.
    pub outputs: Vec<usize>,
}

/// A value of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The value's element type, sizes and layout, or that the value is a number.
    pub ty: Type,
    /// The reference to the value's bytes, if the value is a constant.
    pub constant: Option<Constant>,
}

/// The type of a payload's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Type {
    /// A tensor whose sizes may depend on the sizes of the inputs.
    Tensor {
        /// The element type.
        dtype: ScalarType,
        /// The size of each dimension: known, or an expression.
        sizes: Vec<Number>,
        /// The order of the dimensions in memory.
        dim_order: DimOrder,
    },
    /// An input that is not a tensor. No node reads it, because whatever depends on it also follows from tensor sizes.
    Number,
}

/// A reference to the bytes of a constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constant {
    /// The key of the named data; `None` for a constant without elements.
    pub key: Option<String>,
    /// The number of bytes.
    pub bytes: u64,
    /// The packed forms of the constant's elements for certain instruction sets.
    pub laid_out: Vec<LaidOut>,
}

/// The elements of a constant, packed for an instruction set.
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
    /// The operation that the node computes.
    pub op: Op,
    /// The values that the node reads, by index.
    pub inputs: Vec<usize>,
    /// The values that the node defines, by index.
    pub outputs: Vec<usize>,
    /// The file, and the line from 1 on, in the source program; `None` if it is not known.
    pub source: Option<(String, u64)>,
}

/// What a node of a payload computes.
#[derive(Debug, Clone)]
pub enum Op {
    /// An operator call.
    Call {
        /// The operator's full name.
        operator: String,
        /// The argument at each position of the schema.
        args: Vec<Arg>,
    },
    /// An operation of the engine, as the passes leave it.
    Node(Arc<dyn Kind>),
}

impl Op {
    /// The name of the operator or operation, for listings and errors.
    pub fn name(&self) -> &str {
        match self {
            Self::Call { operator, .. } => operator,
            Self::Node(kind) => kind.name(),
        }
    }
}

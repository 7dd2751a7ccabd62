//! The operators that a compiled program may call, and the selection of one for a node.

pub(crate) use ir::exported::{Selection, Slot, VarId};

use ir::exported::{Argument, Callable, ExportedNode, ExportedProgram, IntArgument};
use operator::{Kernel, KernelRegistry};
use std::sync::Arc;

/// The operators of ExecuTorch 1.5's portable, optimized and primitive kernels: the only ones that a program may call
/// if it must also run on the reference runtime.
const PORTABLE: &str = include_str!("portable_operators.txt");

/// The operators that a compiled program may call.
pub struct OperatorTable {
    callable: Callable,
    /// Whether to reject what the kernels of the reference runtime reject.
    is_portable: bool,
}

impl OperatorTable {
    /// Every operator of a registry.
    pub fn all(registry: &KernelRegistry) -> Self {
        Self { callable: Callable::of(registry, |_| true), is_portable: false }
    }

    /// The operators of a registry that the reference runtime has, too, and custom operators: those in namespaces that
    /// the reference runtime does not define.
    pub fn portable(registry: &KernelRegistry) -> Self {
        let known: std::collections::HashSet<&str> = PORTABLE.lines().collect();
        let own = ["aten::", "executorch_prim::", "dim_order_ops::", "et_copy::", "llama::"];
        let keep = |name: &str| known.contains(name) || !own.iter().any(|o| name.starts_with(o));
        Self { callable: Callable::of(registry, keep), is_portable: true }
    }

    /// A kernel by its full name, `aten::add.out`.
    pub(crate) fn kernel(&self, name: &str) -> Option<Arc<dyn Kernel>> {
        self.callable.kernel(name).cloned()
    }

    /// Selects the operator whose schema accepts a node's arguments, if there is one.
    pub(crate) fn select(&self, program: &ExportedProgram, node: &ExportedNode) -> Option<Selection> {
        if is_refused(program, node) || self.is_portable && is_refused_by_the_reference(program, node) {
            return None;
        }
        self.callable.select(program, node)
    }

    /// Why no operator takes a node, e.g. the names of similar operators.
    pub(crate) fn hint(&self, node: &ExportedNode) -> String {
        self.callable.hint(node)
    }
}

/// Arguments that every kernel rejects, although the schema allows them, or results that none makes.
fn is_refused(program: &ExportedProgram, node: &ExportedNode) -> bool {
    match &*node.target {
        // Kernels take one batch dimension and one dimension of heads.
        "aten.scaled_dot_product_attention.default" => {
            ["query", "key", "value"].iter().any(|name| rank(program, node, name) > 4)
        }
        // The kernel makes a tensor.
        "aten.allclose.default" => node.outputs.iter().any(|&v| program.spec(v).is_none()),
        _ => false,
    }
}

/// Arguments that a kernel of the reference runtime rejects, although the schema allows them.
fn is_refused_by_the_reference(program: &ExportedProgram, node: &ExportedNode) -> bool {
    match &*node.target {
        "aten._fft_r2c.default" => matches!(node.arg("onesided"), Some(Argument::Bool(false))),
        // It does not crop.
        "aten.constant_pad_nd.default" => {
            node.arg("pad").and_then(Argument::known_ints).is_some_and(|pads| pads.iter().any(|&pad| pad < 0))
        }
        // It takes images and signals, but no volumes.
        "aten.convolution.default" => rank(program, node, "input") > 4,
        target => {
            let base = target.rsplit_once('.').map_or(target, |(base, _)| base);
            is_refused_of_complex_numbers(program, node, base)
        }
    }
}

/// Whether a kernel of the reference runtime rejects complex operands, as observed with release 1.5.1. These operators
/// compute or move elements and can be decomposed into operators on the real and imaginary parts.
fn is_refused_of_complex_numbers(program: &ExportedProgram, node: &ExportedNode, base: &str) -> bool {
    let dtype = |var: VarId| program.spec(var).map(|spec| spec.dtype);
    let is_complex = |var: VarId| dtype(var).is_some_and(|dtype| dtype.is_complex());
    match base {
        "aten.sub" | "aten.div" | "aten.neg" | "aten.mean" | "aten.roll" | "aten.flip" => {
            node.operands().any(is_complex)
        }
        // It accepts complex operands only if both are tensors of the same type.
        "aten.add" | "aten.mul" => {
            let mut dtypes = node.operands().map(dtype);
            let first = dtypes.next();
            let are_two = dtypes.next().is_some_and(|second| Some(second) == first);
            node.operands().any(is_complex) && !are_two
        }
        _ => false,
    }
}

/// The rank of a tensor argument; 0 for other arguments.
fn rank(program: &ExportedProgram, node: &ExportedNode, name: &str) -> usize {
    node.arg(name).and_then(Argument::var).and_then(|v| program.spec(v)).map_or(0, |spec| spec.rank())
}

/// An element of an integer list as an argument.
pub(crate) fn int_argument(int: IntArgument) -> Argument {
    match int {
        IntArgument::Int(v) => Argument::Int(v),
        IntArgument::Var(v) => Argument::Var(v),
    }
}

//! Which operators a compiled program may call, and which of them a node becomes.

pub(crate) use ir::exported::{Selection, Slot, VarId};

use ir::exported::{Argument, Callable, ExportedNode, ExportedProgram, IntArgument};
use operator::{Kernel, KernelRegistry};
use std::sync::Arc;

/// The operators of ExecuTorch 1.5's portable, optimized and primitive kernels: what a program may call that is to
/// run on the reference runtime too.
const PORTABLE: &str = include_str!("portable_operators.txt");

/// The operators that a compiled program may call.
pub struct OperatorTable {
    callable: Callable,
    /// Whether what the reference's kernels refuse is refused, too.
    is_portable: bool,
}

impl OperatorTable {
    /// Every operator of a registry.
    pub fn all(registry: &KernelRegistry) -> Self {
        Self { callable: Callable::of(registry, |_| true), is_portable: false }
    }

    /// The operators of a registry that the reference runtime has too, and those of namespaces that it knows
    /// nothing of, which somebody registers there.
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

    /// The operator that takes a node's arguments, if there is one.
    pub(crate) fn select(&self, program: &ExportedProgram, node: &ExportedNode) -> Option<Selection> {
        if is_refused(program, node) || self.is_portable && is_refused_by_the_reference(program, node) {
            return None;
        }
        self.callable.select(program, node)
    }

    /// Why nothing takes a node: what is like it.
    pub(crate) fn hint(&self, node: &ExportedNode) -> String {
        self.callable.hint(node)
    }
}

/// Arguments that no kernel takes, although its schema does.
fn is_refused(program: &ExportedProgram, node: &ExportedNode) -> bool {
    // One dimension of batches and one of heads.
    *node.target == *"aten.scaled_dot_product_attention.default"
        && ["query", "key", "value"].iter().any(|name| rank(program, node, name) > 4)
}

/// Arguments that a kernel of the reference does not take, although its schema does.
fn is_refused_by_the_reference(program: &ExportedProgram, node: &ExportedNode) -> bool {
    match &*node.target {
        "aten._fft_r2c.default" => matches!(node.arg("onesided"), Some(Argument::Bool(false))),
        // It takes no elements away.
        "aten.constant_pad_nd.default" => {
            node.arg("pad").and_then(Argument::known_ints).is_some_and(|pads| pads.iter().any(|&pad| pad < 0))
        }
        // Images and signals, no volumes.
        "aten.convolution.default" => rank(program, node, "input") > 4,
        target => {
            let base = target.rsplit_once('.').map_or(target, |(base, _)| base);
            is_refused_of_complex_numbers(program, node, base)
        }
    }
}

/// Kernels of the reference that refuse complex numbers, as its release 1.5.1 was seen to do: those that compute or move
/// elements and are rebuilt from real ones otherwise.
fn is_refused_of_complex_numbers(program: &ExportedProgram, node: &ExportedNode, base: &str) -> bool {
    let dtype = |var: VarId| program.spec(var).map(|spec| spec.dtype);
    let is_complex = |var: VarId| dtype(var).is_some_and(|dtype| dtype.is_complex());
    match base {
        "aten.sub" | "aten.div" | "aten.neg" | "aten.mean" | "aten.roll" | "aten.flip" => {
            node.operands().any(is_complex)
        }
        // Of two tensors of one type alone.
        "aten.add" | "aten.mul" => {
            let mut dtypes = node.operands().map(dtype);
            let first = dtypes.next();
            let are_two = dtypes.next().is_some_and(|second| Some(second) == first);
            node.operands().any(is_complex) && !are_two
        }
        _ => false,
    }
}

/// The rank of an argument; 0 if it is no tensor.
fn rank(program: &ExportedProgram, node: &ExportedNode, name: &str) -> usize {
    node.arg(name).and_then(Argument::var).and_then(|v| program.spec(v)).map_or(0, |spec| spec.rank())
}

/// The integer of a list, for those who fill lists.
pub(crate) fn int_argument(int: IntArgument) -> Argument {
    match int {
        IntArgument::Int(v) => Argument::Int(v),
        IntArgument::Var(v) => Argument::Var(v),
    }
}

//! The operators that a compiled program may call, and the selection of one for a node.

use crate::clamp::portable_clamp_args;
use crate::dtypes::dtype_of;
use crate::operand_types::PortableKernels;
use pteron_exported::{Argument, Callable, ExportedNode, ExportedProgram, IntArgument, Selection, VarId};
use pteron_operator::{Kernel, KernelRegistry};
use pteron_tensor::ScalarType;
use std::collections::HashSet;
use std::sync::Arc;

/// The operators that a compiled program may call.
#[derive(Clone)]
pub struct OperatorTable {
    callable: Callable,
    /// The table of all operators, if `callable` has only some of them.
    others: Option<Callable>,
    /// Whether the program may call operators outside `callable` for nodes that these cannot compute, even decomposed.
    falls_back: bool,
    /// The kernels of the reference runtime, if that runtime has all operators of `callable`.
    portable: Option<Arc<PortableKernels>>,
    kept: KeptOperators,
    /// Whether attention is decomposed even if a kernel computes it.
    splits_attention: bool,
}

/// Operators that are not decomposed, so that backends can take them.
#[derive(Clone, Default)]
struct KeptOperators {
    operators: HashSet<String>,
    /// The first results of nodes that are decomposed although their operators are kept, because no backend takes them.
    released: HashSet<VarId>,
}

impl OperatorTable {
    /// Every operator of a registry.
    pub fn all(registry: &KernelRegistry) -> Self {
        Self {
            callable: Callable::from_registry(registry, |_| true),
            others: None,
            falls_back: false,
            portable: None,
            kept: KeptOperators::default(),
            splits_attention: false,
        }
    }

    /// The operators of a registry that the reference runtime has, too, and custom operators: those in namespaces that
    /// the reference runtime does not define.
    pub fn portable(registry: &KernelRegistry) -> Self {
        let portable = PortableKernels::read();
        Self {
            callable: Callable::from_registry(registry, |name| portable.may_have(name)),
            others: Some(Callable::from_registry(registry, |_| true)),
            falls_back: false,
            portable: Some(Arc::new(portable)),
            kept: KeptOperators::default(),
            splits_attention: false,
        }
    }

    /// The operators of [`portable`](Self::portable), and every operator of the registry for nodes that those cannot
    /// compute, even decomposed. [`MethodSummary::not_on_reference`](crate::MethodSummary::not_on_reference) names the
    /// operators of a compiled program that the reference runtime lacks.
    pub fn preferring_portable(registry: &KernelRegistry) -> Self {
        Self { falls_back: true, ..Self::portable(registry) }
    }

    /// The table of every operator, if the program may call operators that the reference runtime lacks.
    pub(crate) fn fallback(&self) -> Option<Self> {
        let callable = self.others.as_ref().filter(|_| self.falls_back)?.clone();
        Some(Self { callable, others: None, falls_back: false, portable: None, ..self.clone() })
    }

    /// Does not decompose these operators, so that backends can take them whole. They have the names that archives use:
    /// `aten.lstm.input`, `aten.scaled_dot_product_attention.default`. A node that no backend takes and no kernel
    /// computes is compiled as if its operator were not named here.
    #[must_use]
    pub fn with_kept_operators<N: Into<String>>(mut self, operators: impl IntoIterator<Item = N>) -> Self {
        self.kept.operators.extend(operators.into_iter().map(Into::into));
        self
    }

    /// Whether a node must not be decomposed.
    pub(crate) fn is_kept(&self, node: &ExportedNode) -> bool {
        self.kept.operators.contains(&*node.target)
            && !node.outputs.first().is_some_and(|first| self.kept.released.contains(first))
    }

    /// Whether any operator must not be decomposed.
    pub(crate) fn has_kept_operators(&self) -> bool {
        !self.kept.operators.is_empty()
    }

    /// The first results of the nodes with kept operators that neither a backend nor a kernel computes.
    pub(crate) fn kept_nodes_without_kernel(&self, program: &ExportedProgram) -> Vec<VarId> {
        let mut outputs = Vec::new();
        program.graph.for_each_node(&mut |node| {
            if self.is_kept(node) && self.select_any(program, node).is_none() {
                outputs.extend(node.outputs.first());
            }
        });
        outputs
    }

    pub(crate) fn has_no_released_nodes(&self) -> bool {
        self.kept.released.is_empty()
    }

    /// Returns the table with these nodes, named by their first results, released for decomposition.
    pub(crate) fn with_released_nodes(mut self, nodes: Vec<VarId>) -> Self {
        self.kept.released.extend(nodes);
        self
    }

    /// Returns the table that decomposes attention wherever a rule can, so that its products can be quantized.
    pub(crate) fn with_split_attention(self) -> Self {
        Self { splits_attention: true, ..self }
    }

    /// Whether a node is decomposed although a kernel computes it.
    pub(crate) fn splits(&self, node: &ExportedNode) -> bool {
        self.splits_attention && *node.target == *"aten.scaled_dot_product_attention.default"
    }

    /// Returns the table that lets every operator be decomposed.
    pub(crate) fn without_kept_operators(self) -> Self {
        Self { kept: KeptOperators::default(), ..self }
    }

    /// Whether operators of the reference runtime are preferred or required.
    pub(crate) fn is_portable(&self) -> bool {
        self.portable.is_some()
    }

    /// A kernel by its full name, `aten::add.out`.
    pub(crate) fn kernel(&self, name: &str) -> Option<Arc<dyn Kernel>> {
        let other = || self.others.as_ref().filter(|_| self.falls_back)?.kernel(name);
        self.callable.kernel(name).or_else(other).cloned()
    }

    /// Selects the operator that computes a node in the compiled program, if there is one.
    pub(crate) fn select_any(&self, program: &ExportedProgram, node: &ExportedNode) -> Option<Selection> {
        let other = || self.select_other(program, node).filter(|_| self.falls_back);
        self.select(program, node).or_else(other)
    }

    /// Selects an operator for a node from all operators, including those outside `callable`.
    fn select_other(&self, program: &ExportedProgram, node: &ExportedNode) -> Option<Selection> {
        self.others.as_ref().filter(|_| !is_rejected(program, node))?.select(program, node)
    }

    /// Selects among the callable operators the one whose schema and overload fit a node best. `None` if there is none, or
    /// if it has to run on the reference's portable kernel, which does not take the types.
    pub(crate) fn select(&self, program: &ExportedProgram, node: &ExportedNode) -> Option<Selection> {
        let selection = self.select_by_schema(program, node)?;
        self.check_types(program, node, &selection, &|var| dtype_of(program, var)).ok()?;
        Some(selection)
    }

    /// Whether an operator accepts the node once its half-precision operands and results are float32.
    pub(crate) fn accepts_widened(&self, program: &ExportedProgram, node: &ExportedNode) -> bool {
        let widened = |var: VarId| dtype_of(program, var).map(widen_half);
        self.select_by_schema(program, node)
            .is_some_and(|selection| self.check_types(program, node, &selection, &widened).is_ok())
    }

    fn select_by_schema(&self, program: &ExportedProgram, node: &ExportedNode) -> Option<Selection> {
        if is_rejected(program, node) || self.portable.is_some() && is_rejected_by_reference(program, node) {
            return None;
        }
        self.callable.select(program, node)
    }

    fn check_types(
        &self,
        program: &ExportedProgram,
        node: &ExportedNode,
        selection: &Selection,
        type_of: &dyn Fn(VarId) -> Option<ScalarType>,
    ) -> Result<(), String> {
        match &self.portable {
            Some(portable) => portable.check(program, node, selection, type_of),
            None => Ok(()),
        }
    }

    /// Why no operator takes a node: the types that the reference's kernel takes, Pteron's operator that the program
    /// may not call, or the names of similar operators.
    pub(crate) fn hint(&self, program: &ExportedProgram, node: &ExportedNode) -> String {
        let selection = self.select_by_schema(program, node);
        let refused =
            selection.and_then(|s| self.check_types(program, node, &s, &|var| dtype_of(program, var)).err());
        match (refused, self.select_other(program, node)) {
            (Some(problem), _) => format!("; {problem}"),
            (None, Some(other)) => format!(
                "; the reference runtime has no kernel for it, Pteron has `{}` (`--operators auto`)",
                other.kernel.schema().name
            ),
            (None, None) => self.callable.hint(node),
        }
    }
}

/// float32 for half-precision types; other types are unchanged.
pub(crate) fn widen_half(dtype: ScalarType) -> ScalarType {
    match dtype {
        ScalarType::Half | ScalarType::BFloat16 => ScalarType::Float,
        dtype => dtype,
    }
}

/// Whether every kernel rejects the node, although the node's arguments fit the schema.
fn is_rejected(program: &ExportedProgram, node: &ExportedNode) -> bool {
    match &*node.target {
        // Kernels take one batch dimension and one dimension of heads.
        "aten.scaled_dot_product_attention.default" => {
            ["query", "key", "value"].iter().any(|name| argument_rank(program, node, name) > 4)
        }
        // Kernels compute with floating-point numbers.
        "aten.convolution.default" => {
            let input = node.arg("input").and_then(Argument::var).and_then(|var| dtype_of(program, var));
            input.is_some_and(|dtype| !dtype.is_floating() && !dtype.is_complex())
        }
        // The kernel makes a tensor.
        "aten.allclose.default" => node.outputs.iter().any(|&v| program.spec(v).is_none()),
        _ => false,
    }
}

/// Whether the reference runtime's kernel rejects the node, although the node's arguments fit the schema.
fn is_rejected_by_reference(program: &ExportedProgram, node: &ExportedNode) -> bool {
    match &*node.target {
        "aten._fft_r2c.default" => matches!(node.arg("onesided"), Some(Argument::Bool(false))),
        // It does not crop.
        "aten.constant_pad_nd.default" => {
            node.arg("pad").and_then(Argument::known_ints).is_some_and(|pads| pads.iter().any(|&pad| pad < 0))
        }
        // Its result for integers has the sign of the dividend.
        "aten.remainder.Tensor" | "aten.remainder.Scalar" => {
            let result = node.outputs.first().and_then(|&var| dtype_of(program, var));
            result.is_some_and(|dtype| !dtype.is_floating())
        }
        // It takes bounds in the range of the operand's type, and lets the lower one win.
        "aten.clamp.default" => portable_clamp_args(program, node) != node.args,
        // It makes no complex numbers of real ones.
        "dim_order_ops._to_dim_order_copy.default" => {
            let complex = |var: VarId| dtype_of(program, var).is_some_and(ScalarType::is_complex);
            node.outputs.iter().any(|&var| complex(var)) && !node.operands().all(complex)
        }
        // It refuses bounds that the operand's type cannot represent exactly.
        "aten.hardtanh.default" => {
            let operand = node.arg("self").and_then(Argument::var).and_then(|var| dtype_of(program, var));
            operand.is_some_and(ScalarType::is_integral)
        }
        // It takes as many dimensions as shifts.
        "aten.roll.default" => match (node.arg("shifts"), node.arg("dims")) {
            (Some(Argument::Ints(shifts)), Some(Argument::Ints(dims))) => shifts.len() != dims.len(),
            _ => true,
        },
        "aten.cumsum.default" => argument_rank(program, node, "self") == 0,
        // It takes images and signals, but no volumes.
        "aten.convolution.default" => argument_rank(program, node, "input") > 4,
        target => {
            let base = target.rsplit_once('.').map_or(target, |(base, _)| base);
            is_rejected_for_complex(program, node, base)
        }
    }
}

/// Whether a kernel of the reference runtime rejects complex operands, as observed with release 1.5.1. These operators
/// compute or move elements and can be decomposed into operators on the real and imaginary parts.
fn is_rejected_for_complex(program: &ExportedProgram, node: &ExportedNode, base: &str) -> bool {
    let dtype = |var: VarId| program.spec(var).map(|spec| spec.dtype);
    let is_complex = |var: VarId| dtype(var).is_some_and(|dtype| dtype.is_complex());
    if !node.operands().any(is_complex) {
        return false;
    }
    match base {
        // These kernels accept complex operands only if both are tensors of the same type and the same sizes.
        "aten.add" | "aten.mul" => {
            let specs: Vec<_> = node.operands().map(|var| program.spec(var)).collect();
            let [Some(a), Some(b)] = specs[..] else { return true };
            a.dtype != b.dtype || a.known_sizes().is_none() || a.known_sizes() != b.known_sizes()
        }
        _ => false,
    }
}

/// The rank of a tensor argument; 0 for other arguments.
fn argument_rank(program: &ExportedProgram, node: &ExportedNode, name: &str) -> usize {
    node.arg(name).and_then(Argument::var).and_then(|v| program.spec(v)).map_or(0, |spec| spec.rank())
}

/// Converts an element of an integer list to an argument.
pub(crate) fn int_argument(int: IntArgument) -> Argument {
    match int {
        IntArgument::Int(v) => Argument::Int(v),
        IntArgument::Var(v) => Argument::Var(v),
    }
}

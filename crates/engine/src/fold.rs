//! Constant folding, of graph nodes and of the instructions of a method that are outside of graphs.
//!
//! Large results are lazy: they are computed when their bytes are accessed, and keep their [`Derivation`]. If a pass
//! uses the operands of the derivation instead, the result is never computed: for a matrix multiplication by weights
//! that are dequantized and transposed, neither the f32 weights nor their transpose are materialized.

use crate::cpu::convert_halves;
use crate::graph::{Bytes, Constant, Derivation, Graph, Kind, NodeId, ValueId};
use crate::operation::OpKind;
use crate::ops::cast::Cast;
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::Relayout;
use pteron_kernels::compute::{self, Isa};
use pteron_operator::facts::ViewOf;
use pteron_operator::{Budget, CountedTensor, Generator, Instr, KernelContext, Meaning, Results, Scratch};
use pteron_pool::Pool;
use pteron_tensor::{Tensor, TensorMeta, TensorView, TensorViewMut};
use std::any::Any;
use std::ops::DerefMut;
use std::sync::{Arc, OnceLock};

/// How many times larger than its operands the results of a folded node may be, if they have more than [`SMALL`] bytes.
/// The memory budget limits the bytes of results that are computed.
const MAX_GROWTH: usize = 8;

/// Results of at most this many bytes are folded, whatever the sizes of the operands.
const SMALL: usize = 256 << 20;

/// The name of lazily computed constants in errors about an exhausted memory budget.
const CONSTANTS: &str = "its constants";

/// The maximum size in bytes of a result that is computed eagerly.
const MAX_EAGER: usize = 4096;

/// Folds a node whose inputs are all constants, if it can be computed here, its results are not too large, and none of
/// them is live-out. Returns whether it did: the node is removed then, and its results are constants.
pub(crate) fn fold(graph: &mut Graph, id: NodeId, ctx: &KernelContext<'_>) -> bool {
    let node = graph.node(id);
    let is_live_out = node.outputs().iter().any(|&v| graph.is_live_out(v));
    if node.is_kept() || is_live_out || !is_computable(&**node.kind()) {
        return false;
    }
    let constant = |&v: &ValueId| match graph.value(v).constant()? {
        Constant::Scalar(_) => None,
        constant => Some((graph.meta(v).clone(), constant.clone())),
    };
    let Some(inputs) = node.inputs().iter().map(constant).collect::<Option<Vec<_>>>() else { return false };
    let metas: Vec<TensorMeta> = node.outputs().iter().map(|&v| graph.meta(v).clone()).collect();
    let bytes = metas.iter().try_fold(0usize, |sum, meta| sum.checked_add(meta.nbytes()));
    let read = inputs.iter().map(|(meta, _)| meta.nbytes()).fold(0, usize::saturating_add);
    if bytes.is_none_or(|bytes| bytes > SMALL.max(read.saturating_mul(MAX_GROWTH))) {
        return false;
    }
    let kind = Arc::clone(node.kind());
    let Some(constants) = fold_results(&kind, inputs, &metas, graph.budget(), ctx) else { return false };
    graph.fold(id, constants);
    true
}

/// The results of a node as constants; a single large result is computed lazily. `None` if a result cannot be computed.
fn fold_results(
    kind: &Arc<dyn Kind>,
    inputs: Vec<(TensorMeta, Constant)>,
    outputs: &[TensorMeta],
    budget: &Budget,
    ctx: &KernelContext<'_>,
) -> Option<Vec<Constant>> {
    if let [meta] = outputs
        && let Some(derivation) = Derivation::new(Arc::clone(kind), inputs.iter().cloned())
    {
        return lazy_constant(derivation, meta, budget, ctx).map(|constant| vec![constant]);
    }
    let views: Option<Vec<_>> = inputs.iter().map(|(meta, constant)| constant.view(meta)).collect();
    let zeros = |meta: &TensorMeta| CountedTensor::zeros(meta.clone(), CONSTANTS, budget).ok();
    let mut tensors: Vec<_> = outputs.iter().map(zeros).collect::<Option<_>>()?;
    compute(&**kind, &views?, &mut tensors, ctx)?;
    let same = outputs.iter().zip(&tensors).all(|(meta, tensor)| meta.sizes() == tensor.sizes());
    same.then(|| tensors.into_iter().map(Constant::from).collect())
}

/// A constant that is computed lazily; a small one is computed now, and `None` returned if that fails.
fn lazy_constant(
    derivation: Derivation,
    meta: &TensorMeta,
    budget: &Budget,
    ctx: &KernelContext<'_>,
) -> Option<Constant> {
    let (pool, isa, scratch) = (ctx.pool().clone(), ctx.isa(), ctx.scratch_limit());
    let (meta, budget, computed) = (meta.clone(), budget.clone(), OnceLock::new());
    let lazy = LazyConstant { derivation, meta, pool, isa, scratch, budget, computed };
    let is_known = lazy.meta.nbytes() > MAX_EAGER || lazy.computed().is_some();
    is_known.then(|| Constant::Shared(Arc::new(lazy)))
}

/// A constant converted to the layout of another meta of the same element type and sizes. `None` if the value is not a
/// constant, or its chain of derivations is too long.
pub(crate) fn to_layout(
    graph: &Graph,
    value: ValueId,
    meta: &TensorMeta,
    ctx: &KernelContext<'_>,
) -> Option<Constant> {
    let (from, constant) = (graph.meta(value), graph.value(value).constant()?);
    // The layouts may differ only in dimensions of size 1.
    if from.dim_order().same_layout(meta.dim_order(), from.sizes()) {
        return Some(constant.clone());
    }
    let derivation = Derivation::new(OpKind::arc(Relayout), [(from.clone(), constant.clone())])?;
    lazy_constant(derivation, meta, graph.budget(), ctx)
}

/// The constant from which this one was derived by a change of layout; `None` if it was not derived so.
pub(crate) fn before_relayout(constant: &Constant) -> Option<(TensorMeta, Constant)> {
    let derivation = constant.derivation()?;
    operation::<Relayout>(&**derivation.kind())?;
    derivation.inputs().first().map(|(meta, constant)| (meta.clone(), constant.reopen()))
}

/// Whether [`compute`] supports nodes of a kind, and their results depend only on their inputs.
fn is_computable(kind: &dyn Kind) -> bool {
    match kind.downcast_ref::<crate::Call>() {
        Some(call) => call.kernel.results() == Results::Elements,
        None => {
            operation::<Cast>(kind).is_some()
                || operation::<Relayout>(kind).is_some()
                || sole_unary(kind).is_some()
        }
    }
}

/// Computes a call, or a conversion of type, layout or precision, on constants. A call may resize `results` to smaller
/// sizes. `None` if it fails; the node then stays in the graph and reports its error when it runs.
pub fn compute(
    kind: &dyn Kind,
    inputs: &[TensorView<'_>],
    results: &mut [impl DerefMut<Target = Tensor>],
    ctx: &KernelContext<'_>,
) -> Option<()> {
    if let Some(call) = kind.downcast_ref::<crate::Call>() {
        let views: Vec<TensorViewMut<'_>> = results.iter_mut().map(|tensor| tensor.view_mut()).collect();
        return call.execute(ctx, inputs, views).ok();
    }
    let (&[x], [tensor]) = (inputs, results) else { return None };
    let mut out = tensor.view_mut();
    if operation::<Cast>(kind).is_some() {
        convert_halves(ctx, &x, &mut out).ok()?;
    } else if operation::<Relayout>(kind).is_some() {
        x.relayout(&mut out).ok()?;
    } else {
        compute::unary(ctx.pool(), ctx.isa(), sole_unary(kind)?, x.storage().ok()?, out.storage_mut().ok()?);
    }
    Some(())
}

fn operation<T: 'static>(kind: &dyn Kind) -> Option<&T> {
    (kind.downcast_ref::<OpKind>()?.operation() as &dyn Any).downcast_ref()
}

/// The unary function of an elementwise node that applies just that function to its input, such as a rounding.
fn sole_unary(kind: &dyn Kind) -> Option<pteron_operator::Unary> {
    match &operation::<Pointwise>(kind)?.0.instrs[..] {
        &[Instr::Input(0), Instr::Unary(f, 0)] => Some(f),
        _ => None,
    }
}

/// A constant that is computed when its bytes are accessed.
struct LazyConstant {
    derivation: Derivation,
    meta: TensorMeta,
    pool: Pool,
    isa: Isa,
    /// The limit, in bytes, of the scratch memory for computing the constant.
    scratch: usize,
    /// The memory budget against which the constant's bytes count once they are computed.
    budget: Budget,
    computed: OnceLock<Option<CountedTensor>>,
}

impl LazyConstant {
    fn computed(&self) -> Option<&CountedTensor> {
        self.computed.get_or_init(|| self.compute()).as_ref()
    }

    fn compute(&self) -> Option<CountedTensor> {
        let (scratch, generator) = (Scratch::new(self.scratch), Generator::new(0));
        let ctx = KernelContext::new(&self.pool, &scratch, &generator).with_isa(self.isa);
        let mut result = CountedTensor::zeros(self.meta.clone(), CONSTANTS, &self.budget).ok()?;
        let (kind, inputs) = (&**self.derivation.kind(), self.derivation.views()?);
        compute(kind, &inputs, std::slice::from_mut(&mut result), &ctx)?;
        (result.sizes() == self.meta.sizes()).then_some(result)
    }
}

impl Bytes for LazyConstant {
    fn bytes(&self) -> &[u8] {
        self.computed().map_or(&[], |tensor| tensor.bytes())
    }

    fn len(&self) -> usize {
        self.meta.nbytes()
    }

    fn problem(&self) -> Option<String> {
        self.derivation.inputs().iter().find_map(|(_, constant)| constant.problem())
    }

    fn derivation(&self) -> Option<&Derivation> {
        Some(&self.derivation)
    }
}

/// The matrix of which the constant with this meta is the transpose; `None` if it was not derived by transposing one.
pub(crate) fn before_transpose(meta: &TensorMeta, constant: &Constant) -> Option<(TensorMeta, Constant)> {
    let derivation = constant.derivation()?;
    let Meaning::View(ViewOf::Permute(dims)) = derivation.meaning()? else { return None };
    let matrix = derivation.argument(0)?;
    let &[rows, columns] = &**matrix.0.sizes() else { return None };
    (dims[..] == [1, 0] && meta.sizes()[..] == [columns, rows]).then_some(matrix)
}

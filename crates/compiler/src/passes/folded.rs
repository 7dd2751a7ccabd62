//! Constants that were computed from others: they can be dropped and computed again, so that a program that is loaded
//! without being written does not keep them beside their packed forms.

use pteron_exported::{Argument, ConstantTensor, ExportedNode, ExportedProgram, Selection, Slot, VarId};
use pteron_ir::{Bytes, SharedBytes};
use pteron_operator::{Arg, Args, Generator, KernelContext, Out, Outs, Scratch};
use pteron_pool::Pool;
use pteron_tensor::{Tensor, TensorMeta, TensorView};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Bytes of scratch memory for the kernels.
pub(super) const SCRATCH_BYTES: usize = 1 << 28;

/// Constants of up to this many bytes always stay in memory.
const SMALL: usize = 64 << 10;

/// The maximum number of calls that recompute a constant.
const LONGEST: usize = 32;

/// A call whose operands are constants.
pub(super) struct FoldedCall {
    selection: Selection,
    operands: Vec<(TensorMeta, ConstantTensor)>,
    results: Vec<TensorMeta>,
    /// The number of calls that recompute the results from the program's file; `None` if that is impossible.
    calls: Option<usize>,
}

impl FoldedCall {
    /// A node's call. `known` holds how many calls recompute earlier results. `None` if the operands are not in
    /// the order of the schema, which the selected operator needs.
    pub(super) fn from_node(
        program: &ExportedProgram,
        node: &ExportedNode,
        selection: Selection,
        results: Vec<TensorMeta>,
        known: &HashMap<VarId, usize>,
    ) -> Option<Self> {
        let operands =
            selection.slots.iter().filter_map(|s| if let Slot::Given(a) = s { Some(a.vars()) } else { None });
        if !operands.flatten().eq(node.operands()) {
            return None;
        }
        let operand = |v: VarId| Some((tensor_meta(program, v)?, program.constants.get(&v)?.reopened()));
        let operands: Vec<_> = node.operands().map(operand).collect::<Option<_>>()?;
        let calls =
            node.operands().zip(&operands).map(|(v, (_, constant))| recompute_calls(constant, known.get(&v)));
        let calls = calls.sum::<Option<usize>>().map(|calls| calls + 1).filter(|&calls| calls <= LONGEST);
        Some(Self { selection, operands, results, calls })
    }

    /// The results; `None` if the kernel fails.
    fn compute(&self, context: &KernelContext<'_>) -> Option<Vec<Tensor>> {
        let kernel = &self.selection.kernel;
        // Each operand is read through a handle of its own, which frees what it has loaded when it is dropped.
        let operands: Vec<Operand> = self
            .operands
            .iter()
            .map(|(meta, constant)| Operand::from_constant(meta, constant))
            .collect::<Option<_>>()?;
        let args = self.arguments(&operands)?;
        let zeros = self.results.iter().cloned().map(Tensor::zeros);
        let mut results = zeros.collect::<pteron_tensor::Result<Vec<_>>>().ok()?;
        let views: Vec<_> = results.iter_mut().map(Tensor::view_mut).collect();
        let lists = self.selection.slots.iter().any(|s| matches!(s, Slot::Out(_, n) if *n != 1));
        let list: SmallVec<[Out<'_>; 3]> = match lists {
            true => SmallVec::from_iter([Out::Tensors(views.into_iter().collect())]),
            false => views.into_iter().map(Out::Tensor).collect(),
        };
        kernel.execute(context, &Args::new(kernel.schema(), args), &mut Outs::new(list)).ok()?;
        let fits = results.iter().zip(&self.results).all(|(r, e)| r.meta().sizes() == e.sizes());
        fits.then_some(results)
    }

    fn arguments<'a>(&'a self, operands: &'a [Operand]) -> Option<SmallVec<[Arg<'a>; 12]>> {
        let schema = self.selection.kernel.schema();
        let mut next = operands.iter();
        let mut take = |count: usize| -> Option<SmallVec<[TensorView<'_>; 4]>> {
            (0..count).map(|_| next.next()?.view()).collect()
        };
        let mut args: SmallVec<[Arg<'_>; 12]> = SmallVec::new();
        let mut outs = 0;
        for (slot, declared) in self.selection.slots.iter().zip(&schema.args) {
            args.push(match slot {
                Slot::Out(..) => {
                    outs += 1;
                    Arg::Out(outs - 1)
                }
                Slot::Default(text) => Arg::of_default(text.as_deref(), declared),
                Slot::Given(arg) => match arg {
                    Argument::Var(_) => Arg::Tensor(*take(1)?.first()?),
                    Argument::Vars(list) => Arg::Tensors(take(list.len())?),
                    Argument::OptionalVars(list) => {
                        let each = list.iter().map(|v| match v {
                            Some(_) => Some(Some(*take(1)?.first()?)),
                            None => Some(None),
                        });
                        Arg::OptionalTensors(each.collect::<Option<_>>()?)
                    }
                    Argument::Int(v) => Arg::Int(*v),
                    Argument::Float(v) => Arg::Double(*v),
                    Argument::Bool(v) => Arg::Bool(*v),
                    Argument::Str(v) => Arg::Str(v),
                    Argument::Floats(v) => Arg::Doubles(v),
                    Argument::Bools(v) => Arg::Bools(v),
                    Argument::Dtype(v) => Arg::Int(*v as i64),
                    Argument::None | Argument::Ignored | Argument::MemoryFormat(_) => Arg::None,
                    list => Arg::Ints(list.known_ints()?.into()),
                },
            });
        }
        Some(args)
    }
}

/// The number of calls that recompute an operand: 0 if it is small or can be read from the file again; `None` if it
/// cannot be recomputed.
fn recompute_calls(constant: &ConstantTensor, known: Option<&usize>) -> Option<usize> {
    let stays = constant.bytes.len() <= SMALL || constant.bytes.reopen().is_some();
    known.copied().or_else(|| stays.then_some(0))
}

/// Computes the results of a call as constants; `None` if the kernel fails. Also returns the number of calls that
/// recompute them; `None` if they stay in memory instead, as small ones do.
pub(super) fn fold_call(
    recipe: FoldedCall,
    context: &KernelContext<'_>,
) -> Option<(Vec<SharedBytes>, Option<usize>)> {
    let results = recipe.compute(context)?;
    let large = recipe.results.iter().any(|meta| meta.nbytes() > SMALL);
    let Some(calls) = recipe.calls.filter(|_| large) else {
        let in_memory = |tensor| -> SharedBytes { Arc::new(InMemory(tensor)) };
        return Some((results.into_iter().map(in_memory).collect(), None));
    };
    let recipe = Arc::new(recipe);
    let computed = |(index, tensor): (usize, Tensor)| -> SharedBytes {
        let tensor = Arc::new(tensor);
        let last = Mutex::new(Arc::downgrade(&tensor));
        let source = Source { recipe: Arc::clone(&recipe), index, kept: Mutex::new(Some(tensor)), last };
        Arc::new(RecomputedConstant { source: Arc::new(source), tensor: OnceLock::new() })
    };
    Some((results.into_iter().enumerate().map(computed).collect(), Some(calls)))
}

/// A computed tensor that stays in memory.
struct InMemory(Tensor);

impl AsRef<[u8]> for InMemory {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// A result that is kept until it is released, and recomputed when it is needed again.
struct Source {
    recipe: Arc<FoldedCall>,
    index: usize,
    kept: Mutex<Option<Arc<Tensor>>>,
    /// The tensor, as long as any handle refers to it.
    last: Mutex<Weak<Tensor>>,
}

impl Source {
    fn tensor(&self) -> Option<Arc<Tensor>> {
        let mut last = lock(&self.last);
        if let Some(tensor) = last.upgrade() {
            return Some(tensor);
        }
        let (pool, scratch, generator) = (Pool::serial(), Scratch::new(SCRATCH_BYTES), Generator::default());
        let mut results = self.recipe.compute(&KernelContext::new(&pool, &scratch, &generator))?;
        let tensor = Arc::new(results.swap_remove(self.index));
        *last = Arc::downgrade(&tensor);
        Some(tensor)
    }
}

/// A handle to a [`Source`].
struct RecomputedConstant {
    source: Arc<Source>,
    tensor: OnceLock<Option<Arc<Tensor>>>,
}

impl Bytes for RecomputedConstant {
    fn bytes(&self) -> &[u8] {
        let tensor = self.tensor.get_or_init(|| self.source.tensor());
        tensor.as_ref().map_or(&[], |tensor| tensor.bytes())
    }

    fn len(&self) -> usize {
        self.source.recipe.results[self.source.index].nbytes()
    }

    fn reopen(&self) -> Option<SharedBytes> {
        Some(Arc::new(Self { source: Arc::clone(&self.source), tensor: OnceLock::new() }))
    }

    fn release(&self) {
        lock(&self.source.kept).take();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A constant operand, copied if its bytes are not aligned for its type.
struct Operand<'a> {
    meta: &'a TensorMeta,
    constant: ConstantTensor,
    copy: Option<Tensor>,
}

impl<'a> Operand<'a> {
    fn from_constant(meta: &'a TensorMeta, constant: &ConstantTensor) -> Option<Self> {
        let constant = constant.reopened();
        let bytes = constant.data();
        let aligned = bytes.as_ptr().addr().is_multiple_of(meta.dtype().alignment().max(1));
        let copy = if aligned { None } else { Some(Tensor::from_bytes(meta.clone(), bytes).ok()?) };
        Some(Self { meta, constant, copy })
    }

    fn view(&self) -> Option<TensorView<'_>> {
        match &self.copy {
            Some(copy) => Some(copy.view()),
            None => TensorView::new(self.meta, self.constant.data()).ok(),
        }
    }
}

/// The type and sizes of a tensor value whose sizes are known.
pub(super) fn tensor_meta(program: &ExportedProgram, var: VarId) -> Option<TensorMeta> {
    let spec = program.spec(var)?;
    let sizes: Vec<usize> =
        spec.known_sizes()?.into_iter().map(|s| usize::try_from(s).ok()).collect::<Option<_>>()?;
    TensorMeta::new(spec.dtype, &sizes, spec.dim_order).ok()
}

//! Constant folding of instructions outside static regions; those inside are folded by the same [`pteron_engine::fold`] when
//! the region is lowered. Readers of a folded result see a constant: their kernels can prepare for it, and its
//! [`Derivation`] says how it was computed.
//!
//! # What folding replays
//!
//! Folding executes a call once, when the method is loaded, with the kernel, the context and the argument values of an
//! execution, so that the bytes are the same. Random calls and calls whose result sizes depend on data are not folded. One
//! pass in program order suffices: a folded result is a constant to the calls after it.
//!
//! The call stays in its chain as [`Instr::Folded`]. Instruction indices do not change, and a tracer that asks for values
//! gets the results at every execution. A result also keeps its derivation, the call and its operands, for passes that
//! do better with the operands: to pack a matrix before it was transposed, or to multiply quantized weights instead of
//! dequantized ones. So while dynamic regions may be lowered again, the operands of folded calls stay in memory, too ([`release`](super::release)).
//!
//! A call is folded if its definition is the only one that reaches any read of its results, and nothing else observes
//! the bytes ([`DefUse::is_foldable`]).

use super::prepared::{Prepared, Settings};
use crate::FreeableBuffer;
use crate::open::ConstantBytes;
use crate::plan::{Id, Instr, KernelCall, OutRef, State, Storage};
use crate::prepare::operands::Operands;
use crate::prepare::raise::{DefUse, Position, scalar_of, writes_only_its_outs};
use pteron_engine::{Call, CallOut, Constant, Derivation, IntoKind};
use pteron_operator::{KernelContext, Results};
use pteron_tensor::{Scalar, Tensor, TensorMeta};
use std::sync::Arc;

/// How many times larger a result may be than its operands. An int8 weight grows four times when it is converted
/// to f32.
const MAX_GROWTH: usize = 8;

/// If the results of a call have at most this many bytes, they may be folded whatever the size of the operands.
const ALWAYS_SMALL: usize = 4096;

/// Maximum bytes of folded results per method, to which [`MAX_GROWTH`] times the bytes of its constants are added.
const BASE_BUDGET: usize = 256 << 20;

/// Constant-folds calls outside regions, and records in `def_use` which values became constant.
pub(crate) fn fold(method: &mut Prepared, settings: &Settings<'_>, def_use: &mut DefUse) {
    let constants: usize = method.state.constants.iter().map(ConstantBytes::size).sum();
    let mut budget = constants.saturating_mul(MAX_GROWTH).saturating_add(BASE_BUDGET);
    for chain in 0..method.chains.len() {
        let mut next = 0;
        while next < method.chains[chain].instrs.len() {
            let i = next;
            next = match &method.chains[chain].instrs[i] {
                Instr::Region(region) => region.next,
                _ => i + 1,
            };
            let Instr::Kernel(call) = &method.chains[chain].instrs[i] else { continue };
            let at = def_use.position(chain, i);
            if !is_foldable(&method.state, def_use, call, at) {
                continue;
            }
            let Some((results, derivation)) = compute(&method.state, &settings.ctx, call, def_use, budget)
            else {
                continue;
            };
            let ids: Vec<Id> = call.outs.iter().filter_map(OutRef::tensor).collect();
            let bytes = results.iter().map(|tensor| tensor.bytes().len()).sum::<usize>();
            let Ok(reservation) = method.packs.budget().take("its constants", bytes) else { continue };
            method.reservations.push(reservation);
            budget -= bytes;
            for (id, tensor) in ids.into_iter().zip(results) {
                let (meta, bytes) = tensor.into_parts();
                let bytes = FreeableBuffer::owned(bytes);
                method.state.constants.push(ConstantBytes::from_folded(bytes, derivation.clone()));
                let storage = Storage::Constant(method.state.constants.len() - 1);
                if let Some(t) = method.state.values[id].tensor_mut() {
                    (t.meta, t.storage, t.home) = (meta, storage, storage);
                }
                def_use.set_folded(id);
            }
            let slot = &mut method.chains[chain].instrs[i];
            if let Instr::Kernel(call) = std::mem::replace(slot, Instr::Free(0)) {
                *slot = Instr::Folded(call);
            }
        }
    }
}

/// Whether nothing but the readers of a call's results can observe the call.
fn is_foldable(state: &State, def_use: &DefUse, call: &KernelCall, at: Position) -> bool {
    if call.kernel.results() != Results::Elements || !writes_only_its_outs(call) {
        return false;
    }
    let defs = def_use.writes(at);
    defs.len() == call.outs.len()
        && call.outs.iter().zip(defs).all(|(out, def)| match (out, def) {
            (OutRef::Tensor(id), Some(def)) => def_use.is_foldable(state, *id, *def),
            _ => false,
        })
}

/// The results of a call whose arguments are constant, with their derivation. `None` if an argument is not constant,
/// the results are too large, or the call fails.
fn compute(
    state: &State,
    ctx: &KernelContext<'_>,
    call: &KernelCall,
    def_use: &DefUse,
    budget: usize,
) -> Option<(Vec<Tensor>, Option<Derivation>)> {
    let mut constants = Constants { state, def_use, inputs: Vec::new() };
    let args: Vec<_> = call.args.iter().map(|arg| constants.call_arg(*arg)).collect::<Option<_>>()?;
    let inputs = constants.inputs;
    let meta = |out: &OutRef| match out {
        OutRef::Tensor(id) => Some(state.values[*id].tensor()?.meta.clone()),
        _ => None,
    };
    let metas: Vec<TensorMeta> = call.outs.iter().map(meta).collect::<Option<_>>()?;
    let read: usize = inputs.iter().map(|&id| state.values[id].tensor().map_or(0, |t| t.meta.nbytes())).sum();
    let bytes = metas.iter().try_fold(0usize, |sum, meta| sum.checked_add(meta.nbytes()))?;
    if bytes > budget || bytes > ALWAYS_SMALL.max(read.saturating_mul(MAX_GROWTH)) {
        return None;
    }
    let outs = vec![CallOut::Tensor; metas.len()];
    let kind = Call::new(Arc::clone(&call.kernel), args, outs).into_kind();
    let views: Vec<_> = inputs.iter().map(|&id| state.view(id).ok()).collect::<Option<_>>()?;
    let mut results: Vec<Tensor> = metas.into_iter().map(Tensor::zeros).collect::<Result<_, _>>().ok()?;
    let mut outs: Vec<&mut Tensor> = results.iter_mut().collect();
    pteron_engine::fold::compute(&*kind, &views, &mut outs, ctx)?;
    let is_one = results.len() == 1;
    let of = inputs.iter().filter_map(|&id| constant(state, id));
    Some((results, Derivation::new(kind, of).filter(|_| is_one)))
}

/// The graph constant of a constant tensor, with the tensor's meta. `None` if the tensor is not constant.
fn constant(state: &State, id: Id) -> Option<(TensorMeta, Constant)> {
    let tensor = state.values[id].tensor()?;
    match tensor.storage {
        Storage::Constant(index) => Some((tensor.meta.clone(), state.constants[index].to_graph_constant())),
        _ => None,
    }
}

/// Collects the arguments of a call. Fails if one of them is not constant.
struct Constants<'m> {
    state: &'m State,
    def_use: &'m DefUse,
    /// The ids of the tensor arguments, in order.
    inputs: Vec<Id>,
}

impl Operands for Constants<'_> {
    fn state(&self) -> &State {
        self.state
    }

    fn is_computed(&self, id: Id) -> bool {
        !self.def_use.is_fixed(id)
    }

    fn known_scalar(&mut self, id: Id) -> Option<Scalar> {
        scalar_of(&self.state.values[id]).filter(|_| self.def_use.is_fixed(id))
    }

    fn push_tensor(&mut self, id: Id) -> Option<()> {
        let is_constant = self.def_use.is_fixed(id)
            && self.state.values[id].tensor().is_some_and(|t| matches!(t.storage, Storage::Constant(_)));
        is_constant.then(|| self.inputs.push(id))
    }
}

//! Constant folding: calls of constants alone are computed when a method is loaded, such as the transpose
//! that exporters put before each product with weights. What reads their results reads constants then, and
//! can prepare itself for them.
//!
//! A call is folded if every read of its results' values finds what it has defined, and nothing else observes the
//! bytes ([`DefUse::is_foldable`]).

use crate::FreeableBuffer;
use crate::method::Method;
use crate::prepare::known;
use crate::raise::{DefUse, Position, writes_only_its_outs};
use crate::step::{ArgStep, KernelStep, OutStep, Step};
use crate::value::{Id, Storage, Value};
use operator::{Arg, Args, KernelContext, Out, Outs, Results};
use smallvec::{SmallVec, smallvec};
use tensor::{AlignedBuffer, TensorMeta, TensorViewMut};

/// How many times larger a result may be than what it is computed of: an int8 weight that holds four bits
/// grows four times when it becomes f32.
const GROWTH: usize = 8;

/// Bytes of a result that is small whatever it is computed of.
const SMALL: usize = 4096;

/// Bytes of results that are folded whatever the constants of the method take.
const BASE_BUDGET: usize = 256 << 20;

/// Folds what can be folded, outside regions. `def_use` learns what became constant.
pub(crate) fn fold(method: &mut Method, def_use: &mut DefUse) {
    let constants: usize = method.state.constants.iter().map(|c| c.len()).sum();
    let mut budget = constants.saturating_mul(GROWTH).saturating_add(BASE_BUDGET);
    for chain in 0..method.chains.len() {
        let mut next = 0;
        while next < method.chains[chain].steps.len() {
            let i = next;
            next = match &method.chains[chain].steps[i] {
                Step::Region(region) => region.next,
                _ => i + 1,
            };
            let Step::Kernel(call) = &method.chains[chain].steps[i] else { continue };
            let at = def_use.position(chain, i);
            if !is_foldable(method, def_use, call, at) {
                continue;
            }
            let Some(results) = compute(method, call, def_use, budget) else { continue };
            budget -= results.iter().map(|(_, _, bytes)| bytes.len()).sum::<usize>();
            for (id, meta, bytes) in results {
                method.state.constants.push(FreeableBuffer::read(bytes));
                let storage = Storage::Constant(method.state.constants.len() - 1);
                if let Some(t) = method.state.values[id].tensor_mut() {
                    (t.meta, t.storage, t.home) = (meta, storage, storage);
                }
                def_use.set_folded(id, at);
            }
            let slot = &mut method.chains[chain].steps[i];
            if let Step::Kernel(call) = std::mem::replace(slot, Step::Free(0)) {
                *slot = Step::Folded(call);
            }
        }
    }
}

/// Whether nothing but the readers of its results can tell that a call was executed.
fn is_foldable(method: &Method, def_use: &DefUse, call: &KernelStep, at: Position) -> bool {
    if call.kernel.results() != Results::Elements || !writes_only_its_outs(call) {
        return false;
    }
    let defs = def_use.writes(at);
    defs.len() == call.outs.len()
        && call.outs.iter().zip(defs).all(|(out, def)| match (out, def) {
            (OutStep::Tensor(id), Some(def)) => def_use.is_foldable(method, *id, *def),
            _ => false,
        })
}

/// The results of a call on constant arguments, if they are not too large.
fn compute(
    method: &Method,
    call: &KernelStep,
    def_use: &DefUse,
    budget: usize,
) -> Option<Vec<(Id, TensorMeta, AlignedBuffer)>> {
    let mut read = 0usize;
    let mut list: SmallVec<[Arg<'_>; 12]> = smallvec![];
    for arg in &call.args {
        list.push(match *arg {
            ArgStep::Out(i) => Arg::Out(i),
            ArgStep::Value(id) => match known(id, &method.state, def_use) {
                Arg::Spec(_) | Arg::Unknown => return None,
                arg => arg,
            },
        });
    }
    for arg in &list {
        read += match arg {
            Arg::Tensor(t) => t.nbytes(),
            Arg::Tensors(all) => all.iter().map(|t| t.nbytes()).sum(),
            Arg::OptionalTensors(all) => all.iter().flatten().map(|t| t.nbytes()).sum(),
            _ => 0,
        };
    }
    let mut results = Vec::new();
    for out in &call.outs {
        let OutStep::Tensor(id) = out else { return None };
        let Value::Tensor(t) = &method.state.values[*id] else { return None };
        results.push((*id, t.meta.clone(), AlignedBuffer::default()));
    }
    let bytes = results.iter().try_fold(0usize, |sum, (_, meta, _)| sum.checked_add(meta.nbytes()))?;
    if bytes > budget || bytes > SMALL.max(read.saturating_mul(GROWTH)) {
        return None;
    }
    for (_, meta, buffer) in &mut results {
        *buffer = AlignedBuffer::zeroed(meta.nbytes()).ok()?;
    }
    {
        let views =
            results.iter_mut().map(|(_, meta, buffer)| TensorViewMut::new(meta, buffer).map(Out::Tensor));
        let mut outs = Outs::new(views.collect::<Result<_, _>>().ok()?);
        let ctx = KernelContext::new(&method.pool, &method.scratch, &method.generator).with_isa(method.isa);
        // A call that fails here fails again when it runs, and says then what is wrong.
        call.kernel.execute(&ctx, &Args::new(call.kernel.schema(), list), &mut outs).ok()?;
    }
    Some(results)
}

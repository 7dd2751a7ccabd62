//! Preparation of a loaded method: regions are lowered, constant calls folded, and each remaining call is offered once
//! to its kernel to be specialized for its constant arguments.

mod fold;
pub(crate) mod operands;
mod prepared;
pub(crate) mod raise;
pub(crate) mod region;
mod release;

pub use prepared::AsWritten;
pub(crate) use prepared::{Prepared, Settings};

use crate::backend::DelegateEntry;
use crate::load::Loaded;
use crate::plan::{ArgRef, Id, Instr, KernelCall, OutRef, State, Storage, Value};
use fold::fold;
use pteron_engine::Packs;
use pteron_operator::{Arg, Args, Isa};
use pteron_tensor::TensorView;
use raise::DefUse;
use region::Region;
use smallvec::SmallVec;
use std::sync::Arc;

/// Lowers regions, folds constants, and lets kernels prepare the remaining calls. If a kernel fails to prepare a call,
/// the call runs unprepared and reports its error when it is executed.
///
/// Constants that only lowered regions use are read when they are packed, and released after that. The other constants
/// that are needed are read after the static regions are lowered and before constants are folded.
pub(crate) fn prepare(loaded: Loaded, packs: Packs, settings: &Settings<'_>) -> crate::Result<Prepared> {
    let mut method = Prepared::from_loaded(loaded, packs);
    let mut def_use = DefUse::of(method.listing());
    // Static regions come first, while no constant is in memory yet: a weight is read when it is packed, and
    // released after that. Folding reads constants and keeps its results, so it is left with the calls in between.
    region::lower_static_regions(&mut method, settings, &def_use);
    if let Err(e) = release::read_needed_constants(&method) {
        if method.regions.is_empty() {
            return Err(e);
        }
        // What the regions have computed from their constants has left no room for the remaining constants.
        region::remove_all_regions(&mut method);
        release::read_needed_constants(&method)?;
    }
    fold(&mut method, settings, &mut def_use);
    // Calls whose dynamic results were folded are gone, so a run may be static now that was dynamic before.
    let def_use = Arc::new(def_use);
    region::make_dynamic_regions(&mut method, settings, &def_use);
    method.delegates.iter().for_each(DelegateEntry::forget_graph);
    let Prepared { chains, state, regions, packs, as_written, .. } = &mut method;
    for (index, chain) in chains.iter_mut().enumerate() {
        let mut next = 0;
        while let Some(instr) = chain.instrs.get_mut(next) {
            next += 1;
            let call = match instr {
                Instr::Kernel(call) => call,
                Instr::Region(instr) => match (&regions[instr.region], &mut *instr.first) {
                    (Region::Dynamic(_), Instr::Kernel(first)) => first,
                    (Region::Dynamic(_), _) => continue,
                    (Region::Fixed(_), _) => {
                        next = instr.next;
                        continue;
                    }
                },
                _ => continue,
            };
            call.prepared = match prepare_call(call, state, &def_use, settings.ctx.isa(), packs) {
                Ok(prepared) => prepared.map(Arc::from),
                Err(error) => {
                    let is_noted =
                        |noted: &AsWritten| noted.chain == index && noted.instructions.contains(&(next - 1));
                    if matches!(error, pteron_operator::Error::Limit { .. })
                        && !as_written.iter().any(is_noted)
                    {
                        let instructions = next - 1..next;
                        as_written.push(AsWritten { chain: index, instructions, reason: error.to_string() });
                    }
                    None
                }
            };
        }
    }
    release::release_unneeded(&mut method);
    Ok(method)
}

fn prepare_call(
    call: &KernelCall,
    state: &State,
    def_use: &DefUse,
    isa: Isa,
    packs: &mut Packs,
) -> pteron_operator::Result<Option<Box<dyn pteron_operator::PreparedKernel>>> {
    let list: SmallVec<[Arg<'_>; 12]> = call
        .args
        .iter()
        .map(|arg| match *arg {
            ArgRef::Value(id) => static_arg(id, state, def_use),
            ArgRef::Out(out) => match &call.outs[out] {
                OutRef::Tensor(id) => spec_arg(*id, state),
                _ => Arg::Unknown,
            },
        })
        .collect();
    let constant = |position: usize| match call.args.get(position) {
        Some(ArgRef::Value(id)) => match state.values[*id].tensor()?.home {
            Storage::Constant(index) => Some(state.constants[index].to_graph_constant()),
            _ => None,
        },
        _ => None,
    };
    pteron_engine::prepare(&call.kernel, &Args::new(call.kernel.schema(), list), constant, isa, packs)
}

/// What is known of an argument before the method runs.
pub(crate) fn static_arg<'a>(id: Id, state: &'a State, def_use: &DefUse) -> Arg<'a> {
    match &state.values[id] {
        Value::Tensor(t) if def_use.is_fixed(id) && matches!(t.storage, Storage::Constant(_)) => {
            state.view(id).map_or(Arg::Unknown, Arg::Tensor)
        }
        Value::Tensor(_) => spec_arg(id, state),
        Value::Ints(ids) => {
            let ints = ids.iter().map(|&i| match &state.values[i] {
                Value::Int(v) if def_use.is_fixed(i) => Some(*v),
                _ => None,
            });
            ints.collect::<Option<_>>().map_or(Arg::Unknown, Arg::Ints)
        }
        Value::Tensors(ids) => {
            let views: Option<SmallVec<[TensorView<'_>; 4]>> =
                ids.iter().map(|&i| constant_view(i, state, def_use)).collect();
            views.map_or(Arg::Unknown, Arg::Tensors)
        }
        Value::OptionalTensors(ids) => {
            let views = ids.iter().map(|i| match i {
                Some(i) => constant_view(*i, state, def_use).map(Some),
                None => Some(None),
            });
            views.collect::<Option<_>>().map_or(Arg::Unknown, Arg::OptionalTensors)
        }
        _ if !def_use.is_fixed(id) => Arg::Unknown,
        Value::None => Arg::None,
        Value::Int(v) => Arg::Int(*v),
        Value::Double(v) => Arg::Double(*v),
        Value::Bool(v) => Arg::Bool(*v),
        Value::Str(s) => Arg::Str(s),
        Value::Doubles(v) => Arg::Doubles(v),
        Value::Bools(v) => Arg::Bools(v),
    }
}

fn constant_view<'a>(id: Id, state: &'a State, def_use: &DefUse) -> Option<TensorView<'a>> {
    let t = state.values[id].tensor()?;
    let constant = def_use.is_fixed(id) && matches!(t.storage, Storage::Constant(_));
    if constant { state.view(id).ok() } else { None }
}

fn spec_arg(id: Id, state: &State) -> Arg<'_> {
    state.values[id].tensor().map_or(Arg::Unknown, |t| Arg::Spec(&t.meta))
}

//! Releases weights once they are packed: constants that only lowered regions read are not kept beside their packed
//! form.

use super::prepared::Prepared;
use crate::Result;
use crate::plan::{ArgRef, Id, Instr, KernelCall, OutRef, Storage};
use crate::prepare::raise::tensors_of;
use crate::prepare::region::Region;
use std::collections::HashSet;

/// Reads the constants that are needed outside lowered regions. These include the constants of regions that could not
/// be lowered because their constants could not be read.
pub(crate) fn read_needed_constants(method: &Prepared) -> Result<()> {
    let needed = Needed::of(method).constants;
    let constants = &method.state.constants;
    constants.iter().zip(needed).filter(|(_, needed)| *needed).try_for_each(|(constant, _)| constant.read())
}

/// Releases the constants that nothing will read and the delegates that nothing calls because regions have replaced
/// them. If such a constant is later requested by name, it is read again.
pub(crate) fn release_unneeded(method: &mut Prepared) {
    let Needed { constants, delegates } = Needed::of(method);
    for (delegate, _) in method.delegates.iter_mut().zip(delegates).filter(|(_, called)| !called) {
        delegate.release();
    }
    let all = method.state.constants.iter_mut();
    all.zip(constants).filter(|(_, needed)| !needed).for_each(|(constant, _)| constant.release());
}

/// The constants and delegates that a prepared method still uses.
struct Needed {
    /// For each constant, whether it is still needed: an instruction outside static regions reads or reports it, a
    /// region takes it as an argument, a region that is lowered later may pack it, it is an input or output, or it has
    /// a name and cannot be read again.
    constants: Vec<bool>,
    /// For each delegate, whether an instruction still calls it.
    delegates: Vec<bool>,
}

impl Needed {
    fn of(method: &Prepared) -> Self {
        let mut read: HashSet<Id> = method.inputs.iter().chain(&method.outputs).copied().collect();
        // A dynamic region is lowered again for new sizes, and may then pack the operands of any folded constant. They
        // stay in memory so that they are not read from the file for each combination of sizes.
        let is_lowered_later = method.regions.iter().any(|region| matches!(region, Region::Dynamic(_)));
        let packed_later =
            |call: &KernelCall| if is_lowered_later { call.args.clone() } else { Box::default() };
        let mut called = vec![false; method.delegates.len()];
        for chain in &method.chains {
            let mut next = 0;
            while let Some(instr) = chain.instrs.get(next) {
                next += 1;
                match instr {
                    Instr::Kernel(call) => add_operands(&mut read, &call.args, &call.outs),
                    // Its results are reported to the tracer.
                    Instr::Folded(call) => add_operands(&mut read, &packed_later(call), &call.outs),
                    Instr::Delegate(call) => {
                        called[call.delegate] = true;
                        add_operands(&mut read, &call.args, &call.outs);
                    }
                    Instr::Move { from, to } => read.extend([*from, *to]),
                    Instr::JumpFalse { condition, .. } => _ = read.insert(*condition),
                    Instr::Free(_) => {}
                    Instr::Region(region) => match &method.regions[region.region] {
                        // The instructions of a static region never run one by one.
                        Region::Fixed(lowered) => {
                            add_operands(&mut read, &lowered.args, &lowered.outs);
                            for instr in &chain.instrs[next..region.next] {
                                if let Instr::Folded(call) = instr {
                                    add_operands(&mut read, &packed_later(call), &[]);
                                }
                            }
                            next = region.next;
                        }
                        Region::Dynamic(_) => {
                            if let Instr::Delegate(call) = &*region.first {
                                called[call.delegate] = true;
                            }
                            let (args, outs) = region.first.operands();
                            add_operands(&mut read, args, outs);
                        }
                    },
                }
            }
        }
        let state = &method.state;
        let mut live: HashSet<Id> = read.iter().flat_map(|&id| tensors_of(state, id)).collect();
        let is_named_and_unreadable = |id: &Id| {
            state.values[*id].tensor().is_some_and(|t| match t.home {
                Storage::Constant(index) => t.name.is_some() && !state.constants[index].can_be_reread(),
                _ => false,
            })
        };
        live.extend((0..state.values.len()).filter(is_named_and_unreadable));
        let mut needed = vec![false; state.constants.len()];
        for tensor in live.iter().filter_map(|&id| state.values[id].tensor()) {
            for storage in [tensor.storage, tensor.home] {
                if let Storage::Constant(index) = storage {
                    needed[index] = true;
                }
            }
        }
        Self { constants: needed, delegates: called }
    }
}

fn add_operands(read: &mut HashSet<Id>, args: &[ArgRef], outs: &[OutRef]) {
    read.extend(args.iter().filter_map(|a| if let ArgRef::Value(id) = a { Some(*id) } else { None }));
    for out in outs {
        match out {
            OutRef::Tensor(id) | OutRef::Scalar(id) => _ = read.insert(*id),
            OutRef::View { to, of } => read.extend([*to, *of]),
            OutRef::Tensors(ids) => read.extend(ids.iter()),
        }
    }
}

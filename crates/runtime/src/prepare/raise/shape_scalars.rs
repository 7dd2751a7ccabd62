//! Scalars that depend only on sizes.

use super::DefUse;
use super::walk::Listing;
use crate::plan::{ArgRef, Id, Instr, KernelCall, OutRef, State, Value};
use pteron_operator::Results;
use std::collections::HashSet;

/// Maximum number of passes over all instructions. If they do not reach the fixed point, no scalar is taken to depend
/// on sizes only.
const MAX_ROUNDS: usize = 8;

impl DefUse {
    /// Finds the scalars that depend only on sizes: their writers read nothing but sizes and other such scalars.
    pub(super) fn find_shape_scalars(&mut self, method: Listing<'_>) {
        let mut from: HashSet<Id> = self.computed.difference(&self.is_input).copied().collect();
        for _ in 0..MAX_ROUNDS {
            let before = from.len();
            for instr in method.chains.iter().flat_map(|c| &c.instrs) {
                match instr {
                    Instr::Kernel(k) => {
                        let pure = k.kernel.results() == Results::Shapes
                            && scalars_read_by(method.state, k)
                                .all(|id| !self.computed.contains(&id) || from.contains(&id));
                        if !pure {
                            remove_scalars(&mut from, &k.outs);
                        }
                    }
                    Instr::Delegate(d) => remove_scalars(&mut from, &d.outs),
                    Instr::Move { to, .. } => {
                        from.remove(to);
                    }
                    _ => {}
                }
            }
            if from.len() == before {
                self.from_shapes = from;
                return;
            }
        }
    }
}

/// The scalars that a call reads, including the elements of integer lists.
fn scalars_read_by<'a>(state: &'a State, call: &'a KernelCall) -> impl Iterator<Item = Id> + 'a {
    call.args.iter().flat_map(move |arg| {
        let ids: &[Id] = match arg {
            ArgRef::Out(_) => &[],
            ArgRef::Value(id) => match &state.values[*id] {
                Value::Ints(ids) => ids,
                Value::Tensor(_) => &[],
                _ => std::slice::from_ref(id),
            },
        };
        ids.iter().copied()
    })
}

fn remove_scalars(from: &mut HashSet<Id>, outs: &[OutRef]) {
    for out in outs {
        if let OutRef::Scalar(id) = out {
            from.remove(id);
        }
    }
}

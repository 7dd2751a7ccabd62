//! What the whole method says about its values, before anything is lowered.

use crate::call::State;
use crate::method::Method;
use crate::step::{ArgStep, KernelStep, OutStep, Step};
use crate::value::{Id, Storage, Value};
use operator::Results;
use std::collections::{HashMap, HashSet};
use tensor::Extent;

/// Times that what follows from shapes is looked for in all instructions: more than loops make of numbers.
const ROUNDS: usize = 8;

pub(crate) struct Facts {
    /// Values that instructions move, free or make views: their places change at run time.
    moving: HashSet<Id>,
    /// Views, made by one instruction that stands before all their readers: the places of what they view.
    views: HashMap<Id, Extent>,
    /// Numbers and lists that some instruction computes.
    computed: HashSet<Id>,
    /// Those of them that follow from sizes and constants alone.
    from_shapes: HashSet<Id>,
    /// Instructions at which a jump can arrive, by chain.
    targets: Vec<HashSet<usize>>,
    /// Places that are read from outside the instructions: outputs and named tensors.
    seen: Vec<Extent>,
    /// Places of inputs, which are written before each execution.
    inputs: Vec<Extent>,
}

impl Facts {
    pub(crate) fn of(method: &Method) -> Self {
        let mut facts = Facts {
            moving: HashSet::new(),
            views: HashMap::new(),
            computed: method.inputs.iter().copied().collect(),
            from_shapes: HashSet::new(),
            targets: Vec::new(),
            seen: Vec::new(),
            inputs: Vec::new(),
        };
        for chain in &method.chains {
            let mut targets = HashSet::new();
            for step in &chain.steps {
                match step {
                    Step::JumpFalse { target, .. } => {
                        targets.insert(*target);
                    }
                    Step::Move { to, .. } => {
                        facts.moving.insert(*to);
                        facts.computed.insert(*to);
                    }
                    Step::Free(id) => {
                        facts.moving.insert(*id);
                    }
                    Step::Kernel(k) => k.outs.iter().for_each(|out| facts.note_out(out)),
                    Step::Delegate(d) => d.outs.iter().for_each(|out| facts.note_out(out)),
                    Step::Region(_) | Step::Folded(_) => {}
                }
            }
            facts.targets.push(targets);
        }
        facts.find_views(method);
        facts.find_numbers_of_shapes(method);
        let state = &method.state;
        facts.inputs = method.inputs.iter().filter_map(|&id| facts.home(state, id)).collect();
        let named =
            (0..state.values.len()).filter(|&id| state.values[id].tensor().is_some_and(|t| t.name.is_some()));
        let outputs = method.outputs.iter().flat_map(|&id| tensors_of(state, id));
        facts.seen = outputs.chain(named).filter_map(|id| facts.home(state, id)).collect();
        facts
    }

    fn note_out(&mut self, out: &OutStep) {
        match out {
            OutStep::Scalar(id) => {
                self.computed.insert(*id);
            }
            OutStep::View { to, .. } => {
                self.moving.insert(*to);
            }
            OutStep::Tensor(_) | OutStep::Tensors(_) => {}
        }
    }

    /// Views whose place is known: in a method that is one straight line, those that nothing reads before
    /// the one instruction that makes them.
    fn find_views(&mut self, method: &Method) {
        let [chain] = &method.chains[..] else { return };
        if !self.targets[0].is_empty() {
            return;
        }
        let mut made: HashMap<Id, Extent> = HashMap::new();
        let mut other: HashSet<Id> = method.inputs.iter().copied().collect();
        for step in &chain.steps {
            let (args, outs): (&[ArgStep], &[OutStep]) = match step {
                Step::Kernel(k) => (&k.args, &k.outs),
                Step::Delegate(d) => (&d.args, &d.outs),
                Step::Move { from, to } => {
                    other.extend([*from, *to]);
                    continue;
                }
                Step::Free(id) => {
                    other.insert(*id);
                    continue;
                }
                Step::JumpFalse { .. } | Step::Region(_) | Step::Folded(_) => continue,
            };
            for arg in args {
                if let ArgStep::Value(id) = arg {
                    other.extend(
                        tensors_of(&method.state, *id).into_iter().filter(|id| !made.contains_key(id)),
                    );
                }
            }
            for out in outs {
                match out {
                    OutStep::View { to, of } => {
                        let place = made.get(of).copied().or_else(|| self.home(&method.state, *of));
                        match place {
                            Some(place) if !made.contains_key(to) => {
                                made.insert(*to, place);
                            }
                            _ => {
                                other.insert(*to);
                            }
                        }
                    }
                    OutStep::Tensor(id) => {
                        other.insert(*id);
                    }
                    OutStep::Tensors(ids) => other.extend(ids.iter()),
                    OutStep::Scalar(_) => {}
                }
            }
        }
        made.retain(|id, _| !other.contains(id));
        // A view of what turned out not to be one has no known place either.
        let of = |step: &Step| match step {
            Step::Kernel(k) => k.outs.iter().find_map(|o| match o {
                OutStep::View { to, of } => Some((*to, *of)),
                _ => None,
            }),
            _ => None,
        };
        for (to, of) in chain.steps.iter().filter_map(of) {
            if self.moving.contains(&of) && !made.contains_key(&of) {
                made.remove(&to);
            }
        }
        self.views = made;
    }

    /// Numbers all of whose writers compute them from sizes and from such numbers.
    fn find_numbers_of_shapes(&mut self, method: &Method) {
        let mut from: HashSet<Id> = self.computed.clone();
        let steps = || method.chains.iter().flat_map(|c| &c.steps);
        method.inputs.iter().for_each(|id| {
            from.remove(id);
        });
        for _ in 0..ROUNDS {
            let before = from.len();
            for step in steps() {
                match step {
                    Step::Kernel(k) => {
                        let pure = k.kernel.results() == Results::Shapes
                            && numbers_of(&method.state, k)
                                .all(|id| !self.computed.contains(&id) || from.contains(&id));
                        if !pure {
                            remove_numbers(&mut from, &k.outs);
                        }
                    }
                    Step::Delegate(d) => remove_numbers(&mut from, &d.outs),
                    Step::Move { to, .. } => {
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

    /// Where the bytes of a tensor are at every instruction that reads it, if that is known.
    pub(crate) fn place(&self, state: &State, id: Id) -> Option<Extent> {
        if self.moving.contains(&id) { self.views.get(&id).copied() } else { self.home(state, id) }
    }

    /// The same, for all that may see a place: where the plan puts a tensor whose place is not known.
    pub(crate) fn home(&self, state: &State, id: Id) -> Option<Extent> {
        if let Some(place) = self.views.get(&id) {
            return Some(*place);
        }
        match state.values[id].tensor()?.home {
            Storage::Arena(extent) => Some(extent),
            _ => None,
        }
    }

    pub(crate) fn is_moving(&self, id: Id) -> bool {
        self.moving.contains(&id)
    }

    pub(crate) fn is_computed(&self, id: Id) -> bool {
        self.computed.contains(&id)
    }

    pub(crate) fn is_from_shapes(&self, id: Id) -> bool {
        self.from_shapes.contains(&id)
    }

    pub(crate) fn is_target(&self, chain: usize, instruction: usize) -> bool {
        self.targets[chain].contains(&instruction)
    }

    /// Whether the method is one chain without jumps.
    pub(crate) fn is_straight(&self) -> bool {
        self.targets.len() == 1 && self.targets[0].is_empty()
    }

    pub(crate) fn seen(&self) -> &[Extent] {
        &self.seen
    }

    pub(crate) fn inputs(&self) -> &[Extent] {
        &self.inputs
    }
}

/// The tensors that a value is or lists.
pub(crate) fn tensors_of(state: &State, id: Id) -> Vec<Id> {
    match &state.values[id] {
        Value::Tensor(_) => vec![id],
        Value::Tensors(ids) => ids.to_vec(),
        Value::OptionalTensors(ids) => ids.iter().flatten().copied().collect(),
        _ => Vec::new(),
    }
}

/// The numbers, and elements of lists of numbers, that a call reads.
fn numbers_of<'a>(state: &'a State, call: &'a KernelStep) -> impl Iterator<Item = Id> + 'a {
    call.args.iter().flat_map(move |arg| {
        let ids: &[Id] = match arg {
            ArgStep::Out(_) => &[],
            ArgStep::Value(id) => match &state.values[*id] {
                Value::Ints(ids) => ids,
                Value::Tensor(_) => &[],
                _ => std::slice::from_ref(id),
            },
        };
        ids.iter().copied()
    })
}

fn remove_numbers(from: &mut HashSet<Id>, outs: &[OutStep]) {
    for out in outs {
        if let OutStep::Scalar(id) = out {
            from.remove(id);
        }
    }
}

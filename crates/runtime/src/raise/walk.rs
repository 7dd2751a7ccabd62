//! The pass over the instructions.

use super::places::{Places, Ranges};
use super::{DefId, DefUse, Definition, Flat, Mentions, Position, Reach, home};
use crate::call::State;
use crate::method::Method;
use crate::step::{ArgStep, Chain, KernelStep, OutStep, Step};
use crate::value::{Id, Value};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use tensor::{Extent, Scalar};

/// Pieces that a read may be put together of before they are made one.
const MOST_PIECES: usize = 8;

/// Where a tensor's bytes are at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// There, as the value `root` always is.
    At(Extent, Id),
    /// In a constant, or nowhere.
    NotInArena,
    Unknown,
}

/// What is raised: instructions with the values that they work on.
#[derive(Clone, Copy)]
pub(super) struct Listing<'m> {
    pub(super) state: &'m State,
    pub(super) chains: &'m [Chain],
    pub(super) inputs: &'m [Id],
    pub(super) outputs: &'m [Id],
}

impl DefUse {
    /// Raises a method.
    pub(crate) fn of(method: &Method) -> Self {
        let Method { state, chains, inputs, outputs, .. } = method;
        Self::raise(Listing { state, chains, inputs, outputs })
    }

    pub(super) fn raise(method: Listing<'_>) -> Self {
        let mut walk = Walk::new(method);
        walk.find_changes();
        walk.find_wild_places();
        walk.define_inputs();
        for (chain, at) in (0..method.chains.len()).zip(walk.def_use.starts.clone()) {
            if chain > 0 {
                walk.end_block();
            }
            for (i, step) in method.chains[chain].steps.iter().enumerate() {
                let at = at + i as Position;
                if walk.def_use.starts_block(at) {
                    walk.end_block();
                }
                walk.step(at, step);
            }
        }
        walk.finish()
    }
}

struct Walk<'m> {
    method: Listing<'m>,
    state: &'m State,
    def_use: DefUse,
    /// What memory holds, as far as this block has written it.
    memory: Places<DefId>,
    /// Places of values that move, where this block has given them one.
    places: HashMap<Id, Place>,
    /// All bytes that values of unknown place may refer to.
    wild: Ranges,
    /// Bytes that some block finds as they were left, and outputs and named tensors.
    exposed: Ranges,
    /// What was in memory at the ends of blocks.
    left: Vec<(Extent, DefId)>,
    /// Bytes that an instruction so far has written, in the order of the program.
    written: Ranges,
    /// The value by which, in that order.
    writers: Places<Id>,
}

impl<'m> Walk<'m> {
    fn new(method: Listing<'m>) -> Self {
        let mut next: Position = 1;
        let mut starts = Vec::new();
        let mut blocks = HashSet::new();
        for chain in method.chains {
            starts.push(next);
            for (i, step) in chain.steps.iter().enumerate() {
                if let Step::JumpFalse { target, .. } = step {
                    blocks.extend([next + *target as Position, next + i as Position + 1]);
                }
            }
            next += chain.steps.len() as Position;
        }
        let mut def_use = DefUse {
            starts,
            defs: Vec::new(),
            reads: Flat::default(),
            writes: Flat::default(),
            tears: HashMap::new(),
            overwrites_itself: HashSet::new(),
            blocks,
            mentions: vec![Mentions::default(); method.state.values.len()],
            is_input: method.inputs.iter().copied().collect(),
            is_output: method.outputs.iter().flat_map(|&id| tensors_of(method.state, id)).collect(),
            moving: HashSet::new(),
            freed: HashSet::new(),
            computed: method.inputs.iter().copied().collect(),
            from_shapes: HashSet::new(),
            read_first: HashSet::new(),
            folded: HashSet::new(),
            holders: HashMap::new(),
            results: HashMap::new(),
            visited: 0,
        };
        // Nothing stands at position 0.
        def_use.reads.push([]);
        def_use.writes.push([]);
        Self {
            method,
            state: method.state,
            def_use,
            memory: Places::default(),
            places: HashMap::new(),
            wild: Ranges::default(),
            exposed: Ranges::default(),
            left: Vec::new(),
            written: Ranges::default(),
            writers: Places::default(),
        }
    }

    /// Notes which values instructions change, move and free.
    fn find_changes(&mut self) {
        let DefUse { mentions, moving, freed, computed, .. } = &mut self.def_use;
        for step in self.method.chains.iter().flat_map(|c| &c.steps) {
            let outs = match step {
                Step::Move { to, .. } => {
                    moving.insert(*to);
                    computed.insert(*to);
                    mentions[*to].changes += 1;
                    continue;
                }
                Step::Free(id) => {
                    freed.insert(*id);
                    mentions[*id].changes += 1;
                    continue;
                }
                _ => step.operands().1,
            };
            for out in outs {
                match out {
                    OutStep::Scalar(id) => {
                        computed.insert(*id);
                        mentions[*id].changes += 1;
                    }
                    OutStep::View { to, .. } => {
                        moving.insert(*to);
                        mentions[*to].changes += 1;
                    }
                    OutStep::Tensor(id) => mentions[*id].changes += 1,
                    OutStep::Tensors(ids) => ids.iter().for_each(|&id| mentions[id].changes += 1),
                }
            }
        }
    }

    /// Finds the bytes that values may refer to whose place is not known where they are used: those that a
    /// `MoveCall` renames, and views that are used in other blocks than they are made in.
    fn find_wild_places(&mut self) {
        let (mut moved, mut viewed, mut is_wild) = (Vec::new(), Vec::new(), false);
        for (chain, start) in self.method.chains.iter().zip(self.def_use.starts.clone()) {
            self.places.clear();
            for (i, step) in chain.steps.iter().enumerate() {
                if self.def_use.starts_block(start + i as Position) {
                    self.places.clear();
                }
                if let Step::Move { from, to } = step {
                    self.places.insert(*to, Place::Unknown);
                    for id in tensors_of(self.state, *from).into_iter().chain(tensors_of(self.state, *to)) {
                        is_wild |= self.place(id) == Place::Unknown;
                        moved.extend([self.place(id), self.home(id)]);
                    }
                    continue;
                }
                let (args, outs) = step.operands();
                let mut uses = args.iter().flat_map(|arg| match arg {
                    ArgStep::Value(id) => tensors_of(self.state, *id),
                    ArgStep::Out(_) => SmallVec::new(),
                });
                is_wild |= uses.any(|id| self.place(id) == Place::Unknown);
                let written = outs.iter().flat_map(|out| match out {
                    OutStep::Tensor(id) => std::slice::from_ref(id),
                    OutStep::Tensors(ids) => ids,
                    OutStep::View { .. } | OutStep::Scalar(_) => &[],
                });
                for &id in written {
                    is_wild |= self.place(id) == Place::Unknown;
                    if self.place(id) == Place::NotInArena {
                        self.places.insert(id, self.home(id));
                    }
                }
                for out in outs {
                    if let OutStep::View { to, of } = out {
                        viewed.extend([self.place(*of), self.home(*to)]);
                        self.places.insert(*to, self.place(*of));
                    }
                }
            }
        }
        // A view whose place is asked for at the end is asked for somewhere else than in its block, or may be.
        is_wild |= self.def_use.is_output.iter().any(|&id| self.place(id) == Place::Unknown);
        let viewed = viewed.into_iter().filter(|_| is_wild);
        for place in moved.into_iter().chain(viewed) {
            if let Place::At(extent, _) = place {
                self.wild.insert(extent);
            }
        }
        self.places.clear();
    }

    fn home(&self, id: Id) -> Place {
        home(self.state, id).map_or(Place::NotInArena, |extent| Place::At(extent, id))
    }

    /// Where a tensor's bytes are now.
    fn place(&self, id: Id) -> Place {
        match self.places.get(&id) {
            Some(place) => *place,
            None if self.def_use.moving.contains(&id) => Place::Unknown,
            None => self.home(id),
        }
    }

    fn define_inputs(&mut self) {
        for &id in self.method.inputs {
            if let Some(extent) = home(self.state, id) {
                self.define(0, extent, id);
                self.note_written(extent, id);
            }
        }
    }

    fn step(&mut self, at: Position, step: &Step) {
        let mut reads: Vec<(Id, Option<Reach>)> = Vec::new();
        let mut writes = Vec::new();
        match step {
            Step::Move { from, to } => {
                for id in tensors_of(self.state, *from) {
                    self.mention(id, at);
                    self.other_use(at, id);
                    self.find_first_read(at, id);
                }
                self.mention(*from, at);
                if let Place::At(extent, _) = self.home(*to) {
                    self.note_written(extent, *to);
                }
                self.places.insert(*to, Place::Unknown);
            }
            Step::JumpFalse { condition, .. } => {
                self.mention(*condition, at);
                if self.state.values[*condition].tensor().is_some() {
                    reads.push((*condition, self.read(at, *condition)));
                }
            }
            _ => {
                let (args, outs) = step.operands();
                for arg in args {
                    let ArgStep::Value(id) = *arg else { continue };
                    self.mention(id, at);
                    for id in tensors_of(self.state, id) {
                        self.mention(id, at);
                        reads.push((id, self.read(at, id)));
                    }
                }
                let finds = step.kernel().is_some_and(|call| !writes_only_its_outs(call));
                for out in outs {
                    self.out(at, out, finds, &mut reads, &mut writes);
                }
            }
        }
        reads.sort_unstable_by_key(|&(id, _)| id);
        self.def_use.reads.push(reads);
        self.def_use.writes.push(writes);
    }

    fn out(
        &mut self,
        at: Position,
        out: &OutStep,
        finds: bool,
        reads: &mut Vec<(Id, Option<Reach>)>,
        writes: &mut Vec<Option<DefId>>,
    ) {
        let ids: &[Id] = match out {
            OutStep::Tensor(id) => std::slice::from_ref(id),
            OutStep::Tensors(ids) => ids,
            OutStep::View { to, of } => {
                self.mention(*of, at);
                self.other_use(at, *of);
                let place = self.place(*of);
                self.places.insert(*to, place);
                // Whether the place of the view is known.
                let reach = (place != Place::Unknown).then_some(Reach { def: None, latest: at, root: None });
                reads.push((*to, reach));
                // A view has the bytes of another, which its home has not.
                if let Place::At(extent, _) = self.home(*to) {
                    self.note_written(extent, *to);
                }
                return;
            }
            OutStep::Scalar(_) => return,
        };
        for &id in ids {
            self.mention(id, at);
            if finds {
                reads.push((id, self.read(at, id)));
            }
            writes.push(self.write(at, id));
        }
    }

    fn mention(&mut self, id: Id, at: Position) {
        let mentions = &mut self.def_use.mentions[id];
        if mentions.first == 0 {
            mentions.first = at;
        }
        mentions.last = at;
    }

    /// A read of a tensor, and what it finds; `None` if its place is not known.
    fn read(&mut self, at: Position, id: Id) -> Option<Reach> {
        self.def_use.mentions[id].reads += 1;
        self.find_first_read(at, id);
        let Place::At(extent, root) = self.place(id) else { return None };
        let found = self.find(at, extent);
        let root = (root != id).then_some(root);
        let reach = Reach { root, ..self.reach(extent, &found) };
        for (_, def) in found {
            let is_own = Some(def) == reach.def && self.def(def).id == Some(id);
            let def = self.def_mut(def);
            def.own_uses += u32::from(is_own);
            def.has_other_uses |= !is_own;
        }
        Some(reach)
    }

    /// What definitions of the bytes of an extent are to a read of all of it.
    fn reach(&self, extent: Extent, found: &[(Extent, DefId)]) -> Reach {
        let latest = found.iter().map(|&(_, def)| self.def(def).at).max().unwrap_or(0);
        let def = match *found {
            [(part, def)]
                if part == extent && self.def(def).extent == extent && self.def(def).id.is_some() =>
            {
                Some(def)
            }
            _ => None,
        };
        Reach { def, latest, root: None }
    }

    /// Notes what an output finds when an execution ends.
    fn find_result(&mut self, id: Id) {
        let Place::At(extent, _) = self.place(id) else { return };
        let mut found = SmallVec::<[(Extent, DefId); 4]>::new();
        self.memory.read(extent, |part, def| found.extend(def.map(|def| (part, def))));
        let reach = self.reach(extent, &found);
        self.def_use.results.insert(id, reach);
    }

    /// The definitions of the bytes of an extent, of which a read uses them.
    fn find(&mut self, at: Position, extent: Extent) -> SmallVec<[(Extent, DefId); 4]> {
        let (mut found, mut gaps) = (SmallVec::new(), SmallVec::<[Extent; 4]>::new());
        self.memory.read(extent, |part, def| match def {
            Some(def) => found.push((part, def)),
            None => gaps.push(part),
        });
        let pieces = found.len() + gaps.len();
        gaps.into_iter().for_each(|gap| self.exposed.insert(gap));
        for &(_, def) in &found {
            self.def_mut(def).last_use = at;
        }
        if pieces > MOST_PIECES {
            // One definition stands for all of them from now on, so that the next read meets one.
            let mut merged = Definition::new(0, extent, None);
            merged.pieces = found.iter().map(|&(_, def)| def).collect();
            merged.at = merged.pieces.iter().map(|&def| self.def(def).at).max().unwrap_or(0);
            merged.last_use = at;
            let merged = self.push(merged);
            self.memory.write(extent, merged, |_| ());
            found = SmallVec::from_iter([(extent, merged)]);
        }
        found
    }

    /// Something refers to a tensor's bytes without reading them.
    fn other_use(&mut self, at: Position, id: Id) {
        if let Place::At(extent, _) = self.place(id) {
            for (_, def) in self.find(at, extent) {
                self.def_mut(def).has_other_uses = true;
            }
        }
    }

    /// Notes a value whose home nothing so far has written, or which names what was written as another.
    fn find_first_read(&mut self, at: Position, id: Id) {
        let Some(extent) = home(self.state, id) else { return };
        if !self.written.covers(extent) {
            self.def_use.read_first.insert(id);
        } else if self.def_use.mentions[id].first == at && !self.def_use.is_input.contains(&id) {
            let holder = self.writers.exact(extent).filter(|&holder| holder != id);
            self.def_use.holders.extend(holder.map(|holder| (id, holder)));
        }
    }

    fn note_written(&mut self, extent: Extent, id: Id) {
        self.written.insert(extent);
        self.writers.write(extent, id, |_| ());
    }

    /// A write of a tensor, and what it defines.
    fn write(&mut self, at: Position, id: Id) -> Option<DefId> {
        if let Place::At(extent, _) = self.home(id) {
            self.note_written(extent, id);
        }
        if self.place(id) == Place::NotInArena && self.def_use.moving.contains(&id) {
            self.places.insert(id, self.home(id));
        }
        if let Place::At(extent, _) = self.place(id) { self.define(at, extent, id) } else { None }
    }

    fn define(&mut self, at: Position, extent: Extent, id: Id) -> Option<DefId> {
        if extent.len == 0 {
            return None;
        }
        let mut new = Definition::new(at, extent, Some(id));
        new.live_out = self.wild.meets(extent);
        let new = self.push(new);
        let mut met: SmallVec<[DefId; 4]> = SmallVec::new();
        self.memory.write(extent, new, |old| met.push(old));
        for old in met {
            let def = self.def_mut(old);
            let is_covered = def.extent.offset >= extent.offset
                && def.extent.offset + def.extent.len <= extent.offset + extent.len;
            // Of what can be observed at any time nothing may be skipped.
            let is_lost = !is_covered || def.live_out;
            let (was_torn, own) = (def.is_torn, def.at == at);
            def.is_torn |= is_lost;
            if is_lost && !was_torn {
                self.def_use.tears.entry(at).or_default().push(old);
            }
            if own {
                self.def_use.overwrites_itself.insert(at);
            }
        }
        Some(new)
    }

    fn push(&mut self, def: Definition) -> DefId {
        self.def_use.defs.push(def);
        DefId(self.def_use.defs.len() as u32 - 1)
    }

    fn def(&self, def: DefId) -> &Definition {
        &self.def_use.defs[def.0 as usize]
    }

    fn def_mut(&mut self, def: DefId) -> &mut Definition {
        &mut self.def_use.defs[def.0 as usize]
    }

    /// What the block has written is left for others.
    fn end_block(&mut self) {
        self.left.extend(self.memory.drain());
        self.places.clear();
    }

    fn finish(mut self) -> DefUse {
        for id in self.def_use.is_output.clone() {
            // 0 if nothing mentions it but the outputs.
            self.find_first_read(0, id);
            if let (Place::At(extent, _), _) | (_, Place::At(extent, _)) = (self.place(id), self.home(id)) {
                self.exposed.insert(extent);
            }
            self.find_result(id);
        }
        for id in 0..self.state.values.len() {
            let is_named = self.state.values[id].tensor().is_some_and(|t| t.name.is_some());
            if let (true, Place::At(extent, _)) = (is_named, self.home(id)) {
                self.exposed.insert(extent);
            }
        }
        self.end_block();
        for (extent, def) in std::mem::take(&mut self.left) {
            self.def_mut(def).live_out |= self.exposed.meets(extent);
        }
        // Pieces stand before what they are put together to.
        for index in (0..self.def_use.defs.len()).rev() {
            let Definition { last_use, live_out, .. } = self.def_use.defs[index];
            for piece in std::mem::take(&mut self.def_use.defs[index].pieces) {
                let piece = self.def_mut(piece);
                piece.last_use = piece.last_use.max(last_use);
                piece.live_out |= live_out;
                piece.has_other_uses = true;
            }
        }
        self.def_use.visited = self.memory.visited();
        self.def_use.find_scalars_of_shapes(self.method);
        self.def_use
    }
}

/// The tensors that a value is or lists.
pub(crate) fn tensors_of(state: &State, id: Id) -> SmallVec<[Id; 2]> {
    match &state.values[id] {
        Value::Tensor(_) => SmallVec::from_slice(&[id]),
        Value::Tensors(ids) => SmallVec::from_slice(ids),
        Value::OptionalTensors(ids) => ids.iter().flatten().copied().collect(),
        _ => SmallVec::new(),
    }
}

/// A value as a number.
pub(crate) fn number_of(value: &Value) -> Option<Scalar> {
    match value {
        Value::Int(v) => Some(Scalar::Int(*v)),
        Value::Double(v) => Some(Scalar::Double(*v)),
        Value::Bool(v) => Some(Scalar::Bool(*v)),
        _ => None,
    }
}

/// Whether everything that a call writes is written anew: an out, or the target of a copy. A call
/// that changes what it finds cannot be part of a region, whose values have no past.
pub(crate) fn writes_only_its_outs(call: &KernelStep) -> bool {
    let schema = call.kernel.schema();
    let trailing = schema.args.iter().rev().take_while(|a| a.written).count();
    trailing == schema.written().count() || call.kernel.facts().overwrites
}

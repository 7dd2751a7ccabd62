//! The reaching-definitions pass over the instructions.
//!
//! # Why this way
//!
//! *One pass, no fixed point.* Definitions are tracked within a block only. At a block boundary the map is emptied, and
//! what it held is remembered with its extents. Meanwhile the pass collects the upward-exposed bytes: those that some
//! block reads before it writes them. At the end, a definition that was in memory at the end of a block is live-out if
//! any of its bytes are upward-exposed in any block, whether or not control can flow from the one to the other. That is
//! coarser than an iteration over the flow graph, and errs on the safe side: a live-out definition is written as the
//! program says. Most programs have one block, where nothing is lost. State of the previous execution is the same case:
//! the last block is followed by the first.
//!
//! *Facts about whole values come first.* Whether an instruction rebinds a value, anywhere in the program, decides
//! whether its planned extent can be relied on at any instruction ([`Walk::find_changes`]), and which bytes may be
//! read through a value of unknown location decides whether a definition is live-out from the start
//! ([`Walk::find_aliased_bytes`]). So both are known before the first definition is made.
//!
//! *An interval map of bytes, not a table of values.* The plan reuses an extent for unrelated values, and gives one
//! extent to a value and to its elided views. So the identity of data is its bytes and who wrote them last. A write
//! splits at most two intervals and removes those that it covers, each of which an earlier write has added: all writes
//! together are linear in the number of operands, but for the search in the map. A read of many intervals would not be,
//! if it were repeated (a buffer that is filled row by row and then read as a whole by many calls). Beyond
//! [`MAX_PIECES`], a read merges what it finds into one definition, so that the next read finds one interval.

use super::intervals::{IntervalMap, IntervalSet};
use super::{DefId, DefUse, Definition, Mentions, PerInstruction, Position, Reaching, planned_extent};
use crate::plan::{ArgRef, Chain, Id, Instr, KernelCall, OutRef, State, Value};
use pteron_tensor::{Extent, Scalar};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};

/// Maximum number of pieces that a read may span before they are merged into one definition.
const MAX_PIECES: usize = 8;

/// The location of a tensor's bytes at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    /// In this extent of an arena, which is the planned extent of the value with this id.
    At(Extent, Id),
    /// In a constant, or in no memory.
    NotInArena,
    Unknown,
}

/// The instructions to be raised, with their values.
#[derive(Clone, Copy)]
pub(crate) struct Listing<'m> {
    pub(crate) state: &'m State,
    pub(crate) chains: &'m [Chain],
    pub(crate) inputs: &'m [Id],
    pub(crate) outputs: &'m [Id],
}

impl DefUse {
    /// Computes the def-use information of a method from its instructions.
    pub(crate) fn of(method: Listing<'_>) -> Self {
        let mut walk = Walk::new(method);
        walk.find_changes();
        walk.find_aliased_bytes();
        walk.define_inputs();
        for (chain, at) in (0..method.chains.len()).zip(walk.def_use.starts.clone()) {
            if chain > 0 {
                walk.end_block();
            }
            for (i, instr) in method.chains[chain].instrs.iter().enumerate() {
                let at = at + i as Position;
                if walk.def_use.starts_block(at) {
                    walk.end_block();
                }
                walk.visit_instr(at, instr);
            }
        }
        walk.finish()
    }
}

struct Walk<'m> {
    method: Listing<'m>,
    state: &'m State,
    def_use: DefUse,
    /// The definitions that the current block has made, by the bytes that they define.
    memory: IntervalMap<DefId>,
    /// The locations of values that the current block has rebound.
    locations: HashMap<Id, Location>,
    /// All bytes that tensors of unknown location may alias.
    aliased: IntervalSet,
    /// Bytes that some block reads before it writes them (upward-exposed), and the bytes of outputs and named tensors.
    exposed: IntervalSet,
    /// The definitions at the end of each block, with the bytes that they define there.
    at_block_ends: Vec<(Extent, DefId)>,
    /// Bytes that the instructions visited so far have written.
    written: IntervalSet,
    /// For each byte in `written`, the value through which it was last written by the instructions visited so far.
    writers: IntervalMap<Id>,
}

impl<'m> Walk<'m> {
    fn new(method: Listing<'m>) -> Self {
        let mut next: Position = 1;
        let mut starts = Vec::new();
        let mut blocks = HashSet::new();
        for chain in method.chains {
            starts.push(next);
            for (i, instr) in chain.instrs.iter().enumerate() {
                if let Instr::JumpFalse { target, .. } = instr {
                    blocks.extend([next + *target as Position, next + i as Position + 1]);
                }
            }
            next += chain.instrs.len() as Position;
        }
        let mut def_use = DefUse {
            starts,
            defs: Vec::new(),
            reads: PerInstruction::default(),
            writes: PerInstruction::default(),
            clobbers: HashMap::new(),
            overwrites_itself: HashSet::new(),
            blocks,
            mentions: vec![Mentions::default(); method.state.values.len()],
            is_input: method.inputs.iter().copied().collect(),
            is_output: method.outputs.iter().flat_map(|&id| tensors_of(method.state, id)).collect(),
            rebound: HashSet::new(),
            freed: HashSet::new(),
            computed: method.inputs.iter().copied().collect(),
            from_shapes: HashSet::new(),
            read_first: HashSet::new(),
            folded: HashSet::new(),
            holders: HashMap::new(),
            results: HashMap::new(),
            visited: 0,
        };
        // Position 0 is no instruction.
        def_use.reads.push([]);
        def_use.writes.push([]);
        Self {
            method,
            state: method.state,
            def_use,
            memory: IntervalMap::default(),
            locations: HashMap::new(),
            aliased: IntervalSet::default(),
            exposed: IntervalSet::default(),
            at_block_ends: Vec::new(),
            written: IntervalSet::default(),
            writers: IntervalMap::default(),
        }
    }

    /// Records which values instructions change, rebind and free.
    fn find_changes(&mut self) {
        let DefUse { mentions, rebound, freed, computed, .. } = &mut self.def_use;
        for instr in self.method.chains.iter().flat_map(|c| &c.instrs) {
            let outs = match instr {
                Instr::Move { to, .. } => {
                    rebound.insert(*to);
                    computed.insert(*to);
                    mentions[*to].changes += 1;
                    continue;
                }
                Instr::Free(id) => {
                    freed.insert(*id);
                    mentions[*id].changes += 1;
                    continue;
                }
                _ => instr.operands().1,
            };
            for out in outs {
                match out {
                    OutRef::Scalar(id) => {
                        computed.insert(*id);
                        mentions[*id].changes += 1;
                    }
                    OutRef::View { to, .. } => {
                        rebound.insert(*to);
                        mentions[*to].changes += 1;
                    }
                    OutRef::Tensor(id) => mentions[*id].changes += 1,
                    OutRef::Tensors(ids) => ids.iter().for_each(|&id| mentions[id].changes += 1),
                }
            }
        }
    }

    /// Finds the bytes that values of unknown location may alias: values that a `MoveCall` renames, and views that are
    /// used outside the block that makes them.
    fn find_aliased_bytes(&mut self) {
        let (mut moved, mut viewed, mut has_unknown_use) = (Vec::new(), Vec::new(), false);
        for (chain, start) in self.method.chains.iter().zip(self.def_use.starts.clone()) {
            self.locations.clear();
            for (i, instr) in chain.instrs.iter().enumerate() {
                if self.def_use.starts_block(start + i as Position) {
                    self.locations.clear();
                }
                if let Instr::Move { from, to } = instr {
                    self.locations.insert(*to, Location::Unknown);
                    for id in tensors_of(self.state, *from).into_iter().chain(tensors_of(self.state, *to)) {
                        has_unknown_use |= self.location(id) == Location::Unknown;
                        moved.extend([self.location(id), self.planned_location(id)]);
                    }
                    continue;
                }
                let (args, outs) = instr.operands();
                let mut uses = args.iter().flat_map(|arg| match arg {
                    ArgRef::Value(id) => tensors_of(self.state, *id),
                    ArgRef::Out(_) => SmallVec::new(),
                });
                has_unknown_use |= uses.any(|id| self.location(id) == Location::Unknown);
                let written = outs.iter().flat_map(|out| match out {
                    OutRef::Tensor(id) => std::slice::from_ref(id),
                    OutRef::Tensors(ids) => ids,
                    OutRef::View { .. } | OutRef::Scalar(_) => &[],
                });
                for &id in written {
                    has_unknown_use |= self.location(id) == Location::Unknown;
                    if self.location(id) == Location::NotInArena {
                        self.locations.insert(id, self.planned_location(id));
                    }
                }
                for out in outs {
                    if let OutRef::View { to, of } = out {
                        viewed.extend([self.location(*of), self.planned_location(*to)]);
                        self.locations.insert(*to, self.location(*of));
                    }
                }
            }
        }
        // A view that is an output may be used outside its block.
        has_unknown_use |= self.def_use.is_output.iter().any(|&id| self.location(id) == Location::Unknown);
        let viewed = viewed.into_iter().filter(|_| has_unknown_use);
        for location in moved.into_iter().chain(viewed) {
            if let Location::At(extent, _) = location {
                self.aliased.insert(extent);
            }
        }
        self.locations.clear();
    }

    fn planned_location(&self, id: Id) -> Location {
        planned_extent(self.state, id).map_or(Location::NotInArena, |extent| Location::At(extent, id))
    }

    /// The location of a tensor's bytes at the current instruction.
    fn location(&self, id: Id) -> Location {
        match self.locations.get(&id) {
            Some(location) => *location,
            None if self.def_use.rebound.contains(&id) => Location::Unknown,
            None => self.planned_location(id),
        }
    }

    fn define_inputs(&mut self) {
        for &id in self.method.inputs {
            if let Some(extent) = planned_extent(self.state, id) {
                self.define_extent(0, extent, id);
                self.record_write(extent, id);
            }
        }
    }

    fn visit_instr(&mut self, at: Position, instr: &Instr) {
        let mut reads: Vec<(Id, Option<Reaching>)> = Vec::new();
        let mut writes = Vec::new();
        match instr {
            Instr::Move { from, to } => {
                for id in tensors_of(self.state, *from) {
                    self.record_mention(id, at);
                    self.record_other_use(at, id);
                    self.record_first_read(at, id);
                }
                self.record_mention(*from, at);
                if let Location::At(extent, _) = self.planned_location(*to) {
                    self.record_write(extent, *to);
                }
                self.locations.insert(*to, Location::Unknown);
            }
            Instr::JumpFalse { condition, .. } => {
                self.record_mention(*condition, at);
                if self.state.values[*condition].tensor().is_some() {
                    reads.push((*condition, self.record_read(at, *condition)));
                }
            }
            _ => {
                let (args, outs) = instr.operands();
                for arg in args {
                    let ArgRef::Value(id) = *arg else { continue };
                    self.record_mention(id, at);
                    for id in tensors_of(self.state, id) {
                        self.record_mention(id, at);
                        reads.push((id, self.record_read(at, id)));
                    }
                }
                let reads_outs = instr.kernel().is_some_and(|call| !writes_only_its_outs(call));
                for out in outs {
                    self.visit_out(at, out, reads_outs, &mut reads, &mut writes);
                }
            }
        }
        // Sorted for the binary search of `DefUse::reaching_def`.
        reads.sort_unstable_by_key(|&(id, _)| id);
        self.def_use.reads.push(reads);
        self.def_use.writes.push(writes);
    }

    fn visit_out(
        &mut self,
        at: Position,
        out: &OutRef,
        reads_outs: bool,
        reads: &mut Vec<(Id, Option<Reaching>)>,
        writes: &mut Vec<Option<DefId>>,
    ) {
        let ids: &[Id] = match out {
            OutRef::Tensor(id) => std::slice::from_ref(id),
            OutRef::Tensors(ids) => ids,
            OutRef::View { to, of } => {
                self.record_mention(*of, at);
                self.record_other_use(at, *of);
                let location = self.location(*of);
                self.locations.insert(*to, location);
                // `None` if the location of the view is unknown.
                let reach =
                    (location != Location::Unknown).then_some(Reaching { def: None, latest: at, root: None });
                reads.push((*to, reach));
                // The view has the bytes of another tensor; its planned extent counts as written.
                if let Location::At(extent, _) = self.planned_location(*to) {
                    self.record_write(extent, *to);
                }
                return;
            }
            OutRef::Scalar(_) => return,
        };
        for &id in ids {
            self.record_mention(id, at);
            // Before the write: an in-place call reads what earlier instructions have written.
            if reads_outs {
                reads.push((id, self.record_read(at, id)));
            }
            writes.push(self.define_tensor(at, id));
        }
    }

    fn record_mention(&mut self, id: Id, at: Position) {
        let mentions = &mut self.def_use.mentions[id];
        if mentions.first == 0 {
            mentions.first = at;
        }
        mentions.last = at;
    }

    /// Records a read of a tensor and returns the definition that reaches it. `None` if the location is unknown.
    fn record_read(&mut self, at: Position, id: Id) -> Option<Reaching> {
        self.def_use.mentions[id].reads += 1;
        self.record_first_read(at, id);
        let Location::At(extent, root) = self.location(id) else { return None };
        let defs = self.use_definitions(at, extent);
        let root = (root != id).then_some(root);
        let reach = Reaching { root, ..self.reaching_def_of_extent(extent, &defs) };
        for (_, def) in defs {
            let is_own = Some(def) == reach.def && self.def(def).id == Some(id);
            let def = self.def_mut(def);
            def.own_uses += u32::from(is_own);
            def.has_other_uses |= !is_own;
        }
        Some(reach)
    }

    /// The definition that reaches a read of a whole extent, where `defs` are the definitions of the extent's bytes.
    fn reaching_def_of_extent(&self, extent: Extent, defs: &[(Extent, DefId)]) -> Reaching {
        let latest = defs.iter().map(|&(_, def)| self.def(def).at).max().unwrap_or(0);
        let def = match *defs {
            [(part, def)]
                if part == extent && self.def(def).extent == extent && self.def(def).id.is_some() =>
            {
                Some(def)
            }
            _ => None,
        };
        Reaching { def, latest, root: None }
    }

    /// Records the definition that reaches an output when an execution ends.
    fn record_result(&mut self, id: Id) {
        let Location::At(extent, _) = self.location(id) else { return };
        let mut defs = SmallVec::<[(Extent, DefId); 4]>::new();
        self.memory.read(extent, |part, def| defs.extend(def.map(|def| (part, def))));
        let reach = self.reaching_def_of_extent(extent, &defs);
        self.def_use.results.insert(id, reach);
    }

    /// Records that the instruction at `at` uses the bytes of an extent, and returns the definitions of these bytes.
    fn use_definitions(&mut self, at: Position, extent: Extent) -> SmallVec<[(Extent, DefId); 4]> {
        let (mut defs, mut gaps) = (SmallVec::new(), SmallVec::<[Extent; 4]>::new());
        self.memory.read(extent, |part, def| match def {
            Some(def) => defs.push((part, def)),
            None => gaps.push(part),
        });
        let pieces = defs.len() + gaps.len();
        gaps.into_iter().for_each(|gap| self.exposed.insert(gap));
        for &(_, def) in &defs {
            self.def_mut(def).last_use = at;
        }
        if pieces > MAX_PIECES {
            // One merged definition stands for all of them from now on, so that the next read meets only one.
            let mut merged = Definition::new(0, extent, None);
            merged.pieces = defs.iter().map(|&(_, def)| def).collect();
            merged.at = merged.pieces.iter().map(|&def| self.def(def).at).max().unwrap_or(0);
            merged.last_use = at;
            let merged = self.push_definition(merged);
            self.memory.write(extent, merged, |_| ());
            defs = SmallVec::from_iter([(extent, merged)]);
        }
        defs
    }

    /// Records a use of a tensor's bytes other than a read.
    fn record_other_use(&mut self, at: Position, id: Id) {
        if let Location::At(extent, _) = self.location(id) {
            for (_, def) in self.use_definitions(at, extent) {
                self.def_mut(def).has_other_uses = true;
            }
        }
    }

    /// Records a value that is read before its planned extent is written (state), or that names what was written
    /// through another value (an elided view).
    fn record_first_read(&mut self, at: Position, id: Id) {
        let Some(extent) = planned_extent(self.state, id) else { return };
        if !self.written.covers(extent) {
            self.def_use.read_first.insert(id);
        } else if self.def_use.mentions[id].first == at && !self.def_use.is_input.contains(&id) {
            let holder = self.writers.get_exact(extent).filter(|&holder| holder != id);
            self.def_use.holders.extend(holder.map(|holder| (id, holder)));
        }
    }

    fn record_write(&mut self, extent: Extent, id: Id) {
        self.written.insert(extent);
        self.writers.write(extent, id, |_| ());
    }

    /// Records a write of a tensor and returns its definition. `None` if the tensor is empty or its location unknown.
    fn define_tensor(&mut self, at: Position, id: Id) -> Option<DefId> {
        if let Location::At(extent, _) = self.planned_location(id) {
            self.record_write(extent, id);
        }
        if self.location(id) == Location::NotInArena && self.def_use.rebound.contains(&id) {
            self.locations.insert(id, self.planned_location(id));
        }
        if let Location::At(extent, _) = self.location(id) {
            self.define_extent(at, extent, id)
        } else {
            None
        }
    }

    fn define_extent(&mut self, at: Position, extent: Extent, id: Id) -> Option<DefId> {
        if extent.len == 0 {
            return None;
        }
        let mut new = Definition::new(at, extent, Some(id));
        new.live_out = self.aliased.overlaps(extent);
        let new = self.push_definition(new);
        let mut overwritten: SmallVec<[DefId; 4]> = SmallVec::new();
        self.memory.write(extent, new, |old| overwritten.push(old));
        for old in overwritten {
            let def = self.def_mut(old);
            let is_covered = def.extent.offset >= extent.offset
                && def.extent.offset + def.extent.len <= extent.offset + extent.len;
            // A live-out definition may be observed before it is overwritten, so its write must not be skipped.
            let clobbers = !is_covered || def.live_out;
            let (was_clobbered, own) = (def.is_clobbered, def.at == at);
            def.is_clobbered |= clobbers;
            if clobbers && !was_clobbered {
                self.def_use.clobbers.entry(at).or_default().push(old);
            }
            if own {
                self.def_use.overwrites_itself.insert(at);
            }
        }
        Some(new)
    }

    fn push_definition(&mut self, def: Definition) -> DefId {
        self.def_use.defs.push(def);
        DefId(self.def_use.defs.len() as u32 - 1)
    }

    fn def(&self, def: DefId) -> &Definition {
        &self.def_use.defs[def.0 as usize]
    }

    fn def_mut(&mut self, def: DefId) -> &mut Definition {
        &mut self.def_use.defs[def.0 as usize]
    }

    /// Ends a block: its definitions may be read by other blocks.
    fn end_block(&mut self) {
        self.at_block_ends.extend(self.memory.drain());
        self.locations.clear();
    }

    fn finish(mut self) -> DefUse {
        for id in self.def_use.is_output.clone() {
            // The position 0 matches an output that no instruction mentions.
            self.record_first_read(0, id);
            if let (Location::At(extent, _), _) | (_, Location::At(extent, _)) =
                (self.location(id), self.planned_location(id))
            {
                self.exposed.insert(extent);
            }
            self.record_result(id);
        }
        for id in 0..self.state.values.len() {
            let is_named = self.state.values[id].tensor().is_some_and(|t| t.name.is_some());
            if let (true, Location::At(extent, _)) = (is_named, self.planned_location(id)) {
                self.exposed.insert(extent);
            }
        }
        self.end_block();
        for (extent, def) in std::mem::take(&mut self.at_block_ends) {
            self.def_mut(def).live_out |= self.exposed.overlaps(extent);
        }
        // What is observed of a merged definition is observed of its pieces. They precede it, so one pass from the last
        // definition to the first also reaches the pieces of pieces.
        for index in (0..self.def_use.defs.len()).rev() {
            let Definition { last_use, live_out, .. } = self.def_use.defs[index];
            for piece in std::mem::take(&mut self.def_use.defs[index].pieces) {
                let piece = self.def_mut(piece);
                piece.last_use = piece.last_use.max(last_use);
                piece.live_out |= live_out;
                piece.has_other_uses = true;
            }
        }
        self.def_use.visited = self.memory.num_lookups();
        self.def_use.find_shape_scalars(self.method);
        self.def_use
    }
}

/// The tensors that a value is or contains.
pub(crate) fn tensors_of(state: &State, id: Id) -> SmallVec<[Id; 2]> {
    match &state.values[id] {
        Value::Tensor(_) => SmallVec::from_slice(&[id]),
        Value::Tensors(ids) => SmallVec::from_slice(ids),
        Value::OptionalTensors(ids) => ids.iter().flatten().copied().collect(),
        _ => SmallVec::new(),
    }
}

/// The scalar that a value holds; `None` if it holds no scalar.
pub(crate) fn scalar_of(value: &Value) -> Option<Scalar> {
    match value {
        Value::Int(v) => Some(Scalar::Int(*v)),
        Value::Double(v) => Some(Scalar::Double(*v)),
        Value::Bool(v) => Some(Scalar::Bool(*v)),
        _ => None,
    }
}

/// Whether a call overwrites everything that it writes without reading it: outs, or the target of a copy. An in-place
/// call cannot be part of a region, whose graph is in SSA form.
pub(crate) fn writes_only_its_outs(call: &KernelCall) -> bool {
    let schema = call.kernel.schema();
    let trailing = schema.args.iter().rev().take_while(|a| a.written).count();
    trailing == schema.written_args().count() || call.kernel.facts().overwrites
}

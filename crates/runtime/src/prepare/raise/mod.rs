//! Raises a method to def-use form: a reaching-definitions analysis over arena memory.
//!
//! A memory plan assigns arena extents to values; it does not name data. An elided view is another value at the same
//! extent, without any instruction, and an extent is reused once its tensor is dead. One pass over the instructions
//! keeps an interval map from bytes to the *definition* that last wrote them. It finds the definition that reaches
//! each read, and whether anything may still read each definition. All analyses of a loaded method use it: regions
//! with their inputs and outputs, constant folding, keys of dynamic shapes, the state that a checkpoint saves.
//!
//! | in the method | in the analysis |
//! | --- | --- |
//! | a call or delegate that writes a tensor | defines the tensor's whole capacity, the bytes of its upper bound |
//! | an in-place call (`add_`) | reads its outs, then defines them |
//! | an input | a definition before the first instruction: inputs are set before each execution |
//! | bytes that are read before anything writes them | state of the previous execution; definitions of such bytes at the end of a block are live-out |
//! | outputs and named tensors | live-out: read when an execution ends |
//! | a write to some bytes of a definition | *clobbers* it: the rest can still be read, but no longer the whole |
//! | a read across several definitions, or of a part of one | uses all of them, but none as a whole |
//! | a view that an instruction makes | has the extent of what it views, for the rest of the block |
//! | `MoveCall` of a tensor | two values may alias from then on: all bytes of either are always live-out |
//! | `FreeCall` | the value has no memory until it is next written, at its planned extent |
//! | `JumpFalseCall` and its targets | block boundaries: a definition there is live-out if any block reads its bytes before writing them |
//!
//! The cost is proportional to the number of operands, times the logarithm of the number of intervals in the map.

mod from_tables;
mod intervals;
mod shape_scalars;
mod walk;

pub use from_tables::{RaisedFlow, RaisedInstruction, RaisedMethod, RaisedRead, RaisedView, ReachingDef};
pub(crate) use walk::{Listing, scalar_of, tensors_of, writes_only_its_outs};

#[cfg(test)]
mod tests;

use crate::plan::{Id, State, Storage};
use pteron_tensor::Extent;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The number of an instruction, counted from 1 across all chains of a method.
pub(crate) type Position = u32;

/// The index of a definition in the list of all definitions of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DefId(u32);

/// A definition: bytes written by an instruction, or by the caller as an input.
#[derive(Debug)]
struct Definition {
    /// The instruction that writes the bytes; 0 for an input.
    at: Position,
    /// The bytes that are defined.
    extent: Extent,
    /// The value that was written; `None` for a merged definition.
    id: Option<Id>,
    /// The last instruction that reads any of the bytes; `at` if none does.
    last_use: Position,
    /// Whether the bytes can be observed after the block, or through a value whose location is unknown.
    live_out: bool,
    /// Whether a later write overwrote part of the bytes, or all of them although they are live-out.
    is_clobbered: bool,
    /// The number of reads of the whole definition through the value that was written.
    own_uses: u32,
    /// Whether the definition has uses that are not in `own_uses`.
    has_other_uses: bool,
    /// The parts of a merged definition, which stands for several definitions that were read together; otherwise empty.
    pieces: Vec<DefId>,
}

impl Definition {
    fn new(at: Position, extent: Extent, id: Option<Id>) -> Self {
        Self {
            at,
            extent,
            id,
            last_use: at,
            live_out: false,
            is_clobbered: false,
            own_uses: 0,
            has_other_uses: false,
            pieces: Vec::new(),
        }
    }
}

/// The definition that reaches a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reaching {
    /// The definition whose bytes are exactly those that are read; `None` if there is no such definition.
    pub(crate) def: Option<DefId>,
    /// The last instruction that wrote any of the bytes; 0 if none in this block did.
    pub(crate) latest: Position,
    /// The viewed value, if the value that is read is a view. The bytes are in the viewed value's planned extent.
    pub(crate) root: Option<Id>,
}

/// Where and how often instructions mention a value.
#[derive(Debug, Clone, Copy, Default)]
struct Mentions {
    first: Position,
    last: Position,
    /// The number of reads of the value as a tensor.
    reads: u32,
    /// The number of instructions that write the value, move another to it, make it a view, or free it.
    changes: u32,
}

/// Def-use information of a method. See the module documentation.
pub(crate) struct DefUse {
    /// The position of the first instruction of each chain.
    starts: Vec<Position>,
    defs: Vec<Definition>,
    /// The tensors that each instruction reads, sorted by id, with the definition that reaches each read.
    reads: PerInstruction<(Id, Option<Reaching>)>,
    /// The definitions that each instruction makes, in the order of its outs; `None` for outs without bytes or of unknown
    /// location.
    writes: PerInstruction<Option<DefId>>,
    /// The definitions that each instruction is the first to clobber, by position of the instruction.
    clobbers: HashMap<Position, SmallVec<[DefId; 2]>>,
    /// Instructions with outs that overlap each other.
    overwrites_itself: HashSet<Position>,
    /// The positions of the first instructions of blocks.
    blocks: HashSet<Position>,
    mentions: Vec<Mentions>,
    is_input: HashSet<Id>,
    is_output: HashSet<Id>,
    /// Values that instructions rebind to other memory: targets of moves, and views.
    rebound: HashSet<Id>,
    /// Values that instructions free.
    freed: HashSet<Id>,
    /// Scalars and lists that are known only at run time: an instruction computes them, or they are inputs.
    computed: HashSet<Id>,
    /// Scalars that depend only on sizes (transitively): never on tensor elements.
    from_shapes: HashSet<Id>,
    /// Values that are read before instructions have written their whole planned extent, in instruction order.
    read_first: HashSet<Id>,
    /// Elided views, with the value that they view: a value that no instruction has written, first read while its
    /// planned extent holds exactly what another value wrote, in instruction order.
    holders: HashMap<Id, Id>,
    /// The definitions that reach the outputs at the end of the last block, for outputs of known location.
    results: HashMap<Id, Reaching>,
    /// Values whose only writer was folded when the method was loaded.
    folded: HashSet<Id>,
    visited: u64,
}

impl DefUse {
    /// The position of an instruction.
    pub(crate) fn position(&self, chain: usize, instruction: usize) -> Position {
        self.starts[chain] + instruction as Position
    }

    /// The definition that reaches an instruction's read of a tensor. `None` if the tensor's location is unknown.
    pub(crate) fn reaching_def(&self, at: Position, id: Id) -> Option<Reaching> {
        let reads = self.reads.list_of(at);
        let index = reads.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        reads[index].1
    }

    /// The definitions that an instruction makes, in the order of its outs.
    pub(crate) fn writes(&self, at: Position) -> &[Option<DefId>] {
        self.writes.list_of(at)
    }

    /// Whether anything after the instruction at `at` may read a definition.
    pub(crate) fn is_needed_after(&self, def: DefId, at: Position) -> bool {
        let def = &self.defs[def.0 as usize];
        def.live_out || def.last_use > at
    }

    /// Whether a definition can be observed after its block.
    pub(crate) fn is_live_out(&self, def: DefId) -> bool {
        self.defs[def.0 as usize].live_out
    }

    /// The definitions that an instruction is the first to clobber.
    pub(crate) fn clobbered_by(&self, at: Position) -> &[DefId] {
        self.clobbers.get(&at).map_or(&[], |list| list)
    }

    /// Whether the outs of an instruction overlap each other.
    pub(crate) fn overwrites_itself(&self, at: Position) -> bool {
        self.overwrites_itself.contains(&at)
    }

    /// Whether an instruction starts a block: it is a jump target or follows a jump.
    pub(crate) fn starts_block(&self, at: Position) -> bool {
        self.blocks.contains(&at)
    }

    /// Whether a value is an output, or instructions outside a range mention it.
    pub(crate) fn is_mentioned_outside(&self, id: Id, range: &Range<Position>) -> bool {
        let Mentions { first, last, .. } = self.mentions[id];
        self.is_output.contains(&id) || last > 0 && (first < range.start || last >= range.end)
    }

    /// Whether the location of a value may change at run time.
    pub(crate) fn is_rebound(&self, id: Id) -> bool {
        self.rebound.contains(&id) || self.freed.contains(&id)
    }

    /// Whether a non-tensor value is known only at run time: an instruction computes it, or it is an input.
    pub(crate) fn is_computed(&self, id: Id) -> bool {
        self.computed.contains(&id)
    }

    /// Whether a computed scalar depends only on sizes.
    pub(crate) fn depends_only_on_shapes(&self, id: Id) -> bool {
        self.from_shapes.contains(&id)
    }

    /// Whether a value is constant: neither an instruction nor the caller changes it.
    pub(crate) fn is_fixed(&self, id: Id) -> bool {
        self.folded.contains(&id) || self.mentions[id].changes == 0 && !self.is_input.contains(&id)
    }

    /// Records that a value has become a constant.
    pub(crate) fn set_folded(&mut self, id: Id) {
        self.folded.insert(id);
    }

    /// Whether the definition of a value can be replaced by a constant: this definition reaches all reads of the value,
    /// and nothing else observes its bytes.
    pub(crate) fn is_foldable(&self, state: &State, id: Id, def: DefId) -> bool {
        let (def, mentions) = (&self.defs[def.0 as usize], &self.mentions[id]);
        !def.live_out
            && !def.has_other_uses
            && def.own_uses == mentions.reads
            && mentions.changes == 1
            && !self.is_rebound(id)
            && !self.is_input.contains(&id)
            && !self.is_output.contains(&id)
            && state.values[id].tensor().is_some_and(|t| t.name.is_none())
    }

    /// Whether a value is state: an execution reads its bytes before writing all of them.
    pub(crate) fn is_read_first(&self, id: Id) -> bool {
        self.read_first.contains(&id)
    }

    /// The number of lookups in interval maps, which measures the cost of raising.
    #[cfg(test)]
    pub(crate) fn num_lookups(&self) -> u64 {
        self.visited
    }
}

/// One list per instruction, stored contiguously.
#[derive(Default)]
struct PerInstruction<T> {
    items: Vec<T>,
    /// The index in `items` at which the list of each instruction ends.
    ends: Vec<u32>,
}

impl<T> PerInstruction<T> {
    fn push(&mut self, list: impl IntoIterator<Item = T>) {
        self.items.extend(list);
        self.ends.push(self.items.len() as u32);
    }

    fn list_of(&self, at: Position) -> &[T] {
        let end = |at: usize| self.ends.get(at).map_or(self.items.len(), |&end| end as usize);
        let at = at as usize;
        &self.items[at.checked_sub(1).map_or(0, end)..end(at)]
    }
}

/// The planned extent of a tensor, if it is in an arena.
fn planned_extent(state: &State, id: Id) -> Option<Extent> {
    match state.values[id].tensor()?.home {
        Storage::Arena(extent) => Some(extent),
        _ => None,
    }
}

//! A method raised: which instruction's result each read of memory finds.
//!
//! A plan gives values places in memory, not names to data: a view that was elided is another value at the same
//! place without any instruction, and a place is used again once its tensor is dead. One pass over the
//! instructions finds, with a map from bytes to what was last written there, the *definition* that each read
//! sees, and what may still read each definition. All analyses of a loaded method stand on it: regions and
//! their inputs and outputs, constant folding, keys of dynamic shapes, the state that a checkpoint holds.
//!
//! | in the method | what it means here |
//! | --- | --- |
//! | a call or delegate that writes a tensor | a definition of the tensor's whole capacity, the bytes of its upper bound |
//! | a call that changes what it finds (`add_`) | reads its outs, then defines them |
//! | an input | a definition before the first instruction: inputs are set before each execution |
//! | bytes that are read before anything writes them | state: what the last execution left; definitions that reach the end of a block there are live-out |
//! | outputs and named tensors | live-out: read when an execution ends |
//! | a write of some bytes of a definition | *tears* it: what is left can still be read, but no longer as a whole |
//! | a read across several definitions, or of a part | uses all of them, as a whole none |
//! | a view that an instruction makes | the place of what it views, for the rest of the block |
//! | `MoveCall` of a tensor | from then on two values may be one place: all bytes that either may refer to are live-out always |
//! | `FreeCall` | the value has no place until it is written again, at home |
//! | `JumpFalseCall` and its targets | ends of blocks: what is in memory there is live-out if any block finds it there |
//!
//! The cost is that of the operands, each in the logarithm of the number of pieces of memory.

mod method;
mod numbers;
mod places;
mod walk;

pub use method::{Found, RaisedFlow, RaisedInstruction, RaisedMethod, RaisedRead, RaisedView};
pub(crate) use walk::{number_of, tensors_of, writes_only_its_outs};

#[cfg(test)]
mod tests;

use crate::call::State;
use crate::method::Method;
use crate::value::{Id, Storage};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use tensor::Extent;

/// An instruction of a method: its number among those of all chains, counted from 1.
pub(crate) type Position = u32;

/// A definition of bytes, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DefId(u32);

/// Bytes as an instruction, or whoever sets an input, writes them.
#[derive(Debug)]
struct Definition {
    /// The instruction; 0 for an input.
    at: Position,
    /// All its bytes.
    extent: Extent,
    /// The value that was written; none if it is put together of pieces.
    id: Option<Id>,
    /// The last instruction that reads any of the bytes.
    last_use: Position,
    /// Whether they can be observed behind the block, or through a value whose place is not known.
    live_out: bool,
    /// Whether other bytes were written over some of them, or over all of what can be observed at any time.
    is_torn: bool,
    /// Reads of the whole through the value that was written.
    own_uses: u32,
    /// Whether anything reads it in another way.
    has_other_uses: bool,
    /// Of what it is put together, if it is: of pieces that were read together.
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
            is_torn: false,
            own_uses: 0,
            has_other_uses: false,
            pieces: Vec::new(),
        }
    }
}

/// What a read finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The definition, if the read is of the whole of one.
    pub(crate) def: Option<DefId>,
    /// The last instruction that wrote any of the bytes; 0 if none of this block has.
    pub(crate) latest: Position,
    /// A value that is always at this place, if the one that is read is not.
    pub(crate) root: Option<Id>,
}

/// How instructions mention a value.
#[derive(Debug, Clone, Copy, Default)]
struct Mentions {
    first: Position,
    last: Position,
    /// Reads as a tensor.
    reads: u32,
    /// Instructions that change it in any way.
    changes: u32,
}

/// Definitions and uses of a method. See the module's page.
pub(crate) struct DefUse {
    /// By chain, the position of its first instruction.
    starts: Vec<Position>,
    defs: Vec<Definition>,
    /// What each instruction reads, sorted by value.
    reads: Flat<(Id, Option<Reach>)>,
    /// What each instruction defines, in the order of its outs; nothing for what has no bytes or no known place.
    writes: Flat<Option<DefId>>,
    /// Definitions that each instruction is the first to tear.
    tears: HashMap<Position, SmallVec<[DefId; 2]>>,
    /// Instructions whose outs overlap.
    overwrites_itself: HashSet<Position>,
    /// First instructions of blocks.
    blocks: HashSet<Position>,
    mentions: Vec<Mentions>,
    is_input: HashSet<Id>,
    is_output: HashSet<Id>,
    /// Values that instructions move or make views.
    moving: HashSet<Id>,
    /// Values that instructions free.
    freed: HashSet<Id>,
    /// Scalars and lists that some instruction computes, inputs among them.
    computed: HashSet<Id>,
    /// Scalars that depend only on sizes (transitively): never on tensor elements.
    from_shapes: HashSet<Id>,
    /// Values that are read before anything writes their home, in the order of the instructions.
    read_first: HashSet<Id>,
    /// Values that are read before anything writes them, while their home holds all of what another one wrote, in
    /// the order of the instructions: elided views. With the other.
    holders: HashMap<Id, Id>,
    /// What the outputs find at the end of the last block, those whose place is known.
    results: HashMap<Id, Reach>,
    /// Values whose one writer was computed when the method was loaded.
    folded: HashSet<Id>,
    visited: u64,
}

impl DefUse {
    /// The number of an instruction.
    pub(crate) fn position(&self, chain: usize, instruction: usize) -> Position {
        self.starts[chain] + instruction as Position
    }

    /// What an instruction's read of a tensor finds; `None` if its place is not known.
    pub(crate) fn read(&self, at: Position, id: Id) -> Option<Reach> {
        let reads = self.reads.of(at);
        let found = reads.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        reads[found].1
    }

    /// What an instruction defines, in the order of its outs.
    pub(crate) fn writes(&self, at: Position) -> &[Option<DefId>] {
        self.writes.of(at)
    }

    /// Whether anything behind an instruction may read what a definition has written.
    pub(crate) fn is_needed_after(&self, def: DefId, at: Position) -> bool {
        let def = &self.defs[def.0 as usize];
        def.live_out || def.last_use > at
    }

    /// Whether a definition can be observed behind its block.
    pub(crate) fn is_live_out(&self, def: DefId) -> bool {
        self.defs[def.0 as usize].live_out
    }

    /// The definitions of which an instruction is the first to overwrite a part.
    pub(crate) fn torn_by(&self, at: Position) -> &[DefId] {
        self.tears.get(&at).map_or(&[], |list| list)
    }

    /// Whether outs of an instruction overlap each other.
    pub(crate) fn overwrites_itself(&self, at: Position) -> bool {
        self.overwrites_itself.contains(&at)
    }

    /// Whether execution can come to an instruction from elsewhere than the one before.
    pub(crate) fn starts_block(&self, at: Position) -> bool {
        self.blocks.contains(&at)
    }

    /// Whether instructions outside a range, or the outputs, mention a value.
    pub(crate) fn is_mentioned_outside(&self, id: Id, range: &Range<Position>) -> bool {
        let Mentions { first, last, .. } = self.mentions[id];
        self.is_output.contains(&id) || last > 0 && (first < range.start || last >= range.end)
    }

    /// Whether the place of a value may change at run time.
    pub(crate) fn is_moving(&self, id: Id) -> bool {
        self.moving.contains(&id) || self.freed.contains(&id)
    }

    /// Whether an instruction computes a value that is no tensor.
    pub(crate) fn is_computed(&self, id: Id) -> bool {
        self.computed.contains(&id)
    }

    /// Whether a computed scalar depends only on sizes.
    pub(crate) fn is_from_shapes(&self, id: Id) -> bool {
        self.from_shapes.contains(&id)
    }

    /// Whether no instruction changes a value, nor the caller.
    pub(crate) fn is_fixed(&self, id: Id) -> bool {
        self.folded.contains(&id) || self.mentions[id].changes == 0 && !self.is_input.contains(&id)
    }

    /// A value has become a constant.
    pub(crate) fn set_folded(&mut self, id: Id) {
        self.folded.insert(id);
    }

    /// Whether a value may become a constant which an instruction writes now: nothing but reads of that value,
    /// all of which find this definition, can tell whether its bytes were ever written.
    pub(crate) fn is_foldable(&self, method: &Method, id: Id, def: DefId) -> bool {
        let (def, mentions) = (&self.defs[def.0 as usize], &self.mentions[id]);
        !def.live_out
            && !def.has_other_uses
            && def.own_uses == mentions.reads
            && mentions.changes == 1
            && !self.is_moving(id)
            && !self.is_input.contains(&id)
            && !self.is_output.contains(&id)
            && method.state.values[id].tensor().is_some_and(|t| t.name.is_none())
    }

    /// Whether an execution reads what the last one has left at a value's place.
    pub(crate) fn is_read_first(&self, id: Id) -> bool {
        self.read_first.contains(&id)
    }

    /// Pieces of memory looked at: what raising has taken.
    #[cfg(test)]
    pub(crate) fn visited(&self) -> u64 {
        self.visited
    }
}

/// Lists, one for each instruction, kept one behind another.
#[derive(Default)]
struct Flat<T> {
    items: Vec<T>,
    /// Where each instruction's list ends.
    ends: Vec<u32>,
}

impl<T> Flat<T> {
    fn push(&mut self, list: impl IntoIterator<Item = T>) {
        self.items.extend(list);
        self.ends.push(self.items.len() as u32);
    }

    fn of(&self, at: Position) -> &[T] {
        let end = |at: usize| self.ends.get(at).map_or(self.items.len(), |&end| end as usize);
        let at = at as usize;
        &self.items[at.checked_sub(1).map_or(0, end)..end(at)]
    }
}

/// Where the plan puts a tensor, if in an arena.
fn home(state: &State, id: Id) -> Option<Extent> {
    match state.values[id].tensor()?.home {
        Storage::Arena(extent) => Some(extent),
        _ => None,
    }
}

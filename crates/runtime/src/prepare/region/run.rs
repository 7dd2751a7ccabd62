use crate::plan::Instr;
use crate::prepare::raise::{DefUse, Position};
use std::ops::Range;

/// A range of instructions whose calls can be lowered together.
pub(super) struct Run {
    pub(super) chain: usize,
    pub(super) range: Range<usize>,
    pub(super) is_dynamic: bool,
}

impl Run {
    /// The positions of the run's instructions.
    pub(super) fn positions(&self, def_use: &DefUse) -> Range<Position> {
        def_use.position(self.chain, self.range.start)..def_use.position(self.chain, self.range.end)
    }
}

/// The calls in a range of a chain: a region counts as its first call, and folded calls are skipped.
pub(super) fn calls(instrs: &[Instr], range: Range<usize>) -> impl Iterator<Item = (usize, &Instr)> {
    range.filter_map(|i| match &instrs[i] {
        call @ (Instr::Kernel(_) | Instr::Delegate(_)) => Some((i, call)),
        Instr::Region(region) => Some((i, &*region.first)),
        _ => None,
    })
}

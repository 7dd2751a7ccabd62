//! What the memory of a plan holds while its instructions are read.

use ir::exported::VarId;
use std::collections::BTreeMap;

/// Bytes of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Extent {
    pub(super) arena: u32,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// What was last written to an extent: the value of the program, and that of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) var: VarId,
    pub(super) value: usize,
}

/// What a read of an extent finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// What was written to these bytes, all of them at once.
    Whole(Held),
    /// Nothing was written to any of the bytes.
    Nothing,
    /// Some of the bytes were written otherwise than the others.
    Parts,
}

/// The extents that were written and are whole: those that later writes overlap are gone.
#[derive(Default, Clone)]
pub(super) struct Memory {
    held: BTreeMap<(u32, u64), (u64, Held)>,
    /// Extents that lost some of their bytes.
    torn: BTreeMap<(u32, u64), u64>,
}

impl Memory {
    pub(super) fn write(&mut self, extent: Extent, held: Held) {
        self.clear(extent);
        self.held.insert((extent.arena, extent.start), (extent.end, held));
    }

    /// Forgets what lies in an extent, so that nobody finds it whole.
    pub(super) fn lose(&mut self, extent: Extent) {
        self.clear(extent);
        self.torn.insert((extent.arena, extent.start), extent.end);
    }

    fn clear(&mut self, extent: Extent) {
        while let Some((start, end)) = last_before(&self.held, extent, |(end, _)| *end) {
            self.held.remove(&(extent.arena, start));
            for (from, to) in [(start, extent.start.min(end)), (extent.end.max(start), end)] {
                if from < to {
                    self.torn.insert((extent.arena, from), to);
                }
            }
        }
        while let Some((start, end)) = last_before(&self.torn, extent, |end| *end) {
            self.torn.remove(&(extent.arena, start));
            if start < extent.start {
                self.torn.insert((extent.arena, start), extent.start);
            }
            if end > extent.end {
                self.torn.insert((extent.arena, extent.end), end);
            }
        }
    }

    pub(super) fn read(&self, extent: Extent) -> Found {
        if let Some((end, held)) = self.held.get(&(extent.arena, extent.start))
            && *end == extent.end
        {
            return Found::Whole(*held);
        }
        let met = last_before(&self.held, extent, |(end, _)| *end).is_some()
            || last_before(&self.torn, extent, |end| *end).is_some();
        if met { Found::Parts } else { Found::Nothing }
    }
}

/// The last extent that shares bytes with another: where it starts and ends.
fn last_before<T>(
    extents: &BTreeMap<(u32, u64), T>,
    with: Extent,
    end_of: impl Fn(&T) -> u64,
) -> Option<(u64, u64)> {
    let (&(_, start), content) = extents.range((with.arena, 0)..(with.arena, with.end)).next_back()?;
    let end = end_of(content);
    (end > with.start).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::exported::{ExportedProgram, VarType};

    #[test]
    fn what_was_overwritten_in_part_is_gone() {
        let mut program = ExportedProgram::new("forward");
        let mut held = |value| Held { var: program.add_var("x", VarType::Float), value };
        let extent = |start, end| Extent { arena: 1, start, end };
        let mut memory = Memory::default();
        let (a, b) = (held(0), held(1));
        memory.write(extent(0, 16), a);
        assert_eq!(memory.read(extent(0, 16)), Found::Whole(a));
        assert_eq!(memory.read(extent(0, 8)), Found::Parts);
        assert_eq!(memory.read(extent(16, 24)), Found::Nothing);
        memory.write(extent(8, 24), b);
        assert_eq!(memory.read(extent(8, 24)), Found::Whole(b));
        assert_eq!(memory.read(extent(0, 16)), Found::Parts);
        assert_eq!(memory.read(extent(0, 8)), Found::Parts);
        memory.write(extent(0, 8), a);
        assert_eq!(memory.read(extent(0, 8)), Found::Whole(a));
        memory.lose(extent(0, 8));
        assert_eq!(memory.read(extent(0, 8)), Found::Parts);
        assert_eq!(memory.read(Extent { arena: 2, start: 0, end: 8 }), Found::Nothing);
    }
}

//! The contents of a plan's memory at the current instruction.

use pteron_exported::VarId;
use std::collections::BTreeMap;

/// A range of bytes in an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Extent {
    pub(super) arena: u32,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// What was last written to an extent: the variable of the exported program, and the value of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) var: VarId,
    pub(super) value: usize,
}

/// The result of reading an extent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    /// The value that was written to exactly these bytes.
    Whole(Stored),
    /// None of the bytes was written.
    Nothing,
    /// The bytes hold only a part of a value, or parts of several.
    Partial,
}

/// The extents that were written and are intact; a later write that overlaps an extent invalidates it.
#[derive(Default, Clone)]
pub(super) struct Memory {
    held: BTreeMap<(u32, u64), (u64, Stored)>,
    /// What remains of extents that were partly overwritten or invalidated: arena and start, with the end.
    torn: BTreeMap<(u32, u64), u64>,
}

impl Memory {
    pub(super) fn write(&mut self, extent: Extent, stored: Stored) {
        self.clear(extent);
        self.held.insert((extent.arena, extent.start), (extent.end, stored));
    }

    /// Invalidates an extent, so that it is not read as a whole value.
    pub(super) fn invalidate(&mut self, extent: Extent) {
        self.clear(extent);
        self.torn.insert((extent.arena, extent.start), extent.end);
    }

    fn clear(&mut self, extent: Extent) {
        while let Some((start, end)) = last_overlap(&self.held, extent, |(end, _)| *end) {
            self.held.remove(&(extent.arena, start));
            for (from, to) in [(start, extent.start.min(end)), (extent.end.max(start), end)] {
                if from < to {
                    self.torn.insert((extent.arena, from), to);
                }
            }
        }
        while let Some((start, end)) = last_overlap(&self.torn, extent, |end| *end) {
            self.torn.remove(&(extent.arena, start));
            if start < extent.start {
                self.torn.insert((extent.arena, start), extent.start);
            }
            if end > extent.end {
                self.torn.insert((extent.arena, extent.end), end);
            }
        }
    }

    pub(super) fn read(&self, extent: Extent) -> ReadResult {
        if let Some((end, stored)) = self.held.get(&(extent.arena, extent.start))
            && *end == extent.end
        {
            return ReadResult::Whole(*stored);
        }
        let met = last_overlap(&self.held, extent, |(end, _)| *end).is_some()
            || last_overlap(&self.torn, extent, |end| *end).is_some();
        if met { ReadResult::Partial } else { ReadResult::Nothing }
    }
}

/// The start and end of the last extent that overlaps another.
fn last_overlap<T>(
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
    use pteron_exported::{ExportedProgram, VarType};

    #[test]
    fn values_that_are_overwritten_in_part_are_gone() {
        let mut program = ExportedProgram::new("forward");
        let mut store = |value| Stored { var: program.add_var("x", VarType::Float), value };
        let extent = |start, end| Extent { arena: 1, start, end };
        let mut memory = Memory::default();
        let (a, b) = (store(0), store(1));
        memory.write(extent(0, 16), a);
        assert_eq!(memory.read(extent(0, 16)), ReadResult::Whole(a));
        assert_eq!(memory.read(extent(0, 8)), ReadResult::Partial);
        assert_eq!(memory.read(extent(16, 24)), ReadResult::Nothing);
        memory.write(extent(8, 24), b);
        assert_eq!(memory.read(extent(8, 24)), ReadResult::Whole(b));
        assert_eq!(memory.read(extent(0, 16)), ReadResult::Partial);
        assert_eq!(memory.read(extent(0, 8)), ReadResult::Partial);
        memory.write(extent(0, 8), a);
        assert_eq!(memory.read(extent(0, 8)), ReadResult::Whole(a));
        memory.invalidate(extent(0, 8));
        assert_eq!(memory.read(extent(0, 8)), ReadResult::Partial);
        assert_eq!(memory.read(Extent { arena: 2, start: 0, end: 8 }), ReadResult::Nothing);
    }
}

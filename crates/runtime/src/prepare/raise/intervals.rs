//! Interval maps and sets over the bytes of arenas.

use pteron_tensor::Extent;
use std::collections::BTreeMap;

/// A map from bytes of the arenas to contents: disjoint extents, each with one content. An operation takes time in
/// proportion to the number of extents that it overlaps, and a write adds at most two.
#[derive(Debug)]
pub(super) struct IntervalMap<T> {
    /// The end offset and the content of each extent, by the extent's arena and start offset.
    pieces: BTreeMap<(usize, usize), (usize, T)>,
    /// The number of lookups so far.
    visited: u64,
}

impl<T> Default for IntervalMap<T> {
    fn default() -> Self {
        Self { pieces: BTreeMap::new(), visited: 0 }
    }
}

impl<T: Copy> IntervalMap<T> {
    /// Writes `content` to an extent. Calls `overwritten` with each content that it overwrites, in whole or in part.
    pub(super) fn write(&mut self, extent: Extent, content: T, mut overwritten: impl FnMut(T)) {
        let (arena, start, end) = bounds(extent);
        if start == end {
            return;
        }
        while let Some((first, last, old)) = self.last_before(arena, end).filter(|piece| piece.1 > start) {
            overwritten(old);
            self.pieces.remove(&(arena, first));
            if last > end {
                self.pieces.insert((arena, end), (last, old));
            }
            if first < start {
                self.pieces.insert((arena, first), (start, old));
                break;
            }
        }
        self.pieces.insert((arena, start), (end, content));
    }

    /// Calls `piece` with the pieces of an extent, from its end to its start: each with its content, or `None` if
    /// nothing was written there.
    pub(super) fn read(&mut self, extent: Extent, mut piece: impl FnMut(Extent, Option<T>)) {
        let (arena, start, mut end) = bounds(extent);
        let part = |from: usize, to: usize| Extent { arena, offset: from, len: to - from };
        while start < end {
            let Some((first, last, content)) = self.last_before(arena, end).filter(|p| p.1 > start) else {
                return piece(part(start, end), None);
            };
            if last < end {
                piece(part(last, end), None);
            }
            piece(part(first.max(start), last.min(end)), Some(content));
            end = first.max(start);
        }
    }

    /// The content of an extent; `None` if the map has no content of exactly this extent.
    pub(super) fn get_exact(&mut self, extent: Extent) -> Option<T> {
        let (_, start, end) = bounds(extent);
        let piece = self.last_before(extent.arena, end)?;
        (start < end && (piece.0, piece.1) == (start, end)).then_some(piece.2)
    }

    /// Removes and returns all extents with their contents.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Extent, T)> + use<T> {
        std::mem::take(&mut self.pieces)
            .into_iter()
            .map(|((arena, offset), (end, content))| (Extent { arena, offset, len: end - offset }, content))
    }

    /// The number of lookups so far, which measures the cost of all operations.
    pub(super) fn num_lookups(&self) -> u64 {
        self.visited
    }

    fn last_before(&mut self, arena: usize, end: usize) -> Option<(usize, usize, T)> {
        self.visited += 1;
        let (&(_, first), &(last, content)) = self.pieces.range((arena, 0)..(arena, end)).next_back()?;
        Some((first, last, content))
    }
}

/// A set of bytes of arenas.
#[derive(Debug, Default)]
pub(super) struct IntervalSet(BTreeMap<(usize, usize), usize>);

impl IntervalSet {
    /// Adds an extent.
    pub(super) fn insert(&mut self, extent: Extent) {
        let (arena, mut start, mut end) = bounds(extent);
        if start == end {
            return;
        }
        while let Some((&(_, first), &last)) =
            self.0.range((arena, 0)..=(arena, end)).next_back().filter(|(_, last)| **last >= start)
        {
            self.0.remove(&(arena, first));
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert((arena, start), end);
    }

    /// Whether any byte of an extent is in the set.
    pub(super) fn overlaps(&self, extent: Extent) -> bool {
        let (arena, start, end) = bounds(extent);
        let before = self.0.range((arena, 0)..(arena, end)).next_back();
        start < end && before.is_some_and(|(_, &last)| last > start)
    }

    /// Whether every byte of an extent is in the set.
    pub(super) fn covers(&self, extent: Extent) -> bool {
        let (arena, start, end) = bounds(extent);
        let before = self.0.range((arena, 0)..=(arena, start)).next_back();
        start == end || before.is_some_and(|(_, &last)| last >= end)
    }
}

fn bounds(extent: Extent) -> (usize, usize, usize) {
    (extent.arena, extent.offset, extent.offset.saturating_add(extent.len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: usize = 40;

    fn extent() -> impl Strategy<Value = Extent> {
        (0..2usize, 0..BYTES, 0..BYTES).prop_map(|(arena, offset, len)| Extent {
            arena,
            offset,
            len: len.min(BYTES - offset),
        })
    }

    proptest! {
        #[test]
        fn interval_map_matches_an_array_of_bytes(steps in prop::collection::vec((extent(), any::<bool>()), 1..60)) {
            let mut model = [[None; BYTES]; 2];
            let mut map = IntervalMap::default();
            for (content, (extent, is_write)) in steps.into_iter().enumerate() {
                let bytes = &mut model[extent.arena][extent.offset..][..extent.len];
                if is_write {
                    let mut overwritten = Vec::new();
                    map.write(extent, content, |old| overwritten.push(old));
                    let mut expected: Vec<usize> = bytes.iter().copied().flatten().collect();
                    overwritten.sort_unstable();
                    overwritten.dedup();
                    expected.sort_unstable();
                    expected.dedup();
                    prop_assert_eq!(overwritten, expected);
                    bytes.fill(Some(content));
                } else {
                    let mut actual = vec![None; extent.len];
                    let mut next = extent.offset + extent.len;
                    map.read(extent, |piece, content| {
                        assert_eq!((piece.arena, piece.offset + piece.len), (extent.arena, next));
                        assert!(piece.len > 0);
                        next = piece.offset;
                        actual[piece.offset - extent.offset..][..piece.len].fill(content);
                    });
                    prop_assert_eq!(next, if extent.len == 0 { next } else { extent.offset });
                    prop_assert_eq!(&actual[..], &*bytes);
                }
            }
            let mut left = [[None; BYTES]; 2];
            map.drain().for_each(|(e, content)| left[e.arena][e.offset..][..e.len].fill(Some(content)));
            prop_assert_eq!(left, model);
        }

        #[test]
        fn interval_set_matches_an_array_of_bytes(extents in prop::collection::vec((extent(), extent()), 1..40)) {
            let mut model = [[false; BYTES]; 2];
            let mut set = IntervalSet::default();
            for (add, ask) in extents {
                set.insert(add);
                model[add.arena][add.offset..][..add.len].fill(true);
                let asked = &model[ask.arena][ask.offset..][..ask.len];
                prop_assert_eq!(set.overlaps(ask), asked.contains(&true));
                prop_assert_eq!(set.covers(ask), !asked.contains(&false));
            }
        }
    }
}

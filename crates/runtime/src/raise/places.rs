//! Maps and sets of bytes of arenas.

use std::collections::BTreeMap;
use tensor::Extent;

/// What the bytes of the arenas hold: disjoint extents, each with one content. Every operation takes time in
/// proportion to the pieces that it meets, and a write leaves at most two more than it found.
#[derive(Debug)]
pub(super) struct Places<T> {
    /// By arena and first byte: the byte behind the last, and the content.
    pieces: BTreeMap<(usize, usize), (usize, T)>,
    /// Pieces looked at so far.
    visited: u64,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self { pieces: BTreeMap::new(), visited: 0 }
    }
}

impl<T: Copy> Places<T> {
    /// An extent holds `content` from now on. `met` is told whatever was held by bytes of the extent.
    pub(super) fn write(&mut self, extent: Extent, content: T, mut met: impl FnMut(T)) {
        let (arena, start, end) = ends(extent);
        if start == end {
            return;
        }
        while let Some((first, last, old)) = self.last_before(arena, end).filter(|piece| piece.1 > start) {
            met(old);
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

    /// The pieces of an extent, from its end to its start, as far as they are asked for: bytes, and what they
    /// hold, if anything was written there.
    pub(super) fn read(&mut self, extent: Extent, mut piece: impl FnMut(Extent, Option<T>)) {
        let (arena, start, mut end) = ends(extent);
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

    /// What exactly an extent holds, if it is one piece.
    pub(super) fn exact(&mut self, extent: Extent) -> Option<T> {
        let (_, start, end) = ends(extent);
        let found = self.last_before(extent.arena, end)?;
        (start < end && (found.0, found.1) == (start, end)).then_some(found.2)
    }

    /// Forgets everything, and tells it.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Extent, T)> + use<T> {
        std::mem::take(&mut self.pieces)
            .into_iter()
            .map(|((arena, offset), (end, content))| (Extent { arena, offset, len: end - offset }, content))
    }

    /// Pieces looked at so far: what operations have taken.
    pub(super) fn visited(&self) -> u64 {
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
pub(super) struct Ranges(BTreeMap<(usize, usize), usize>);

impl Ranges {
    /// Adds an extent.
    pub(super) fn insert(&mut self, extent: Extent) {
        let (arena, mut start, mut end) = ends(extent);
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
    pub(super) fn meets(&self, extent: Extent) -> bool {
        let (arena, start, end) = ends(extent);
        let before = self.0.range((arena, 0)..(arena, end)).next_back();
        start < end && before.is_some_and(|(_, &last)| last > start)
    }

    /// Whether every byte of an extent is in the set.
    pub(super) fn covers(&self, extent: Extent) -> bool {
        let (arena, start, end) = ends(extent);
        let before = self.0.range((arena, 0)..=(arena, start)).next_back();
        start == end || before.is_some_and(|(_, &last)| last >= end)
    }
}

fn ends(extent: Extent) -> (usize, usize, usize) {
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
        fn places_hold_what_an_array_of_bytes_holds(steps in prop::collection::vec((extent(), any::<bool>()), 1..60)) {
            let mut model = [[None; BYTES]; 2];
            let mut places = Places::default();
            for (content, (extent, is_write)) in steps.into_iter().enumerate() {
                let bytes = &mut model[extent.arena][extent.offset..][..extent.len];
                if is_write {
                    let mut met = Vec::new();
                    places.write(extent, content, |old| met.push(old));
                    let mut expected: Vec<usize> = bytes.iter().copied().flatten().collect();
                    met.sort_unstable();
                    met.dedup();
                    expected.sort_unstable();
                    expected.dedup();
                    prop_assert_eq!(met, expected);
                    bytes.fill(Some(content));
                } else {
                    let mut found = vec![None; extent.len];
                    let mut next = extent.offset + extent.len;
                    places.read(extent, |piece, content| {
                        assert_eq!((piece.arena, piece.offset + piece.len), (extent.arena, next));
                        assert!(piece.len > 0);
                        next = piece.offset;
                        found[piece.offset - extent.offset..][..piece.len].fill(content);
                    });
                    prop_assert_eq!(next, if extent.len == 0 { next } else { extent.offset });
                    prop_assert_eq!(&found[..], &*bytes);
                }
            }
            let mut left = [[None; BYTES]; 2];
            places.drain().for_each(|(e, content)| left[e.arena][e.offset..][..e.len].fill(Some(content)));
            prop_assert_eq!(left, model);
        }

        #[test]
        fn ranges_hold_what_an_array_of_bytes_holds(extents in prop::collection::vec((extent(), extent()), 1..40)) {
            let mut model = [[false; BYTES]; 2];
            let mut ranges = Ranges::default();
            for (add, ask) in extents {
                ranges.insert(add);
                model[add.arena][add.offset..][..add.len].fill(true);
                let asked = &model[ask.arena][ask.offset..][..ask.len];
                prop_assert_eq!(ranges.meets(ask), asked.contains(&true));
                prop_assert_eq!(ranges.covers(ask), !asked.contains(&false));
            }
        }
    }
}

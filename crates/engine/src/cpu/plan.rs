//! Workspace planning: values whose lifetimes overlap get disjoint memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The alignment of a value in the workspace, in bytes.
const ALIGNMENT: usize = 64;

/// A value of the workspace, live from the step that writes it to the last step that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// The size of the value in bytes.
    pub(crate) bytes: usize,
    /// The step that writes the value.
    pub(crate) first: usize,
    /// The last step that reads the value: `first` or a later one.
    pub(crate) last: usize,
}

/// The maximum number of values for [`largest_first`], whose cost is quadratic in the worst case.
const MAX_LARGEST_FIRST: usize = 4096;

/// The offset of each value, in bytes, and the size of the workspace.
pub(crate) fn plan_offsets(lifetimes: &[Lifetime]) -> (Vec<usize>, usize) {
    if lifetimes.len() <= MAX_LARGEST_FIRST { largest_first(lifetimes) } else { best_fit(lifetimes) }
}

/// Best fit in step order: each value takes the smallest gap that holds it, or extends the workspace.
fn best_fit(lifetimes: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| lifetimes[i].first);
    let mut leaving: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    let (mut gaps, mut end, mut offsets) = (Gaps::default(), 0, vec![0; lifetimes.len()]);
    for i in order {
        let life = lifetimes[i];
        while let Some(&Reverse((last, other))) = leaving.peek()
            && last < life.first
        {
            leaving.pop();
            gaps.free(offsets[other], lifetimes[other].bytes.next_multiple_of(ALIGNMENT));
        }
        let size = life.bytes.next_multiple_of(ALIGNMENT);
        offsets[i] = gaps.take(size).unwrap_or_else(|| {
            end += size;
            end - size
        });
        leaving.push(Reverse((life.last.max(life.first), i)));
    }
    (offsets, end)
}

/// The free gaps between values, by offset and by size.
#[derive(Default)]
struct Gaps {
    by_offset: BTreeMap<usize, usize>,
    by_size: BTreeSet<(usize, usize)>,
}

impl Gaps {
    fn free(&mut self, mut offset: usize, mut size: usize) {
        if size == 0 {
            return;
        }
        if let Some((&before, &len)) =
            self.by_offset.range(..offset).next_back().filter(|(o, l)| *o + *l == offset)
        {
            self.remove(before, len);
            (offset, size) = (before, size + len);
        }
        if let Some(&len) = self.by_offset.get(&(offset + size)) {
            self.remove(offset + size, len);
            size += len;
        }
        self.by_offset.insert(offset, size);
        self.by_size.insert((size, offset));
    }

    fn take(&mut self, size: usize) -> Option<usize> {
        let &(len, offset) = self.by_size.range((size, 0)..).next()?;
        self.remove(offset, len);
        self.free(offset + size, len - size);
        Some(offset)
    }

    fn remove(&mut self, offset: usize, size: usize) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(size, offset));
    }
}

/// Greedy by size: values are placed from the largest to the smallest, each at the lowest offset at which it overlaps
/// no value that is live at the same time.
fn largest_first(lifetimes: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lifetimes[i].bytes), lifetimes[i].first));
    let mut offsets = vec![0; lifetimes.len()];
    let mut placed = LiveRanges::new(lifetimes);
    let (mut occupied, mut end) = (Vec::new(), 0);
    for i in order {
        let life = lifetimes[i];
        let size = life.bytes.next_multiple_of(ALIGNMENT);
        occupied.clear();
        placed.for_each_overlapping(life, |j| {
            occupied.push((offsets[j], offsets[j] + lifetimes[j].bytes.next_multiple_of(ALIGNMENT)));
        });
        occupied.sort_unstable();
        let mut at = 0;
        for &(start, stop) in &occupied {
            if at + size <= start {
                break;
            }
            at = at.max(stop);
        }
        offsets[i] = at;
        end = end.max(at + size);
        placed.add(i);
    }
    (offsets, end)
}

/// An index of the values that already have an offset, by the steps at which they are live.
struct LiveRanges<'l> {
    lifetimes: &'l [Lifetime],
    /// For each step, the values with short lifetimes that are live at it.
    living: Vec<Vec<usize>>,
    /// For each step, the values with short lifetimes that begin at it.
    starting: Vec<Vec<usize>>,
    /// The values with long lifetimes.
    long: Vec<usize>,
}

impl<'l> LiveRanges<'l> {
    /// The maximum number of steps of a short lifetime.
    const SHORT: usize = 32;

    fn new(lifetimes: &'l [Lifetime]) -> Self {
        let steps = lifetimes.iter().map(|life| life.last + 1).max().unwrap_or(0);
        let none = vec![Vec::new(); steps];
        Self { lifetimes, living: none.clone(), starting: none, long: Vec::new() }
    }

    fn add(&mut self, value: usize) {
        let life = self.lifetimes[value];
        if life.last - life.first >= Self::SHORT {
            self.long.push(value);
            return;
        }
        self.living[life.first..=life.last].iter_mut().for_each(|step| step.push(value));
        self.starting[life.first].push(value);
    }

    /// Calls `f` once with each value that is live at a step of `life`.
    fn for_each_overlapping(&self, life: Lifetime, f: impl FnMut(usize)) {
        let long = self.long.iter().filter(|&&j| {
            let other = self.lifetimes[j];
            other.first <= life.last && life.first <= other.last
        });
        let later = self.starting[life.first..=life.last].iter().skip(1).flatten();
        self.living[life.first].iter().chain(later).chain(long).copied().for_each(f);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(bytes: usize, first: usize, last: usize) -> Lifetime {
        Lifetime { bytes, first, last }
    }

    #[test]
    fn values_of_a_chain_alternate_between_two_offsets() {
        let chain: Vec<_> = (0..10).map(|i| life(1000, i, i + 1)).collect();
        let (offsets, size) = plan_offsets(&chain);
        assert_eq!(size, 2048);
        for w in offsets.windows(2) {
            assert_ne!(w[0], w[1]);
        }
    }

    #[test]
    fn values_with_overlapping_lifetimes_are_disjoint() {
        let few = [life(64, 0, 9), life(640, 1, 2), life(100, 2, 5), life(64, 3, 3), life(600, 4, 9)];
        assert_disjoint(&few, largest_first(&few));
        assert_disjoint(&few, best_fit(&few));
        let many: Vec<_> = (0..300).map(|i| life(i * 37 % 1000, i, i + i * 13 % 40)).collect();
        assert_disjoint(&many, largest_first(&many));
        assert_disjoint(&many, best_fit(&many));
    }

    #[test]
    fn many_values_are_placed_by_best_fit() {
        let chain: Vec<_> = (0..3 * MAX_LARGEST_FIRST).map(|i| life(1000, i, i + 1)).collect();
        assert_eq!(plan_offsets(&chain).1, 2048);
    }

    fn assert_disjoint(lives: &[Lifetime], (offsets, size): (Vec<usize>, usize)) {
        for (i, a) in lives.iter().enumerate() {
            for (j, b) in lives.iter().enumerate().skip(i + 1) {
                let together = a.first <= b.last && b.first <= a.last;
                let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                assert!(!together || apart, "{i} and {j}");
            }
            assert!(offsets[i] + a.bytes <= size);
        }
    }
}

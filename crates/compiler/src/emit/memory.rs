//! Memory planning: offsets of blocks in an arena, given their lifetimes.

/// A memory block: its size, and the first and the last instruction that use it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lifetime {
    pub(super) bytes: u64,
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Lifetime {
    fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Assigns an offset to every block and returns the size of the arena in bytes. Two greedy orders are tried, largest
/// first and longest-lived first, and the smaller result is kept. Each block goes into the tightest gap between the
/// blocks that are live at the same time.
pub(super) fn assign_offsets(blocks: &[Lifetime], alignment: u64) -> (Vec<u64>, u64) {
    let span = |b: &Lifetime| (b.last - b.first) as u64;
    let orders: [fn(&Lifetime, u64) -> (u64, u64); 2] =
        [|b, span| (b.bytes, span), |b, span| (span, b.bytes)];
    let mut best: Option<(Vec<u64>, u64)> = None;
    for key in orders {
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(key(&blocks[i], span(&blocks[i]))), blocks[i].first, i));
        let placed = place_in_order(blocks, &order, alignment.max(1));
        if best.as_ref().is_none_or(|(_, total)| placed.1 < *total) {
            best = Some(placed);
        }
    }
    best.unwrap_or_default()
}

fn place_in_order(blocks: &[Lifetime], order: &[usize], alignment: u64) -> (Vec<u64>, u64) {
    let mut offsets = vec![0u64; blocks.len()];
    let mut total = 0;
    let mut placed: Vec<usize> = Vec::with_capacity(blocks.len());
    let mut occupied: Vec<(u64, u64)> = Vec::new();
    for &i in order {
        let block = &blocks[i];
        if block.bytes == 0 {
            continue;
        }
        occupied.clear();
        let meets = placed.iter().filter(|&&p| blocks[p].overlaps(block));
        occupied.extend(meets.map(|&p| (offsets[p], offsets[p].saturating_add(blocks[p].bytes))));
        occupied.sort_unstable();
        offsets[i] = find_tightest_gap(&occupied, block.bytes, alignment);
        total = total.max(offsets[i].saturating_add(block.bytes));
        placed.push(i);
    }
    (offsets, align_up(total, alignment))
}

/// The start of the smallest gap between the sorted ranges that holds `bytes`; the end of the last range if none does.
fn find_tightest_gap(occupied: &[(u64, u64)], bytes: u64, alignment: u64) -> u64 {
    let mut best: Option<(u64, u64)> = None;
    let mut end: u64 = 0;
    for &(start, stop) in occupied {
        let at = align_up(end, alignment);
        if start >= at.saturating_add(bytes) {
            let slack = start - at - bytes;
            if best.is_none_or(|(least, _)| slack < least) {
                best = Some((slack, at));
            }
        }
        end = end.max(stop);
    }
    best.map_or(align_up(end, alignment), |(_, at)| at)
}

/// The next multiple of the alignment. Sums of sizes that do not fit 64 bits stay the largest number, which the emitter
/// refuses.
fn align_up(offset: u64, alignment: u64) -> u64 {
    offset.checked_next_multiple_of(alignment).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_in_use_at_once_do_not_overlap() {
        let mut seed = 7u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..50 {
            let blocks: Vec<Lifetime> = (0..60)
                .map(|_| {
                    let first = next(40) as usize;
                    Lifetime { bytes: next(500), first, last: first + next(6) as usize }
                })
                .collect();
            let (offsets, total) = assign_offsets(&blocks, 16);
            for (i, a) in blocks.iter().enumerate() {
                assert!(offsets[i] % 16 == 0 && offsets[i] + a.bytes <= total);
                for (j, b) in blocks.iter().enumerate().skip(i + 1) {
                    let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                    assert!(apart || !a.overlaps(b) || a.bytes == 0 || b.bytes == 0);
                }
            }
        }
    }

    #[test]
    fn a_chain_needs_its_largest_pair_of_neighbours() {
        let sizes = [64, 128, 32, 256, 16];
        let blocks: Vec<Lifetime> =
            sizes.iter().enumerate().map(|(i, &bytes)| Lifetime { bytes, first: i, last: i + 1 }).collect();
        assert_eq!(assign_offsets(&blocks, 16).1, 288);
    }
}

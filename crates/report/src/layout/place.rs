//! Horizontal coordinates after Brandes and Köpf, "Fast and Simple Horizontal Coordinate Assignment" (2001): each
//! vertex is aligned with a median neighbour above or below, preferring left or right; the blocks of aligned vertices are
//! compacted; the four results are balanced. Each result keeps the minimum distances, and so does their mean.

use super::chains::{Adjacency, Chains};
use std::collections::HashSet;

/// The minimum distance, in pixels, between the centres of two adjacent vertices of a layer.
type Separation<'a> = &'a dyn Fn(u32, u32) -> i64;

/// The x coordinate of each vertex's centre.
pub(super) fn place_vertices(
    chains: &Chains,
    order: &[Vec<u32>],
    separation: Separation<'_>,
    work: &mut u64,
) -> Vec<i64> {
    let vertices = chains.num_vertices() as usize;
    let crossed = type_1_conflicts(chains, order, work);
    let mut candidates: Vec<Vec<i64>> = Vec::with_capacity(4);
    let mut layers = order.to_vec();
    for _rightmost in [false, true] {
        for upward in [false, true] {
            let blocks = Blocks::align(chains, &layers, &crossed, upward, work);
            candidates.push(blocks.compact(&layers, separation, work));
        }
        layers.iter_mut().for_each(|layer| layer.reverse());
    }
    candidates[2..].iter_mut().flatten().for_each(|x| *x = -*x);
    align_candidates(&mut candidates);
    let mean = |v: usize| {
        let mut four = [0, 1, 2, 3].map(|i: usize| candidates[i][v]);
        four.sort_unstable();
        (four[1] + four[2]).div_euclid(2)
    };
    (0..vertices).map(mean).collect()
}

/// Aligns the candidates with the narrowest one: those compacted to the left at its left side, the others at its
/// right side.
fn align_candidates(candidates: &mut [Vec<i64>]) {
    let ends = |x: &[i64]| (x.iter().copied().min().unwrap_or(0), x.iter().copied().max().unwrap_or(0));
    let all: Vec<(i64, i64)> = candidates.iter().map(|x| ends(x)).collect();
    let Some(&(left, right)) = all.iter().min_by_key(|(left, right)| right - left) else { return };
    for (i, x) in candidates.iter_mut().enumerate() {
        let by = if i < 2 { left - all[i].0 } else { right - all[i].1 };
        x.iter_mut().for_each(|x| *x += by);
    }
}

/// Type 1 conflicts: edges that cross an inner segment of a long edge (between two dummy vertices). They are not aligned,
/// so that long edges stay straight.
fn type_1_conflicts(chains: &Chains, order: &[Vec<u32>], work: &mut u64) -> HashSet<(u32, u32)> {
    let mut position = vec![0u32; chains.num_vertices() as usize];
    for layer in order {
        layer.iter().enumerate().for_each(|(i, &v)| position[v as usize] = i as u32);
    }
    let inner = |v: u32| {
        chains
            .is_dummy(v)
            .then(|| chains.neighbours_above(v).first().copied())
            .flatten()
            .filter(|&w| chains.is_dummy(w))
    };
    let mut crossed = HashSet::new();
    for rows in order.windows(2) {
        let (mut from, mut done) = (0, 0);
        for (i, &v) in rows[1].iter().enumerate() {
            let straight = inner(v);
            if straight.is_none() && i + 1 < rows[1].len() {
                continue;
            }
            let to = straight.map_or(rows[0].len() as u32, |w| position[w as usize]);
            for &w in &rows[1][done..=i] {
                for &above in chains.neighbours_above(w) {
                    let at = position[above as usize];
                    *work += 1;
                    if (at < from || at > to) && !(chains.is_dummy(w) && chains.is_dummy(above)) {
                        crossed.insert((above, w));
                    }
                }
            }
            (from, done) = (to, i + 1);
        }
    }
    crossed
}

/// Whether each vertex has a neighbour of its own kind (node or dummy vertex) on the side from which vertices are aligned
/// with it. Nodes are preferably aligned with nodes, dummy vertices with dummy vertices.
fn same_kind_neighbour_mask(chains: &Chains, upward: bool) -> Vec<bool> {
    let around = |v| if upward { chains.neighbours_above(v) } else { chains.neighbours_below(v) };
    (0..chains.num_vertices())
        .map(|v| around(v).iter().any(|&w| chains.is_dummy(v) == chains.is_dummy(w)))
        .collect()
}

/// Blocks of vertically aligned vertices.
struct Blocks {
    /// The root of each vertex's block, which identifies the block.
    root: Vec<u32>,
}

impl Blocks {
    /// Aligns each vertex with a median of its neighbours above, layer by layer downward or, with `upward`, with a median
    /// of its neighbours below, layer by layer upward.
    fn align(
        chains: &Chains,
        layers: &[Vec<u32>],
        crossed: &HashSet<(u32, u32)>,
        upward: bool,
        work: &mut u64,
    ) -> Self {
        let vertices = chains.num_vertices();
        let mut position = vec![0u32; vertices as usize];
        for layer in layers {
            layer.iter().enumerate().for_each(|(i, &v)| position[v as usize] = i as u32);
        }
        let same_kind = same_kind_neighbour_mask(chains, upward);
        let mut root: Vec<u32> = (0..vertices).collect();
        let mut is_aligned = vec![false; vertices as usize];
        let mut around = Vec::new();
        for step in 0..layers.len() {
            let layer = &layers[if upward { layers.len() - 1 - step } else { step }];
            // Vertices of the previous layer left of this position may not be aligned with: the alignments would cross.
            let mut free_from = 0;
            for &v in layer {
                around.clear();
                around.extend_from_slice(if upward {
                    chains.neighbours_below(v)
                } else {
                    chains.neighbours_above(v)
                });
                around.sort_unstable_by_key(|&w| position[w as usize]);
                *work += 1 + around.len() as u64;
                let Some(last) = around.len().checked_sub(1) else { continue };
                let mut medians = [around[last / 2], around[last.div_ceil(2)]];
                // Of two medians, prefer a node to a dummy vertex: the main path stays straight, skip edges run beside it.
                if chains.is_dummy(medians[0]) && !chains.is_dummy(medians[1]) {
                    medians.swap(0, 1);
                }
                for w in medians {
                    let edge = if upward { (v, w) } else { (w, v) };
                    if root[v as usize] == v
                        && position[w as usize] >= free_from
                        && !is_aligned[w as usize]
                        && !crossed.contains(&edge)
                        && (chains.is_dummy(v) == chains.is_dummy(w) || !same_kind[w as usize])
                    {
                        is_aligned[w as usize] = true;
                        root[v as usize] = root[w as usize];
                        free_from = position[w as usize] + 1;
                    }
                }
            }
        }
        Self { root }
    }

    /// Compacts the blocks to the left as far as the minimum distances allow, then moves each block to the right as far as
    /// its right neighbours leave room.
    fn compact(&self, layers: &[Vec<u32>], separation: Separation<'_>, work: &mut u64) -> Vec<i64> {
        let pairs = || layers.iter().flat_map(|layer| layer.windows(2)).map(|pair| (pair[0], pair[1]));
        let block = |v: u32| self.root[v as usize];
        let vertices = self.root.len();
        // Adjacency of blocks; the targets are indices into `pairs`.
        let pairs: Vec<(u32, u32)> = pairs().collect();
        let ids = || 0..pairs.len() as u32;
        let after = Adjacency::new(vertices, ids().map(|i| (block(pairs[i as usize].0), i)));
        let before = Adjacency::new(vertices, ids().map(|i| (block(pairs[i as usize].1), i)));
        let distance = |i: u32| separation(pairs[i as usize].0, pairs[i as usize].1);
        *work += (vertices + 2 * pairs.len()) as u64;

        let mut waiting: Vec<u32> = (0..vertices as u32).map(|b| before.neighbours(b).len() as u32).collect();
        let mut sorted: Vec<u32> =
            (0..vertices as u32).filter(|&b| block(b) == b && waiting[b as usize] == 0).collect();
        let mut x = vec![0i64; vertices];
        let mut next = 0;
        while let Some(&b) = sorted.get(next) {
            next += 1;
            for &i in after.neighbours(b) {
                let to = block(pairs[i as usize].1);
                x[to as usize] = x[to as usize].max(x[b as usize] + distance(i));
                waiting[to as usize] -= 1;
                if waiting[to as usize] == 0 {
                    sorted.push(to);
                }
            }
        }
        for &b in sorted.iter().rev() {
            let room = after
                .neighbours(b)
                .iter()
                .map(|&i| x[block(pairs[i as usize].1) as usize] - distance(i))
                .min();
            x[b as usize] = room.map_or(x[b as usize], |room| room.max(x[b as usize]));
        }
        (0..vertices).map(|v| x[block(v as u32) as usize]).collect()
    }
}

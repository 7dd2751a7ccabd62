//! Layer assignment.

use super::chains::Adjacency;

/// A node that moves down looks for room in its lowest possible layer and at most this many layers above it.
const NEARBY: u32 = 8;

/// The layer of each of `n` nodes. Edges lead from lower to higher node numbers and span at least one layer. The number of
/// nodes per layer is bounded, so that independent nodes do not form one very wide layer.
pub(super) fn assign_layers(n: usize, edges: &[(u32, u32)], work: &mut u64) -> Vec<u32> {
    let above = Adjacency::new(n, edges.iter().map(|&(a, b)| (b, a)));
    let below = Adjacency::new(n, edges.iter().copied());
    let capacity = (2 * n).isqrt().max(12) as u32;
    let mut rank = vec![0; n];
    // The number of nodes in each layer, and for each full layer a later one to try (union-find).
    let (mut filled, mut next) = (vec![0u32; n + 1], (0..=n as u32).collect::<Vec<_>>());
    for v in 0..n {
        let earliest = above.neighbours(v as u32).iter().map(|&u| rank[u as usize] + 1).max().unwrap_or(0);
        let layer = first_with_room(&mut next, earliest, work);
        rank[v] = layer;
        filled[layer as usize] += 1;
        if filled[layer as usize] == capacity {
            next[layer as usize] = layer + 1;
        }
        *work += 1 + above.neighbours(v as u32).len() as u64;
    }
    // A node with more readers than operands moves down to its readers, which shortens the edges in total.
    for v in (0..n).rev() {
        let readers = below.neighbours(v as u32);
        *work += 1 + readers.len() as u64;
        if readers.len() <= above.neighbours(v as u32).len() {
            continue;
        }
        let Some(latest) = readers.iter().map(|&w| rank[w as usize] - 1).min() else { continue };
        let lowest = (rank[v] + 1).max(latest.saturating_sub(NEARBY));
        if let Some(layer) = (lowest..=latest).rev().find(|&l| filled[l as usize] < capacity) {
            filled[rank[v] as usize] -= 1;
            filled[layer as usize] += 1;
            rank[v] = layer;
        }
        *work += u64::from(NEARBY);
    }
    remove_empty_layers(&mut rank, &filled);
    rank
}

/// The first layer from `layer` on that has room for another node.
fn first_with_room(next: &mut [u32], mut layer: u32, work: &mut u64) -> u32 {
    while next[layer as usize] != layer {
        let further = next[layer as usize];
        next[layer as usize] = next[further as usize];
        layer = further;
        *work += 1;
    }
    layer
}

/// Removes the empty layers, and renumbers the layers that remain.
fn remove_empty_layers(rank: &mut [u32], filled: &[u32]) {
    let mut used = 0;
    let renumbered: Vec<u32> = filled
        .iter()
        .map(|&nodes| {
            used += u32::from(nodes > 0);
            used.saturating_sub(1)
        })
        .collect();
    rank.iter_mut().for_each(|r| *r = renumbered[*r as usize]);
}

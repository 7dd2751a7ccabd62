//! Crossing reduction: the order of the vertices within each layer.

use super::chains::Chains;

/// Maximum number of passes over all layers, alternately down and up.
const SWEEPS: usize = 16;
/// The search ends after this many consecutive passes that do not reduce the number of crossings.
const MAX_FRUITLESS_SWEEPS: usize = 4;
/// The factor by which mean positions are scaled to become fixed-point integers.
const SCALE: i64 = 1 << 10;

/// The vertices of each layer from left to right, ordered so that few edges cross.
pub(super) fn order_layers(chains: &Chains, work: &mut u64) -> Vec<Vec<u32>> {
    let mut layers = chains.layers.clone();
    let mut position = vec![0u32; chains.num_vertices() as usize];
    layers.iter().for_each(|layer| number_positions(layer, &mut position));
    let mut best = layers.clone();
    let mut fewest = u64::MAX;
    let mut fruitless = 0;
    for sweep in 0..SWEEPS {
        let downward = sweep % 2 == 0;
        let count = layers.len();
        for step in 1..count {
            let row = if downward { step } else { count - 1 - step };
            sort_layer(chains, &mut layers[row], &mut position, downward, work);
        }
        let crossing_count = crossings(chains, &layers, &position, work);
        if crossing_count < fewest {
            (fewest, fruitless) = (crossing_count, 0);
            best.clone_from(&layers);
        } else {
            fruitless += 1;
        }
        if fewest == 0 || fruitless == MAX_FRUITLESS_SWEEPS {
            break;
        }
    }
    best
}

fn number_positions(layer: &[u32], position: &mut [u32]) {
    layer.iter().enumerate().for_each(|(i, &v)| position[v as usize] = i as u32);
}

/// Sorts a layer by the mean position of each vertex's neighbours in the previous layer; a vertex without neighbours is
/// sorted by its own position.
fn sort_layer(chains: &Chains, layer: &mut [u32], position: &mut [u32], downward: bool, work: &mut u64) {
    let mut keys: Vec<(i64, u32)> = layer
        .iter()
        .map(|&v| {
            let around = if downward { chains.neighbours_above(v) } else { chains.neighbours_below(v) };
            *work += 1 + around.len() as u64;
            let sum: i64 = around.iter().map(|&w| i64::from(position[w as usize]) * SCALE).sum();
            let mean = sum.checked_div(around.len() as i64);
            (mean.unwrap_or_else(|| i64::from(position[v as usize]) * SCALE), v)
        })
        .collect();
    keys.sort_by_key(|&(key, _)| key);
    layer.iter_mut().zip(&keys).for_each(|(v, &(_, sorted))| *v = sorted);
    number_positions(layer, position);
}

/// The number of pairs of edges that cross.
pub(super) fn crossings(chains: &Chains, layers: &[Vec<u32>], position: &[u32], work: &mut u64) -> u64 {
    let mut all = 0;
    let mut ends = Vec::new();
    for rows in layers.windows(2) {
        // Positions of the lower ends, sorted by the upper ends: each inversion is a crossing. A Fenwick tree counts them.
        ends.clear();
        for &v in &rows[0] {
            let from = ends.len();
            ends.extend(chains.neighbours_below(v).iter().map(|&w| position[w as usize]));
            ends[from..].sort_unstable();
        }
        let mut tree = vec![0u32; rows[1].len() + 1];
        for (before, &end) in ends.iter().enumerate() {
            let (mut left, mut at) = (0, end as usize + 1);
            while at > 0 {
                left += u64::from(tree[at]);
                at &= at - 1;
            }
            all += before as u64 - left;
            let mut at = end as usize + 1;
            while at < tree.len() {
                tree[at] += 1;
                at += at & at.wrapping_neg();
            }
        }
        *work += (ends.len() + tree.len()) as u64;
    }
    all
}

//! Horizontal coordinates for graphs that alignment makes too wide, because aligned blocks push each other ever further to
//! the side. Each vertex moves towards the mean of its neighbours; isotonic regression keeps the minimum distances within
//! a layer.

use super::chains::Chains;

/// Number of passes over all layers, alternately down and up.
const SWEEPS: usize = 10;

/// The coordinate of the centre of each vertex. No layer becomes much wider than its vertices and its neighbouring layers
/// require.
pub(super) fn settle_vertices(
    chains: &Chains,
    order: &[Vec<u32>],
    separation: &dyn Fn(u32, u32) -> i64,
    work: &mut u64,
) -> Vec<i64> {
    let mut x = vec![0i64; chains.num_vertices() as usize];
    // The offset of each vertex from the left end of its layer, packed closely.
    let packed: Vec<Vec<i64>> = order.iter().map(|layer| packed_offsets(layer, separation)).collect();
    for (layer, offsets) in order.iter().zip(&packed) {
        let half = offsets.last().copied().unwrap_or(0) / 2;
        layer.iter().zip(offsets).for_each(|(&v, offset)| x[v as usize] = offset - half);
    }
    for sweep in 0..SWEEPS {
        for step in 1..order.len() {
            let downward = sweep % 2 == 0;
            let row = if downward { step } else { order.len() - 1 - step };
            let wanted = order[row].iter().zip(&packed[row]).map(|(&v, offset)| {
                let around = if downward { chains.neighbours_above(v) } else { chains.neighbours_below(v) };
                *work += 1 + around.len() as u64;
                let sum: i64 = around.iter().map(|&w| x[w as usize]).sum();
                sum.checked_div(around.len() as i64).unwrap_or(x[v as usize]) - offset
            });
            let positions = isotonic_regression(wanted);
            for ((&v, offset), at) in order[row].iter().zip(&packed[row]).zip(positions) {
                x[v as usize] = at + offset;
            }
        }
    }
    x
}

fn packed_offsets(layer: &[u32], separation: &dyn Fn(u32, u32) -> i64) -> Vec<i64> {
    let mut at = 0;
    let mut all: Vec<i64> = Vec::with_capacity(layer.len());
    for (i, &v) in layer.iter().enumerate() {
        at += i.checked_sub(1).map_or(0, |before| separation(layer[before], v));
        all.push(at);
    }
    all
}

/// Isotonic regression by pooling adjacent violators: the non-decreasing sequence that is closest to `wanted` in the
/// least-squares sense, up to rounding.
fn isotonic_regression(wanted: impl Iterator<Item = i64>) -> Vec<i64> {
    // Sums and counts of the pools, each of which takes its mean.
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for value in wanted {
        let mut run = (value, 1);
        while let Some(&(sum, count)) = runs.last()
            && sum.div_euclid(count) > run.0.div_euclid(run.1)
        {
            run = (run.0 + sum, run.1 + count);
            runs.pop();
        }
        runs.push(run);
    }
    runs.into_iter().flat_map(|(sum, count)| (0..count).map(move |_| sum.div_euclid(count))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decreasing_values_are_replaced_by_their_mean() {
        assert_eq!(isotonic_regression([1, 5, 3, 4, 9].into_iter()), [1, 4, 4, 4, 9]);
        assert_eq!(isotonic_regression([3, 2, 1].into_iter()), [2, 2, 2]);
        assert!(isotonic_regression(std::iter::empty()).is_empty());
    }
}

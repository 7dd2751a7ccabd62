//! Layered graph drawing after Sugiyama: nodes are placed in layers, edges run downward.
//!
//! ```text
//! rank    ─► a layer for each node (longest path, with bounded layer width)
//! chains  ─► a dummy vertex in each layer that an edge passes; edges that leave one node share them
//! order   ─► positions within layers (barycenter sweeps; the order with the fewest crossings is kept)
//! place   ─► coordinates (Brandes and Köpf: four alignments, balanced; isotonic regression if the result is too wide)
//! ```
//!
//! All arithmetic is on integers, so that drawings are deterministic across machines. The cost is that of sorting the
//! nodes and edges.

mod chains;
mod order;
mod place;
mod rank;
mod settle;
#[cfg(test)]
mod tests;

use chains::Chains;

/// Pixels between neighbours in a layer.
const NODE_GAP: i64 = 26;
/// Pixels between an edge and its neighbour in a layer.
const EDGE_GAP: i64 = 14;
/// Pixels between layers whose edges run straight down.
const LAYER_GAP: i64 = 34;
/// The maximum number of pixels between layers.
const MAX_LAYER_GAP: i64 = 120;

/// The maximum width of an aligned drawing, as a multiple of the width of its widest layer.
const MAX_SPREAD: i64 = 3;

/// A graph to be drawn.
#[derive(Debug, Clone, Default)]
pub struct Input {
    /// Width and height of each node, in pixels. Nodes are in execution order; an edge to an
    /// earlier node is drawn upward.
    pub sizes: Vec<(u32, u32)>,
    /// Pairs of source and target node.
    pub edges: Vec<(u32, u32)>,
}

/// A drawing; coordinates are in pixels from its upper left corner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    pub width: i64,
    pub height: i64,
    /// The centre of each node.
    pub nodes: Vec<(i64, i64)>,
    /// The layer of each node, from 0.
    pub layers: Vec<u32>,
    /// The points of each edge, from source to target. Empty for an edge that is too long to be drawn, alone or with
    /// the others, that is a self-loop, or that leads to a missing node.
    pub routes: Vec<Vec<(i64, i64)>>,
    /// The number of elementary steps, for tests of the complexity.
    pub work: u64,
}

/// Computes the positions of nodes and the routes of edges. Edges to missing nodes, and from a node to itself, have no
/// route.
pub fn layout(input: &Input) -> Layout {
    let n = input.sizes.len();
    let valid = |&(a, b): &(u32, u32)| a != b && (a as usize) < n && (b as usize) < n;
    // Orient edges downward: from the node that runs first.
    let down = |&(a, b): &(u32, u32)| (a.min(b), a.max(b));
    let mut edges: Vec<(u32, u32)> = input.edges.iter().filter(|e| valid(e)).map(down).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut work = (n + edges.len()) as u64;
    let layers = rank::assign_layers(n, &edges, &mut work);
    let chains = Chains::new(&layers, &edges, &mut work);
    let order = order::order_layers(&chains, &mut work);
    let width = |v: u32| input.sizes.get(v as usize).map_or(2, |&(w, _)| i64::from(w.div_ceil(2)) * 2);
    let separation = |a: u32, b: u32| {
        let gap = if chains.is_dummy(a) || chains.is_dummy(b) { EDGE_GAP } else { NODE_GAP };
        (width(a) + width(b)) / 2 + gap
    };
    let mut x = place::place_vertices(&chains, &order, &separation, &mut work);
    let needed = |layer: &Vec<u32>| layer.windows(2).map(|pair| separation(pair[0], pair[1])).sum::<i64>();
    let widest = order.iter().map(needed).max().unwrap_or(0) + width(0);
    let span = x.iter().max().zip(x.iter().min()).map_or(0, |(right, left)| right - left);
    if span > MAX_SPREAD * widest {
        x = settle::settle_vertices(&chains, &order, &separation, &mut work);
    }
    let left = (0..x.len()).map(|v| x[v] - width(v as u32) / 2).min().unwrap_or(0);
    x.iter_mut().for_each(|x| *x -= left);
    let (tops, heights) = layer_rows(input, &chains, &x);
    let layer = |v: u32| chains.layer[v as usize] as usize;
    let centre = |v: u32| tops[layer(v)] + heights[layer(v)] / 2;
    let half = |v: u32| i64::from(input.sizes[v as usize].1 / 2);
    let route = |edge: &(u32, u32)| {
        if !valid(edge) {
            return Vec::new();
        }
        let (from, to) = down(edge);
        let Some(dummies) = chains.dummies(from, to) else { return Vec::new() };
        let mut points = vec![(x[from as usize], centre(from) + half(from))];
        for dummy in dummies {
            let (at, row) = (x[dummy as usize], layer(dummy));
            // Merge straight segments: only their ends are kept.
            if points.len() > 1 && points[points.len() - 1].0 == at && points[points.len() - 2].0 == at {
                points.pop();
            } else {
                points.push((at, tops[row]));
            }
            points.push((at, tops[row] + heights[row]));
        }
        points.push((x[to as usize], centre(to) - half(to)));
        if edge.0 > edge.1 {
            points.reverse();
        }
        points
    };
    let routes: Vec<_> = input.edges.iter().map(route).collect();
    work += routes.iter().map(|r| r.len() as u64).sum::<u64>();
    Layout {
        width: (0..x.len()).map(|v| x[v] + width(v as u32) / 2).max().unwrap_or(0),
        height: tops.last().zip(heights.last()).map_or(0, |(top, height)| top + height),
        nodes: (0..n as u32).map(|v| (x[v as usize], centre(v))).collect(),
        layers,
        routes,
        work,
    }
}

/// The top and height of each layer. The gap below a layer grows with the horizontal reach of the layer's edges.
fn layer_rows(input: &Input, chains: &Chains, x: &[i64]) -> (Vec<i64>, Vec<i64>) {
    let count = chains.layers.len();
    let mut heights = vec![0; count];
    for (v, &(_, height)) in input.sizes.iter().enumerate() {
        let row = &mut heights[chains.layer[v] as usize];
        *row = (*row).max(i64::from(height));
    }
    let mut furthest = vec![0; count];
    for v in 0..chains.num_vertices() {
        let reach = chains
            .neighbours_below(v)
            .iter()
            .map(|&w| (x[v as usize] - x[w as usize]).abs())
            .max()
            .unwrap_or(0);
        let row = &mut furthest[chains.layer[v as usize] as usize];
        *row = reach.max(*row);
    }
    let mut top = 0;
    let tops = heights.iter().zip(&furthest).map(|(height, reach)| {
        let at = top;
        top += height + (LAYER_GAP + reach / 12).min(MAX_LAYER_GAP);
        at
    });
    (tops.collect(), heights)
}

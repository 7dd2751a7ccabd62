//! Nodes and the joints of long edges, in layers.

/// Layers that an edge may pass to be drawn.
const MAX_SPAN: u32 = 48;
/// Joints for each node and edge.
const JOINTS_PER_ELEMENT: usize = 4;

/// Neighbours of each vertex, in one allocation.
#[derive(Debug, Default)]
pub(super) struct Adjacency {
    starts: Vec<u32>,
    targets: Vec<u32>,
}

impl Adjacency {
    /// Of pairs of a vertex and its neighbour.
    pub(super) fn new(vertices: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Self {
        let mut starts = vec![0u32; vertices + 1];
        pairs.clone().for_each(|(a, _)| starts[a as usize + 1] += 1);
        for v in 0..vertices {
            starts[v + 1] += starts[v];
        }
        let mut next = starts.clone();
        let mut targets = vec![0; starts[vertices] as usize];
        for (a, b) in pairs {
            targets[next[a as usize] as usize] = b;
            next[a as usize] += 1;
        }
        Self { starts, targets }
    }

    /// The neighbours of a vertex.
    pub(super) fn of(&self, vertex: u32) -> &[u32] {
        &self.targets[self.starts[vertex as usize] as usize..self.starts[vertex as usize + 1] as usize]
    }
}

/// Nodes, and behind them joints: edges between layers that are not neighbours run through a joint in each layer on
/// their way. All edges of a node run through the same joints, as far as they go.
#[derive(Debug)]
pub(super) struct Chains {
    nodes: u32,
    /// The layer of each vertex.
    pub(super) layer: Vec<u32>,
    /// The vertices of each layer.
    pub(super) layers: Vec<Vec<u32>>,
    /// Of each node the first of its joints, which follow each other downward.
    first_joint: Vec<u32>,
    /// Of each node how many joints there are.
    joints: Vec<u32>,
    above: Adjacency,
    below: Adjacency,
}

impl Chains {
    pub(super) fn new(rank: &[u32], edges: &[(u32, u32)], work: &mut u64) -> Self {
        let n = rank.len();
        let spans = |&(a, b): &(u32, u32)| rank[b as usize] - rank[a as usize];
        // The longest edge of each node that is drawn, those of the shortest first while there are joints.
        let mut wanted = vec![0u32; n];
        for edge in edges {
            let span = spans(edge);
            if span <= MAX_SPAN {
                let joints = &mut wanted[edge.0 as usize];
                *joints = (*joints).max(span - 1);
            }
        }
        let mut by_need: Vec<u32> = (0..n as u32).collect();
        by_need.sort_by_key(|&v| wanted[v as usize]);
        let mut left = JOINTS_PER_ELEMENT * (n + edges.len());
        let (mut layer, mut first_joint, mut joints) = (rank.to_vec(), vec![0; n], vec![0; n]);
        let mut pairs = Vec::with_capacity(edges.len());
        for v in by_need {
            let need = wanted[v as usize] as usize;
            let Some(rest) = left.checked_sub(need) else { continue };
            left = rest;
            first_joint[v as usize] = layer.len() as u32;
            joints[v as usize] = need as u32;
            for step in 0..need as u32 {
                let joint = layer.len() as u32;
                pairs.push((if step == 0 { v } else { joint - 1 }, joint));
                layer.push(rank[v as usize] + 1 + step);
            }
        }
        for edge in edges {
            let (a, passed) = (edge.0 as usize, spans(edge) - 1);
            if passed <= joints[a] {
                pairs.push((if passed == 0 { edge.0 } else { first_joint[a] + passed - 1 }, edge.1));
            }
        }
        let count = layer.iter().max().map_or(0, |&last| last as usize + 1);
        let mut layers = vec![Vec::new(); count];
        layer.iter().enumerate().for_each(|(v, &l)| layers[l as usize].push(v as u32));
        *work += (layer.len() + pairs.len()) as u64;
        Self {
            nodes: n as u32,
            above: Adjacency::new(layer.len(), pairs.iter().map(|&(a, b)| (b, a))),
            below: Adjacency::new(layer.len(), pairs.iter().copied()),
            layer,
            layers,
            first_joint,
            joints,
        }
    }

    pub(super) fn num_vertices(&self) -> u32 {
        self.layer.len() as u32
    }

    /// Whether a vertex is a joint and no node.
    pub(super) fn is_joint(&self, vertex: u32) -> bool {
        vertex >= self.nodes
    }

    /// The neighbours in the layer above.
    pub(super) fn above(&self, vertex: u32) -> &[u32] {
        self.above.of(vertex)
    }

    /// The neighbours in the layer below.
    pub(super) fn below(&self, vertex: u32) -> &[u32] {
        self.below.of(vertex)
    }

    /// The joints of an edge, downward; `None` if it is not drawn.
    pub(super) fn joints(&self, from: u32, to: u32) -> Option<std::ops::Range<u32>> {
        let passed = (self.layer[to as usize] - self.layer[from as usize]).checked_sub(1)?;
        let first = self.first_joint[from as usize];
        (passed <= self.joints[from as usize]).then_some(first..first + passed)
    }
}

//! The layered graph: nodes, and dummy vertices where long edges pass a layer.

/// The maximum number of layers that a drawn edge spans.
const MAX_SPAN: u32 = 48;
/// Maximum number of dummy vertices in a drawing, for each of its nodes and edges.
const DUMMIES_PER_ELEMENT: usize = 4;

/// The neighbours of each vertex, in compressed sparse row form.
#[derive(Debug, Default)]
pub(super) struct Adjacency {
    starts: Vec<u32>,
    targets: Vec<u32>,
}

impl Adjacency {
    /// Creates the neighbour lists from pairs of a vertex and one of the vertex's neighbours.
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
    pub(super) fn neighbours(&self, vertex: u32) -> &[u32] {
        &self.targets[self.starts[vertex as usize] as usize..self.starts[vertex as usize + 1] as usize]
    }
}

/// Vertices: the nodes, followed by dummy vertices. An edge that spans several layers runs through a dummy vertex in each layer between its
/// ends. All edges that leave a node share one chain of dummy vertices, each up to the layer above its end.
#[derive(Debug)]
pub(super) struct Chains {
    nodes: u32,
    /// The layer of each vertex.
    pub(super) layer: Vec<u32>,
    /// The vertices of each layer.
    pub(super) layers: Vec<Vec<u32>>,
    /// The first dummy vertex of each node's chain; the chain continues with the vertices that follow it, downward.
    first_dummy: Vec<u32>,
    /// The number of dummy vertices in each node's chain.
    dummies: Vec<u32>,
    above: Adjacency,
    below: Adjacency,
}

impl Chains {
    pub(super) fn new(rank: &[u32], edges: &[(u32, u32)], work: &mut u64) -> Self {
        let n = rank.len();
        let spans = |&(a, b): &(u32, u32)| rank[b as usize] - rank[a as usize];
        // The chain length that each node needs for its longest drawn edge. The shortest chains get dummy vertices first,
        // until the budget is spent.
        let mut wanted = vec![0u32; n];
        for edge in edges {
            let span = spans(edge);
            if span <= MAX_SPAN {
                let dummies = &mut wanted[edge.0 as usize];
                *dummies = (*dummies).max(span - 1);
            }
        }
        let mut by_need: Vec<u32> = (0..n as u32).collect();
        by_need.sort_by_key(|&v| wanted[v as usize]);
        let mut left = DUMMIES_PER_ELEMENT * (n + edges.len());
        let (mut layer, mut first_dummy, mut dummies) = (rank.to_vec(), vec![0; n], vec![0; n]);
        let mut pairs = Vec::with_capacity(edges.len());
        for v in by_need {
            let need = wanted[v as usize] as usize;
            let Some(rest) = left.checked_sub(need) else { continue };
            left = rest;
            first_dummy[v as usize] = layer.len() as u32;
            dummies[v as usize] = need as u32;
            for step in 0..need as u32 {
                let dummy = layer.len() as u32;
                pairs.push((if step == 0 { v } else { dummy - 1 }, dummy));
                layer.push(rank[v as usize] + 1 + step);
            }
        }
        for edge in edges {
            let (a, passed) = (edge.0 as usize, spans(edge) - 1);
            if passed <= dummies[a] {
                pairs.push((if passed == 0 { edge.0 } else { first_dummy[a] + passed - 1 }, edge.1));
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
            first_dummy,
            dummies,
        }
    }

    pub(super) fn num_vertices(&self) -> u32 {
        self.layer.len() as u32
    }

    /// Whether a vertex is a dummy vertex rather than a node.
    pub(super) fn is_dummy(&self, vertex: u32) -> bool {
        vertex >= self.nodes
    }

    /// The neighbours in the layer above.
    pub(super) fn neighbours_above(&self, vertex: u32) -> &[u32] {
        self.above.neighbours(vertex)
    }

    /// The neighbours in the layer below.
    pub(super) fn neighbours_below(&self, vertex: u32) -> &[u32] {
        self.below.neighbours(vertex)
    }

    /// The dummy vertices that an edge passes, from top to bottom; `None` if the edge is not drawn.
    pub(super) fn dummies(&self, from: u32, to: u32) -> Option<std::ops::Range<u32>> {
        let passed = (self.layer[to as usize] - self.layer[from as usize]).checked_sub(1)?;
        let first = self.first_dummy[from as usize];
        (passed <= self.dummies[from as usize]).then_some(first..first + passed)
    }
}

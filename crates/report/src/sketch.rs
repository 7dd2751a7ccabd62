//! Graphs before layout.

use super::data::{Edge, Graph, GraphKind, Node, Operand, Strings, Text};
use super::layout::{self, layout};

/// Height of the nodes that are not pills, in pixels.
const HEIGHT: u32 = 42;
const PILL_HEIGHT: u32 = 28;
/// Estimated width of a character of a label, in pixels.
const LABEL_WIDTH: f64 = 7.9;
/// Estimated width of a character of a detail, in pixels.
const DETAIL_WIDTH: f64 = 7.5;
/// Width of the left and right margins of a node together, in pixels.
const MARGINS: f64 = 30.0;
const WIDTHS: (f64, f64) = (76.0, 290.0);

/// A graph under construction, whose nodes have no coordinates yet.
pub(super) struct Sketch {
    pub(super) name: String,
    pub(super) kind: GraphKind,
    pub(super) parent: Option<u32>,
    pub(super) nodes: Vec<Node>,
    edges: Vec<(u32, u32, Text, bool)>,
}

impl Sketch {
    pub(super) fn new(name: impl Into<String>, kind: GraphKind) -> Self {
        Self { name: name.into(), kind, parent: None, nodes: Vec::new(), edges: Vec::new() }
    }

    /// Adds a node and returns its index.
    pub(super) fn add_node(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Adds a node that is drawn as a pill: an input, an output or state. Returns its index.
    pub(super) fn add_pill(&mut self, label: Text, detail: Text) -> u32 {
        self.add_node(Node { label, detail, pill: true, ..Node::default() })
    }

    /// Adds an edge that carries the value `text`. If `partial`, the edge is drawn dashed.
    pub(super) fn add_edge(&mut self, from: u32, to: u32, text: Text, partial: bool) {
        self.edges.push((from, to, text, partial));
    }

    /// Adds an operand of a node, and an edge from the node that computes the operand, if there is one.
    pub(super) fn add_operand(&mut self, node: u32, operand: Operand) {
        if let Some(from) = operand.from {
            self.add_edge(from, node, operand.text, false);
        }
        self.nodes[node as usize].operands.push(operand);
    }

    /// Computes the layout and returns the finished graph.
    pub(super) fn draw(mut self, strings: &mut Strings) -> Graph {
        self.edges.sort_by_key(|&(from, to, _, partial)| (to, from, partial));
        self.edges.dedup_by_key(|&mut (from, to, ..)| (to, from));
        let width = |text: Text, each: f64| strings.get(text).chars().count() as f64 * each;
        for node in &mut self.nodes {
            let text = match node.pill {
                true => width(node.label, LABEL_WIDTH),
                false => width(node.label, LABEL_WIDTH).max(width(node.detail, DETAIL_WIDTH)),
            };
            node.at.2 = (text + MARGINS).clamp(WIDTHS.0, WIDTHS.1) as u32;
        }
        let height = |node: &Node| if node.pill { PILL_HEIGHT } else { HEIGHT };
        let drawn = layout(&layout::Input {
            sizes: self.nodes.iter().map(|node| (node.at.2, height(node))).collect(),
            edges: self.edges.iter().map(|&(from, to, ..)| (from, to)).collect(),
        });
        for (node, &(x, y)) in self.nodes.iter_mut().zip(&drawn.nodes) {
            (node.at.0, node.at.1) = (x, y);
        }
        let edges = self.edges.into_iter().zip(drawn.routes).map(|((from, to, text, partial), route)| Edge {
            ends: (from, to),
            text,
            partial,
            route: route.into_iter().flat_map(|(x, y)| [x, y]).collect(),
        });
        Graph {
            name: strings.add(self.name),
            kind: self.kind,
            parent: self.parent,
            size: (drawn.width, drawn.height),
            edges: edges.collect(),
            nodes: self.nodes,
        }
    }
}

/// Sizes as shown on a node: `1×3×224×224`, with the type if it is not float32.
pub(super) fn shape_text(dtype: &str, sizes: &[impl ToString]) -> String {
    let sizes = sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join("×");
    match (dtype, sizes.is_empty()) {
        ("float32", false) => sizes,
        (dtype, true) => dtype.to_owned(),
        (dtype, false) => format!("{sizes} {dtype}"),
    }
}

use crate::{BlockId, Constant, Graph, Live, NodeId, Type, ValueId};
use pteron_operator::{shown, shown_line};
use pteron_tensor::ScalarType;
use pteron_trace::Place;
use std::collections::HashSet;
use std::fmt;

/// A graph as text, in which `source` describes the instructions that nodes implement, by operator names or lines of a
/// file for example.
pub struct Listing<'g> {
    graph: &'g Graph,
    source: &'g dyn Fn(Place) -> Option<String>,
}

impl Graph {
    /// The graph as text, in which `source` describes the instructions. The graph's [`fmt::Display`] is the same with
    /// the indices of the instructions only.
    pub fn listing<'g>(&'g self, source: &'g dyn Fn(Place) -> Option<String>) -> Listing<'g> {
        Listing { graph: self, source }
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.listing(&|_| None).fmt(f)
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} values, {} nodes)", self.num_values(), self.num_nodes())
    }
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graph = self.graph;
        write!(f, "graph")?;
        if !graph.name.is_empty() {
            write!(f, " {}", shown(&graph.name))?;
        }
        self.write_parameters(f, graph.entry())?;
        writeln!(f, " {{")?;
        self.write_constants(f)?;
        for block in graph.blocks() {
            if block != graph.entry() {
                write!(f, "^{}", block.index())?;
                self.write_parameters(f, block)?;
                writeln!(f, ":")?;
            }
            for node in graph.nodes_of(block) {
                self.write_node(f, node)?;
            }
            self.write_terminator(f, block)?;
        }
        writeln!(f, "}}")
    }
}

impl Listing<'_> {
    fn write_parameters(&self, f: &mut fmt::Formatter<'_>, block: BlockId) -> fmt::Result {
        write!(f, "(")?;
        for (i, &v) in self.graph.block(block).parameters().iter().enumerate() {
            write!(f, "{}{}", if i > 0 { ", " } else { "" }, Typed(self.graph, v))?;
            if let Some(state) = self.graph.state_of_input(i).filter(|_| block == self.graph.entry()) {
                write!(f, " state {state}")?;
            }
        }
        write!(f, ")")
    }

    /// Writes a line for each constant that is used.
    fn write_constants(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen = HashSet::new();
        for block in self.graph.blocks() {
            let nodes = self.graph.nodes_of(block).flat_map(|n| self.graph.node(n).inputs());
            let ends = self.graph.block(block).terminator().operands();
            for &v in nodes.chain(ends) {
                if self.graph.producer(v).is_none() && self.graph.is_constant(v) && seen.insert(v) {
                    self.write_constant(f, v)?;
                }
            }
        }
        Ok(())
    }

    fn write_constant(&self, f: &mut fmt::Formatter<'_>, v: ValueId) -> fmt::Result {
        let value = self.graph.value(v);
        write!(f, "  {} = ", Typed(self.graph, v))?;
        match value.constant() {
            Some(Constant::Scalar(scalar)) => write!(f, "{scalar}")?,
            _ => match value.view().filter(|v| v.numel() == 1).map(|v| v.storage::<f32>().map(|x| x[0])) {
                Some(Ok(number)) => write!(f, "constant {number}")?,
                _ => write!(f, "constant")?,
            },
        }
        self.write_origins(f, &[value.origin()])?;
        writeln!(f)
    }

    fn write_node(&self, f: &mut fmt::Formatter<'_>, id: NodeId) -> fmt::Result {
        let node = self.graph.node(id);
        write!(f, "  ")?;
        for (i, &v) in node.outputs().iter().enumerate() {
            write!(f, "{}{}", if i > 0 { ", " } else { "" }, Typed(self.graph, v))?;
        }
        let equals = if node.outputs().is_empty() { "" } else { " = " };
        write!(f, "{equals}{}({})", shown(node.name()), List(node.inputs()))?;
        let attributes = Attributes(self.graph, id).to_string();
        if !attributes.is_empty() {
            write!(f, " {{{}}}", shown_line(&attributes))?;
        }
        for effect in node.effects() {
            write!(f, " {effect:?}")?;
        }
        self.write_origins(f, node.origins())?;
        writeln!(f)
    }

    fn write_terminator(&self, f: &mut fmt::Formatter<'_>, block: BlockId) -> fmt::Result {
        let end = self.graph.block(block).terminator();
        let target = |i: usize| format!("^{}({})", end.targets()[i].index(), List(end.values(i)));
        match (end.condition(), end.targets().len()) {
            (_, 0) => {
                write!(f, "  return")?;
                for (i, (&v, live)) in end.operands().iter().zip(self.graph.results()).enumerate() {
                    write!(f, "{} %{}", if i > 0 { "," } else { "" }, v.index())?;
                    if let Live::State(state) = live {
                        write!(f, " state {state}")?;
                    }
                }
                writeln!(f)
            }
            (Some(condition), 2) => {
                writeln!(f, "  branch %{}, {}, {}", condition.index(), target(0), target(1))
            }
            _ => writeln!(f, "  jump {}", target(0)),
        }
    }

    fn write_origins(&self, f: &mut fmt::Formatter<'_>, origins: &[Place]) -> fmt::Result {
        let mut separator = "  // ";
        for &origin in origins {
            match (origin.chain, origin.instruction, origin.node) {
                (Some(chain), Some(instruction), None) => write!(f, "{separator}{chain}:{instruction}")?,
                (Some(chain), Some(instruction), Some(node)) => {
                    write!(f, "{separator}{chain}:{instruction}.{node}")?;
                }
                (_, _, Some(node)) => write!(f, "{separator}node {node}")?,
                _ => continue,
            }
            if let Some(source) = (self.source)(origin) {
                write!(f, " {source}")?;
            }
            separator = ", ";
        }
        Ok(())
    }
}

/// A value with its type, printed as `%3: float32[2, 3]`.
struct Typed<'g>(&'g Graph, ValueId);

impl fmt::Display for Typed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0.value(self.1);
        match (value.ty(), value.meta().dtype()) {
            (Type::Tensor, _) => write!(f, "%{}: {}", self.1.index(), value.meta())?,
            (Type::Scalar, ScalarType::Long) => write!(f, "%{}: int", self.1.index())?,
            (Type::Scalar, ScalarType::Double) => write!(f, "%{}: float", self.1.index())?,
            (Type::Scalar, _) => write!(f, "%{}: bool", self.1.index())?,
        }
        if value.is_bounded() { write!(f, " at most") } else { Ok(()) }
    }
}

/// A list of values, printed as `%3, %4`.
struct List<'g>(&'g [ValueId]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, v) in self.0.iter().enumerate() {
            write!(f, "{}%{}", if i > 0 { ", " } else { "" }, v.index())?;
        }
        Ok(())
    }
}

struct Attributes<'g>(&'g Graph, NodeId);

impl fmt::Display for Attributes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.node(self.1).kind().attributes(f)
    }
}

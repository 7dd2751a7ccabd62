//! Dynamic quantization: linear layers whose input rows are quantized at run time.

use super::dynamic::quantize_by_row;
use super::layers::{Range, layer_summary, push_dequantize, quantize_by_channel, quantize_symmetric};
use super::{Outcome, QuantizedLayer, floats, push_node, static_spec, unquantized_node};
use pteron_exported::{Argument, ExportedGraph, ExportedNode, ExportedProgram, VarId};
use pteron_tensor::ScalarType;
use std::collections::{HashMap, HashSet};

/// How the weights of linear layers are quantized.
#[derive(Clone, Copy)]
pub(super) enum Weights {
    EightBits,
    FourBits { group: usize },
}

/// Quantizes the linear layers of the program, those of branches and loops among them.
pub(super) fn run(program: &mut ExportedProgram, weights: Weights, keep: &HashSet<VarId>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut rows = Rows { program, weights, keep, outcome: &mut outcome };
    let graph = std::mem::take(&mut rows.program.graph);
    let graph = rows.quantize_graph(graph, HashMap::new());
    program.graph = graph;
    outcome
}

/// Quantizes only the linear layers of branches and loops, to int8: their values cannot be calibrated.
pub(super) fn run_nested(program: &mut ExportedProgram, keep: &HashSet<VarId>, outcome: &mut Outcome) {
    let mut nodes = std::mem::take(&mut program.graph.nodes);
    let mut rows = Rows { program, weights: Weights::EightBits, keep, outcome };
    for node in &mut nodes {
        rows.quantize_nested(node, &HashMap::new());
    }
    program.graph.nodes = nodes;
}

struct Rows<'r> {
    program: &'r mut ExportedProgram,
    weights: Weights,
    keep: &'r HashSet<VarId>,
    outcome: &'r mut Outcome,
}

impl Rows<'_> {
    /// Quantizes the linear layers of a graph; `known` are the quantized values of the graphs around it.
    fn quantize_graph(
        &mut self,
        mut graph: ExportedGraph,
        mut known: HashMap<VarId, VarId>,
    ) -> ExportedGraph {
        let old = std::mem::take(&mut graph.nodes);
        for mut node in old {
            self.quantize_nested(&mut node, &known);
            let is_kept = node.outputs.first().is_some_and(|out| self.keep.contains(out));
            let quantized = match is_kept {
                true => None,
                false => quantize_product(self.program, &mut graph.nodes, &node, self.weights, &mut known),
            };
            match quantized {
                Some((x, weight, layer)) => {
                    self.outcome.nodes.push(layer.name.clone());
                    self.outcome.layers.push(layer);
                    for (name, arg) in &mut node.args {
                        match &**name {
                            "input" => *arg = Argument::Var(x),
                            "weight" => *arg = Argument::Var(weight),
                            _ => {}
                        }
                    }
                }
                None => self.outcome.left.extend(unquantized_node(
                    self.program,
                    &node,
                    Some(self.weights),
                    self.keep,
                )),
            }
            graph.nodes.push(node);
        }
        graph
    }

    fn quantize_nested(&mut self, node: &mut ExportedNode, known: &HashMap<VarId, VarId>) {
        for graph in node.graphs_mut() {
            *graph = self.quantize_graph(std::mem::take(graph), known.clone());
        }
    }
}

/// The input and the constant weights of a linear layer, each quantized and dequantized, and a summary of the layer.
fn quantize_product(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    weights: Weights,
    known: &mut HashMap<VarId, VarId>,
) -> Option<(VarId, VarId, QuantizedLayer)> {
    let operand = |name: &str| node.arg(name).and_then(Argument::var);
    if *node.target != *"aten.linear.default" {
        return None;
    }
    let (x, weight) = (operand("input")?, operand("weight")?);
    let spec = program.spec(x)?.clone();
    if spec.dtype != ScalarType::Float || spec.rank() == 0 || !spec.dim_order.is_contiguous() {
        return None;
    }
    let (dequantized_weights, layer) = match weights {
        Weights::EightBits => quantize_by_channel(program, nodes, node, weight, 0, None)?,
        Weights::FourBits { group } => quantize_by_group(program, nodes, node, weight, group)?,
    };
    let x = match known.get(&x) {
        Some(&rows) => rows,
        None => {
            let rows = quantize_by_row(program, nodes, node, x, &spec);
            known.insert(x, rows);
            rows
        }
    };
    Some((x, dequantized_weights, layer))
}

fn quantize_by_group(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    weight: VarId,
    group: usize,
) -> Option<(VarId, QuantizedLayer)> {
    let weights = floats(program, weight)?;
    let &[rows, columns] = &program.spec(weight)?.known_sizes()?[..] else { return None };
    if columns <= 0 || !(columns as usize).is_multiple_of(group) {
        return None;
    }
    let groups = weights.len() / group;
    let found = quantize_symmetric(&weights, groups, |i| i / group, Range::FOUR_BITS);
    let error = found.error;
    let dequantized_weights =
        push_dequantize(program, nodes, node, weight, found, &[groups, group], 0, Range::FOUR_BITS);
    let args = vec![("self", Argument::Var(dequantized_weights)), ("size", Argument::ints(&[rows, columns]))];
    let spec = static_spec(ScalarType::Float, &[rows as usize, columns as usize]);
    let dequantized_weights =
        push_node(program, nodes, &node.source, "aten.view.default", args, vec![spec])[0];
    Some((dequantized_weights, layer_summary(program, node, error)))
}

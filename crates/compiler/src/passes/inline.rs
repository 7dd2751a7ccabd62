//! Inlines nested graphs that run exactly once: the bodies of `torch.no_grad()` and `torch.autocast`, and functions
//! marked for a compiler.

use crate::dtypes::dtype_of;
use crate::{Error, Result};
use pteron_exported::{Argument, ExportedGraph, ExportedNode, ExportedProgram, VarId, VarType};
use pteron_tensor::ScalarType;
use std::collections::HashMap;
use std::sync::Arc;

const AUTOCAST: &str = "higher_order.wrap_with_autocast";

/// Operators that run their only graph argument once, on the arguments after it.
const ONCE: &[&str] = &[
    AUTOCAST,
    "higher_order.wrap_with_set_grad_enabled",
    "higher_order.wrap",
    "higher_order.hints_wrapper",
    "higher_order.invoke_subgraph",
    "higher_order.strict_mode",
    "higher_order.tag_activation_checkpoint",
];

pub(super) fn run(program: &mut ExportedProgram) -> Result<()> {
    let mut graph = std::mem::take(&mut program.graph);
    let mut inline = Inline { program, substitutes: HashMap::new() };
    let done = inline.inline_graph(&mut graph, false);
    let substitutes = inline.substitutes;
    for mutation in &mut program.mutations {
        mutation.value = substitutes.get(&mutation.value).copied().unwrap_or(mutation.value);
    }
    program.graph = graph;
    done
}

struct Inline<'p> {
    program: &'p mut ExportedProgram,
    /// Maps the inputs of inlined graphs, and the results of the nodes that held these graphs, to the values that
    /// replace them.
    substitutes: HashMap<VarId, VarId>,
}

impl Inline<'_> {
    fn substitute(&self, arg: &mut Argument) {
        arg.map_vars(&mut |v| self.substitutes.get(&v).copied().unwrap_or(v));
    }

    /// Inlines the graphs that nodes of a graph run once; `casting` tells whether the graph runs under autocast.
    fn inline_graph(&mut self, graph: &mut ExportedGraph, casting: bool) -> Result<()> {
        let nodes = std::mem::take(&mut graph.nodes);
        for mut node in nodes {
            for (_, arg) in &mut node.args {
                self.substitute(arg);
            }
            if ONCE.contains(&&*node.target) {
                let inner = self.inline_node(node, casting)?;
                graph.nodes.extend(inner);
                continue;
            }
            for inner in node.graphs_mut() {
                self.inline_graph(inner, casting)?;
            }
            if casting {
                self.cast_operands(&mut node, &mut graph.nodes);
            }
            graph.nodes.push(node);
        }
        for output in &mut graph.outputs {
            self.substitute(output);
        }
        Ok(())
    }

    /// Substitutes a node's operands for the inputs of its graph, and returns the graph's nodes.
    fn inline_node(&mut self, mut node: ExportedNode, casting: bool) -> Result<Vec<ExportedNode>> {
        let casting = match (&*node.target, node.args.get(2)) {
            (AUTOCAST, Some((_, Argument::Bool(enabled)))) => *enabled,
            _ => casting,
        };
        let place = node.args.iter().position(|(_, arg)| matches!(arg, Argument::Graph(_)));
        let graph_argument = place.map(|at| std::mem::replace(&mut node.args[at].1, Argument::Ignored));
        let fails = |problem: &str| Error::node(self.program, &node, problem);
        let (Some(place), Some(Argument::Graph(mut graph))) = (place, graph_argument) else {
            return Err(fails("has no graph"));
        };
        let operands: Vec<VarId> = node.args[place + 1..].iter().flat_map(|(_, arg)| arg.vars()).collect();
        if graph.inputs.len() != operands.len() {
            return Err(fails("its graph takes other inputs than it passes"));
        }
        if graph.outputs.len() != node.outputs.len() {
            return Err(fails("its graph gives other results than it has"));
        }
        self.substitutes.extend(graph.inputs.iter().copied().zip(operands));
        self.inline_graph(&mut graph, casting)?;
        for (output, &result) in graph.outputs.iter().zip(&node.outputs) {
            let value = output.var();
            let value = value.ok_or_else(|| {
                Error::node(self.program, &node, "its graph gives a number that it did not compute")
            })?;
            self.substitutes.insert(result, value);
        }
        Ok(graph.nodes)
    }

    /// Casts the operands of a node under autocast to the result type that the exporter recorded. That type is all that
    /// the archive says about what autocast chose. Norms accept operands of two types and are left alone.
    fn cast_operands(&mut self, node: &mut ExportedNode, before: &mut Vec<ExportedNode>) {
        let result = node.outputs.first().and_then(|&v| dtype_of(self.program, v));
        let Some(dtype) = result.filter(|d| d.is_floating()) else { return };
        let names_type = node.args.iter().any(|(_, arg)| matches!(arg, Argument::Dtype(_)));
        if names_type || !node.target.starts_with("aten.") || node.target.contains("norm") {
            return;
        }
        let source = Arc::clone(&node.source);
        for (_, arg) in &mut node.args {
            arg.map_vars(&mut |v| match dtype_of(self.program, v) {
                Some(other) if other.is_floating() && other != dtype => {
                    let cast = self.cast_value(v, dtype);
                    before.push(ExportedNode {
                        target: "aten.to.dtype".into(),
                        args: vec![
                            ("self".into(), Argument::Var(v)),
                            ("dtype".into(), Argument::Dtype(dtype)),
                        ],
                        outputs: vec![cast],
                        source: Arc::clone(&source),
                    });
                    cast
                }
                _ => v,
            });
        }
    }

    fn cast_value(&mut self, v: VarId, dtype: ScalarType) -> VarId {
        let (name, mut ty) = (Arc::clone(&self.program.var(v).name), self.program.var(v).ty.clone());
        if let VarType::Tensor(spec) = &mut ty {
            spec.dtype = dtype;
        }
        self.program.add_var(format!("{name}_{dtype}"), ty)
    }
}

//! Rewrites functions that PyTorch has mapped over a dimension (`torch.vmap`, and what builds on it, e.g.
//! `associative_scan`) to map nodes.
//!
//! In an archive, such a function is a run of nodes between two markers. `_add_batch_dim` brings a tensor in, of which
//! the following nodes see one row; `_remove_batch_dim` stacks the rows of a result. Nodes that depend on no row run
//! once, before the map.

use crate::{Error, Result};
use pteron_exported::{Argument, ExportedGraph, ExportedNode, ExportedProgram, TensorSpec, VarId, VarType};
use std::collections::HashSet;
use std::sync::Arc;

const START: &str = "torch._functorch.predispatch._vmap_increment_nesting";
const END: &str = "torch._functorch.predispatch._vmap_decrement_nesting";
const ROWS: &str = "torch._functorch.predispatch._add_batch_dim";
const JOIN: &str = "torch._functorch.predispatch._remove_batch_dim";

pub(super) fn run(program: &mut ExportedProgram) -> Result<()> {
    let mut has_marker = false;
    program.graph.for_each_node(&mut |node| has_marker |= *node.target == *START);
    if !has_marker {
        return Ok(());
    }
    let mut graph = std::mem::take(&mut program.graph);
    let done = rewrite_to_maps(program, &mut graph);
    program.graph = graph;
    done
}

/// Rewrites the marked nodes of a graph to maps, innermost first.
fn rewrite_to_maps(program: &mut ExportedProgram, graph: &mut ExportedGraph) -> Result<()> {
    // The nodes outside all markers, then those of each open marker.
    let mut open = vec![Vec::with_capacity(graph.nodes.len())];
    for mut node in std::mem::take(&mut graph.nodes) {
        for inner in node.graphs_mut() {
            rewrite_to_maps(program, inner)?;
        }
        let nodes = match &*node.target {
            START => {
                open.push(Vec::new());
                continue;
            }
            END => match open.pop() {
                Some(marked) if !open.is_empty() => Region::from_marked_nodes(program, marked)?.into_nodes(),
                _ => return Err(Error::node(program, &node, "ends a vmap that has not begun")),
            },
            _ => vec![node],
        };
        if let Some(around) = open.last_mut() {
            around.extend(nodes);
        }
    }
    match <[Vec<ExportedNode>; 1]>::try_from(open) {
        Ok([nodes]) => graph.nodes = nodes,
        Err(_) => return Err(Error::archive("a graph", "a vmap has no end")),
    }
    Ok(())
}

/// The nodes of a mapped function.
#[derive(Default)]
struct Region {
    /// Nodes that do not depend on any row; they run once, before the map.
    before: Vec<ExportedNode>,
    body: ExportedGraph,
    /// The tensors whose rows are the inputs of the mapped body.
    rows: Vec<VarId>,
    /// The tensors that the mapped body's outputs are stacked to, one row for each run of the body.
    joined: Vec<VarId>,
    /// Nodes that use stacked rows; they run once, after the map.
    after: Vec<ExportedNode>,
    /// Values that differ for each row, and therefore exist only inside the mapped body.
    per_row: HashSet<VarId>,
    /// Values that are available only after the map.
    after_map: HashSet<VarId>,
}

impl Region {
    fn from_marked_nodes(program: &mut ExportedProgram, marked: Vec<ExportedNode>) -> Result<Self> {
        let mut region = Self::default();
        for node in marked {
            match &*node.target {
                ROWS => region.take_rows(program, node)?,
                JOIN => region.stack_rows(program, node)?,
                _ => {
                    let (part, values) = if uses(&node, &region.per_row) {
                        (&mut region.body.nodes, Some(&mut region.per_row))
                    } else if uses(&node, &region.after_map) {
                        (&mut region.after, Some(&mut region.after_map))
                    } else {
                        (&mut region.before, None)
                    };
                    if let Some(values) = values {
                        values.extend(node.outputs.iter().copied());
                    }
                    part.push(node);
                }
            }
        }
        Ok(region)
    }

    fn take_rows(&mut self, program: &mut ExportedProgram, node: ExportedNode) -> Result<()> {
        let (Some(x), Some(spec), &[row]) =
            (operand_at(&node, 0), spec_at(program, &node, 0), &*node.outputs)
        else {
            return Err(Error::node(program, &node, "takes rows of no tensor"));
        };
        if self.per_row.contains(&x) || self.after_map.contains(&x) {
            return Err(Error::node(program, &node, "takes rows of what a vmap has made of rows"));
        }
        let dim = dim_at(program, &node, 1, spec.rank())?;
        let mut first = x;
        if dim != 0 {
            let name = format!("{}_moved", program.var(x).name);
            first = program.add_var(name, rows_first_type(spec, dim));
            self.before.push(move_dim(&node, x, (dim, 0), first));
        }
        self.rows.push(first);
        self.body.inputs.push(row);
        self.per_row.insert(row);
        Ok(())
    }

    fn stack_rows(&mut self, program: &mut ExportedProgram, node: ExportedNode) -> Result<()> {
        let (Some(row), &[result]) = (operand_at(&node, 0), &*node.outputs) else {
            return Err(Error::node(program, &node, "joins rows of no tensor"));
        };
        let Some(spec) = program.spec(result).cloned() else {
            return Err(Error::node(program, &node, "joins rows to no tensor"));
        };
        let dim = dim_at(program, &node, 3, spec.rank())?;
        self.after_map.insert(result);
        if !self.per_row.contains(&row) {
            return self.repeat_per_row(program, &node, row, dim, spec);
        }
        let mut joined = result;
        if dim != 0 {
            let name = format!("{}_rows", program.var(result).name);
            joined = program.add_var(name, rows_first_type(spec, dim));
            self.after.push(move_dim(&node, joined, (0, dim), result));
        }
        self.body.outputs.push(Argument::Var(row));
        self.joined.push(joined);
        Ok(())
    }

    /// Stacks copies of a value along `dim`, because the value is the same for every row.
    fn repeat_per_row(
        &mut self,
        program: &mut ExportedProgram,
        node: &ExportedNode,
        x: VarId,
        dim: usize,
        spec: TensorSpec,
    ) -> Result<()> {
        let Some(sizes) = spec.known_sizes() else {
            return Err(Error::node(program, node, "repeats a tensor for rows whose number changes"));
        };
        let mut one = spec;
        one.sizes[dim] = 1.into();
        let name = format!("{}_row", program.var(x).name);
        let one = program.add_var(name, VarType::Tensor(one));
        let args = vec![("self".into(), Argument::Var(x)), ("dim".into(), Argument::Int(dim as i64))];
        self.after.push(make_node(node, "aten.unsqueeze.default", args, one));
        let args = vec![("self".into(), Argument::Var(one)), ("size".into(), Argument::ints(&sizes))];
        self.after.push(make_node(node, "aten.expand.default", args, node.outputs[0]));
        Ok(())
    }

    /// The nodes of the region in order: those before the map, the map, and those after it.
    fn into_nodes(mut self) -> Vec<ExportedNode> {
        let mut nodes = self.before;
        if !self.joined.is_empty() {
            let source = self.body.nodes.first().map_or_else(Arc::default, |node| Arc::clone(&node.source));
            let body = std::mem::take(&mut self.body);
            let args = vec![
                ("f".into(), Argument::Graph(Box::new(body))),
                ("xs".into(), Argument::Vars(self.rows)),
                ("pos_args".into(), Argument::Vars(Vec::new())),
            ];
            nodes.push(ExportedNode {
                target: "higher_order.map_impl".into(),
                args,
                outputs: self.joined,
                source,
            });
        }
        nodes.extend(self.after);
        nodes
    }
}

/// Whether a node, or a graph that it holds, uses one of these values.
fn uses(node: &ExportedNode, values: &HashSet<VarId>) -> bool {
    node.operands().any(|v| values.contains(&v))
        || node.graphs().any(|graph| {
            graph.nodes.iter().any(|node| uses(node, values))
                || graph.outputs.iter().flat_map(Argument::vars).any(|v| values.contains(&v))
        })
}

fn operand_at(node: &ExportedNode, at: usize) -> Option<VarId> {
    node.args.get(at).and_then(|(_, arg)| arg.var())
}

fn spec_at(program: &ExportedProgram, node: &ExportedNode, at: usize) -> Option<TensorSpec> {
    program.spec(operand_at(node, at)?).cloned()
}

/// A dimension of a tensor of this rank; negative ones count from the end.
fn dim_at(program: &ExportedProgram, node: &ExportedNode, at: usize, rank: usize) -> Result<usize> {
    let dim = match node.args.get(at) {
        Some((_, Argument::Int(dim))) if *dim < 0 => usize::try_from(dim.saturating_add(rank as i64)).ok(),
        Some((_, Argument::Int(dim))) => usize::try_from(*dim).ok(),
        _ => None,
    };
    dim.filter(|&dim| dim < rank).ok_or_else(|| {
        Error::node(program, node, format!("it maps over no dimension of a tensor of rank {rank}"))
    })
}

/// The type of a tensor whose dimension `dim` is moved to the front, contiguous.
fn rows_first_type(mut spec: TensorSpec, dim: usize) -> VarType {
    spec.sizes[..=dim].rotate_right(1);
    VarType::Tensor(TensorSpec::contiguous(spec.dtype, spec.sizes))
}

/// Moves a dimension of `x` to another position.
fn move_dim(node: &ExportedNode, x: VarId, (from, to): (usize, usize), result: VarId) -> ExportedNode {
    let args = vec![
        ("self".into(), Argument::Var(x)),
        ("source".into(), Argument::Int(from as i64)),
        ("destination".into(), Argument::Int(to as i64)),
    ];
    make_node(node, "aten.movedim.int", args, result)
}

/// A node with the source location of `node`.
fn make_node(
    node: &ExportedNode,
    target: &str,
    args: Vec<(Arc<str>, Argument)>,
    result: VarId,
) -> ExportedNode {
    ExportedNode { target: target.into(), args, outputs: vec![result], source: Arc::clone(&node.source) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_exported::InputKind;
    use pteron_tensor::ScalarType;

    fn add(program: &mut ExportedProgram, name: &str, sizes: &[i64]) -> VarId {
        let sizes = sizes.iter().map(|&size| size.into()).collect();
        program.add_var(name, VarType::Tensor(TensorSpec::contiguous(ScalarType::Float, sizes)))
    }

    fn node(target: &str, x: Option<VarId>, numbers: &[i64], outputs: &[VarId]) -> ExportedNode {
        let x = x.into_iter().map(Argument::Var);
        let args = x.chain(numbers.iter().map(|&n| Argument::Int(n))).map(|arg| ("".into(), arg)).collect();
        ExportedNode { target: target.into(), args, outputs: outputs.to_vec(), source: Arc::default() }
    }

    /// `x` of sizes 5 and 4 is mapped over its columns. One result stacks columns, the other repeats a fixed tensor for
    /// each.
    fn program(ends: usize) -> ExportedProgram {
        let mut program = ExportedProgram::new("forward");
        let x = add(&mut program, "x", &[5, 4]);
        let [column, down, fixed] = ["column", "down", "fixed"].map(|name| add(&mut program, name, &[5]));
        let columns = add(&mut program, "columns", &[5, 4]);
        let repeated = add(&mut program, "repeated", &[4, 5]);
        program.graph.inputs = vec![x];
        program.inputs = vec![InputKind::User];
        program.graph.nodes = vec![
            node(START, None, &[4], &[]),
            node(ROWS, Some(x), &[-1, 1], &[column]),
            node("aten.neg.default", Some(column), &[], &[down]),
            node("aten.zeros.default", None, &[5], &[fixed]),
            node(JOIN, Some(down), &[1, 4, 1], &[columns]),
            node(JOIN, Some(fixed), &[1, 4, 0], &[repeated]),
        ];
        program.graph.nodes.extend((0..ends).map(|_| node(END, None, &[], &[])));
        program.graph.outputs = vec![Argument::Var(columns), Argument::Var(repeated)];
        program
    }

    #[test]
    fn a_vmap_over_any_dimension_becomes_a_map_over_the_first() {
        let mut program = program(1);
        run(&mut program).unwrap();
        program.verify().unwrap();
        let targets: Vec<&str> = program.graph.nodes.iter().map(|node| &*node.target).collect();
        let before = ["aten.movedim.int", "aten.zeros.default"];
        let after = ["aten.movedim.int", "aten.unsqueeze.default", "aten.expand.default"];
        assert_eq!(targets, [&before[..], &["higher_order.map_impl"], &after].concat());
        let map = &program.graph.nodes[2];
        let body = map.graphs().next().unwrap();
        assert_eq!(body.nodes.iter().map(|node| &*node.target).collect::<Vec<_>>(), ["aten.neg.default"]);
        let sizes = |var| program.spec(var).unwrap().known_sizes().unwrap();
        assert_eq!(sizes(map.operands().next().unwrap()), [4, 5]);
        assert_eq!(sizes(map.outputs[0]), [4, 5]);
    }

    #[test]
    fn unbalanced_markers_are_rejected() {
        for ends in [0, 2] {
            assert!(run(&mut program(ends)).is_err());
        }
    }
}

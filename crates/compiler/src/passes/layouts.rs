//! Propagates dim orders from the inputs through operators that preserve them. All other operators read row-major
//! copies.

use crate::Result;
use crate::decompose::convert;
use crate::operators::OperatorTable;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedGraph, ExportedNode, ExportedProgram, TensorSpec, VarId, VarType};
use pteron_operator::Kernel;
use pteron_operator::facts::{Meaning, QParams};
use pteron_operator::{Arg, Args};
use pteron_tensor::{DimOrder, TensorMeta};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) fn run(program: &mut ExportedProgram, table: &OperatorTable) -> Result<()> {
    Rewriter::run(program, &mut |cx, node| {
        if node.graphs().next().is_some() {
            return Ok(Outcome::Kept);
        }
        if node.target.starts_with("dim_order_ops.") {
            return remove_redundant_copy(cx, node);
        }
        let order = match preserves_layout(cx, node, table) {
            true => channels_last_order(cx, node),
            false => None,
        };
        for &output in &node.outputs {
            if let VarType::Tensor(spec) = &mut cx.program.var_mut(output).ty {
                let rank = spec.rank();
                spec.dim_order = order.filter(|o| o.len() == rank).unwrap_or(DimOrder::contiguous(rank));
            }
        }
        convert_operands(cx, node, order)
    })
}

/// Makes images channels-last where convolutions and pools read them. [`run`] propagates that layout, and removes
/// copies of what has their layout already, such as those that restore the layouts of outputs and of state.
pub(super) fn prefer_channels_last(program: &mut ExportedProgram, table: &OperatorTable) -> Result<()> {
    Rewriter::run(program, &mut |cx, node| {
        let name = if node.arg("input").is_some() { "input" } else { "self" };
        let image = node.arg(name).and_then(Argument::var);
        let spec = image.and_then(|var| cx.program.spec(var)).filter(|spec| spec.rank() == 4).cloned();
        let (Some(image), Some(spec)) = (image, spec.filter(|spec| spec.dim_order.is_contiguous())) else {
            return Ok(Outcome::Kept);
        };
        let Some(selection) = table.select(cx.program, node) else { return Ok(Outcome::Kept) };
        if !matches!(
            call_meaning(cx.program, node, &*selection.kernel),
            Some(Meaning::Convolution(_) | Meaning::Pool(_))
        ) {
            return Ok(Outcome::Kept);
        }
        let copy = convert(cx, image, TensorSpec { dim_order: DimOrder::channels_last(4), ..spec });
        let mut fresh = node.clone();
        let operand = fresh.args.iter_mut().find(|(arg_name, _)| **arg_name == *name);
        operand.into_iter().for_each(|(_, arg)| *arg = Argument::Var(copy));
        cx.push_node(fresh);
        Ok(Outcome::Replaced)
    })?;
    restore_outputs(program);
    Ok(())
}

/// Adds copies at the end of the program that convert images back to the layouts declared when this pass began.
fn restore_outputs(program: &mut ExportedProgram) {
    let mut graph = std::mem::take(&mut program.graph);
    let values = program.mutations.iter().map(|mutation| mutation.value).collect();
    let restored = restore_graph_outputs(program, &mut graph, values);
    program.graph = graph;
    for mutation in &mut program.mutations {
        mutation.value = restored.get(&mutation.value).copied().unwrap_or(mutation.value);
    }
}

/// Appends copies of the image outputs of a graph and its nested graphs, and of the images in `others`, in the layouts
/// that they have now. Returns the copies, by the value that each replaces.
fn restore_graph_outputs(
    program: &mut ExportedProgram,
    graph: &mut ExportedGraph,
    others: BTreeSet<VarId>,
) -> BTreeMap<VarId, VarId> {
    for inner in graph.nodes.iter_mut().flat_map(ExportedNode::graphs_mut) {
        restore_graph_outputs(program, inner, BTreeSet::new());
    }
    let mut restored = BTreeMap::new();
    for var in others.into_iter().chain(graph.outputs.iter().flat_map(Argument::vars)) {
        let is_given = program.constants.contains_key(&var) || graph.inputs.contains(&var);
        let image = program.spec(var).filter(|spec| spec.rank() == 4).cloned();
        let Some(spec) = image.filter(|_| !is_given && !restored.contains_key(&var)) else { continue };
        let order: Vec<i64> = spec.dim_order.iter().map(|&d| i64::from(d)).collect();
        let name = format!("{}_{}", program.var(var).name, program.num_vars());
        let copy = program.add_var(name, VarType::Tensor(spec));
        graph.nodes.push(ExportedNode {
            target: "dim_order_ops._to_dim_order_copy.default".into(),
            args: vec![("self".into(), Argument::Var(var)), ("dim_order".into(), Argument::ints(&order))],
            outputs: vec![copy],
            source: Arc::default(),
        });
        restored.insert(var, copy);
    }
    let now = |var: VarId| restored.get(&var).copied().unwrap_or(var);
    graph.outputs.iter_mut().for_each(|output| output.map_vars(&mut |var| now(var)));
    restored
}

/// Removes a copy into the layout and the type that its operand has already.
fn remove_redundant_copy(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let spec = |var: Option<VarId>| var.and_then(|var| cx.program.spec(var));
    let x = node.arg("self").and_then(Argument::var);
    match (x, spec(x), spec(node.outputs.first().copied())) {
        (Some(x), Some(have), Some(want)) if have.dtype == want.dtype && have.dim_order == want.dim_order => {
            cx.replace_node(node, x)
        }
        _ => Ok(Outcome::Kept),
    }
}

/// Whether an operator's results have the layout of its operands.
fn preserves_layout(cx: &Rewriter<'_>, node: &ExportedNode, table: &OperatorTable) -> bool {
    let Some(selection) = table.select(cx.program, node) else { return false };
    if selection.kernel.facts().any_layout {
        return true;
    }
    matches!(
        call_meaning(cx.program, node, &*selection.kernel),
        Some(
            Meaning::Elementwise(_)
                | Meaning::Convolution(_)
                | Meaning::Pool(_)
                | Meaning::Quantize(QParams::PerTensor { .. })
                | Meaning::Dequantize(QParams::PerTensor { .. })
        )
    )
}

/// The meaning of a call, as far as a node's arguments are known; a dynamic size counts as 2.
pub(crate) fn call_meaning(
    program: &ExportedProgram,
    node: &ExportedNode,
    kernel: &dyn Kernel,
) -> Option<Meaning> {
    let schema = kernel.schema();
    let metas: Vec<Option<TensorMeta>> = schema
        .args
        .iter()
        .map(|declared| {
            let spec = program.spec(node.arg(&declared.name)?.var()?)?;
            let sizes: Vec<usize> = spec.sizes.iter().map(|s| s.known().map_or(2, |v| v as usize)).collect();
            TensorMeta::contiguous(spec.dtype, &sizes).ok()
        })
        .collect();
    let mut out = 0;
    let args = schema.args.iter().zip(&metas).map(|(declared, meta)| {
        if declared.written {
            out += 1;
            return Arg::Out(out - 1);
        }
        match (node.arg(&declared.name), meta) {
            (_, Some(meta)) => Arg::Spec(meta),
            (Some(Argument::Int(v)), _) => Arg::Int(*v),
            (Some(Argument::Float(v)), _) => Arg::Double(*v),
            (Some(Argument::Bool(v)), _) => Arg::Bool(*v),
            (Some(Argument::Str(v)), _) => Arg::Str(v),
            (Some(list @ Argument::Ints(_)), _) => {
                list.known_ints().map_or(Arg::Unknown, |list| Arg::Ints(list.into()))
            }
            (Some(Argument::None) | None, _) => Arg::of_default(declared.default.as_deref(), declared),
            _ => Arg::Unknown,
        }
    });
    kernel.meaning(&Args::new(schema, args.collect()))
}

fn tensor_operands(cx: &Rewriter<'_>, node: &ExportedNode) -> Vec<(VarId, TensorSpec)> {
    node.operands().filter_map(|v| Some((v, cx.program.spec(v)?.clone()))).collect()
}

/// The dim order of the first operand that is channels-last and has the rank of the result. Other orders than this and
/// row-major are not propagated: the reference's kernels refuse them, and backends do not know them.
fn channels_last_order(cx: &Rewriter<'_>, node: &ExportedNode) -> Option<DimOrder> {
    let rank = cx.program.spec(*node.outputs.first()?)?.rank();
    let operands = tensor_operands(cx, node);
    let other = operands.iter().find(|(_, s)| {
        s.rank() == rank && matches!(rank, 4 | 5) && s.dim_order == DimOrder::channels_last(rank)
    });
    other.map(|(_, s)| s.dim_order)
}

/// Converts tensor operands to `order` if they have its rank, and to row-major otherwise.
fn convert_operands(cx: &mut Rewriter<'_>, node: &ExportedNode, order: Option<DimOrder>) -> Result<Outcome> {
    let mut fresh = node.clone();
    let mut changed = false;
    for (_, arg) in &mut fresh.args {
        arg.map_vars(&mut |v| {
            let Some(spec) = cx.program.spec(v).cloned() else { return v };
            let want = order.filter(|o| o.len() == spec.rank()).unwrap_or(DimOrder::contiguous(spec.rank()));
            if spec.dim_order == want {
                return v;
            }
            changed = true;
            convert(cx, v, TensorSpec { dim_order: want, ..spec })
        });
    }
    if !changed {
        return Ok(Outcome::Kept);
    }
    cx.push_node(fresh);
    Ok(Outcome::Replaced)
}

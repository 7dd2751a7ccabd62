//! Bounds the sizes that depend on elements and that the exporter left without an upper bound, so that memory can be planned.

use crate::Result;
use crate::rewrite::broadcast_sizes;
use pteron_exported::{
    Argument, Bounds, ExportedGraph, ExportedNode, ExportedProgram, Ranges, Size, SymExpr, TensorSpec,
    VarType,
};

/// The assumed upper bound of a data-dependent size that has no other. Larger sizes fail at run time.
const MAX_UNKNOWN: i64 = 1 << 16;

pub(super) fn run(program: &mut ExportedProgram) -> Result<()> {
    let mut ranges = std::mem::take(&mut program.ranges);
    bound_symbols(program, &program.graph, &mut ranges);
    program.ranges = ranges;
    Ok(())
}

fn bound_symbols(program: &ExportedProgram, graph: &ExportedGraph, ranges: &mut Ranges) {
    for node in &graph.nodes {
        node.graphs().for_each(|inner| bound_symbols(program, inner, ranges));
        let limit = max_selected(program, node, ranges);
        for symbol in new_symbols(program, node) {
            let bounds = ranges.entry(symbol.clone()).or_insert(Bounds::UNKNOWN);
            match limit {
                Some(limit) if bounds.max == i64::MAX => bounds.max = limit.max(bounds.min),
                // PyTorch bounds the selected elements by those before broadcasting.
                Some(limit) if &*node.target == "aten.masked_select.default" => {
                    bounds.max = bounds.max.max(limit)
                }
                None if bounds.max == i64::MAX => bounds.max = MAX_UNKNOWN.max(bounds.min),
                _ => {}
            }
        }
    }
}

/// The unbacked symbols (`u0`, `u1`, ...), which depend on elements, among the sizes of the node's results.
fn new_symbols<'p>(program: &'p ExportedProgram, node: &'p ExportedNode) -> Vec<&'p std::sync::Arc<str>> {
    let specs = node.outputs.iter().filter_map(|&v| match &program.var(v).ty {
        VarType::Tensor(spec) => Some(spec),
        _ => None,
    });
    let symbol = |size: &'p Size| match size {
        Size::Sym(e) => match &**e {
            SymExpr::Symbol(name) if name.starts_with('u') => Some(name),
            _ => None,
        },
        Size::Int(_) => None,
    };
    specs.flat_map(|spec| spec.sizes.iter().filter_map(symbol)).collect()
}

/// The largest number of elements that an operator can select: the number of elements of its broadcast operands. `None`
/// for other operators, and if it is unbounded.
fn max_selected(program: &ExportedProgram, node: &ExportedNode, ranges: &Ranges) -> Option<i64> {
    let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
    let selects = matches!(
        base,
        "aten.nonzero"
            | "aten.nonzero_numpy"
            | "aten.where"
            | "aten.argwhere"
            | "aten.masked_select"
            | "aten.index"
            | "aten._unique2"
            | "aten.unique_dim"
            | "aten.unique_consecutive"
            | "torchvision.nms"
    );
    if !selects {
        return None;
    }
    let specs: Vec<&TensorSpec> = match base {
        "torchvision.nms" => program.spec(node.arg("scores").and_then(Argument::var)?).into_iter().collect(),
        _ => node.operands().filter_map(|v| program.spec(v)).collect(),
    };
    let sizes = specs.iter().fold(Vec::new(), |sizes, spec| broadcast_sizes(&sizes, &spec.sizes));
    let sizes = sizes.into_iter().reduce(|a, b| a.mul(&b)).unwrap_or(Size::Int(1));
    Some(sizes.bounds(ranges).max).filter(|&max| max < i64::MAX)
}

//! Group norms in two: the factors of each channel, and their application, which is elementwise and
//! joins what follows.

use crate::graph::{Graph, ValueId};
use crate::layouts::image_layout;
use crate::node::{Call, GroupFactors, Node, Op};
use crate::pointwise::{Instr, Program};
use kernels::compute::Binary;
use tensor::{ScalarType, TensorMeta};

/// Rewrites the group norms of a graph.
pub(super) fn run(graph: &mut Graph) {
    let counts = graph.use_counts();
    for node in std::mem::take(&mut graph.nodes) {
        let found = node.op.as_call().and_then(|call| group_norm(graph, &node, call, &counts));
        let Some((factors, sizes)) = found else {
            graph.nodes.push(node);
            continue;
        };
        let Ok(meta) = TensorMeta::contiguous(ScalarType::Float, &sizes) else {
            graph.nodes.push(node);
            continue;
        };
        let (scale, shift) = (graph.value(meta.clone()), graph.value(meta));
        let (x, out) = (node.inputs[0], node.outputs[0]);
        graph.node(Op::GroupFactors(factors), node.inputs, vec![scale, shift]);
        graph.node(Op::Pointwise(scale_and_shift()), vec![x, scale, shift], vec![out]);
    }
}

/// `input 0 * input 1 + input 2`.
pub(super) fn scale_and_shift() -> Program {
    Program {
        instrs: vec![
            Instr::Input(0),
            Instr::Input(1),
            Instr::Binary(Binary::Mul, 0, 1),
            Instr::Input(2),
            Instr::Binary(Binary::Add, 2, 3),
        ],
    }
}

/// What a group norm is whose statistics nobody takes, and the sizes of its factors.
fn group_norm(
    graph: &Graph,
    node: &Node,
    call: &Call,
    counts: &[usize],
) -> Option<(GroupFactors, Vec<usize>)> {
    if call.name() != "aten::native_group_norm.out" || call.input_at(0) != Some(0) {
        return None;
    }
    let (x, out) = (graph.meta(node.inputs[0]), graph.meta(*node.outputs.first()?));
    let floats = node.inputs.iter().all(|&v| graph.meta(v).dtype() == ScalarType::Float);
    let unused = node.outputs[1..].iter().all(|v| counts[v.0] == 0);
    if !floats || !unused || x != out || image_layout(x).is_none() || x.numel() == 0 {
        return None;
    }
    let size = |position: usize| usize::try_from(call.int(position)?).ok();
    let (n, channels, pixels, groups) = (size(3)?, size(4)?, size(5)?, size(6)?);
    let fits =
        x.sizes()[..2] == [n, channels] && x.numel() == n.checked_mul(channels)?.checked_mul(pixels)?;
    if !fits || groups == 0 || !channels.is_multiple_of(groups) {
        return None;
    }
    let whole = |v: ValueId| graph.meta(v).numel() == channels;
    if !node.inputs[1..].iter().all(|&v| whole(v)) {
        return None;
    }
    let eps = call.scalar(7)?.to_f64() as f32;
    let (weight, bias) = (!call.is_none(1), !call.is_none(2));
    let mut sizes = vec![1; x.rank()];
    sizes[..2].copy_from_slice(&[n, channels]);
    Some((GroupFactors { groups, eps, weight, bias }, sizes))
}

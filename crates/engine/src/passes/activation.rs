//! Recognizes activations that are decomposed into several operators, and replaces each by a single unary function,
//! which can then be fused into the node before it.

use super::rule::{Match, Pattern, any, number};
use crate::graph::{Graph, NodeId};
use crate::operation::{OpKind, as_op};
use crate::ops::pointwise::Pointwise;
use pteron_operator::{Expression, Unary, formula};
use pteron_tensor::TensorMeta;
use std::sync::LazyLock;

/// The patterns of decomposed activations with the function that each computes; `None` stands for a chain of clamps.
static SPELLINGS: LazyLock<Vec<(Option<Unary>, Pattern)>> = LazyLock::new(|| {
    let clamp = (None, any("x").clamp(number("low"), number("high")));
    let spelled = formula::spellings().into_iter();
    let spelled = spelled.map(|(f, spelling)| (Some(f), Pattern::of_expression(&spelling, &[any("x")])));
    [clamp].into_iter().chain(spelled).map(|(f, pattern)| (f, pattern.such_that(can_be_one_node))).collect()
});

/// Rewrites every elementwise node that computes a known activation, together with producers whose results only this
/// computation uses.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        if graph.contains(node) {
            rewrite(graph, node);
        }
    }
}

fn rewrite(graph: &mut Graph, node: NodeId) -> Option<()> {
    as_op::<Pointwise>(graph, node)?;
    let (known, matched) =
        SPELLINGS.iter().find_map(|(f, spelling)| Some((f, spelling.find(graph, node)?)))?;
    let known = match *known {
        Some(f) => Expression::unary(f),
        None => Expression::clamp(matched.number("low")?, matched.number("high")?),
    };
    graph.rewrite(node, OpKind::arc(Pointwise(known)), &[matched["x"]]);
    matched.parts[1..].iter().for_each(|&part| graph.absorb(node, part));
    matched.parts[1..].iter().for_each(|&part| graph.remove_dead(part));
    Some(())
}

/// Whether the matched nodes can become one: all results have the sizes and layout of the last one, and only matched
/// nodes use the results before the last.
fn can_be_one_node(graph: &Graph, matched: &Match) -> bool {
    let mut metas = matched.parts.iter().map(|&part| graph.meta(graph.node(part).outputs()[0]));
    let like = |a: &TensorMeta, b: &TensorMeta| a.sizes() == b.sizes() && a.dim_order() == b.dim_order();
    metas.next().is_some_and(|last| metas.all(|meta| like(meta, last))) && matched.is_closed(graph)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_operator::Instr;
    use pteron_operator::formula::{Algebra, Term};
    use pteron_tensor::ScalarType;
    use std::f32::consts::FRAC_1_SQRT_2;

    /// The expression of a node that computes `expression`, after the pass has run.
    fn recognized(expression: Expression) -> Expression {
        let meta = TensorMeta::contiguous(ScalarType::Float, &[2, 3]).unwrap();
        let mut graph = Graph::new();
        let x = graph.input(meta.clone());
        let node = graph.append(OpKind::arc(Pointwise(expression)), &[x], [meta]);
        run(&mut graph);
        as_op::<Pointwise>(&graph, node).unwrap().0.clone()
    }

    #[test]
    fn decompositions_match_in_any_operand_order() {
        let x = Term::input(0);
        let twice_normal = (Term::number(FRAC_1_SQRT_2) * x.clone()).erf() + 1.0;
        let gelu = Expression::from(x * 0.5 * twice_normal);
        assert_eq!(recognized(gelu.clone()), Expression::unary(Unary::Gelu));
        let mut other = gelu;
        for instr in &mut other.instrs {
            if *instr == Instr::Const(1.0) {
                *instr = Instr::Const(2.0);
            }
        }
        assert_eq!(recognized(other.clone()), other);
    }

    #[test]
    fn consecutive_clamps_are_combined() {
        let e = Term::input(0).clamp_f32(0.0, f32::INFINITY).clamp_f32(-1.0, 6.0).into();
        assert_eq!(recognized(e), Expression::clamp(0.0, 6.0));
    }
}

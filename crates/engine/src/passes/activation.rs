//! Recognizes activations that are decomposed into several operators and makes each one unary function, which can then
//! be fused into the node before it.

use super::join::Elementwise;
use super::pattern::{clamped, matches, may_end_in};
use crate::graph::{Graph, NodeId};
use crate::operation::OpKind;
use crate::ops::pointwise::Pointwise;
use pteron_operator::{Expression, Instr, Unary, formula};
use std::sync::LazyLock;

/// The maximum number of instructions of a decomposed activation, repeated inputs included.
const MAX_INSTRS: usize = 16;

/// The spellings of activations in programs that decompose them.
static SPELLINGS: LazyLock<Vec<(Unary, Expression)>> = LazyLock::new(formula::spellings);

/// Rewrites every elementwise node that is a known activation together with producers that only it uses.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        if graph.contains(node) {
            rewrite(graph, node);
        }
    }
}

fn rewrite(graph: &mut Graph, node: NodeId) {
    let Some(mut at) = Elementwise::of(graph, node).filter(|at| may_be_activation(&at.expression)) else {
        return;
    };
    let (mut producers, mut found) = (Vec::new(), None);
    // The longest match wins, so that two clamps become one.
    loop {
        if let Some(known) = recognize(&at.expression) {
            found = Some((known, at.inputs.to_vec(), producers.len()));
        }
        let Some((wider, producer)) = at.with_any_producer(graph, node, MAX_INSTRS) else { break };
        at = wider;
        producers.push(producer);
    }
    let Some((known, inputs, spelled)) = found else { return };
    graph.rewrite(node, OpKind::arc(Pointwise(known)), &inputs);
    for &producer in &producers[..spelled] {
        graph.absorb(node, producer);
    }
    // Producers nearer to the node come first, so that each is dead when it is removed.
    producers[..spelled].iter().for_each(|&producer| graph.remove_dead(producer));
}

/// Whether an expression can be, or can be the end of, a known activation. A cheap test that most nodes fail.
fn may_be_activation(e: &Expression) -> bool {
    let is_end = |last: &Instr| {
        matches!(last, Instr::Clamp { .. })
            || SPELLINGS.iter().any(|(_, spelling)| may_end_in(spelling, last))
    };
    e.instrs.last().is_some_and(is_end)
}

/// The activation that an expression with one input computes, as the shortest expression.
fn recognize(e: &Expression) -> Option<Expression> {
    let last = e.instrs.len().checked_sub(1).filter(|_| e.inputs() == 1)?;
    if let Some((x, (low, high))) = clamped(e, last)
        && matches!(e.instrs[x], Instr::Input(0))
    {
        return Some(Expression::clamp(low, high));
    }
    SPELLINGS.iter().find(|(_, spelling)| matches(spelling, e)).map(|&(f, _)| Expression::unary(f))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_operator::formula::{Algebra, Term};
    use std::f32::consts::FRAC_1_SQRT_2;

    #[test]
    fn decompositions_match_in_any_operand_order() {
        let x = Term::input(0);
        let twice_normal = (Term::number(FRAC_1_SQRT_2) * x.clone()).erf() + 1.0;
        let gelu = Expression::from(x * 0.5 * twice_normal);
        assert_eq!(recognize(&gelu), Some(Expression::unary(Unary::Gelu)));
        let mut other = gelu;
        for instr in &mut other.instrs {
            if *instr == Instr::Const(1.0) {
                *instr = Instr::Const(2.0);
            }
        }
        assert_eq!(recognize(&other), None);
    }

    #[test]
    fn consecutive_clamps_are_combined() {
        let e = Term::input(0).within(0.0, f32::INFINITY).within(-1.0, 6.0).into();
        assert_eq!(recognize(&e), Some(Expression::clamp(0.0, 6.0)));
    }
}

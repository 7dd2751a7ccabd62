//! Recognizes activations that are decomposed into several operators and makes each one unary function, which can then
//! be fused into the node before it.

use super::join::Elementwise;
use super::pattern::Pattern::{self, Any, Clamp, Number, X};
use super::pattern::clamped;
use crate::graph::{Graph, NodeId};
use crate::operation::OpKind;
use crate::steps::pointwise::Pointwise;
use pteron_operator::{Binary, Expression, Instr, Unary};

/// The maximum number of instructions of a decomposed activation, repeated inputs included.
const MAX_INSTRS: usize = 16;

/// `min(max(x + 3, 0), 6)`
const BOUNDED: Pattern = Clamp(0.0, 6.0, &Pattern::Binary(Binary::Add, &X, &Number(3.0)));

/// A pattern divided by 6.
macro_rules! sixth {
    ($of:expr) => {
        Any(&[
            Pattern::Binary(Binary::Div, &$of, &Number(6.0)),
            Pattern::Binary(Binary::Mul, &$of, &Number(1.0 / 6.0)),
        ])
    };
}

/// `x * p`
macro_rules! times_x {
    ($p:expr) => {
        Pattern::Binary(Binary::Mul, &X, &$p)
    };
}

const HARDSIGMOID: Pattern = sixth!(BOUNDED);

/// `1 + erf(x / sqrt 2)`
const TWICE_NORMAL: Pattern = Pattern::Binary(
    Binary::Add,
    &Number(1.0),
    &Pattern::Unary(
        Unary::Erf,
        &Any(&[
            Pattern::Binary(Binary::Mul, &X, &Number(std::f32::consts::FRAC_1_SQRT_2)),
            Pattern::Binary(Binary::Div, &X, &Number(std::f32::consts::SQRT_2)),
        ]),
    ),
);

const HALF_X: Pattern =
    Any(&[Pattern::Binary(Binary::Mul, &X, &Number(0.5)), Pattern::Binary(Binary::Div, &X, &Number(2.0))]);

/// The decompositions of activations in programs.
const SPELLINGS: &[(Unary, Pattern)] = &[
    (Unary::Hardsigmoid, HARDSIGMOID),
    (
        Unary::Hardswish,
        Any(&[
            times_x!(HARDSIGMOID),
            times_x!(Pattern::Unary(Unary::Hardsigmoid, &X)),
            sixth!(times_x!(BOUNDED)),
        ]),
    ),
    (Unary::Silu, times_x!(Pattern::Unary(Unary::Sigmoid, &X))),
    (
        Unary::Gelu,
        Any(&[
            Pattern::Binary(Binary::Mul, &HALF_X, &TWICE_NORMAL),
            Pattern::Binary(Binary::Mul, &times_x!(TWICE_NORMAL), &Number(0.5)),
            times_x!(Pattern::Binary(Binary::Mul, &TWICE_NORMAL, &Number(0.5))),
        ]),
    ),
];

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
        matches!(last, Instr::Clamp { .. }) || SPELLINGS.iter().any(|(_, pattern)| pattern.may_end_in(last))
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
    SPELLINGS.iter().find(|(_, pattern)| pattern.matches(e)).map(|&(f, _)| Expression::unary(f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decompositions_match_in_any_operand_order() {
        let gelu = Expression {
            instrs: vec![
                Instr::Input(0),
                Instr::Const(std::f32::consts::FRAC_1_SQRT_2),
                Instr::Binary(Binary::Mul, 1, 0),
                Instr::Unary(Unary::Erf, 2),
                Instr::Const(1.0),
                Instr::Binary(Binary::Add, 3, 4),
                Instr::Const(0.5),
                Instr::Binary(Binary::Mul, 0, 6),
                Instr::Binary(Binary::Mul, 7, 5),
            ],
        };
        assert_eq!(recognize(&gelu), Some(Expression::unary(Unary::Gelu)));
        let mut other = gelu;
        other.instrs[4] = Instr::Const(2.0);
        assert_eq!(recognize(&other), None);
    }

    #[test]
    fn consecutive_clamps_are_combined() {
        let e = Expression {
            instrs: vec![
                Instr::Input(0),
                Instr::Clamp { of: 0, low: 0.0, high: f32::INFINITY },
                Instr::Clamp { of: 1, low: -1.0, high: 6.0 },
            ],
        };
        assert_eq!(recognize(&e), Some(Expression::clamp(0.0, 6.0)));
    }
}

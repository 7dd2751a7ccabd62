//! Declarative patterns of elementwise expressions.

use pteron_operator::{Binary, Expression, Instr, Unary};

/// A pattern for an instruction of an expression with one input.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pattern {
    /// The input.
    X,
    /// A constant close to this number: programs round their constants in several ways.
    Number(f32),
    /// A unary function of a match.
    Unary(Unary, &'static Pattern),
    /// A binary function of two matches, in either order if it is commutative.
    Binary(Binary, &'static Pattern, &'static Pattern),
    /// Consecutive clamps that combine to these bounds.
    Clamp(f32, f32, &'static Pattern),
    /// Any of these patterns.
    Any(&'static [Pattern]),
}

impl Pattern {
    /// Whether an expression with one input matches.
    pub(super) fn matches(&self, expression: &Expression) -> bool {
        expression.inputs() == 1
            && expression.instrs.len().checked_sub(1).is_some_and(|last| self.matches_at(expression, last))
    }

    /// Whether what matches may end in this instruction: a cheap test before [`Self::matches`].
    pub(super) fn may_end_in(&self, instr: &Instr) -> bool {
        match (self, instr) {
            (Self::X, Instr::Input(0)) | (Self::Number(_), Instr::Const(_)) => true,
            (Self::Unary(f, _), Instr::Unary(g, _)) => f == g,
            (Self::Binary(f, ..), Instr::Binary(g, ..)) => f == g,
            (Self::Clamp(..), Instr::Clamp { .. }) => true,
            (Self::Any(all), _) => all.iter().any(|p| p.may_end_in(instr)),
            _ => false,
        }
    }

    fn matches_at(&self, e: &Expression, at: usize) -> bool {
        match (*self, e.instrs[at]) {
            (Self::X, Instr::Input(0)) => true,
            (Self::Number(n), Instr::Const(c)) => (n - c).abs() <= 1e-6 * n.abs(),
            (Self::Unary(f, x), Instr::Unary(g, a)) => f == g && x.matches_at(e, a),
            (Self::Binary(f, x, y), Instr::Binary(g, a, b)) => {
                f == g
                    && (x.matches_at(e, a) && y.matches_at(e, b)
                        || f.commutes() && x.matches_at(e, b) && y.matches_at(e, a))
            }
            (Self::Clamp(low, high, x), _) => {
                clamped(e, at).is_some_and(|(of, bounds)| bounds == (low, high) && x.matches_at(e, of))
            }
            (Self::Any(all), _) => all.iter().any(|p| p.matches_at(e, at)),
            _ => false,
        }
    }
}

/// The operand and the combined bounds of consecutive clamps that end in this instruction, if it is a clamp.
pub(super) fn clamped(e: &Expression, at: usize) -> Option<(usize, (f32, f32))> {
    let Instr::Clamp { of, low, high } = e.instrs[at] else { return None };
    match clamped(e, of) {
        Some((x, (first, second))) if low <= high => {
            Some((x, (first.clamp(low, high), second.clamp(low, high))))
        }
        _ => Some((of, (low, high))),
    }
}

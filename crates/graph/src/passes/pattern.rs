//! Patterns of elementwise computations, as data.

use operator::{Binary, Expression, Instr, Unary};

/// What an instruction of an expression of one input may be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pattern {
    /// The input.
    X,
    /// About this number: programs round their constants in several ways.
    Number(f32),
    /// A function of what matches.
    Unary(Unary, &'static Pattern),
    /// A function of two operands; of one that commutes, in either order.
    Binary(Binary, &'static Pattern, &'static Pattern),
    /// Clamps in a row that come to these bounds.
    Clamp(f32, f32, &'static Pattern),
    /// Any of these.
    Any(&'static [Pattern]),
}

impl Pattern {
    /// Whether an expression of one input is spelled so.
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

/// What is clamped, and the bounds, if an instruction is a clamp or several in a row.
pub(super) fn clamped(e: &Expression, at: usize) -> Option<(usize, (f32, f32))> {
    let Instr::Clamp { of, low, high } = e.instrs[at] else { return None };
    match clamped(e, of) {
        Some((x, (first, second))) if low <= high => {
            Some((x, (first.clamp(low, high), second.clamp(low, high))))
        }
        _ => Some((of, (low, high))),
    }
}

//! Matches elementwise expressions with the spellings of formulas.

use pteron_operator::{Expression, Instr};

/// Whether an expression with one input computes what `spelling` does, with the operands of commutative functions in either
/// order, constants that differ by rounding, and a clamp divided into several.
pub(super) fn matches(spelling: &Expression, e: &Expression) -> bool {
    let last = |e: &Expression| e.instrs.len().checked_sub(1);
    match (last(spelling), last(e)) {
        (Some(end), Some(last)) => e.inputs() == 1 && matches_at(spelling, end, e, last),
        _ => false,
    }
}

/// Whether what matches `spelling` may end in this instruction: a cheap test before [`matches`].
pub(super) fn may_end_in(spelling: &Expression, instr: &Instr) -> bool {
    match (spelling.instrs.last(), instr) {
        (Some(Instr::Input(_)), Instr::Input(_))
        | (Some(Instr::Const(_)), Instr::Const(_))
        | (Some(Instr::Clamp { .. }), Instr::Clamp { .. }) => true,
        (Some(Instr::Unary(f, _)), Instr::Unary(g, _)) => f == g,
        (Some(Instr::Binary(f, ..)), Instr::Binary(g, ..)) => f == g,
        _ => false,
    }
}

fn matches_at(spelling: &Expression, end: usize, e: &Expression, at: usize) -> bool {
    let matches = |end: usize, at: usize| matches_at(spelling, end, e, at);
    match (spelling.instrs[end], e.instrs[at]) {
        (Instr::Input(_), Instr::Input(0)) => true,
        (Instr::Const(n), Instr::Const(c)) => (n - c).abs() <= 1e-6 * n.abs(),
        (Instr::Unary(f, x), Instr::Unary(g, a)) => f == g && matches(x, a),
        (Instr::Binary(f, x, y), Instr::Binary(g, a, b)) => {
            f == g && (matches(x, a) && matches(y, b) || f.commutes() && matches(x, b) && matches(y, a))
        }
        (Instr::Clamp { of, low, high }, _) => {
            clamped(e, at).is_some_and(|(x, bounds)| bounds == (low, high) && matches(of, x))
        }
        _ => false,
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

//! Activations that programs spell out with several operators become one function of one element,
//! which can then follow the node before it.

use super::join::{inlined, own_producer};
use super::links::Links;
use crate::graph::Graph;
use crate::node::{Node, Op};
use crate::pointwise::{Instr, Program};
use kernels::compute::{Binary, Unary};

/// Instructions of the longest spelling that is known, inputs that it names again among them.
const LONGEST: usize = 12;

/// Rewrites every elementwise node that, with what is computed for it alone, is a known activation.
pub(super) fn run(graph: &mut Graph) {
    let mut links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        if let Some(known) = widest(graph, &links, &graph.nodes[i]) {
            let inputs = graph.nodes[i].inputs.clone();
            links.replace(graph, i, known);
            links.remove_unused(graph, inputs);
        }
    }
    links.finish(graph);
}

/// The widest known spelling that ends with a node: two clamps are one.
fn widest(graph: &Graph, links: &Links, node: &Node) -> Option<Node> {
    let Op::Pointwise(_) = node.op else { return None };
    let (mut next, mut found) = (Some(node.clone()), None);
    while let Some(Node { op: Op::Pointwise(program), inputs, outputs }) = &next {
        if let Some(known) = recognize(program) {
            let (inputs, outputs) = (inputs.clone(), outputs.clone());
            found = Some(Node { op: Op::Pointwise(known), inputs, outputs });
        }
        next = next.iter().find_map(|node| {
            (0..node.inputs.len()).find_map(|slot| {
                let p = own_producer(graph, node, slot, links)?;
                inlined(graph, node, slot, p, LONGEST)
            })
        });
    }
    found
}

/// The activation that a program of one input computes, in its shortest form.
fn recognize(program: &Program) -> Option<Program> {
    if program.inputs() != 1 {
        return None;
    }
    let e = Expr { instrs: &program.instrs };
    let last = program.instrs.len().checked_sub(1)?;
    match e.clamped(last) {
        Some((x, low, high)) if e.is_input(x) => Some(Program::clamp(low, high)),
        _ => e.function(last).map(Program::unary),
    }
}

/// The instructions of a program as expressions over its only input.
#[derive(Clone, Copy)]
struct Expr<'a> {
    instrs: &'a [Instr],
}

impl Expr<'_> {
    /// The function of the input that an instruction computes.
    fn function(self, last: usize) -> Option<Unary> {
        let e = self;
        if e.is_bounded_sixth(last) {
            return Some(Unary::Hardsigmoid);
        }
        // x * hardsigmoid(x), or x * min(max(x + 3, 0), 6) with the division last.
        let product = |at: usize, other: &dyn Fn(usize) -> bool| {
            e.operands(at, Binary::Mul)
                .is_some_and(|(a, b)| e.is_input(a) && other(b) || e.is_input(b) && other(a))
        };
        let sixth_of_product = |at: usize| product(at, &|r| e.is_bounded(r));
        let applied = |f: Unary| move |r: usize| e.is_applied(f, r);
        let hard = product(last, &|r| e.is_bounded_sixth(r)) || product(last, &applied(Unary::Hardsigmoid));
        if hard || e.sixth(last).is_some_and(sixth_of_product) {
            return Some(Unary::Hardswish);
        }
        product(last, &applied(Unary::Sigmoid)).then_some(Unary::Silu)
    }

    fn is_input(&self, at: usize) -> bool {
        matches!(self.instrs[at], Instr::Input(0))
    }

    fn is_applied(&self, f: Unary, at: usize) -> bool {
        matches!(self.instrs[at], Instr::Unary(g, x) if g == f && self.is_input(x))
    }

    fn operands(&self, at: usize, f: Binary) -> Option<(usize, usize)> {
        match self.instrs[at] {
            Instr::Binary(g, a, b) if g == f => Some((a, b)),
            _ => None,
        }
    }

    fn number(&self, at: usize) -> Option<f32> {
        if let Instr::Const(c) = self.instrs[at] { Some(c) } else { None }
    }

    /// What is clamped, and the bounds, if an instruction is a clamp or several in a row.
    fn clamped(&self, at: usize) -> Option<(usize, f32, f32)> {
        let Instr::Clamp { of, low, high } = self.instrs[at] else { return None };
        match self.clamped(of) {
            Some((x, first, second)) if low <= high => {
                Some((x, first.clamp(low, high), second.clamp(low, high)))
            }
            _ => Some((of, low, high)),
        }
    }

    /// `min(max(x + 3, 0), 6)`
    fn is_bounded(&self, at: usize) -> bool {
        let Some((of, 0.0, 6.0)) = self.clamped(at) else { return false };
        let three = |r: usize| self.number(r) == Some(3.0);
        let sum = self.operands(of, Binary::Add);
        sum.is_some_and(|(a, b)| self.is_input(a) && three(b) || self.is_input(b) && three(a))
    }

    /// What is divided by six, if that is what an instruction does.
    fn sixth(&self, at: usize) -> Option<usize> {
        if let Some((a, b)) = self.operands(at, Binary::Div) {
            return (self.number(b) == Some(6.0)).then_some(a);
        }
        let (a, b) = self.operands(at, Binary::Mul)?;
        let factor = |r: usize| self.number(r) == Some(1.0 / 6.0);
        if factor(b) { Some(a) } else { factor(a).then_some(b) }
    }

    fn is_bounded_sixth(&self, at: usize) -> bool {
        self.sixth(at).is_some_and(|r| self.is_bounded(r))
    }
}

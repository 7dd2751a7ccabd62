//! Patterns, and what is known of a match.

use crate::graph::{Graph, NodeId, ValueId, meaning};
use crate::operation::{Operation, as_op};
use crate::ops::relayout::Reshape;
use pteron_ir::User;
use pteron_operator::{Binary, Expression, Instr, Meaning, Unary};
use smallvec::SmallVec;
use std::ops::{Add, BitAnd, BitOr, Div, Index, Mul, Sub};
use std::sync::Arc;

/// The maximum number of uses of a part's result that are compared with the parts.
const MAX_USES: usize = 4;

/// A pattern of the computation of a value. Operators are those of elementwise nodes, of one instruction or several, and
/// match operands in either order where that is the same; `a | b` matches what either does, `a` if both do, and `a & b` what both do.
#[derive(Debug, Clone)]
pub(crate) struct Pattern(pub(super) Arc<Shape>);

#[derive(Debug)]
pub(super) enum Shape {
    Any(&'static str),
    Number(&'static str),
    Constant(f32),
    Unary(Unary, Pattern),
    Binary(Binary, [Pattern; 2]),
    /// The operand and the bounds.
    Clamp([Pattern; 3]),
    Node {
        test: Test,
        result: usize,
        operands: Vec<Pattern>,
    },
    Through(NodeTest, Pattern),
    Either([Pattern; 2]),
    Both([Pattern; 2]),
    Holds(fn(&Graph, &Match) -> bool),
}

/// A test of a node.
pub(super) type NodeTest = fn(&Graph, NodeId) -> bool;

/// What a node is, apart from its operands.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Test {
    /// A call with such a meaning.
    Call(fn(&Meaning) -> bool),
    /// Any node that passes.
    Node(NodeTest),
}

impl Test {
    pub(super) fn passes(self, graph: &Graph, node: NodeId) -> bool {
        match self {
            Test::Call(test) => meaning(graph, node).is_some_and(|meaning| test(&meaning)),
            Test::Node(test) => test(graph, node),
        }
    }
}

/// Any value. Where the same name occurs again, it must be the same value.
pub(crate) fn any(name: &'static str) -> Pattern {
    Shape::Any(name).into()
}

/// Any number: a constant with one element, whatever its sizes. Where the same name occurs again, it must be the same
/// number.
pub(crate) fn number(name: &'static str) -> Pattern {
    Shape::Number(name).into()
}

/// This number, apart from rounding.
pub(crate) fn constant(number: f32) -> Pattern {
    Shape::Constant(number).into()
}

/// The first result of a call with such a meaning, whose inputs are these operands.
pub(crate) fn call(test: fn(&Meaning) -> bool, operands: impl Into<Vec<Pattern>>) -> Pattern {
    result(0, Test::Call(test), operands)
}

/// The first result of a node that passes a test, whose inputs are these operands.
pub(crate) fn node(test: NodeTest, operands: impl Into<Vec<Pattern>>) -> Pattern {
    result(0, Test::Node(test), operands)
}

/// The first result of an operation of this type, whose inputs are these operands.
pub(crate) fn operation<T: Operation>(operands: impl Into<Vec<Pattern>>) -> Pattern {
    node(|graph, node| as_op::<T>(graph, node).is_some(), operands)
}

/// A result of a node, by its index.
pub(crate) fn result(index: usize, test: Test, operands: impl Into<Vec<Pattern>>) -> Pattern {
    Shape::Node { test, result: index, operands: operands.into() }.into()
}

/// What `before` matches, after any number of nodes that pass a test, each of which reads the result of the one before.
/// They are no parts of the match.
pub(crate) fn through(test: NodeTest, before: Pattern) -> Pattern {
    Shape::Through(test, before).into()
}

/// What `before` matches, after any number of reshapes.
pub(crate) fn reshaped(before: Pattern) -> Pattern {
    through(|graph, node| as_op::<Reshape>(graph, node).is_some(), before)
}

/// What `before` matches, rounded to half precision or not.
pub(crate) fn rounded(before: Pattern) -> Pattern {
    let to = |f| before.clone().unary(f);
    to(Unary::RoundToHalf) | to(Unary::RoundToBfloat16) | before
}

impl Pattern {
    /// A function of the pattern.
    pub(crate) fn unary(self, function: Unary) -> Self {
        Shape::Unary(function, self).into()
    }

    /// `min(max(self, low), high)`, as one clamp or several of which each applies to the result of another.
    pub(crate) fn clamp(self, low: Self, high: Self) -> Self {
        Shape::Clamp([self, low, high]).into()
    }

    /// The pattern, whose value is captured.
    pub(crate) fn named(self, name: &'static str) -> Self {
        any(name) & self
    }

    /// The pattern where a condition holds on what it captured.
    pub(crate) fn such_that(self, condition: fn(&Graph, &Match) -> bool) -> Self {
        self & Shape::Holds(condition).into()
    }

    /// The pattern of what an expression of these inputs computes.
    pub(crate) fn of_expression(expression: &Expression, inputs: &[Self]) -> Self {
        let mut registers: Vec<Self> = Vec::with_capacity(expression.instrs.len());
        for instr in &expression.instrs {
            let at = |register: usize| registers[register].clone();
            registers.push(match *instr {
                Instr::Input(n) => inputs[n].clone(),
                Instr::Const(c) => constant(c),
                Instr::Unary(f, of) => at(of).unary(f),
                Instr::Binary(f, a, b) => Shape::Binary(f, [at(a), at(b)]).into(),
                Instr::Clamp { of, low, high } => at(of).clamp(constant(low), constant(high)),
            });
        }
        registers.pop().expect("an instruction")
    }
}

impl From<Shape> for Pattern {
    fn from(shape: Shape) -> Self {
        Self(Arc::new(shape))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident($a:ident, $b:ident) $shape:expr;)*) => { $(
        impl $trait for Pattern {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                let ($a, $b) = (self, other);
                $shape.into()
            }
        }
    )* };
}

operators! {
    Add add(a, b) Shape::Binary(Binary::Add, [a, b]);
    Sub sub(a, b) Shape::Binary(Binary::Sub, [a, b]);
    Mul mul(a, b) Shape::Binary(Binary::Mul, [a, b]);
    Div div(a, b) Shape::Binary(Binary::Div, [a, b]);
    BitOr bitor(a, b) Shape::Either([a, b]);
    BitAnd bitand(a, b) Shape::Both([a, b]);
}

/// What a pattern matched.
#[derive(Debug, Clone, Default)]
pub(crate) struct Match {
    values: SmallVec<[(&'static str, ValueId); 8]>,
    numbers: SmallVec<[(&'static str, f32); 2]>,
    /// The nodes that the pattern covers, each before those that it reads.
    pub(crate) parts: SmallVec<[NodeId; 8]>,
}

impl Match {
    /// The value that was captured with this name, if the part of the pattern with the name matched.
    pub(crate) fn value(&self, name: &str) -> Option<ValueId> {
        self.values.iter().find(|(known, _)| *known == name).map(|&(_, value)| value)
    }

    /// The number that was captured with this name, if the part of the pattern with the name matched.
    pub(crate) fn number(&self, name: &str) -> Option<f32> {
        self.numbers.iter().find(|(known, _)| *known == name).map(|&(_, number)| number)
    }

    /// Captures a value; `None` if the name has another.
    pub(super) fn capture(&mut self, name: &'static str, value: ValueId) -> Option<()> {
        match self.value(name) {
            Some(known) => (known == value).then_some(()),
            None => Some(self.values.push((name, value))),
        }
    }

    /// Captures a number; `None` if the name has another.
    pub(super) fn capture_number(&mut self, name: &'static str, number: f32) -> Option<()> {
        match self.number(name) {
            Some(known) => (known == number).then_some(()),
            None => Some(self.numbers.push((name, number))),
        }
    }

    pub(super) fn cover(&mut self, node: NodeId) {
        if !self.parts.contains(&node) {
            self.parts.push(node);
        }
    }

    /// Whether only the parts use the results of each part but the last, which is the first of the list.
    pub(crate) fn is_closed(&self, graph: &Graph) -> bool {
        let is_within = |used: &pteron_ir::Use| match used.user {
            User::Node(user) => self.parts.contains(&user),
            User::Terminator(_) => false,
        };
        self.parts[1..].iter().flat_map(|&part| graph.node(part).outputs()).all(|&v| {
            let uses = graph.uses(v);
            uses.len() <= MAX_USES && uses.iter().all(is_within)
        })
    }
}

impl Index<&str> for Match {
    type Output = ValueId;

    /// The value with a name that every match captures.
    fn index(&self, name: &str) -> &ValueId {
        let value = self.values.iter().find(|(known, _)| *known == name);
        &value.expect("a name of the pattern").1
    }
}

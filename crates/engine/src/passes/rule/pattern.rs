//! Patterns, and what is known of a match.

use crate::graph::{Graph, NodeId, ValueId, meaning};
use crate::operation::{Operation, as_op};
use crate::ops::relayout::Reshape;
use pteron_ir::User;
use pteron_operator::{Binary, Expression, Instr, Meaning, Unary};
use smallvec::SmallVec;
use std::ops::{Add, BitAnd, BitOr, Div, Index, Mul, Sub};
use std::sync::Arc;

/// The maximum number of uses of a matched node's result that are checked; one with more counts as used outside.
const MAX_USES: usize = 4;

/// A pattern of the computation of a value. Operators are those of elementwise nodes, of one instruction or several,
/// and match operands in either order if the operator commutes; `a | b` matches what either does, `a` if both do, and
/// `a & b` what both do.
#[derive(Clone)]
pub(crate) struct Pattern(pub(super) Arc<Shape>);

pub(super) enum Shape {
    Any(&'static str),
    Number(&'static str),
    Constant(f32),
    Unary(Unary, Pattern),
    Binary(Binary, [Pattern; 2]),
    /// A clamp: the operand, the lower and the upper bound.
    Clamp([Pattern; 3]),
    /// The result with this index of a node that passes the test and has these operands.
    Node(NodeTest, usize, Vec<Pattern>),
    Through(NodeTest, Pattern),
    Either([Pattern; 2]),
    Both([Pattern; 2]),
    Holds(fn(&Graph, &Match) -> bool),
}

type NodeTest = Arc<dyn Fn(&Graph, NodeId) -> bool + Send + Sync>;

/// Any value. Where the same name occurs again, it must be the same value.
pub(crate) fn any(name: &'static str) -> Pattern {
    Shape::Any(name).into()
}

/// Any number: a constant with one element, whatever its sizes. Where the same name occurs again, it must be the same
/// number.
pub(crate) fn number(name: &'static str) -> Pattern {
    Shape::Number(name).into()
}

/// This number, up to a rounding error.
pub(crate) fn constant(number: f32) -> Pattern {
    Shape::Constant(number).into()
}

/// The first result of a call whose meaning passes a test, and whose inputs are these operands.
pub(crate) fn call(test: fn(&Meaning) -> bool, operands: impl Into<Vec<Pattern>>) -> Pattern {
    result(0, test, operands)
}

/// The result with this index of a call whose meaning passes a test, and whose inputs are these operands.
pub(crate) fn result(index: usize, test: fn(&Meaning) -> bool, operands: impl Into<Vec<Pattern>>) -> Pattern {
    let passes = move |graph: &Graph, node| meaning(graph, node).is_some_and(|meaning| test(&meaning));
    Shape::Node(Arc::new(passes), index, operands.into()).into()
}

/// The first result of a node that passes a test, whose inputs are these operands.
pub(crate) fn node(test: fn(&Graph, NodeId) -> bool, operands: impl Into<Vec<Pattern>>) -> Pattern {
    Shape::Node(Arc::new(test), 0, operands.into()).into()
}

/// The first result of an operation of this type, whose inputs are these operands.
pub(crate) fn operation<T: Operation>(operands: impl Into<Vec<Pattern>>) -> Pattern {
    node(|graph, node| as_op::<T>(graph, node).is_some(), operands)
}

/// What `before` matches, after any number of nodes that pass a test, each of which reads the result of the one before.
/// Those nodes are not parts of the match.
pub(crate) fn through_chain(test: fn(&Graph, NodeId) -> bool, before: Pattern) -> Pattern {
    Shape::Through(Arc::new(test), before).into()
}

/// Matches what `before` matches, with any number of reshapes after it.
pub(crate) fn reshaped(before: Pattern) -> Pattern {
    through_chain(|graph, node| as_op::<Reshape>(graph, node).is_some(), before)
}

impl Pattern {
    /// A unary function of what the pattern matches.
    pub(crate) fn unary(self, function: Unary) -> Self {
        Shape::Unary(function, self).into()
    }

    /// `min(max(self, low), high)`, as one clamp or as a chain of clamps.
    pub(crate) fn clamp(self, low: Self, high: Self) -> Self {
        Shape::Clamp([self, low, high]).into()
    }

    /// The pattern, with its value captured under a name.
    pub(crate) fn named(self, name: &'static str) -> Self {
        any(name) & self
    }

    /// The pattern, restricted to matches that satisfy a condition.
    pub(crate) fn such_that(self, condition: fn(&Graph, &Match) -> bool) -> Self {
        self & Shape::Holds(condition).into()
    }

    /// The pattern that matches the result of an expression of these inputs.
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
    ($($trait:ident $method:ident => $shape:expr;)*) => { $(
        impl $trait for Pattern {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                $shape([self, other]).into()
            }
        }
    )* };
}

operators! {
    Add add => |both| Shape::Binary(Binary::Add, both);
    Sub sub => |both| Shape::Binary(Binary::Sub, both);
    Mul mul => |both| Shape::Binary(Binary::Mul, both);
    Div div => |both| Shape::Binary(Binary::Div, both);
    BitOr bitor => Shape::Either;
    BitAnd bitand => Shape::Both;
}

/// Where a part of a pattern is compared: a value of the graph, the result of an instruction in the middle of an
/// elementwise node, or a number in one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Place {
    Value(ValueId),
    Register(NodeId, usize),
    Number(f32),
}

/// The nodes and values of a graph that a pattern matched.
#[derive(Debug, Clone, Default)]
pub(crate) struct Match {
    captures: SmallVec<[(&'static str, Place); 8]>,
    /// The nodes that the pattern covers; each node precedes the nodes whose results it reads.
    pub(crate) parts: SmallVec<[NodeId; 8]>,
}

impl Match {
    /// The value that was captured with this name, if the part of the pattern with the name matched.
    pub(crate) fn value(&self, name: &str) -> Option<ValueId> {
        if let Place::Value(value) = self.captured_place(name)? { Some(value) } else { None }
    }

    /// The number that was captured with this name, if the part of the pattern with the name matched.
    pub(crate) fn number(&self, name: &str) -> Option<f32> {
        if let Place::Number(number) = self.captured_place(name)? { Some(number) } else { None }
    }

    fn captured_place(&self, name: &str) -> Option<Place> {
        self.captures.iter().find(|(known, _)| *known == name).map(|&(_, place)| place)
    }

    /// Captures a value or a number under a name; `None` if the name has captured a different one.
    pub(super) fn capture(&mut self, name: &'static str, place: Place) -> Option<()> {
        if let Some(known) = self.captured_place(name) {
            return (known == place).then_some(());
        }
        self.captures.push((name, place));
        Some(())
    }

    pub(super) fn add_part(&mut self, node: NodeId) {
        if !self.parts.contains(&node) {
            self.parts.push(node);
        }
    }

    /// Whether the results of all parts but `parts[0]`, the last node, are used only by parts.
    pub(crate) fn is_closed(&self, graph: &Graph) -> bool {
        let is_part = |user| matches!(user, User::Node(user) if self.parts.contains(&user));
        self.parts[1..].iter().flat_map(|&part| graph.node(part).outputs()).all(|&v| {
            let uses = graph.uses(v);
            uses.len() <= MAX_USES && uses.iter().all(|used| is_part(used.user))
        })
    }
}

impl Index<&str> for Match {
    type Output = ValueId;

    /// The value with a name that every match captures.
    fn index(&self, name: &str) -> &ValueId {
        match self.captures.iter().find(|(known, _)| *known == name) {
            Some((_, Place::Value(value))) => value,
            _ => panic!("no value {name} in the pattern"),
        }
    }
}

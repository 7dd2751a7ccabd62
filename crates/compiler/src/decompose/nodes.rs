//! Formulas as nodes: each operation of a formula becomes a node, in the order in which it is evaluated.

use crate::rewrite::Rewriter;
use pteron_exported::VarId;
use pteron_operator::formula::{Algebra, WithLog1p};
use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::rc::Rc;

/// Emits the nodes that compute `formula` for `x`; returns the result.
pub(super) fn apply(cx: &mut Rewriter<'_>, x: VarId, formula: impl FnOnce(Recorded) -> Recorded) -> VarId {
    let tape = Rc::new(RefCell::new(Vec::new()));
    let result = formula(Recorded { tape: Rc::clone(&tape), index: 0 }).index;
    let mut vars = vec![x];
    for operation in tape.borrow().iter() {
        vars.push(match *operation {
            Operation::Unary(target, a) => cx.unary(target, vars[a]),
            Operation::Binary(target, a, b) => cx.binary(target, vars[a], vars[b]),
            Operation::WithNumber(target, a, number) => cx.binary(target, vars[a], number),
            Operation::Clamp(a, low, high) => cx.clamp(vars[a], Some(low), Some(high)),
        });
    }
    vars[result]
}

/// A value of a formula: the result of the operation with this number, counted from 1; 0 is the formula's operand.
#[derive(Clone)]
pub(super) struct Recorded {
    tape: Rc<RefCell<Vec<Operation>>>,
    index: usize,
}

/// An operation of a formula: the operator, and the numbers of the values that it is applied to.
enum Operation {
    Unary(&'static str, usize),
    Binary(&'static str, usize, usize),
    WithNumber(&'static str, usize, f64),
    Clamp(usize, f64, f64),
}

impl Recorded {
    fn record(self, operation: Operation) -> Self {
        let index = {
            let mut tape = self.tape.borrow_mut();
            tape.push(operation);
            tape.len()
        };
        Self { tape: self.tape, index }
    }

    fn unary(self, target: &'static str) -> Self {
        let index = self.index;
        self.record(Operation::Unary(target, index))
    }
}

macro_rules! binary {
    ($($trait:ident $method:ident => $target:literal),*) => { $(
        impl $trait for Recorded {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                let index = self.index;
                self.record(Operation::Binary($target, index, other.index))
            }
        }

        impl $trait<f64> for Recorded {
            type Output = Self;
            fn $method(self, number: f64) -> Self {
                let index = self.index;
                self.record(Operation::WithNumber($target, index, number))
            }
        }
    )* };
}

binary!(
    Add add => "aten.add.Tensor",
    Sub sub => "aten.sub.Tensor",
    Mul mul => "aten.mul.Tensor",
    Div div => "aten.div.Tensor"
);

impl Neg for Recorded {
    type Output = Self;
    fn neg(self) -> Self {
        self.unary("aten.neg.default")
    }
}

impl Algebra for Recorded {
    fn clamp(self, low: f64, high: f64) -> Self {
        let index = self.index;
        self.record(Operation::Clamp(index, low, high))
    }
    fn abs(self) -> Self {
        self.unary("aten.abs.default")
    }
    fn relu(self) -> Self {
        self.unary("aten.relu.default")
    }
    fn exp(self) -> Self {
        self.unary("aten.exp.default")
    }
    fn tanh(self) -> Self {
        self.unary("aten.tanh.default")
    }
    fn sigmoid(self) -> Self {
        self.unary("aten.sigmoid.default")
    }
    fn erf(self) -> Self {
        self.unary("aten.erf.default")
    }
}

impl WithLog1p for Recorded {
    fn log1p(self) -> Self {
        self.unary("aten.log1p.default")
    }
}

//! Elementwise computations as data: the expression that computes one result element from one element of each operand.

use std::fmt;

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// `max(x, 0)`; NaN gives NaN.
    Relu,
    /// `1 / x`
    Reciprocal,
    /// Square root.
    Sqrt,
    /// `1 / sqrt(x)`
    Rsqrt,
    /// `x^2`
    Square,
    /// `e^x`
    Exp,
    /// Natural logarithm.
    Log,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// `x / (1 + e^-x)`
    Silu,
    /// Error function.
    Erf,
    /// `x (1 + erf(x / sqrt 2)) / 2`
    Gelu,
    /// The tanh approximation of [`Unary::Gelu`].
    GeluTanh,
    /// `min(max(x + 3, 0), 6) / 6`
    Hardsigmoid,
    /// `x min(max(x + 3, 0), 6) / 6`
    Hardswish,
    /// `x min(max(x c + 1/2, 0), 1)` where `c` is the f32 nearest to 1/6; `x c + 1/2` is a fused multiply-add if the
    /// machine has one.
    HardswishBySixth,
    /// The nearest float16, ties to even; infinity on overflow.
    RoundToHalf,
    /// The nearest bfloat16, ties to even; infinity on overflow.
    RoundToBfloat16,
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
    /// The larger operand; NaN if either is NaN.
    Maximum,
    /// The smaller operand; NaN if either is NaN.
    Minimum,
}

impl Binary {
    /// Whether the operands may be swapped. (Which of two NaN operands becomes the result is unspecified.)
    pub fn commutes(self) -> bool {
        !matches!(self, Binary::Sub | Binary::Div)
    }
}

/// One instruction of an [`Expression`]. Instruction `i` writes register `i`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Instr {
    /// The element of the input with this index.
    Input(usize),
    /// A constant.
    Const(f32),
    /// A function of the register with this index.
    Unary(Unary, usize),
    /// `min(max(x, low), high)` of a register's value `x`; NaN gives NaN.
    Clamp {
        /// The index of the register whose value is clamped.
        of: usize,
        /// The lower bound.
        low: f32,
        /// The upper bound.
        high: f32,
    },
    /// A function of the registers with these two indices.
    Binary(Binary, usize, usize),
}

/// An elementwise computation. The last instruction's result is the output element. Inputs are the tensor
/// operands of a call, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Expression {
    /// The instructions, in order. Each instruction reads only registers that earlier instructions write.
    pub instrs: Vec<Instr>,
}

impl Expression {
    /// `f(input 0)`.
    pub fn unary(f: Unary) -> Self {
        Self { instrs: vec![Instr::Input(0), Instr::Unary(f, 0)] }
    }

    /// `min(max(input 0, low), high)`.
    pub fn clamp(low: f32, high: f32) -> Self {
        Self { instrs: vec![Instr::Input(0), Instr::Clamp { of: 0, low, high }] }
    }

    /// `f(input 0, input 1)`.
    pub fn binary(f: Binary) -> Self {
        Self { instrs: vec![Instr::Input(0), Instr::Input(1), Instr::Binary(f, 0, 1)] }
    }

    /// `f(input 0, number)`.
    pub fn with_const(f: Binary, number: f32) -> Self {
        Self { instrs: vec![Instr::Input(0), Instr::Const(number), Instr::Binary(f, 0, 1)] }
    }

    /// The number of inputs: one more than the highest index that is read.
    pub fn num_inputs(&self) -> usize {
        self.instrs.iter().map(|i| if let Instr::Input(n) = i { n + 1 } else { 0 }).max().unwrap_or(0)
    }

    /// The bounds of a clamp; `None` unless the expression is just a clamp of its input.
    pub fn as_clamp(&self) -> Option<(f32, f32)> {
        match self.instrs.as_slice() {
            [Instr::Input(0), Instr::Clamp { of: 0, low, high }] => Some((*low, *high)),
            _ => None,
        }
    }

    /// Substitutes `inner` for input `slot`. In the combined expression, input `i` of `inner` becomes input
    /// `inner_inputs[i]`, and every other input `i` of `self` becomes input `map[i]`.
    pub fn substitute(&self, slot: usize, inner: &Self, inner_inputs: &[usize], map: &[usize]) -> Self {
        let mut instrs = Vec::with_capacity(self.instrs.len() + inner.instrs.len());
        for instr in &inner.instrs {
            instrs.push(match *instr {
                Instr::Input(i) => Instr::Input(inner_inputs[i]),
                other => other,
            });
        }
        let result = instrs.len() - 1;
        let mut register = Vec::with_capacity(self.instrs.len());
        for instr in &self.instrs {
            let moved = match *instr {
                Instr::Input(i) if i == slot => {
                    register.push(result);
                    continue;
                }
                Instr::Input(i) => Instr::Input(map[i]),
                Instr::Const(c) => Instr::Const(c),
                Instr::Unary(f, a) => Instr::Unary(f, register[a]),
                Instr::Clamp { of, low, high } => Instr::Clamp { of: register[of], low, high },
                Instr::Binary(f, a, b) => Instr::Binary(f, register[a], register[b]),
            };
            register.push(instrs.len());
            instrs.push(moved);
        }
        Self { instrs }
    }
}

impl fmt::Display for Expression {
    /// Writes the expression as a term such as `Add(Mul(x0, x1), 0.5)`, or only the number of its instructions if it
    /// has more than 12.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instrs.len() {
            0 => Ok(()),
            // A register that is used twice is printed twice, so the term of a long expression can be very long.
            n if n > 12 => write!(f, "{n} instructions"),
            n => self.write_term(f, n - 1),
        }
    }
}

impl Expression {
    fn write_term(&self, f: &mut fmt::Formatter<'_>, at: usize) -> fmt::Result {
        match self.instrs[at] {
            Instr::Input(i) => write!(f, "x{i}"),
            Instr::Const(c) => write!(f, "{c}"),
            Instr::Unary(g, a) => {
                write!(f, "{g:?}(")?;
                self.write_term(f, a)?;
                write!(f, ")")
            }
            Instr::Clamp { of, low, high } => {
                write!(f, "Clamp(")?;
                self.write_term(f, of)?;
                write!(f, ", {low}, {high})")
            }
            Instr::Binary(g, a, b) => {
                write!(f, "{g:?}(")?;
                self.write_term(f, a)?;
                write!(f, ", ")?;
                self.write_term(f, b)?;
                write!(f, ")")
            }
        }
    }
}

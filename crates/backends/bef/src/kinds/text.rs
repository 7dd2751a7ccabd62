//! Text forms of activations and elementwise expressions.

use crate::error::{Error, Result};
use pteron_engine::{Activation, Binary, Expression, Instr, Unary};

/// The names of unary functions in payloads.
const UNARY: [(&str, Unary); 22] = [
    ("neg", Unary::Neg),
    ("abs", Unary::Abs),
    ("relu", Unary::Relu),
    ("reciprocal", Unary::Reciprocal),
    ("sqrt", Unary::Sqrt),
    ("rsqrt", Unary::Rsqrt),
    ("square", Unary::Square),
    ("exp", Unary::Exp),
    ("log", Unary::Log),
    ("sin", Unary::Sin),
    ("cos", Unary::Cos),
    ("tanh", Unary::Tanh),
    ("sigmoid", Unary::Sigmoid),
    ("silu", Unary::Silu),
    ("erf", Unary::Erf),
    ("gelu", Unary::Gelu),
    ("gelu_tanh", Unary::GeluTanh),
    ("hardsigmoid", Unary::Hardsigmoid),
    ("hardswish", Unary::Hardswish),
    ("hardswish_by_sixth", Unary::HardswishBySixth),
    ("round_to_half", Unary::RoundToHalf),
    ("round_to_bfloat16", Unary::RoundToBfloat16),
];

/// The names of binary functions in payloads.
const BINARY: [(&str, Binary); 6] = [
    ("add", Binary::Add),
    ("sub", Binary::Sub),
    ("mul", Binary::Mul),
    ("div", Binary::Div),
    ("maximum", Binary::Maximum),
    ("minimum", Binary::Minimum),
];

/// The maximum number of instructions of an expression.
const MAX_INSTRS: usize = 1 << 12;

pub(super) fn unary_name(function: Unary) -> &'static str {
    UNARY.iter().find(|(_, other)| *other == function).map_or("", |(name, _)| name)
}

pub(super) fn unary_by_name(name: &str) -> Option<Unary> {
    UNARY.iter().find(|(other, _)| *other == name).map(|(_, function)| *function)
}

/// An activation as text: `identity`, `relu`, `clamp 0 6`, `unary tanh`, `bounded silu 0 1`.
pub(super) fn activation_text(activation: Activation) -> String {
    match activation {
        Activation::Identity => "identity".to_owned(),
        Activation::Relu => "relu".to_owned(),
        Activation::Clamp { low, high } => format!("clamp {low} {high}"),
        Activation::Unary(function) => format!("unary {}", unary_name(function)),
        Activation::Bounded { function, low, high } => {
            format!("bounded {} {low} {high}", unary_name(function))
        }
    }
}

pub(super) fn parse_activation(text: &str) -> Result<Activation> {
    let words: Vec<&str> = text.split(' ').collect();
    let read = || {
        Some(match words[..] {
            ["identity"] => Activation::Identity,
            ["relu"] => Activation::Relu,
            ["clamp", low, high] => Activation::Clamp { low: low.parse().ok()?, high: high.parse().ok()? },
            ["unary", name] => Activation::Unary(unary_by_name(name)?),
            ["bounded", name, low, high] => Activation::Bounded {
                function: unary_by_name(name)?,
                low: low.parse().ok()?,
                high: high.parse().ok()?,
            },
            _ => return None,
        })
    };
    read().ok_or_else(|| Error::new(format!("unknown activation `{text}`")))
}

/// The instructions of an expression as text: `in 0`, `const 2.5`, `exp 0`, `clamp 0 -1 1`, `add 0 1`. Operands are the
/// indices of earlier instructions.
pub(super) fn expression_texts(expression: &Expression) -> impl Iterator<Item = String> + '_ {
    expression.instrs.iter().map(|instr| match *instr {
        Instr::Input(n) => format!("in {n}"),
        Instr::Const(x) => format!("const {x}"),
        Instr::Unary(function, a) => format!("{} {a}", unary_name(function)),
        Instr::Clamp { of, low, high } => format!("clamp {of} {low} {high}"),
        Instr::Binary(function, a, b) => {
            let name = BINARY.iter().find(|(_, other)| *other == function).map_or("", |(name, _)| name);
            format!("{name} {a} {b}")
        }
    })
}

/// Reads an expression from the text of its instructions.
pub(super) fn parse_expression(texts: &[&str]) -> Result<Expression> {
    if texts.is_empty() || texts.len() > MAX_INSTRS {
        return Err(Error::new(format!(
            "an expression of {} instructions, expected 1 to {MAX_INSTRS}",
            texts.len()
        )));
    }
    let mut instrs = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let instr = parse_instr(text, index);
        instrs.push(
            instr.ok_or_else(|| {
                Error::new(format!("instruction {index}, `{text}`, is unknown or malformed"))
            })?,
        );
    }
    Ok(Expression { instrs })
}

fn parse_instr(text: &str, index: usize) -> Option<Instr> {
    let earlier = |word: &str| word.parse().ok().filter(|register: &usize| *register < index);
    let words: Vec<&str> = text.split(' ').collect();
    Some(match words[..] {
        ["in", n] => Instr::Input(n.parse().ok().filter(|n: &usize| *n < MAX_INSTRS)?),
        ["const", x] => Instr::Const(x.parse().ok()?),
        ["clamp", of, low, high] => {
            Instr::Clamp { of: earlier(of)?, low: low.parse().ok()?, high: high.parse().ok()? }
        }
        [name, a] => Instr::Unary(unary_by_name(name)?, earlier(a)?),
        [name, a, b] => {
            let (_, function) = BINARY.iter().find(|(other, _)| *other == name)?;
            Instr::Binary(*function, earlier(a)?, earlier(b)?)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_and_expressions_round_trip() {
        for (name, function) in UNARY {
            assert_eq!((unary_name(function), unary_by_name(name)), (name, Some(function)));
        }
        for text in ["identity", "relu", "clamp 0 6", "clamp -inf 0.1", "unary tanh", "bounded silu -1.5 inf"]
        {
            assert_eq!(activation_text(parse_activation(text).unwrap()), text);
        }
        let texts = ["in 0", "const 0.1", "mul 0 1", "exp 2", "clamp 3 -1 1", "in 1", "add 4 5"];
        assert!(expression_texts(&parse_expression(&texts).unwrap()).eq(texts));
        for wrong in ["", "relu 1", "clamp 0", "unary none", "bounded silu 1"] {
            assert!(parse_activation(wrong).is_err(), "`{wrong}`");
        }
        for wrong in [&["exp 0"][..], &["in 0", "exp 1"], &[], &["in 0", "add 0"], &["in -1"], &["in 99999"]]
        {
            assert!(parse_expression(wrong).is_err(), "{wrong:?}");
        }
    }
}

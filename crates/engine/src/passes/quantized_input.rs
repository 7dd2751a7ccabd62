//! The inputs of matrix multiplications and convolutions that are dequantized values.

use super::rule::{Match, Pattern, any, call, operation, reshaped, result};
use crate::graph::{Graph, ValueId, meaning};
use crate::operation::as_op;
use crate::ops::quantize::Dequantize;
use crate::ops::quantized_linear::QuantizedInput;
use pteron_operator::Meaning;
use pteron_operator::facts::{ChooseQParams, QParams};
use pteron_tensor::ScalarType;
use std::sync::LazyLock;

/// A dequantized value: with known parameters, or with parameters chosen from the value (dynamic quantization).
static DEQUANTIZED: LazyLock<Pattern> = LazyLock::new(|| {
    // Each reader of a view that needs no copy has a reshape of its own.
    let read = |name| any(name) & reshaped(any("root"));
    let chosen = |index, name| {
        result(index, |m| matches!(m, Meaning::ChooseQParams(_)), [read("chosen_from")]).named(name)
    };
    let [scale, zero] = [chosen(0, "scale"), chosen(1, "zero")];
    let quantized =
        call(|m| matches!(m, Meaning::Quantize(_)), [read("source"), scale.clone(), zero.clone()]);
    let dynamic = call(|m| matches!(m, Meaning::Dequantize(_)), [quantized.named("quantized"), scale, zero]);
    let chosen_together = |graph: &Graph, matched: &Match| {
        graph.producer(matched["scale"]) == graph.producer(matched["zero"])
            && graph.meta(matched["chosen_from"]) == graph.meta(matched["source"])
    };
    let known = operation::<Dequantize>([any("source")]);
    reshaped((known | dynamic.such_that(chosen_together)).named("dequantized"))
});

/// The source of a matrix multiplication's input `x`, how it is quantized, and whether its sizes differ from those of
/// `x`.
pub(super) fn quantized_input(graph: &Graph, x: ValueId) -> Option<(ValueId, QuantizedInput, bool)> {
    let matched = DEQUANTIZED.find_with(graph, x, &[])?;
    let (meta, source) = (graph.meta(x), matched["source"]);
    let source_meta = graph.meta(source);
    let (same, plain) = (source_meta.sizes() == meta.sizes(), source_meta.dim_order().is_contiguous());
    let dequantize = graph.producer(matched["dequantized"])?;
    if let Some(&Dequantize(affine)) = as_op(graph, dequantize) {
        return plain.then_some((source, QuantizedInput::Quantized(affine), !same));
    }
    let of = |name| meaning(graph, graph.producer(matched[name])?);
    let input = match (of("scale")?, of("quantized")?, of("dequantized")?) {
        (Meaning::ChooseQParams(choice), Meaning::Quantize(to), Meaning::Dequantize(from)) => {
            dynamic_input(choice, to, from)?
        }
        _ => return None,
    };
    (same && plain && source_meta.dtype() == ScalarType::Float).then_some((source, input, false))
}

/// How the input of a matrix multiplication is dynamically quantized; `None` if its quantization is not supported.
fn dynamic_input(choice: ChooseQParams, to: QParams, from: QParams) -> Option<QuantizedInput> {
    let QParams::Dynamic { by_row, low, high } = to else { return None };
    let agree = matches!(from, QParams::Dynamic { by_row: rows, .. } if rows == by_row);
    let input = match choice {
        ChooseQParams::PerTensor { low: least, high: greatest, eps } if !by_row => {
            let sane = eps > 0.0 && -128 <= least && least < greatest && greatest <= 127;
            let input =
                QuantizedInput::ByTensor { low: least as i32, high: greatest as i32, eps: eps as f32 };
            (sane && (least, greatest) == (low, high)).then_some(input)
        }
        ChooseQParams::PerToken if by_row => ((low, high) == (-128, 127)).then_some(QuantizedInput::ByRow),
        _ => None,
    };
    input.filter(|_| agree)
}

//! Products of two dequantized matrices, as in attention: they run on the quantized values.

use super::quantized_input::quantized_input;
use crate::graph::{Graph, NodeId, meaning};
use crate::operation::{OpKind, producer_as};
use crate::ops::quantize::Dequantize;
use crate::ops::quantized_product::{QuantizedProduct, are_factors};
use pteron_kernels::compute::PackedWeights;
use pteron_operator::Meaning;
use pteron_tensor::ScalarType;

/// Rewrites a product of two dequantized values to one of the quantized values. The second one has a known scale, and the zero
/// point 0; the first one may be quantized at run time.
pub(super) fn rewrite(graph: &mut Graph, node: NodeId) -> Option<()> {
    let (&[a, b], &[out]) = (graph.node(node).inputs(), graph.node(node).outputs()) else { return None };
    let (dequantize, &Dequantize(affine)) = producer_as(graph, b)?;
    let right = *graph.node(dequantize).inputs().first()?;
    let (left, input, reshaped) = quantized_input(graph, a)?;
    let is_product = match meaning(graph, node)? {
        Meaning::BatchMatMul => true,
        Meaning::MatMul(product) => {
            (product.x, product.weights, product.out_major, product.bias) == (0, 1, false, None)
        }
        _ => false,
    };
    let [of_left, of_right, of_out] = [left, right, out].map(|v| graph.meta(v));
    let is_plain = [of_left, of_right, of_out].iter().all(|meta| meta.dim_order().is_contiguous());
    let fits = are_factors(of_left.sizes(), of_right.sizes(), of_out.sizes());
    let inner = of_left.sizes().last().copied().unwrap_or(0);
    let types = of_right.dtype() == ScalarType::Char && of_out.dtype() == ScalarType::Float;
    let is_supported = is_product
        && affine.zero == 0
        && is_plain
        && !reshaped
        && fits
        && types
        && inner <= PackedWeights::MAX_ROWS;
    is_supported.then_some(())?;
    let product = QuantizedProduct { left: input, right_scale: affine.scale, output: None };
    graph.rewrite(node, OpKind::arc(product), &[left, right]);
    Some(())
}

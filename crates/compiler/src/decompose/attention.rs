//! Attention.

use super::Table;
use super::When::NoKernel;
use super::nn::{safe_softmax, softmax_last};
use super::product::matmul_any_rank;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, SymOp, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.scaled_dot_product_attention", NoKernel, attention),
    ("aten._scaled_dot_product_flash_attention_for_cpu", NoKernel, attention),
    ("aten._scaled_dot_product_efficient_attention", NoKernel, attention),
    ("aten._scaled_dot_product_attention_math", NoKernel, attention),
];

/// `softmax(q k^T scale + mask) v`. As in PyTorch, `q` and `k` are each multiplied by the square root of the scale, so
/// that the product does not overflow in half precision.
fn attention(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (q, k, v) = (cx.tensor(node, "query")?, cx.tensor(node, "key")?, cx.tensor(node, "value")?);
    if cx.float(node, "dropout_p", 0.0)? > 0.0 {
        return cx.fail(node, "an attention with dropout: export the model after `model.eval()`");
    }
    let spec = cx.spec(node, q)?;
    let Some(width) = spec.sizes.last().and_then(Size::known) else {
        return cx.fail(node, "the size of its heads is not known");
    };
    let scale = cx.float(node, "scale", 1.0 / (width as f64).sqrt())?;
    let (k, v) = match cx.bool(node, "enable_gqa", false)? {
        true => (repeat_heads(cx, node, k, &spec)?, repeat_heads(cx, node, v, &spec)?),
        false => (k, v),
    };
    let root = scale.abs().sqrt();
    let q = cx.binary("aten.mul.Tensor", q, if scale < 0.0 { -root } else { root });
    let k = cx.transpose(k);
    let k = cx.binary("aten.mul.Tensor", k, root);
    let scores = matmul_any_rank(cx, node, q, k)?;
    let mask = cx.optional_tensor(node, "attn_mask");
    let weights = match mask {
        Some(mask) => {
            let masked = mask_scores(cx, scores, mask)?;
            safe_softmax(cx, masked, -1)?
        }
        None if cx.bool(node, "is_causal", false)? => {
            let sizes = cx.spec_of(scores).sizes;
            let square = sizes[sizes.len() - 2..].to_vec();
            let ones = cx.full(node, square.clone(), Argument::Bool(true), ScalarType::Bool)?;
            let args = vec![("self", Argument::Var(ones)), ("diagonal", Argument::Int(0))];
            let mask = cx.emit("aten.tril.default", args, TensorSpec::contiguous(ScalarType::Bool, square));
            let masked = mask_scores(cx, scores, mask)?;
            softmax_last(cx, masked)
        }
        None => softmax_last(cx, scores),
    };
    let attended = matmul_any_rank(cx, node, weights, v)?;
    let want = cx.result_spec(node)?.sizes;
    let new = cx.view(node, attended, want)?;
    cx.replace_node(node, new)
}

fn mask_scores(cx: &mut Rewriter<'_>, scores: VarId, mask: VarId) -> Result<VarId> {
    let spec = cx.spec_of(mask);
    if spec.dtype != ScalarType::Bool {
        return Ok(cx.binary("aten.add.Tensor", scores, mask));
    }
    let dtype = cx.spec_of(scores).dtype;
    let low = cx.scalar(Scalar::Double(f64::NEG_INFINITY), dtype)?;
    Ok(cx.choose(mask, scores, low))
}

/// Grouped-query attention: repeats the heads of keys or values so that every head of the queries has one.
fn repeat_heads(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, query: &TensorSpec) -> Result<VarId> {
    let spec = cx.spec_of(x);
    if spec.rank() < 3 || query.rank() != spec.rank() {
        return cx.fail(node, "its queries, keys and values have no dimension of heads in common");
    }
    let dim = spec.rank() - 3;
    if spec.sizes[dim] == query.sizes[dim] {
        return Ok(x);
    }
    let repeats = query.sizes[dim].combine(SymOp::FloorDiv, &spec.sizes[dim]);
    let wide = cx.unsqueeze(node, x, dim + 1)?;
    let mut sizes = cx.spec_of(wide).sizes;
    sizes[dim + 1] = repeats;
    let expanded = cx.expand(node, wide, sizes)?;
    let mut sizes = spec.sizes;
    sizes[dim] = query.sizes[dim].clone();
    cx.view(node, expanded, sizes)
}

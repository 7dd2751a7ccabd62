//! Mixtures of experts with quantized weights.

use crate::compute::{Epilogue, MatMut, MatRef, gemm};
use crate::support::convert::{Values, all_values, write_row_major};
use crate::support::dims::to_positive;
use crate::support::rows::{expect_type, tensor_bytes};
use crate::torchao::packed::Packed;
use pteron_operator::{Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{ScalarType, TensorView};

pub(crate) const OPERATORS: &[Operator] = &[Operator::new(
    "llama::quantized_moe_ffn.out(Tensor x, Tensor gate_weight, Tensor expert_bias, Tensor packed_w13, Tensor packed_w2, int num_activated_experts, int num_experts, int hidden_dim, int dim, int group_size, int weight_nbit, str score_func, float route_scale, *, Tensor(a!) out) -> Tensor(a!)",
    DtypeSet::of(&[ScalarType::Float]),
    feed_forward,
)];

/// How the scores of a row's experts become their weights.
enum Routing<'a> {
    /// Experts are chosen by the sigmoid of their scores plus a bias, and weighted by the sigmoid, scaled so that the
    /// weights of a row add up to `scale`.
    Sigmoid { bias: Option<Values<'a, f32>>, scale: f32 },
    /// The softmax of the scores of the chosen experts.
    Softmax,
}

impl<'a> Routing<'a> {
    fn from_args(
        ctx: &KernelContext<'a>,
        bias: TensorView<'a>,
        (function, scale): (&str, f64),
        experts: usize,
    ) -> Result<Self> {
        expect_type("expert_bias", ScalarType::Float, bias.dtype())?;
        let biased = bias.numel() > 0;
        ensure!(
            !biased || **bias.sizes() == [experts],
            "expert_bias: the shape {} does not suit {experts} experts",
            bias.sizes()
        );
        match function {
            "sigmoid" => {
                let bias = if biased { Some(all_values::<f32>(ctx, &bias)?) } else { None };
                Ok(Self::Sigmoid { bias, scale: scale as f32 })
            }
            "softmax" if biased => Err(Error::invalid("expert_bias: a bias is only used with `sigmoid`")),
            "softmax" => Ok(Self::Softmax),
            other => Err(Error::invalid(format!("score_func: {other:?} is neither `sigmoid` nor `softmax`"))),
        }
    }

    /// The `count` experts of a row of scores, best first, with their weights.
    fn choose_experts(&self, scores: &mut [f32], count: usize) -> Vec<(usize, f32)> {
        if let Self::Sigmoid { .. } = self {
            scores.iter_mut().for_each(|s| *s = sigmoid(*s));
        }
        let key = |e: usize| match self {
            Self::Sigmoid { bias: Some(bias), .. } => scores[e] + bias[e],
            _ => scores[e],
        };
        // The first of several experts with the same score is chosen first; NaN is chosen last.
        let mut order: Vec<usize> = (0..scores.len()).collect();
        let rank = |e: usize| if key(e).is_nan() { f32::NEG_INFINITY } else { key(e) };
        order.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)).then(a.cmp(&b)));
        let mut chosen: Vec<(usize, f32)> = order[..count].iter().map(|&e| (e, scores[e])).collect();
        match self {
            Self::Sigmoid { scale, .. } => {
                let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
                let factor = scale / sum.max(f32::MIN_POSITIVE);
                chosen.iter_mut().for_each(|(_, weight)| *weight *= factor);
            }
            Self::Softmax => {
                let most = chosen.iter().fold(f32::NEG_INFINITY, |most, (_, score)| most.max(*score));
                chosen.iter_mut().for_each(|(_, weight)| *weight = (*weight - most).exp());
                let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
                chosen.iter_mut().for_each(|(_, weight)| *weight /= sum);
            }
        }
        chosen
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Routes each row of `x` to the experts with the best scores, `x gate_weight^T`. The result is the weighted sum of
/// the experts' results, `(silu(x w1^T) * (x w3^T)) w2^T`. Weights are packed by torchao, those of `w1` and `w3`
/// below each other; they are dequantized, and activations stay float32, as in ExecuTorch's kernel without torchao's
/// ARM library.
fn feed_forward(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let size = |arg: &'static str| to_positive(arg, args.int(arg)?);
    let (active, experts, hidden, dim, group) = (
        size("num_activated_experts")?,
        size("num_experts")?,
        size("hidden_dim")?,
        size("dim")?,
        size("group_size")?,
    );
    let bits = match args.int("weight_nbit")? {
        bits @ (4 | 8) => bits as u32,
        other => return Err(Error::invalid(format!("weight_nbit: {other} is neither 4 nor 8"))),
    };
    ensure!(active <= experts, "num_activated_experts: {active} of {experts}");
    let (x, gate) = (args.tensor("x")?, args.tensor("gate_weight")?);
    let rows = match **x.sizes() {
        [rows, columns] if columns == dim => rows,
        _ => return Err(Error::invalid(format!("x: the shape {} does not suit rows of {dim}", x.sizes()))),
    };
    ensure!(
        **gate.sizes() == [experts, dim],
        "gate_weight: expected the shape [{experts}, {dim}], found {}",
        gate.sizes()
    );
    let out = outs.tensor(0)?;
    for (name, dtype) in [("x", x.dtype()), ("gate_weight", gate.dtype()), ("out", out.dtype())] {
        expect_type(name, ScalarType::Float, dtype)?;
    }
    out.resize(&[rows, dim])?;
    let up = Experts::from_tensor(ctx, "packed_w13", args.tensor("packed_w13")?, experts)?;
    let down = Experts::from_tensor(ctx, "packed_w2", args.tensor("packed_w2")?, experts)?;
    let routing = Routing::from_args(
        ctx,
        args.tensor("expert_bias")?,
        (args.str("score_func")?, args.double("route_scale")?),
        experts,
    )?;

    let (x, gate) = (all_values::<f32>(ctx, &x)?, all_values::<f32>(ctx, &gate)?);
    let mut scores = ctx.scratch::<f32>(rows.saturating_mul(experts))?;
    let (a, b) = (MatRef::new(&x, rows, dim), MatRef::new(&gate, experts, dim).t());
    let isa = crate::support::isa(ctx);
    gemm(ctx.pool(), isa, a, b, MatMut::new(&mut scores, rows, experts), &Epilogue::NONE);
    let mut routes: Vec<(usize, usize, f32)> = Vec::new();
    for (row, scores) in scores.chunks_exact_mut(experts).enumerate() {
        routes.extend(
            routing.choose_experts(scores, active).into_iter().map(|(expert, weight)| (expert, row, weight)),
        );
    }
    // By expert; the rows of an expert stay in order.
    routes.sort_by_key(|route| route.0);
    let doubled = hidden.saturating_mul(2);
    write_row_major::<f32>(ctx, out, |out| {
        out.fill(0.0);
        for routes in routes.chunk_by(|a, b| a.0 == b.0) {
            let (expert, m) = (routes[0].0, routes.len());
            let w13 =
                Packed::read_linear("packed_w13", up.expert_weights(expert), bits, [doubled, dim, group])?;
            let w2 =
                Packed::read_linear("packed_w2", down.expert_weights(expert), bits, [dim, hidden, group])?;
            let mut inputs = ctx.scratch::<f32>(m.saturating_mul(dim))?;
            for (input, route) in inputs.chunks_exact_mut(dim).zip(routes) {
                input.copy_from_slice(&x[route.1 * dim..][..dim]);
            }
            let mut both = ctx.scratch::<f32>(m.saturating_mul(doubled))?;
            w13.multiply(ctx, &inputs, &mut both)?;
            let mut middle = ctx.scratch::<f32>(m.saturating_mul(hidden))?;
            for (middle, both) in middle.chunks_exact_mut(hidden).zip(both.chunks_exact(doubled)) {
                let (first, third) = both.split_at(hidden);
                let each = middle.iter_mut().zip(first).zip(third);
                each.for_each(|((middle, &a), b)| *middle = a * sigmoid(a) * b);
            }
            let mut results = inputs;
            w2.multiply(ctx, &middle, &mut results)?;
            for (result, route) in results.chunks_exact(dim).zip(routes) {
                let to = &mut out[route.1 * dim..][..dim];
                to.iter_mut().zip(result).for_each(|(to, y)| *to += route.2 * y);
            }
            pteron_pool::progress(m);
        }
        Ok(())
    })
}

/// The packed weights of all experts: a row of bytes for each expert.
struct Experts<'a> {
    bytes: Values<'a, u8>,
    of_one: usize,
}

impl<'a> Experts<'a> {
    fn from_tensor(
        ctx: &KernelContext<'a>,
        name: &str,
        weights: TensorView<'a>,
        experts: usize,
    ) -> Result<Self> {
        expect_type(name, ScalarType::Byte, weights.dtype())?;
        match **weights.sizes() {
            [n, of_one] if n == experts => Ok(Self { bytes: tensor_bytes(ctx, &weights)?, of_one }),
            _ => {
                let message =
                    format!("{name}: the shape {} does not suit {experts} experts", weights.sizes());
                Err(Error::invalid(message))
            }
        }
    }

    fn expert_weights(&self, expert: usize) -> &[u8] {
        &self.bytes[expert * self.of_one..][..self.of_one]
    }
}

#[cfg(test)]
mod tests {
    use super::Routing;

    #[test]
    fn weights_of_the_chosen_experts() {
        let routing = Routing::Softmax;
        let chosen = routing.choose_experts(&mut [1.0, 3.0, f32::NAN, 3.0], 2);
        assert_eq!(chosen, [(1, 0.5), (3, 0.5)]);
        let routing = Routing::Sigmoid { bias: None, scale: 2.0 };
        let chosen = routing.choose_experts(&mut [-200.0, 0.0, -300.0], 3);
        assert_eq!(chosen[0], (1, 2.0));
        assert!(chosen[1].1 < 1e-30 && chosen[2].1 < 1e-30);
    }
}

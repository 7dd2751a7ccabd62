//! The steps of quantized tensors: [`Op::Quantize`], [`Op::Dequantize`], [`Op::QuantizedLinear`] and
//! [`Op::QuantizedConv`].

use crate::graph::Graph;
use crate::node::{Node, Op, QuantizedConvolution, QuantizedInput, QuantizedLinear};
use crate::window::frame;
use kernels::compute::{Affine, Isa, MatMut, MatRef, Quantization, dequantize, quantize, range};
use kernels::compute::{ConvFrame, QuantizedConv, QuantizedConvOut, QuantizedImages};
use kernels::compute::{PackedWeights, QuantizedEpilogue, QuantizedOut, QuantizedRows, Weights, qgemm};
use operator::{Error, KernelContext, Result};
use tensor::{ScalarType, TensorView, TensorViewMut};

/// A step, its weights packed.
pub(crate) struct QuantizedStep {
    isa: Isa,
    kind: Kind,
}

#[expect(clippy::large_enum_variant, reason = "a step stands in a box")]
enum Kind {
    Quantize(Quantization),
    Dequantize(Affine),
    Linear { spec: QuantizedLinear, weights: PackedWeights, bias: Option<Vec<f32>> },
    Conv { spec: QuantizedConvolution, conv: QuantizedConv, frame: ConvFrame, bias: Option<Vec<f32>> },
}

impl QuantizedStep {
    /// The step of a node of one of the four kinds; at run time it reads the node's first input.
    pub(crate) fn new(graph: &Graph, node: &Node, isa: Isa) -> Result<Self> {
        let unknown = || Error::invalid("quantized weights that are not known when the graph is lowered");
        let floats = |i: usize| {
            let values = node.inputs.get(i).and_then(|&v| graph.floats(v));
            values.ok_or_else(unknown)
        };
        let numbers = || {
            let view = node.inputs.get(1).and_then(|&v| graph.get(v).view()).ok_or_else(unknown)?;
            view.storage::<i8>().map_err(Error::from)
        };
        let bias = |there: bool| there.then(|| floats(3).map(<[f32]>::to_vec)).transpose();
        let kind = match &node.op {
            Op::Quantize(q) => Kind::Quantize(*q),
            Op::Dequantize(affine) => Kind::Dequantize(*affine),
            Op::QuantizedLinear(spec) => {
                let sizes = graph.meta(node.inputs[1]).sizes();
                let numbers = MatRef::new(numbers()?, sizes[0], sizes[1]);
                let numbers = if spec.out_major { numbers.t() } else { numbers };
                let weights = Weights { numbers, bits: spec.bits, scales: floats(2)?, group: spec.group };
                let weights = PackedWeights::new(&weights)?;
                Kind::Linear { spec: *spec, weights, bias: bias(spec.bias)? }
            }
            Op::QuantizedConv(spec) => {
                let (x, out) = (graph.meta(node.inputs[0]), graph.meta(node.outputs[0]));
                let conv = QuantizedConv::new(isa, spec.conv.params, numbers()?, floats(2)?)?;
                let frame = frame(x, out, spec.conv.space);
                Kind::Conv { spec: *spec, conv, frame, bias: bias(spec.conv.bias)? }
            }
            other => return Err(Error::invalid(format!("{} as a quantized step", other.name()))),
        };
        Ok(Self { isa, kind })
    }

    pub(crate) fn run(
        &self,
        ctx: &KernelContext<'_>,
        x: &TensorView<'_>,
        out: &mut TensorViewMut<'_>,
    ) -> Result<()> {
        let (pool, isa) = (ctx.pool(), self.isa);
        let signed = x.dtype() == ScalarType::Char;
        match &self.kind {
            Kind::Quantize(q) => quantize(pool, isa, q, x.storage()?, out.bytes_mut()),
            Kind::Dequantize(affine) => dequantize(pool, isa, *affine, signed, x.bytes(), out.storage_mut()?),
            Kind::Linear { spec, weights, bias } => {
                let (k, n) = (weights.rows(), weights.cols());
                let m = out.as_view().numel() / n.max(1);
                let epilogue = QuantizedEpilogue { bias: bias.as_deref(), activation: spec.activation };
                let to = match spec.output {
                    Some(q) => QuantizedOut::Quantized(MatMut::new(out.bytes_mut(), m, n), q),
                    None => QuantizedOut::Real(MatMut::new(out.storage_mut()?, m, n)),
                };
                if let QuantizedInput::Numbers(affine) = spec.input {
                    let params = [affine];
                    let x = QuantizedRows::new(x.bytes(), signed, m, k, &params);
                    qgemm(pool, isa, x, weights, to, &epilogue);
                    return Ok(());
                }
                let reals = x.storage::<f32>()?;
                let mut numbers = ctx.scratch::<u8>(reals.len())?;
                let params = self.quantize_input(ctx, spec.input, reals, k, &mut numbers);
                qgemm(pool, isa, QuantizedRows::new(&numbers, true, m, k, &params), weights, to, &epilogue);
            }
            Kind::Conv { spec, conv, frame, bias } => {
                let epilogue = QuantizedEpilogue { bias: bias.as_deref(), activation: spec.conv.activation };
                let images = QuantizedImages { bytes: x.bytes(), signed, affine: spec.input };
                let to = match spec.output {
                    Some(q) => QuantizedConvOut::Quantized(out.bytes_mut(), q),
                    None => QuantizedConvOut::Real(out.storage_mut()?),
                };
                conv.run(pool, frame, images, to, &epilogue);
            }
        }
        Ok(())
    }

    /// Quantizes rows of `k` elements by parameters chosen from them: one for all, or one for each.
    fn quantize_input(
        &self,
        ctx: &KernelContext<'_>,
        input: QuantizedInput,
        reals: &[f32],
        k: usize,
        numbers: &mut [u8],
    ) -> Vec<Affine> {
        let (pool, isa) = (ctx.pool(), self.isa);
        match input {
            QuantizedInput::ByTensor { low, high, eps } => {
                let q = Quantization::choose(range(isa, reals), (low, high), eps);
                quantize(pool, isa, &q, reals, numbers);
                vec![q.affine]
            }
            _ if k == 0 => vec![Affine { scale: 1.0, zero: 0 }],
            _ => {
                let rows = reals.chunks_exact(k).zip(numbers.chunks_exact_mut(k));
                let each = rows.map(|(reals, numbers)| {
                    let q = Quantization::choose_for_token(range(isa, reals));
                    quantize(&pool::Pool::serial(), isa, &q, reals, numbers);
                    q.affine
                });
                each.collect()
            }
        }
    }
}

//! The steps of [`Op::Conv`](crate::Op::Conv) and [`Op::Linear`](crate::Op::Linear).

use crate::graph::{Constant, Graph};
use crate::node::{Convolution, Linear, Node};
use crate::packs::{MatrixForm, Packs};
use crate::window::frame;
use kernels::compute::{Bias, Epilogue, Isa, MatMut, MatRef, PackedB, gemm};
use kernels::compute::{Conv, ConvEpilogue, ConvFrame};
use operator::{Error, KernelContext, Result};
use std::sync::Arc;
use tensor::{TensorView, TensorViewMut};

fn unknown() -> Error {
    Error::invalid("weights that are not known when the graph is lowered")
}

/// The elements of an input that is a constant.
fn floats<'g>(graph: &'g Graph, node: &Node, index: usize) -> Result<&'g [f32]> {
    node.inputs.get(index).and_then(|&v| graph.floats(v)).ok_or_else(unknown)
}

fn constant<'g>(graph: &'g Graph, node: &Node, index: usize) -> Result<&'g Constant> {
    node.inputs.get(index).and_then(|&v| graph.get(v).constant.as_ref()).ok_or_else(unknown)
}

/// The last of what a step reads, where that is its residual.
fn residual<'a>(there: bool, reads: &[TensorView<'a>]) -> Result<Option<&'a [f32]>> {
    let last = reads.last().filter(|_| there);
    Ok(last.map(|r| r.storage::<f32>()).transpose()?)
}

/// A convolution, its weights packed. It reads the image and, where it is there, the residual.
pub(crate) struct ConvStep {
    conv: Arc<Conv>,
    frame: ConvFrame,
    bias: Option<Vec<f32>>,
    spec: Convolution,
}

impl ConvStep {
    pub(crate) fn new(
        graph: &Graph,
        node: &Node,
        spec: &Convolution,
        isa: Isa,
        packs: &mut Packs,
    ) -> Result<Self> {
        let weights = floats(graph, node, 1)?;
        let conv = packs.conv(constant(graph, node, 1)?, spec.params, spec.layout, || {
            Ok(Conv::new(isa, spec.params, weights, spec.layout, spec.layout)?)
        })?;
        let frame = frame(graph.meta(node.inputs[0]), graph.meta(node.outputs[0]), spec.space);
        let bias = if spec.bias { Some(floats(graph, node, 2)?.to_vec()) } else { None };
        Ok(Self { conv, frame, bias, spec: *spec })
    }

    pub(crate) fn run(
        &self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'_>],
        out: &mut TensorViewMut<'_>,
    ) -> Result<()> {
        let residual = residual(self.spec.residual, reads)?;
        let epilogue =
            ConvEpilogue { bias: self.bias.as_deref(), residual, activation: self.spec.activation };
        let (x, out) = (reads[0].storage::<f32>()?, out.storage_mut::<f32>()?);
        self.conv.run(ctx.pool(), &self.frame, x, out, &epilogue);
        Ok(())
    }
}

/// A product with weights, which are packed. It reads the rows and, where it is there, the residual.
pub(crate) struct LinearStep {
    weights: Arc<PackedB>,
    bias: Option<Vec<f32>>,
    spec: Linear,
    isa: Isa,
}

impl LinearStep {
    pub(crate) fn new(
        graph: &Graph,
        node: &Node,
        spec: &Linear,
        isa: Isa,
        packs: &mut Packs,
    ) -> Result<Self> {
        let sizes = graph.meta(node.inputs[1]).sizes();
        let plain = MatRef::new(floats(graph, node, 1)?, sizes[0], sizes[1]);
        let plain = if spec.out_major { plain.t() } else { plain };
        let form = MatrixForm { rows: plain.rows(), columns: plain.cols(), transposed: spec.out_major };
        let weights = packs.matrix(constant(graph, node, 1)?, form, || Ok(PackedB::new(isa, plain)?))?;
        let bias = if spec.bias { Some(floats(graph, node, 2)?.to_vec()) } else { None };
        Ok(Self { weights, bias, spec: *spec, isa })
    }

    pub(crate) fn run(
        &self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'_>],
        out: &mut TensorViewMut<'_>,
    ) -> Result<()> {
        let (k, n) = (self.weights.rows(), self.weights.cols());
        let x = reads[0].storage::<f32>()?;
        let out = out.storage_mut::<f32>()?;
        let m = out.len() / n.max(1);
        let residual = residual(self.spec.residual, reads)?.map(|r| (1.0, MatRef::new(r, m, n)));
        let epilogue = Epilogue {
            bias: Bias::per_col(self.bias.as_deref()),
            residual,
            activation: self.spec.activation,
            ..Epilogue::NONE
        };
        gemm(ctx.pool(), self.isa, MatRef::new(x, m, k), &*self.weights, MatMut::new(out, m, n), &epilogue);
        Ok(())
    }
}

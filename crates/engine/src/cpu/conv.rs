//! 1-d, 2-d and 3-d convolutions.

use super::lowering::{Lower, Lowered, Lowering};
use super::narrow::NarrowWeights;
use super::pack_store::{ConvPack, PackedAs};
use super::packs::Packed;
use super::step::{Step, Writes, only_output, residual};
use super::weights::view_of;
use crate::fold;
use crate::graph::Constant;
use crate::ops::conv::{Convolution, conv_frame};
use pteron_kernels::compute::{
    Conv, ConvEpilogue, ConvFrame, ConvParams, ConvWeights, Method, Tail, WeightStorage,
};
use pteron_operator::{KernelContext, Result};
use pteron_tensor::{TensorMeta, TensorView};
use std::sync::Arc;

impl Lower for Convolution {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        Ok(Lowered::step(self.build_step(node)?, self.reads()))
    }
}

impl Convolution {
    /// The indices of the node's inputs that the convolution's step reads.
    pub(crate) fn reads(&self) -> impl Iterator<Item = usize> + use<> {
        [0].into_iter().chain(self.residual.then_some(self.num_inputs() - 1))
    }

    /// Lowers the convolution of a node, whose inputs begin with those of the convolution and whose output is the
    /// convolution's.
    pub(crate) fn build_step(&self, node: &mut Lowering<'_>) -> Result<ConvStep> {
        let frame = conv_frame(node.input(0)?, node.output(0)?, self.space);
        let (conv, bias) = self.packed_weights(node, 1, &frame)?;
        Ok(ConvStep { conv, frame, bias, spec: *self })
    }

    /// The packed weights (input `slot` of a node), and the bias (the next input), if there is one.
    pub(crate) fn packed_weights(
        &self,
        node: &Lowering<'_>,
        slot: usize,
        frame: &ConvFrame,
    ) -> Result<(Arc<Packed<Conv>>, Option<Vec<f32>>)> {
        let (spec, isa) = (*self, node.isa());
        let (meta, source) = stored_weights(node, slot)?;
        let method = Method::of(&spec.params, spec.layout, frame);
        let form = ConvPack { params: spec.params, layout: spec.layout, order: *meta.dim_order(), method };
        let outputs = usize::from(spec.params.transposed);
        let is_known = !spec.params.transposed || spec.params.groups == 1;
        let narrow = NarrowWeights::of(&meta, &source, outputs).filter(|_| is_known);
        let (identity, packed_as) = match &narrow {
            Some(narrow) => (&narrow.constant, (narrow.storage(), narrow.packed_as())),
            None => (&source, (WeightStorage::F32, PackedAs::default())),
        };
        let conv = node.packs.packed_conv(isa, identity, form, packed_as, || {
            let stored = view_of(&source, &meta)?;
            let weights = conv_weights(&spec.params, &meta, stored.storage()?);
            Ok(Conv::of(isa, spec.params, method, &weights, packed_as.0, (spec.layout, spec.layout))?)
        })?;
        Ok((conv, node.floats_if(spec.bias, slot + 1)?))
    }
}

/// The weights at an input of a node, in the layout in which they are stored: a conversion to row-major is undone if
/// they can be packed without it.
pub(crate) fn stored_weights(node: &Lowering<'_>, slot: usize) -> Result<(TensorMeta, Constant)> {
    let (meta, constant) = (node.input(slot)?, node.constant_input(slot)?);
    // Storable packed weights must refer to the constant itself.
    let stored = if node.packs.is_storing() { None } else { fold::before_relayout(constant) };
    let stored = stored.filter(|(meta, _)| tap_stride(meta).is_some());
    Ok(stored.unwrap_or_else(|| (meta.clone(), constant.clone())))
}

/// Weights `[out, in / groups, kernel..]`, or transposed `[in, out / groups, kernel..]`, whose meta has a
/// [`tap_stride`].
pub(crate) fn conv_weights<'a, T: Copy>(
    params: &ConvParams,
    meta: &TensorMeta,
    values: &'a [T],
) -> ConvWeights<'a, T> {
    let strides = meta.strides();
    ConvWeights::strided(params, values, [strides[0], strides[1], tap_stride(meta).unwrap_or(1)])
}

/// The stride from one filter tap to the next in the weights, if it is uniform.
fn tap_stride(meta: &TensorMeta) -> Option<usize> {
    let space = || meta.sizes().iter().copied().zip(meta.strides().iter().copied()).skip(2);
    let mut step = None;
    let mut next = None;
    for (size, stride) in space().filter(|(size, _)| *size != 1).collect::<Vec<_>>().into_iter().rev() {
        if next.is_some_and(|next| next != stride) {
            return None;
        }
        step = step.or(Some(stride));
        next = Some(stride * size);
    }
    Some(step.unwrap_or(1))
}

/// A convolution that reads the image and optionally the residual; the weights are packed.
pub(crate) struct ConvStep {
    conv: Arc<Packed<Conv>>,
    frame: ConvFrame,
    bias: Option<Vec<f32>>,
    spec: Convolution,
}

impl ConvStep {
    /// The number of tensors that the step reads.
    pub(crate) fn num_reads(&self) -> usize {
        1 + usize::from(self.spec.residual)
    }

    /// Runs the convolution; `tail` is applied to each part of the result.
    pub(crate) fn run_with(
        &self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'_>],
        mut writes: Writes<'_>,
        tail: Option<Tail<'_>>,
    ) -> Result<()> {
        let residual = residual(self.spec.residual, reads)?;
        let activation = self.spec.activation;
        let epilogue = ConvEpilogue { bias: self.bias.as_deref(), residual, activation, tail };
        let (x, out) = (reads[0].storage::<f32>()?, only_output(&mut writes)?.storage_mut::<f32>()?);
        self.conv.run(ctx.pool(), &self.frame, x, out, &epilogue);
        Ok(())
    }
}

impl Step for ConvStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        writes: Writes<'a>,
    ) -> Result<()> {
        self.run_with(ctx, reads, writes, None)
    }
}

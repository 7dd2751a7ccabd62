use crate::{Call, Constant, Kind};
use operator::Meaning;
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::{TensorMeta, TensorView};

/// How a constant is computed from others. A pass may have better use for those than for the result: a product packs
/// the matrix behind a transpose, and multiplies the quantized values behind dequantized weights.
#[derive(Clone)]
pub struct Derivation {
    kind: Arc<dyn Kind>,
    inputs: SmallVec<[(TensorMeta, Constant); 2]>,
    depth: usize,
}

impl Derivation {
    /// Derivations, each of the result of the one before, that a constant keeps. More would make constants that only
    /// nested calls can compute and drop.
    pub const MAX_DEPTH: usize = 4;

    /// The result of a node of this kind with these inputs. `None` if that would be deeper than [`Self::MAX_DEPTH`].
    pub fn new(
        kind: Arc<dyn Kind>,
        inputs: impl IntoIterator<Item = (TensorMeta, Constant)>,
    ) -> Option<Self> {
        let inputs: SmallVec<[(TensorMeta, Constant); 2]> = inputs.into_iter().collect();
        let depths = inputs.iter().filter_map(|(_, constant)| constant.derivation()).map(|d| d.depth);
        let depth = 1 + depths.max().unwrap_or(0);
        (depth <= Self::MAX_DEPTH).then_some(Self { kind, inputs, depth })
    }

    /// What computes it.
    pub fn kind(&self) -> &Arc<dyn Kind> {
        &self.kind
    }

    /// What it is computed from.
    pub fn inputs(&self) -> &[(TensorMeta, Constant)] {
        &self.inputs
    }

    /// The inputs as tensors. `None` if the bytes of one cannot be had.
    pub fn views(&self) -> Option<SmallVec<[TensorView<'_>; 4]>> {
        self.inputs.iter().map(|(meta, constant)| constant.view(meta)).collect()
    }

    /// What its call means, if it is a call and something is known of it.
    pub fn meaning(&self) -> Option<Meaning> {
        self.call()?.meaning(self.inputs.iter().map(|(meta, _)| meta))
    }

    /// The input that stands at a position of its call's arguments, to be looked at in its place.
    pub fn argument(&self, position: usize) -> Option<(TensorMeta, Constant)> {
        let (meta, constant) = self.inputs.get(self.call()?.input_at(position)?)?;
        Some((meta.clone(), constant.again()))
    }

    fn call(&self) -> Option<&Call> {
        self.kind.downcast_ref()
    }
}

use crate::{Call, Constant, Kind};
use pteron_operator::Meaning;
use pteron_tensor::{TensorMeta, TensorView};
use smallvec::SmallVec;
use std::sync::Arc;

/// How a constant is computed from other constants. A pass may prefer the operands over the result: a matrix
/// multiplication packs the matrix before it was transposed, and multiplies the quantized weights instead of the
/// dequantized ones.
#[derive(Clone)]
pub struct Derivation {
    kind: Arc<dyn Kind>,
    inputs: SmallVec<[(TensorMeta, Constant); 2]>,
    depth: usize,
}

impl Derivation {
    /// The maximum length of a chain of derivations that a constant keeps. Computing and dropping such constants
    /// recurses along the chain.
    pub const MAX_DEPTH: usize = 4;

    /// The derivation of a result of a node of this kind with these inputs. `None` if its chain would be longer than
    /// [`Self::MAX_DEPTH`].
    pub fn new(
        kind: Arc<dyn Kind>,
        inputs: impl IntoIterator<Item = (TensorMeta, Constant)>,
    ) -> Option<Self> {
        let inputs: SmallVec<[(TensorMeta, Constant); 2]> = inputs.into_iter().collect();
        let depths = inputs.iter().filter_map(|(_, constant)| constant.derivation()).map(|d| d.depth);
        let depth = 1 + depths.max().unwrap_or(0);
        (depth <= Self::MAX_DEPTH).then_some(Self { kind, inputs, depth })
    }

    /// The kind of the node that computes the constant.
    pub fn kind(&self) -> &Arc<dyn Kind> {
        &self.kind
    }

    /// The inputs of the node that computes the constant.
    pub fn inputs(&self) -> &[(TensorMeta, Constant)] {
        &self.inputs
    }

    /// The inputs as tensors; `None` if the bytes of an input cannot be loaded.
    pub fn views(&self) -> Option<SmallVec<[TensorView<'_>; 4]>> {
        self.inputs.iter().map(|(meta, constant)| constant.view(meta)).collect()
    }

    /// The meaning of the call that computes the constant, if a call does and its kernel declares a meaning.
    pub fn meaning(&self) -> Option<Meaning> {
        self.call()?.meaning(self.inputs.iter().map(|(meta, _)| meta))
    }

    /// The input that is the call's argument at a position of the schema, for users that read it instead of the result.
    /// It has a handle of its own ([`Constant::reopen`]).
    pub fn argument(&self, position: usize) -> Option<(TensorMeta, Constant)> {
        let (meta, constant) = self.inputs.get(self.call()?.input_at(position)?)?;
        Some((meta.clone(), constant.reopen()))
    }

    fn call(&self) -> Option<&Call> {
        self.kind.downcast_ref()
    }
}

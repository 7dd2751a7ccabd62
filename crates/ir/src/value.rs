use crate::{BlockId, Derivation, Identity, NodeId};
use pteron_operator::CountedTensor;
use pteron_tensor::{Scalar, ScalarType, ShapeDynamism, Tensor, TensorMeta, TensorView};
use pteron_trace::Place;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Bytes with shared ownership, such as a segment of weights.
pub type SharedBytes = Arc<dyn Bytes>;

/// An owner of bytes, or of a source from which they are read or computed on access.
pub trait Bytes: Send + Sync {
    /// The bytes, aligned for their type. Empty if they cannot be loaded; the owner reports the failure elsewhere.
    fn bytes(&self) -> &[u8];

    /// The number of bytes. Implementations that load bytes on access do not load them for this.
    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The reason why the bytes cannot be loaded; `None` if they can.
    fn problem(&self) -> Option<String> {
        None
    }

    /// Identifies the contents independently of their owner, if that is known: see [`Identity`].
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Another handle to bytes that each handle loads on access and caches; dropping a handle releases what that handle
    /// has loaded. `None` if the bytes are not loaded on access.
    fn reopen(&self) -> Option<SharedBytes> {
        None
    }

    /// Drops the bytes that the owner itself keeps in memory, if they can be computed again. Other handles keep the
    /// bytes that they have.
    fn release(&self) {}

    /// A range of the bytes through a handle of its own, which loads only them. `None` if the bytes are in memory
    /// anyway, or can only be loaded as a whole.
    fn part(&self, range: Range<usize>) -> Option<SharedBytes> {
        let _ = range;
        None
    }

    /// The same elements in the layout with this name; `None` unless the owner also has them in that layout.
    fn laid_out(&self, layout: &str) -> Option<SharedBytes> {
        let _ = layout;
        None
    }

    /// How the bytes are computed; `None` unless they are derived from other constants.
    fn derivation(&self) -> Option<&Derivation> {
        None
    }
}

/// The same bytes through another handle, so that reading them keeps no loaded bytes in this one: see
/// [`Bytes::reopen`].
pub fn reopen_or_share(bytes: &SharedBytes) -> SharedBytes {
    bytes.reopen().unwrap_or_else(|| Arc::clone(bytes))
}

impl<T: AsRef<[u8]> + Send + Sync> Bytes for T {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
}

/// The contents of a constant.
#[derive(Clone)]
pub enum Constant {
    /// Bytes of a file or of another owner, aligned for their type.
    Shared(SharedBytes),
    /// A tensor that was computed when the graph was built or by a pass.
    Computed(Arc<CountedTensor>),
    /// A scalar.
    Scalar(Scalar),
}

impl From<Tensor> for Constant {
    /// A tensor that is not counted against a budget: see
    /// [`Graph::computed_constant`](crate::Graph::computed_constant).
    fn from(tensor: Tensor) -> Self {
        CountedTensor::from(tensor).into()
    }
}

impl From<CountedTensor> for Constant {
    fn from(tensor: CountedTensor) -> Self {
        Self::Computed(Arc::new(tensor))
    }
}

/// The bytes of constants without elements.
#[repr(align(64))]
struct NoBytes([u8; 0]);

static NO_BYTES: NoBytes = NoBytes([]);

impl Constant {
    /// The bytes, in the storage order of the value's meta; empty for a scalar.
    pub fn bytes(&self) -> &[u8] {
        let bytes = match self {
            Self::Shared(bytes) => bytes.bytes(),
            Self::Computed(tensor) => tensor.bytes(),
            Self::Scalar(_) => &[],
        };
        // An empty slice may have any address, but a tensor needs an address that is aligned for its elements.
        if bytes.is_empty() { &NO_BYTES.0 } else { bytes }
    }

    /// The number of bytes. If the bytes are loaded on access, this does not load them.
    pub fn nbytes(&self) -> usize {
        match self {
            Self::Shared(bytes) => bytes.len(),
            Self::Computed(_) | Self::Scalar(_) => self.bytes().len(),
        }
    }

    /// The reason why the bytes cannot be loaded; `None` if they can.
    pub fn problem(&self) -> Option<String> {
        if let Self::Shared(bytes) = self { bytes.problem() } else { None }
    }

    /// The same constant through another handle, so that reading its bytes there keeps no loaded bytes in this one: see
    /// [`Bytes::reopen`].
    pub fn reopen(&self) -> Self {
        match self {
            Self::Shared(bytes) => Self::Shared(reopen_or_share(bytes)),
            other => other.clone(),
        }
    }

    /// A range of the bytes that is loaded by itself: see [`Bytes::part`].
    pub fn part(&self, range: Range<usize>) -> Option<SharedBytes> {
        if let Self::Shared(bytes) = self { bytes.part(range) } else { None }
    }

    /// The same elements in the layout with this name; `None` unless the owner has them in that layout.
    pub fn laid_out(&self, layout: &str) -> Option<SharedBytes> {
        if let Self::Shared(bytes) = self { bytes.laid_out(layout) } else { None }
    }

    /// How the constant is computed from other constants; `None` if it is not, or no longer holds them.
    pub fn derivation(&self) -> Option<&Derivation> {
        if let Self::Shared(bytes) = self { bytes.derivation() } else { None }
    }

    /// The constant as a tensor of this meta. `None` if it has too few bytes or they cannot be loaded.
    pub fn view<'a>(&'a self, meta: &'a TensorMeta) -> Option<TensorView<'a>> {
        TensorView::new(meta, self.bytes().get(..meta.nbytes())?).ok()
    }
}

/// The type of a value: a tensor or a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A tensor, described by the value's meta.
    Tensor,
    /// A scalar: an integer, a double or a boolean, by the meta's dtype (`Long`, `Double`, `Bool`). The meta has
    /// rank 0.
    Scalar,
}

/// The definition of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Def {
    /// A node defines the value: the node, and the index among its results.
    Node(NodeId, usize),
    /// The value is a block parameter: the block, and the index among its parameters.
    Parameter(BlockId, usize),
    /// The value is a constant.
    Constant,
    /// The node that defined the value was removed.
    Removed,
}

/// The user of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum User {
    /// A node that has the value as an input.
    Node(NodeId),
    /// The terminator of this block.
    Terminator(BlockId),
}

/// One use of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Use {
    /// The node or terminator that uses the value.
    pub user: User,
    /// The index of the value among the user's operands.
    pub slot: usize,
}

/// A value of a graph.
#[derive(Clone)]
pub struct Value {
    pub(crate) ty: Type,
    pub(crate) meta: TensorMeta,
    pub(crate) constant: Option<Constant>,
    pub(crate) origin: Place,
    pub(crate) def: Def,
    pub(crate) uses: SmallVec<[Use; 2]>,
    /// How many of the value's uses are by terminators.
    pub(crate) terminator_uses: u32,
}

impl Value {
    pub(crate) fn new(ty: Type, meta: TensorMeta, origin: Place, def: Def) -> Self {
        Self { ty, meta, constant: None, origin, def, uses: SmallVec::new(), terminator_uses: 0 }
    }

    /// Whether the value is a tensor or a scalar.
    pub fn ty(&self) -> Type {
        self.ty
    }

    /// Element type, sizes and layout of the value. The sizes are upper bounds if [`Self::is_bounded`].
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Whether the sizes are upper bounds.
    pub fn is_bounded(&self) -> bool {
        self.ty == Type::Tensor && self.meta.dynamism() == ShapeDynamism::DynamicBound
    }

    /// The contents of a constant, or of a result that a pass has computed; `None` if they are not known.
    pub fn constant(&self) -> Option<&Constant> {
        self.constant.as_ref()
    }

    /// The instruction whose result the value is, if the builder of the graph has set it.
    pub fn origin(&self) -> Place {
        self.origin
    }

    /// What the value is: a result of a node, a parameter of a block, a constant, or a result of a removed node.
    pub fn def(&self) -> Def {
        self.def
    }

    /// The value as a tensor; `None` if it is not a constant tensor.
    pub fn view(&self) -> Option<TensorView<'_>> {
        self.constant.as_ref().filter(|_| self.ty == Type::Tensor)?.view(&self.meta)
    }

    /// The value as a scalar; `None` if it is not a constant scalar.
    pub fn scalar(&self) -> Option<Scalar> {
        if let Some(Constant::Scalar(scalar)) = self.constant { Some(scalar) } else { None }
    }
}

/// The meta that a scalar value of this type has.
pub(crate) fn scalar_meta(dtype: ScalarType) -> TensorMeta {
    TensorMeta::contiguous(dtype, &[]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::ScalarType;

    #[test]
    fn constants_without_elements_are_tensors_of_every_type() {
        for dtype in [ScalarType::Byte, ScalarType::Half, ScalarType::Double, ScalarType::ComplexDouble] {
            let meta = TensorMeta::contiguous(dtype, &[0, 3]).unwrap();
            let constant = Constant::Shared(Arc::new(Vec::<u8>::new()));
            assert!(constant.view(&meta).is_some(), "{dtype}");
        }
    }
}

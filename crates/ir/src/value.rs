use crate::{BlockId, Derivation, Identity, NodeId};
use operator::CountedTensor;
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::{Scalar, ScalarType, ShapeDynamism, Tensor, TensorMeta, TensorView};
use trace::Place;

/// Bytes that somebody else owns too: a segment of weights, say.
pub type SharedBytes = Arc<dyn Bytes>;

/// An owner of bytes, or of the way to have them.
pub trait Bytes: Send + Sync {
    /// The bytes, aligned for their type. None if they cannot be had, of which the owner tells whom it concerns.
    fn bytes(&self) -> &[u8];

    /// The number of bytes. They are not computed or read for it.
    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Why the bytes cannot be had, if they cannot.
    fn problem(&self) -> Option<String> {
        None
    }

    /// What tells these bytes from all others, whoever owns them, if that is known.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// The same bytes for another who looks at them, if they are had when they are looked at and kept for as long as
    /// their owner lives.
    fn again(&self) -> Option<SharedBytes> {
        None
    }

    /// The same elements laid out in a way of this name, if the owner has them so, too.
    fn laid_out(&self, layout: &str) -> Option<SharedBytes> {
        let _ = layout;
        None
    }

    /// How the bytes are computed, if they are the result of other constants.
    fn derivation(&self) -> Option<&Derivation> {
        None
    }
}

impl<T: AsRef<[u8]> + Send + Sync> Bytes for T {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
}

/// What a constant is.
#[derive(Clone)]
pub enum Constant {
    /// Bytes of a file or of another owner, aligned for their type.
    Shared(SharedBytes),
    /// Computed when the graph was made or by a pass.
    Computed(Arc<CountedTensor>),
    /// A number.
    Scalar(Scalar),
}

impl From<Tensor> for Constant {
    /// A tensor that counts in no budget: see [`Graph::computed`](crate::Graph::computed).
    fn from(tensor: Tensor) -> Self {
        CountedTensor::from(tensor).into()
    }
}

impl From<CountedTensor> for Constant {
    fn from(tensor: CountedTensor) -> Self {
        Self::Computed(Arc::new(tensor))
    }
}

impl Constant {
    /// The bytes, in the storage order of the value's meta; none of a number.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes.bytes(),
            Self::Computed(tensor) => tensor.bytes(),
            Self::Scalar(_) => &[],
        }
    }

    /// The number of bytes. They are not read for it, if that is left to whoever looks at them.
    pub fn nbytes(&self) -> usize {
        match self {
            Self::Shared(bytes) => bytes.len(),
            Self::Computed(_) | Self::Scalar(_) => self.bytes().len(),
        }
    }

    /// Why the bytes cannot be had, if they cannot.
    pub fn problem(&self) -> Option<String> {
        if let Self::Shared(bytes) = self { bytes.problem() } else { None }
    }

    /// The same constant, to look at without keeping its bytes where this one is.
    pub fn again(&self) -> Self {
        match self {
            Self::Shared(bytes) => Self::Shared(bytes.again().unwrap_or_else(|| Arc::clone(bytes))),
            other => other.clone(),
        }
    }

    /// The same elements laid out in a way of this name, if there are such.
    pub fn laid_out(&self, layout: &str) -> Option<SharedBytes> {
        if let Self::Shared(bytes) = self { bytes.laid_out(layout) } else { None }
    }

    /// How it is computed, if it is the result of other constants and keeps them.
    pub fn derivation(&self) -> Option<&Derivation> {
        if let Self::Shared(bytes) = self { bytes.derivation() } else { None }
    }

    /// The constant as a tensor of this meta. `None` if its bytes are too few or cannot be had.
    pub fn view<'a>(&'a self, meta: &'a TensorMeta) -> Option<TensorView<'a>> {
        TensorView::new(meta, self.bytes().get(..meta.nbytes())?).ok()
    }
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A tensor, of the value's meta.
    Tensor,
    /// A number: an integer, a double or a boolean as the meta's dtype says (`Long`, `Double`, `Bool`); the
    /// meta is of rank 0.
    Scalar,
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Def {
    /// It is this result of a node.
    Node(NodeId, usize),
    /// It is this parameter of a block.
    Parameter(BlockId, usize),
    /// It is a constant.
    Constant,
    /// What defined it was removed.
    Removed,
}

/// Who uses a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum User {
    /// A node, as an input.
    Node(NodeId),
    /// The end of a block.
    Terminator(BlockId),
}

/// One use of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Use {
    /// Who uses it.
    pub user: User,
    /// As which operand.
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
    /// How many of the uses are at the ends of blocks.
    pub(crate) ends: u32,
}

impl Value {
    pub(crate) fn new(ty: Type, meta: TensorMeta, origin: Place, def: Def) -> Self {
        Self { ty, meta, constant: None, origin, def, uses: SmallVec::new(), ends: 0 }
    }

    /// Whether it is a tensor or a number.
    pub fn ty(&self) -> Type {
        self.ty
    }

    /// Type, sizes and layout. If the dynamism says that sizes may change, they are upper bounds.
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Whether the sizes are upper bounds.
    pub fn is_bounded(&self) -> bool {
        self.ty == Type::Tensor && self.meta.dynamism() == ShapeDynamism::DynamicBound
    }

    /// What it is, if that is known: of a constant, or of a result that a pass has computed.
    pub fn constant(&self) -> Option<&Constant> {
        self.constant.as_ref()
    }

    /// The instruction whose result it is, where the graph's maker has said so.
    pub fn origin(&self) -> Place {
        self.origin
    }

    /// Where it comes from.
    pub fn def(&self) -> Def {
        self.def
    }

    /// The constant as a tensor.
    pub fn view(&self) -> Option<TensorView<'_>> {
        self.constant.as_ref().filter(|_| self.ty == Type::Tensor)?.view(&self.meta)
    }

    /// The number, if it is a constant one.
    pub fn scalar(&self) -> Option<Scalar> {
        if let Some(Constant::Scalar(scalar)) = self.constant { Some(scalar) } else { None }
    }
}

/// The meta of a number.
pub(crate) fn scalar_meta(dtype: ScalarType) -> TensorMeta {
    TensorMeta::contiguous(dtype, &[]).unwrap_or_default()
}

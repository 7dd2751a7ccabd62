//! The value table of a method: the run-time form of the program's EValues.

use pteron_tensor::{Extent, Scalar, Shape, TensorMeta};
use std::sync::Arc;

/// The index of a value in the method's table.
pub(crate) type Id = usize;

/// One entry of a method's table of values.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    None,
    Int(i64),
    Double(f64),
    Bool(bool),
    Str(Arc<str>),
    /// A list of integers: the ids of integer values, because instructions may compute the elements.
    Ints(Arc<[Id]>),
    Doubles(Arc<[f64]>),
    Bools(Arc<[bool]>),
    Tensors(Arc<[Id]>),
    OptionalTensors(Arc<[Option<Id>]>),
    Tensor(Box<TensorValue>),
}

/// A tensor in a method's table of values.
#[derive(Debug, Clone)]
pub(crate) struct TensorValue {
    /// Type, current sizes and layout.
    pub(crate) meta: TensorMeta,
    /// Where the tensor's bytes are now.
    pub(crate) storage: Storage,
    /// Where the memory plan places the tensor. A value that has become a view of another tensor returns here when it
    /// is next written.
    pub(crate) home: Storage,
    /// The tensor's sizes in the file: upper bounds if the tensor is dynamic.
    pub(crate) bound: Shape,
    /// The name that the exporter gave the tensor, if it is mutable or external.
    pub(crate) name: Option<Arc<str>>,
}

/// Where the bytes of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In an arena. The length of the extent is the tensor's capacity.
    Arena(Extent),
    /// In the entry with this index of the method's table of constants.
    Constant(usize),
    /// The tensor was freed and has no bytes.
    Nowhere,
}

impl Value {
    pub(crate) fn tensor(&self) -> Option<&TensorValue> {
        if let Self::Tensor(t) = self { Some(t) } else { None }
    }

    pub(crate) fn tensor_mut(&mut self) -> Option<&mut TensorValue> {
        if let Self::Tensor(t) = self { Some(t) } else { None }
    }

    /// The kind of the value, for error messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::Int(_) => "an integer",
            Self::Double(_) => "a number",
            Self::Bool(_) => "a boolean",
            Self::Str(_) => "a string",
            Self::Ints(_) => "a list of integers",
            Self::Doubles(_) => "a list of numbers",
            Self::Bools(_) => "a list of booleans",
            Self::Tensors(_) | Self::OptionalTensors(_) => "a list of tensors",
            Self::Tensor(_) => "a tensor",
        }
    }
}

impl From<Scalar> for Value {
    fn from(s: Scalar) -> Self {
        match s {
            Scalar::Int(v) => Self::Int(v),
            Scalar::Double(v) => Self::Double(v),
            Scalar::Bool(v) => Self::Bool(v),
        }
    }
}

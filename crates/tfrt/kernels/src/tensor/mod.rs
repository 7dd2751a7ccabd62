//! Shapes and tensors on the host.

mod buffer;
pub(crate) mod coo;
pub(crate) mod dense;
mod element;
mod shape;
pub(crate) mod string;

pub(crate) use buffer::Buffer;
pub(crate) use coo::Coo;
pub(crate) use dense::Dense;
pub(crate) use element::{Element, dtype_name, format_element};
pub(crate) use shape::TensorShape;
pub(crate) use string::Strings;

use pteron_bef::DType;
use pteron_host::KernelRegistry;
use std::fmt;

/// A tensor of any kind.
#[derive(Clone)]
pub(crate) enum Tensor {
    Dense(Dense),
    /// A tensor whose elements are all equal: its element type, its shape, and the bytes of the element.
    Scalar(DType, TensorShape, Vec<u8>),
    Strings(Strings),
    Coo(Coo),
}

/// The kind of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Dense,
    Scalar,
    Strings,
    Coo,
}

impl Kind {
    /// The name of the kind in programs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dense => "DenseHost",
            Self::Scalar => "ScalarHost",
            Self::Strings => "StringHost",
            Self::Coo => "CooHost",
        }
    }
}

impl Tensor {
    /// The kind of this tensor.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Dense(_) => Kind::Dense,
            Self::Scalar(..) => Kind::Scalar,
            Self::Strings(_) => Kind::Strings,
            Self::Coo(_) => Kind::Coo,
        }
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(tensor) => tensor.fmt(f),
            Self::Scalar(dtype, shape, value) => {
                let name = dtype_name(*dtype);
                let value = format_element(*dtype, value);
                write!(f, "ScalarHostTensor dtype = {name}, shape = {shape}, value = {value}")
            }
            Self::Strings(tensor) => tensor.fmt(f),
            Self::Coo(tensor) => tensor.fmt(f),
        }
    }
}

/// The items separated by `, `.
pub(crate) fn comma_separated<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|i| i.to_string()).collect::<Vec<_>>().join(", ")
}

pub(crate) fn register(registry: &mut KernelRegistry) {
    shape::register(registry);
    dense::register(registry);
    string::register(registry);
    coo::register(registry);
}

//! `corert.*`: operators that are found by name through op handlers, and take and give tensors.

mod attributes;
mod control;
mod handler;
mod kernels;
mod ops;

pub(crate) use attributes::OpAttrs;
pub(crate) use handler::OpHandler;

use crate::tensor::Tensor;
use host::{Fault, Frame, KernelRegistry, Value};

/// A tensor as operators take it. It is always there when its register is.
#[derive(Clone)]
pub(crate) struct TensorHandle(pub(crate) Tensor);

/// The tensor that an argument is a handle of.
pub(crate) fn tensor<'f>(frame: &'f Frame<'_>, index: usize) -> Result<&'f Tensor, Fault> {
    frame.object::<TensorHandle>(index).map(|handle| &handle.0)
}

/// A handle as a result.
pub(crate) fn handle(tensor: Tensor) -> Value {
    Value::object(TensorHandle(tensor))
}

pub(crate) fn register(registry: &mut KernelRegistry) {
    attributes::register(registry);
    control::register(registry);
    handler::register(registry);
    kernels::register(registry);
}

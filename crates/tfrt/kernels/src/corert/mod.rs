//! The `corert.*` kernels: operators on tensors, dispatched by name through op handlers.

mod attributes;
mod control;
mod handler;
mod kernels;
mod ops;

pub(crate) use attributes::OpAttrs;
pub(crate) use handler::OpHandler;

use crate::tensor::Tensor;
use pteron_host::{Fault, Frame, KernelRegistry, Value};

/// A handle of a tensor in a register. The tensor is available whenever the register is set.
#[derive(Clone)]
pub(crate) struct TensorHandle(pub(crate) Tensor);

/// The tensor of an argument that is a handle.
pub(crate) fn tensor_argument<'f>(frame: &'f Frame<'_>, index: usize) -> Result<&'f Tensor, Fault> {
    frame.object::<TensorHandle>(index).map(|handle| &handle.0)
}

/// A tensor handle as a result value.
pub(crate) fn handle_value(tensor: Tensor) -> Value {
    Value::object(TensorHandle(tensor))
}

pub(crate) fn register(registry: &mut KernelRegistry) {
    attributes::register(registry);
    control::register(registry);
    handler::register(registry);
    kernels::register(registry);
}

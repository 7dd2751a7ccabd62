use super::{Tensor, TensorShape, separated};
use crate::kernels::{RegistryExt, object};
use bef::Attribute;
use host::{Fault, Frame, KernelRegistry, Value};
use std::fmt;

/// Maximum number of elements printed of a tensor.
const MAX_PRINTED: usize = 16;

/// A tensor of strings.
#[derive(Clone)]
pub(crate) struct Strings {
    pub(crate) shape: TensorShape,
    pub(crate) strings: Vec<String>,
}

impl fmt::Display for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.strings.iter().take(MAX_PRINTED).map(|s| format!("\"{s}\""));
        // The reference prints 16 elements, but the ellipsis only if there are more than 32.
        let more = if self.strings.len() > 32 { ", ... " } else { "" };
        write!(f, "StringHostTensor shape = {}, values = [{}{more}]", self.shape, separated(values))
    }
}

/// The strings of an aggregate attribute.
pub(crate) fn strings(values: &[Attribute<'static>]) -> Result<Vec<String>, Fault> {
    let text = |value: &Attribute<'static>| match value {
        Attribute::String(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        other => Err(Fault::invalid(format!("{:?}, expected a string", other.attribute_type()))),
    };
    values.iter().map(text).collect()
}

/// An aggregate attribute; an empty aggregate is recorded as an array.
pub(crate) fn aggregate<'f>(frame: &Frame<'f>, index: usize) -> Result<&'f [Attribute<'static>], Fault> {
    match frame.attribute::<&[Attribute<'static>]>(index) {
        Ok(values) => Ok(values),
        Err(fault) => match frame.attribute::<&bef::Array<'static>>(index) {
            Ok(array) if array.is_empty() => Ok(&[]),
            _ => Err(fault),
        },
    }
}

fn uninitialized(frame: &Frame<'_>) -> Result<Strings, Fault> {
    let shape = TensorShape::new(frame.attribute(0)?)?;
    let bytes = shape.elements().saturating_mul(size_of::<String>() as u64);
    let limit = frame.context().host().limits().value_bytes;
    if bytes > limit {
        return Err(Fault::invalid(format!(
            "{bytes} bytes of strings: at most {limit} (Limits::value_bytes)"
        )));
    }
    Ok(Strings { strings: vec![String::new(); shape.elements() as usize], shape })
}

fn create(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let shape = TensorShape::new(frame.attribute(0)?)?;
    let strings = strings(aggregate(frame, 1)?)?;
    if strings.len() as u64 != shape.elements() {
        return Err("Shape mismatch".into());
    }
    Ok(object(Tensor::Strings(Strings { shape, strings })))
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.fallible("tfrt_sht.create_tensor", create);
    registry.fallible("tfrt_sht_sync.create_tensor", create);
    registry.fallible("tfrt_sht_sync.create_uninitialized_tensor", |frame: &mut Frame<'_>| {
        Ok(object(Tensor::Strings(uninitialized(frame)?)))
    });
}

use super::{Tensor, TensorShape, comma_separated};
use crate::kernels::{RegistryExt, object_value};
use pteron_bef::Attribute;
use pteron_host::{Charge, ErrorCode, Fault, Frame, KernelRegistry, Value};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Maximum number of elements of a string tensor that are printed.
const MAX_PRINTED: usize = 16;

/// A tensor of strings. Its memory is charged to the request.
#[derive(Clone)]
pub(crate) struct Strings {
    pub(crate) shape: TensorShape,
    pub(crate) strings: Arc<[String]>,
    _charge: Arc<Charge>,
}

/// Charges the memory of a tensor of `count` strings with `bytes` bytes in total.
fn charge(frame: &Frame<'_>, count: u64, bytes: u64) -> Result<Arc<Charge>, Fault> {
    let bytes = count.saturating_mul(size_of::<String>() as u64).saturating_add(bytes);
    let limit = frame.context().host().limits().value_bytes;
    if bytes > limit {
        let why = format!("{bytes} bytes of strings: the limit is {limit} (Limits::value_bytes)");
        return Err(Fault::new(ErrorCode::ResourceExhausted, why));
    }
    frame.context().charge(bytes).map(Arc::new)
}

impl Strings {
    /// A tensor of the strings of an aggregate attribute; their number must be the shape's.
    pub(crate) fn new(
        frame: &Frame<'_>,
        shape: TensorShape,
        values: &[Attribute<'_>],
    ) -> Result<Self, Fault> {
        let bytes = values.iter().map(|value| element_text(value).map_or(0, |text| text.len() as u64)).sum();
        let _charge = charge(frame, values.len() as u64, bytes)?;
        let strings = values.iter().map(|value| element_text(value).map(Cow::into_owned));
        Ok(Self { shape, strings: strings.collect::<Result<_, _>>()?, _charge })
    }

    /// A tensor whose strings are all `text`.
    pub(crate) fn repeat(frame: &Frame<'_>, shape: TensorShape, text: &str) -> Result<Self, Fault> {
        let count = shape.element_count();
        let _charge = charge(frame, count, count.saturating_mul(text.len() as u64))?;
        let strings = std::iter::repeat_n(text.to_owned(), count as usize).collect();
        Ok(Self { shape, strings, _charge })
    }
}

impl fmt::Display for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.strings.iter().take(MAX_PRINTED).map(|s| format!("\"{s}\""));
        // The reference prints 16 elements, but the ellipsis only if there are more than 32.
        let more = if self.strings.len() > 32 { ", ... " } else { "" };
        write!(f, "StringHostTensor shape = {}, values = [{}{more}]", self.shape, comma_separated(values))
    }
}

/// The text of an element of an aggregate attribute.
pub(crate) fn element_text<'a>(value: &'a Attribute<'_>) -> Result<Cow<'a, str>, Fault> {
    match value {
        Attribute::String(bytes) => Ok(String::from_utf8_lossy(bytes)),
        other => Err(Fault::invalid(format!("{:?}, expected a string", other.attribute_type()))),
    }
}

/// The elements of an aggregate attribute. An empty array is accepted, since files record an empty aggregate as one.
pub(crate) fn aggregate_attribute<'f>(frame: &Frame<'f>, index: usize) -> Result<&'f [Attribute<'f>], Fault> {
    match frame.attribute::<&[Attribute<'f>]>(index) {
        Ok(values) => Ok(values),
        Err(fault) => match frame.attribute::<&pteron_bef::Array<'f>>(index) {
            Ok(array) if array.is_empty() => Ok(&[]),
            _ => Err(fault),
        },
    }
}

fn create(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let shape = TensorShape::new(frame.attribute(0)?)?;
    let values = aggregate_attribute(frame, 1)?;
    if values.len() as u64 != shape.element_count() {
        return Err("Shape mismatch".into());
    }
    Ok(object_value(Tensor::Strings(Strings::new(frame, shape, values)?)))
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("tfrt_sht.create_tensor", create);
    registry.add_fallible("tfrt_sht_sync.create_tensor", create);
    registry.add_fallible("tfrt_sht_sync.create_uninitialized_tensor", |frame: &mut Frame<'_>| {
        let shape = TensorShape::new(frame.attribute(0)?)?;
        Ok(object_value(Tensor::Strings(Strings::repeat(frame, shape, "")?)))
    });
}

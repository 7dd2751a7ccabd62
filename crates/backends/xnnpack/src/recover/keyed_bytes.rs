use pteron_exported::ConstantTensor;
use pteron_runtime::{FreeableBuffer, NamedDataMap};
use pteron_tensor::TensorMeta;

/// A program's named data, looked up by a callback.
pub(super) struct KeyedBytes<'a>(pub(super) &'a (dyn Fn(&str) -> Option<ConstantTensor> + Send + Sync));

impl NamedDataMap for KeyedBytes<'_> {
    fn tensor_layout(&self, _: &str) -> pteron_runtime::Result<Option<TensorMeta>> {
        Ok(None)
    }

    fn data(&self, key: &str) -> pteron_runtime::Result<FreeableBuffer> {
        match (self.0)(key) {
            Some(tensor) => FreeableBuffer::from_bytes(tensor.data()),
            None => Err(pteron_runtime::Error::NoSuchKey {
                key: key.to_owned(),
                source_name: self.name().to_owned(),
            }),
        }
    }

    fn contains(&self, key: &str) -> bool {
        (self.0)(key).is_some()
    }

    fn keys(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(std::iter::empty())
    }

    fn name(&self) -> &str {
        "the program"
    }
}

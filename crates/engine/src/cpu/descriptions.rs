//! Shares equal tensor metas between executables.

use pteron_tensor::TensorMeta;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The number of slots of the cache.
const RECENT: usize = 64;

/// A direct-mapped cache of recently requested metas.
///
/// A program may have a hundred thousand regions of two calls, and a meta takes 0.3 kB, so equal metas of different
/// regions are shared. Each meta has one slot, chosen by its hash, and replaces the meta that was there: the size of
/// the cache is bounded, whatever sizes occur.
#[derive(Default)]
pub(crate) struct Descriptions(Vec<Option<Arc<TensorMeta>>>);

impl Descriptions {
    /// The meta in an `Arc`; if an equal one is still in the cache, its `Arc` is shared.
    pub(crate) fn share(&mut self, meta: &TensorMeta) -> Arc<TensorMeta> {
        let mut hasher = DefaultHasher::new();
        (meta.dtype().name(), &meta.sizes()[..]).hash(&mut hasher);
        self.0.resize(RECENT, None);
        let place = &mut self.0[hasher.finish() as usize % RECENT];
        match place {
            Some(known) if **known == *meta => Arc::clone(known),
            _ => Arc::clone(place.insert(Arc::new(meta.clone()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::ScalarType;

    #[test]
    fn equal_metas_are_shared_and_the_cache_is_bounded() {
        let mut descriptions = Descriptions::default();
        let meta = |size| TensorMeta::contiguous(ScalarType::Float, &[size, 2]).unwrap();
        let first = descriptions.share(&meta(1));
        assert!(Arc::ptr_eq(&first, &descriptions.share(&meta(1))));
        for size in 0..1000 {
            assert_eq!(*descriptions.share(&meta(size)), meta(size));
        }
        assert!(descriptions.0.iter().flatten().count() <= RECENT);
        assert_eq!(*first, meta(1));
    }
}

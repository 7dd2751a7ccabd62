use super::source::InMap;
use super::{MergedDataMap, NamedDataMap};
use crate::convert::usize_of;
use crate::limits::memory_limit_error;
use crate::open::{ConstantBytes, Deferred, Elements};
use crate::{FreeableBuffer, Result};
use pteron_engine::SourceId;
use pteron_operator::Budget;
use pteron_tensor::TensorMeta;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// The named data that backends get. Its bytes are charged to the method's memory budget while a backend keeps them.
pub(crate) struct CountedDataMap {
    map: Arc<MergedDataMap>,
    budget: Budget,
    /// The alignments in bytes, by key, of the entries whose bytes must be aligned.
    alignments: BTreeMap<String, u64>,
    /// Entries that backends have requested as constants, by key.
    constants: Mutex<HashMap<String, Arc<Deferred>>>,
}

impl CountedDataMap {
    pub(crate) fn new(map: MergedDataMap, budget: Budget, alignments: BTreeMap<String, u64>) -> Self {
        Self { map: Arc::new(map), budget, alignments, constants: Mutex::default() }
    }
}

impl NamedDataMap for CountedDataMap {
    fn tensor_layout(&self, key: &str) -> Result<Option<TensorMeta>> {
        self.map.tensor_layout(key)
    }

    fn nbytes(&self, key: &str) -> Result<u64> {
        self.map.nbytes(key)
    }

    /// Charges the budget, then reads the entry. The charge is refunded if the bytes take no memory of their own.
    fn data(&self, key: &str) -> Result<FreeableBuffer> {
        let bytes = usize::try_from(self.map.nbytes(key)?).unwrap_or(usize::MAX);
        let reservation = self.budget.take("its named data", bytes).map_err(memory_limit_error)?;
        let data = self.map.data(key)?.with_reservation(reservation);
        match self.alignments.get(key) {
            Some(&alignment) => {
                let alignment = usize_of(alignment)?;
                data.aligned(alignment, "its aligned named data", &self.budget).map_err(memory_limit_error)
            }
            None => Ok(data),
        }
    }

    fn source(&self, key: &str) -> Option<(SourceId, u64)> {
        self.map.source(key)
    }

    fn constant(&self, key: &str) -> Result<ConstantBytes> {
        let mut constants = self.constants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = constants.get(key) {
            return Ok(ConstantBytes::from_deferred(Arc::clone(known)));
        }
        let len = usize_of(self.map.nbytes(key)?)?;
        let source = InMap(Arc::clone(&self.map) as _, key.to_owned());
        let new = Arc::new(Deferred::new(source, len, Elements::Blob, &self.budget));
        constants.insert(key.to_owned(), Arc::clone(&new));
        Ok(ConstantBytes::from_deferred(new))
    }

    fn load_data_into(&self, key: &str, target: &mut [u8]) -> Result<()> {
        self.map.load_data_into(key, target)
    }

    fn contains(&self, key: &str) -> bool {
        self.map.contains(key)
    }

    fn keys(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        self.map.keys()
    }

    fn name(&self) -> &str {
        self.map.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_engine::{Bytes, Constant};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A map with one entry of 40 bytes, and how often the entry was read.
    #[derive(Default)]
    struct Weights(AtomicUsize);

    impl NamedDataMap for Weights {
        fn tensor_layout(&self, _: &str) -> Result<Option<TensorMeta>> {
            Ok(None)
        }

        fn nbytes(&self, _: &str) -> Result<u64> {
            Ok(40)
        }

        fn data(&self, _: &str) -> Result<FreeableBuffer> {
            self.0.fetch_add(1, Ordering::Relaxed);
            FreeableBuffer::from_bytes(&[7; 40])
        }

        fn contains(&self, key: &str) -> bool {
            key == "w"
        }

        fn keys(&self) -> Box<dyn Iterator<Item = &str> + '_> {
            Box::new(std::iter::once("w"))
        }

        fn name(&self) -> &str {
            "weights"
        }
    }

    #[test]
    fn delegate_constants_are_read_on_first_access_and_shared() {
        let (weights, budget) = (Arc::new(Weights::default()), Budget::new(64));
        let maps: Vec<Arc<dyn NamedDataMap>> = vec![weights.clone()];
        let map = CountedDataMap::new(MergedDataMap::new(maps).unwrap(), budget.clone(), BTreeMap::new());
        let reads = || (weights.0.load(Ordering::Relaxed), budget.held());
        let (a, b) = (map.constant("w").unwrap(), map.constant("w").unwrap());
        let shared = |constant: &ConstantBytes| match constant.to_graph_constant() {
            Constant::Shared(bytes) => bytes,
            _ => unreachable!(),
        };
        let (in_graph, in_another) = (shared(&a), shared(&b));
        assert!(in_graph.identity().is_some());
        assert_eq!((in_graph.identity(), in_graph.len()), (in_another.identity(), 40));
        assert_eq!(reads(), (0, 0));
        assert_eq!((in_graph.bytes(), in_another.bytes()), (&[7; 40][..], &[7; 40][..]));
        assert_eq!(reads(), (1, 40));
        drop((in_graph, in_another));
        assert_eq!(reads(), (1, 0));
        let looked_at = a.reopen();
        assert!(looked_at.read().is_ok() && b.size() == 40);
        assert_eq!(reads(), (2, 40));
        drop(looked_at);
        assert_eq!(reads(), (2, 0));
        let full = budget.take("a test", 30).unwrap();
        assert!(a.read().is_err() && a.is_empty());
        let problem = shared(&a).problem();
        assert!(problem.as_ref().is_some_and(|problem| problem.contains("64")), "{problem:?}");
        drop(full);
        assert!(map.constant("v").is_err());
    }
}

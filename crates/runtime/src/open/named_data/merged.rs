use super::{NamedDataMap, no_such_key};
use crate::{Error, FreeableBuffer, Result};
use pteron_engine::SourceId;
use pteron_tensor::TensorMeta;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Several maps, read as one. Each key is in only one of them.
pub struct MergedDataMap {
    maps: Vec<Arc<dyn NamedDataMap>>,
    index: HashMap<String, usize>,
    name: String,
}

impl MergedDataMap {
    /// Merges maps. A key that two of them contain is an error that names both maps.
    pub fn new(maps: Vec<Arc<dyn NamedDataMap>>) -> Result<Self> {
        let mut index: HashMap<String, usize> = HashMap::new();
        for (i, map) in maps.iter().enumerate() {
            for key in map.keys() {
                if let Some(first) = index.insert(key.to_owned(), i) {
                    return Err(Error::DuplicateKey {
                        key: key.to_owned(),
                        first: maps[first].name().to_owned(),
                        second: map.name().to_owned(),
                    });
                }
            }
        }
        let name = maps.iter().map(|m| m.name()).collect::<Vec<_>>().join(" and ");
        Ok(Self { maps, index, name })
    }

    fn owner(&self, key: &str) -> Result<&dyn NamedDataMap> {
        self.index.get(key).map(|&i| &*self.maps[i]).ok_or_else(|| no_such_key(key, self))
    }
}

impl NamedDataMap for MergedDataMap {
    fn tensor_layout(&self, key: &str) -> Result<Option<TensorMeta>> {
        self.owner(key)?.tensor_layout(key)
    }

    fn nbytes(&self, key: &str) -> Result<u64> {
        self.owner(key)?.nbytes(key)
    }

    fn data(&self, key: &str) -> Result<FreeableBuffer> {
        self.owner(key)?.data(key)
    }

    fn source(&self, key: &str) -> Option<(SourceId, u64)> {
        self.owner(key).ok()?.source(key)
    }

    fn data_part(&self, key: &str, part: Range<u64>) -> Option<Result<FreeableBuffer>> {
        self.owner(key).ok()?.data_part(key, part)
    }

    fn load_data_into(&self, key: &str, target: &mut [u8]) -> Result<()> {
        self.owner(key)?.load_data_into(key, target)
    }

    fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    fn keys(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.maps.iter().flat_map(|m| m.keys()))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

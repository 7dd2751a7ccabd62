//! Named data as the source of constants.

use super::NamedDataMap;
use crate::open::Source;
use crate::{FreeableBuffer, Result};
use pteron_engine::SourceId;
use std::sync::Arc;

/// An entry of named data: the map and the key.
pub(crate) struct InMap(pub(crate) Arc<dyn NamedDataMap>, pub(crate) String);

impl Source for InMap {
    fn origin(&self) -> Option<(SourceId, u64)> {
        self.0.source(&self.1)
    }

    fn read(&self, _: usize) -> Result<FreeableBuffer> {
        self.0.data(&self.1)
    }

    fn part(&self, start: u64, _: usize) -> Option<Box<dyn Source>> {
        // Whether the map serves parts, without reading any.
        self.0.data_part(&self.1, 0..0)?.ok()?;
        Some(Box::new(InMapPart(Arc::clone(&self.0), self.1.clone(), start)))
    }
}

/// The bytes of an entry of named data from an offset on: the map, the key and the offset.
struct InMapPart(Arc<dyn NamedDataMap>, String, u64);

impl Source for InMapPart {
    fn origin(&self) -> Option<(SourceId, u64)> {
        let (source, at) = self.0.source(&self.1)?;
        Some((source, at.saturating_add(self.2)))
    }

    fn read(&self, len: usize) -> Result<FreeableBuffer> {
        let part = self.0.data_part(&self.1, self.2..self.2.saturating_add(len as u64));
        // [`InMap::part`] asks only maps that serve parts.
        Ok(part.transpose()?.unwrap_or_default())
    }

    fn part(&self, _: u64, _: usize) -> Option<Box<dyn Source>> {
        None
    }
}

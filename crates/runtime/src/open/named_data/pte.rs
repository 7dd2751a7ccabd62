use super::{NamedDataMap, no_such_key, subrange};
use crate::{FreeableBuffer, Program, Purpose, Result};
use pteron_engine::SourceId;
use pteron_tensor::TensorMeta;
use std::ops::Range;

/// The named data of a program: blobs, which have no layout.
pub struct PteDataMap {
    program: Program,
    name: String,
}

impl PteDataMap {
    /// The named data of this program.
    pub fn new(program: Program) -> Self {
        let name = format!("the program {}", program.loader().name());
        Self { program, name }
    }

    fn range(&self, key: &str) -> Result<Range<u64>> {
        self.program.tables().named_data(key).ok_or_else(|| no_such_key(key, self))
    }
}

impl NamedDataMap for PteDataMap {
    fn tensor_layout(&self, key: &str) -> Result<Option<TensorMeta>> {
        if self.contains(key) { Ok(None) } else { Err(no_such_key(key, self)) }
    }

    fn nbytes(&self, key: &str) -> Result<u64> {
        let range = self.range(key)?;
        Ok(range.end.saturating_sub(range.start))
    }

    fn data(&self, key: &str) -> Result<FreeableBuffer> {
        self.program.load_range(self.range(key)?, Purpose::Named)
    }

    fn source(&self, key: &str) -> Option<(SourceId, u64)> {
        Some((self.program.source(), self.range(key).ok()?.start))
    }

    fn data_part(&self, key: &str, part: Range<u64>) -> Option<Result<FreeableBuffer>> {
        Some(self.program.load_range(subrange(self.range(key).ok()?, part)?, Purpose::Named))
    }

    fn contains(&self, key: &str) -> bool {
        self.range(key).is_ok()
    }

    fn keys(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.program.tables().named_data.iter().map(|n| n.key.as_str()))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

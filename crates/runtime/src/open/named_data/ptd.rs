use super::{NamedDataMap, no_such_key, subrange};
use crate::{DataLoader, Error, FileLoader, FreeableBuffer, Limits, MmapLoader, Purpose, Result};
use pteron_engine::SourceId;
use pteron_format::ptd;
use pteron_tensor::{DimOrder, ScalarType, TensorMeta, Unchanged};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The entries of a `.ptd` file, read or mapped on demand.
pub struct PtdDataMap {
    loader: Arc<dyn DataLoader>,
    source: SourceId,
    header: ptd::Header,
    file: ptd::VerifiedFlatTensor,
    index: HashMap<String, usize>,
}

impl PtdDataMap {
    /// Opens a `.ptd` file and reads ranges of it on demand.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::load(Arc::new(FileLoader::open(path)?), &Limits::default())
    }

    /// Memory-maps a `.ptd` file, which must not change while its data is in use. Its pages are shared with every
    /// process that maps it.
    pub fn map(path: impl AsRef<Path>, unchanged: Unchanged) -> Result<Self> {
        Self::load(Arc::new(MmapLoader::open(path, unchanged)?), &Limits::default())
    }

    /// Reads and verifies the header and the tables, not the data.
    pub fn load(loader: Arc<dyn DataLoader>, limits: &Limits) -> Result<Self> {
        let fail = |e| Error::format(loader.name(), e);
        let head_len = loader.size().min(pteron_format::container::HEAD_BYTES as u64);
        let head = loader.load(0, head_len, Purpose::Program)?;
        let header = ptd::Header::parse(&head, loader.size()).map_err(fail)?;
        let needed = header.tables_range().end;
        if needed > limits.format.program_bytes {
            return Err(Error::Limit {
                what: format!("the tables of {}", loader.name()),
                needed,
                limit: limits.format.program_bytes,
                field: "format.program_bytes",
            });
        }
        if loader.takes_memory() {
            limits.check_memory(|| format!("the tables of {}", loader.name()), needed)?;
        }
        let tables = loader.load(0, header.tables_range().end, Purpose::Program)?;
        let file = ptd::VerifiedFlatTensor::read(&tables, &header, &limits.format).map_err(fail)?;
        let index = file.named_data.iter().enumerate().map(|(i, n)| (n.key.clone(), i)).collect();
        let source = loader.source().unwrap_or_else(SourceId::unique);
        Ok(Self { loader, source, header, file, index })
    }

    /// The file's header.
    pub fn header(&self) -> &ptd::Header {
        &self.header
    }

    /// The file's verified tables.
    pub fn tables(&self) -> &ptd::VerifiedFlatTensor {
        &self.file
    }

    /// The loader of the file's bytes.
    pub fn loader(&self) -> &Arc<dyn DataLoader> {
        &self.loader
    }

    fn entry(&self, key: &str) -> Result<&ptd::NamedData> {
        match self.index.get(key) {
            Some(&i) => Ok(&self.file.named_data[i]),
            None => Err(no_such_key(key, self)),
        }
    }

    /// The file offset and length of an entry. The length of a tensor follows from its layout; a blob extends to the
    /// end of its segment.
    fn offset_and_len(&self, entry: &ptd::NamedData) -> (u64, u64) {
        let segment = self.file.segments.get(entry.segment_index as usize).copied().unwrap_or_default();
        let start = self.header.segment_base_offset.saturating_add(segment.offset);
        let rest = segment.size.saturating_sub(entry.segment_offset);
        let len = entry.tensor_layout.as_ref().and_then(ptd::TensorLayout::nbytes).unwrap_or(rest);
        (start.saturating_add(entry.segment_offset), len)
    }
}

impl NamedDataMap for PtdDataMap {
    fn tensor_layout(&self, key: &str) -> Result<Option<TensorMeta>> {
        let Some(layout) = &self.entry(key)?.tensor_layout else { return Ok(None) };
        let sizes: Vec<usize> =
            layout.sizes.iter().map(|&s| usize::try_from(s).unwrap_or(usize::MAX)).collect();
        let dtype = ScalarType::from_i8(layout.scalar_type)?;
        Ok(Some(TensorMeta::new(dtype, &sizes, DimOrder::new(&layout.dim_order)?)?))
    }

    fn nbytes(&self, key: &str) -> Result<u64> {
        Ok(self.offset_and_len(self.entry(key)?).1)
    }

    fn data(&self, key: &str) -> Result<FreeableBuffer> {
        let (offset, len) = self.offset_and_len(self.entry(key)?);
        Ok(self.loader.load(offset, len, Purpose::Named)?.with_source(self.source, offset))
    }

    fn source(&self, key: &str) -> Option<(SourceId, u64)> {
        Some((self.source, self.offset_and_len(self.entry(key).ok()?).0))
    }

    fn data_part(&self, key: &str, part: Range<u64>) -> Option<Result<FreeableBuffer>> {
        let (start, len) = self.offset_and_len(self.entry(key).ok()?);
        let part = subrange(start..start.checked_add(len)?, part)?;
        Some(self.loader.load(part.start, part.end - part.start, Purpose::Named))
    }

    fn load_data_into(&self, key: &str, target: &mut [u8]) -> Result<()> {
        let (offset, len) = self.offset_and_len(self.entry(key)?);
        if len != target.len() as u64 {
            let available = usize::try_from(len).unwrap_or(usize::MAX);
            return Err(
                pteron_tensor::Error::WrongByteCount { expected: target.len(), found: available }.into()
            );
        }
        self.loader.load_into(offset, target, Purpose::Named)
    }

    fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    fn keys(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.file.named_data.iter().map(|n| n.key.as_str()))
    }

    fn name(&self) -> &str {
        self.loader.name()
    }
}

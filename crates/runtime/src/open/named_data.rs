//! Data by name: the entries of `.ptd` files and of a program's own named data.

use crate::convert::usize_of;
use crate::limits::over_memory;
use crate::open::{ConstantBytes, Deferred, Elements, Source};
use crate::{DataLoader, Error, FileLoader, FreeableBuffer, Limits, MmapLoader, Program, Purpose, Result};
use pteron_engine::SourceId;
use pteron_format::ptd;
use pteron_operator::Budget;
use pteron_tensor::{DimOrder, ScalarType, TensorMeta, Unchanged};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Named blobs and tensors.
pub trait NamedDataMap: Send + Sync {
    /// Type, sizes and layout of an entry. `Ok(None)` if the entry is a blob without them.
    fn tensor_layout(&self, key: &str) -> Result<Option<TensorMeta>>;

    /// The number of bytes of an entry. A map that knows the size should override this default, which reads the entry.
    fn nbytes(&self, key: &str) -> Result<u64> {
        Ok(self.data(key)?.len() as u64)
    }

    /// The bytes of an entry.
    fn data(&self, key: &str) -> Result<FreeableBuffer>;

    /// The bytes of an entry, as a constant for a backend. The map that the runtime passes to backends reads them on
    /// first access, once for all delegates and aligned to 16 bytes, so that unpacked weights need not stay in memory
    /// beside their packed form.
    fn constant(&self, key: &str) -> Result<ConstantBytes> {
        Ok(ConstantBytes::here(self.data(key)?))
    }

    /// The source of an entry's bytes and their offset in it, if other maps may serve the same source. Data derived
    /// from the bytes, such as packed weights, is shared among all users of the same range of a source. The bytes of a
    /// range must never change.
    fn source(&self, key: &str) -> Option<(SourceId, u64)> {
        let _ = key;
        None
    }

    /// A range of an entry's bytes, so that large weights can be packed without being in memory as a whole. `None` if the
    /// map can only serve whole entries.
    fn data_part(&self, key: &str, part: Range<u64>) -> Option<Result<FreeableBuffer>> {
        let _ = (key, part);
        None
    }

    /// Copies the bytes of an entry into `target`, whose length must match exactly.
    fn load_data_into(&self, key: &str, target: &mut [u8]) -> Result<()> {
        let data = self.data(key)?;
        if data.len() != target.len() {
            return Err(
                pteron_tensor::Error::WrongByteCount { expected: target.len(), found: data.len() }.into()
            );
        }
        target.copy_from_slice(&data);
        Ok(())
    }

    /// Whether there is such an entry.
    fn contains(&self, key: &str) -> bool;

    /// The keys.
    fn keys(&self) -> Box<dyn Iterator<Item = &str> + '_>;

    /// The name of the map in error messages.
    fn name(&self) -> &str;
}

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
        let source = loader.source().unwrap_or_else(SourceId::numbered);
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
            None => Err(no_key(key, self)),
        }
    }

    /// The file offset and length of an entry. The length of a tensor follows from its layout; a blob extends to the
    /// end of its segment.
    fn range(&self, entry: &ptd::NamedData) -> (u64, u64) {
        let segment = self.file.segments.get(entry.segment_index as usize).copied().unwrap_or_default();
        let start = self.header.segment_base_offset.saturating_add(segment.offset);
        let rest = segment.size.saturating_sub(entry.segment_offset);
        let len = entry.tensor_layout.as_ref().and_then(ptd::TensorLayout::nbytes).unwrap_or(rest);
        (start.saturating_add(entry.segment_offset), len)
    }
}

/// A part of a range of a file; `None` if it is not within the range.
fn within(all: Range<u64>, part: Range<u64>) -> Option<Range<u64>> {
    let part = all.start.checked_add(part.start)?..all.start.checked_add(part.end)?;
    (part.start <= part.end && part.end <= all.end).then_some(part)
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
        Ok(self.range(self.entry(key)?).1)
    }

    fn data(&self, key: &str) -> Result<FreeableBuffer> {
        let (offset, len) = self.range(self.entry(key)?);
        Ok(self.loader.load(offset, len, Purpose::Named)?.of_source(self.source, offset))
    }

    fn source(&self, key: &str) -> Option<(SourceId, u64)> {
        Some((self.source, self.range(self.entry(key).ok()?).0))
    }

    fn data_part(&self, key: &str, part: Range<u64>) -> Option<Result<FreeableBuffer>> {
        let (start, len) = self.range(self.entry(key).ok()?);
        let part = within(start..start.checked_add(len)?, part)?;
        Some(self.loader.load(part.start, part.end - part.start, Purpose::Named))
    }

    fn load_data_into(&self, key: &str, target: &mut [u8]) -> Result<()> {
        let (offset, len) = self.range(self.entry(key)?);
        if len != target.len() as u64 {
            let found = usize::try_from(len).unwrap_or(usize::MAX);
            return Err(pteron_tensor::Error::WrongByteCount { expected: target.len(), found }.into());
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
        self.program.tables().named_data(key).ok_or_else(|| no_key(key, self))
    }
}

impl NamedDataMap for PteDataMap {
    fn tensor_layout(&self, key: &str) -> Result<Option<TensorMeta>> {
        if self.contains(key) { Ok(None) } else { Err(no_key(key, self)) }
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
        Some(self.program.load_range(within(self.range(key).ok()?, part)?, Purpose::Named))
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

/// Several maps as one. Keys are unique across them.
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
        self.index.get(key).map(|&i| &*self.maps[i]).ok_or_else(|| no_key(key, self))
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

/// The map that backends get: it charges bytes to the method's memory budget for as long as the backend keeps them.
pub(crate) struct CountedDataMap {
    map: Arc<MergedDataMap>,
    budget: Budget,
    /// The alignments of entries whose bytes must not be at any address.
    alignments: BTreeMap<String, u64>,
    /// Entries that backends have requested as constants.
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

    /// Charges the budget before the bytes are read, and refunds it if they take no memory of their own.
    fn data(&self, key: &str) -> Result<FreeableBuffer> {
        let bytes = usize::try_from(self.map.nbytes(key)?).unwrap_or(usize::MAX);
        let reservation = self.budget.take("its named data", bytes).map_err(over_memory)?;
        let data = self.map.data(key)?.holding(reservation);
        match self.alignments.get(key) {
            Some(&alignment) => {
                let alignment = usize_of(alignment)?;
                data.aligned(alignment, "its aligned named data", &self.budget).map_err(over_memory)
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
            return Ok(ConstantBytes::deferred(Arc::clone(known)));
        }
        let len = usize_of(self.map.nbytes(key)?)?;
        let source = InMap(Arc::clone(&self.map) as _, key.to_owned());
        let new = Arc::new(Deferred::new(source, len, Elements::Blob, &self.budget));
        constants.insert(key.to_owned(), Arc::clone(&new));
        Ok(ConstantBytes::deferred(new))
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

/// An entry of named data.
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

/// What follows an offset in an entry of named data.
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

fn no_key(key: &str, map: &dyn NamedDataMap) -> Error {
    Error::NoSuchKey { key: key.to_owned(), source_name: map.name().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_engine::{Bytes, Constant};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// One entry of 40 bytes, and how often it was read.
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
        let shared = |constant: &ConstantBytes| match constant.to_graph() {
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

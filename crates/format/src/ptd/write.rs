use super::header::HEADER_MAGIC;
use super::{
    FlatTensor, HEADER_LENGTH, Header, IDENTIFIER, NamedData, TensorLayout, VerifiedFlatTensor, verify,
};
use crate::container::{
    Blob, Layout, Segment, Sharing, cache_blobs, insert_header_space, write_data_segments, write_header,
};
use crate::flatbuffer::{Field, Finished, Writer};
use crate::{Error, ErrorKind, Limits, Result};
use std::io::Write;
use std::ops::Range;

/// The default alignment of segments in bytes, that of the reference implementation.
pub const DEFAULT_SEGMENT_ALIGNMENT: u64 = 128;

/// Builds a `.ptd` file.
///
/// Every distinct blob becomes a segment, in order of first appearance; entries with equal bytes share one. Files are
/// written in the current edition of the format.
#[derive(Debug, Clone)]
pub struct Builder<'d> {
    /// The entries, in the order in which they are written.
    pub entries: Vec<Entry<'d>>,
    /// Alignment of segments in bytes: a power of two.
    pub segment_alignment: u64,
    /// Whether equal bytes are written only once. To find equal blobs, those of equal length are read once more.
    pub share: bool,
}

/// A named tensor or blob to be written.
#[derive(Debug, Clone, Default)]
pub struct Entry<'d> {
    /// The name.
    pub key: String,
    /// Type and shape, if the entry is a tensor.
    pub layout: Option<TensorLayout>,
    /// The bytes.
    pub blob: Blob<'d>,
    /// Alignment in bytes in addition to the segment alignment; 1 for none.
    pub alignment: u64,
}

/// A file whose tables are built and verified, ready to be written.
pub type Prepared<'d> = crate::container::Prepared<'d, Header>;

impl Default for Builder<'_> {
    fn default() -> Self {
        Self { entries: Vec::new(), segment_alignment: DEFAULT_SEGMENT_ALIGNMENT, share: true }
    }
}

impl<'d> Builder<'d> {
    /// A file without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, key: impl Into<String>, layout: TensorLayout, blob: Blob<'d>) -> &mut Self {
        self.entries.push(Entry { key: key.into(), layout: Some(layout), blob, alignment: 1 });
        self
    }

    /// Adds an opaque blob.
    pub fn blob(&mut self, key: impl Into<String>, blob: Blob<'d>) -> &mut Self {
        self.entries.push(Entry { key: key.into(), layout: None, blob, alignment: 1 });
        self
    }

    /// The entries of an existing file. `source` returns the bytes of a range of that file.
    pub fn from_flat_tensor(file: &VerifiedFlatTensor, source: impl Fn(Range<u64>) -> Blob<'d>) -> Self {
        let mut source = cache_blobs(source);
        let entry = |entry: &NamedData| Entry {
            key: entry.key.clone(),
            layout: entry.tensor_layout.clone(),
            blob: source(file.data_range(entry)),
            alignment: 1,
        };
        Self { entries: file.named_data.iter().map(entry).collect(), ..Self::default() }
    }

    /// Builds the tables and verifies them, so that whatever is written can be read.
    ///
    /// Blobs with equal lengths are read once to find those with equal bytes, unless [`share`](Self::share) is off.
    pub fn prepare(self) -> Result<Prepared<'d>> {
        self.prepare_with(&Limits::DEFAULT)
    }

    /// Like [`prepare`](Self::prepare), under other limits.
    pub fn prepare_with(self, limits: &Limits) -> Result<Prepared<'d>> {
        let alignment = self.segment_alignment;
        if !alignment.is_power_of_two() {
            return Err(Error::new(ErrorKind::Invalid, "segment_alignment", "a power of two", alignment));
        }
        let mut tables = FlatTensor::default();
        let mut segments: Vec<Segment<'d>> = Vec::new();
        let mut sharing = Sharing::new(self.share);
        for Entry { key, layout, blob, alignment } in self.entries {
            let alignment = alignment.max(1);
            let add = |blob| {
                segments.push(Segment::aligned(blob, alignment));
                (segments.len() - 1) as u32
            };
            let segment_index =
                sharing.index(&blob, alignment, add).map_err(|error| error.within(&format!("`{key}`")))?;
            tables.named_data.push(NamedData {
                key,
                segment_index,
                segment_offset: 0,
                tensor_layout: layout,
            });
        }
        let layout = Layout::new(&segments, alignment)?;
        tables.segments = layout.placed.clone();
        let mut flatbuffer = flatbuffer(&tables)?;
        let flatbuffer_size = flatbuffer.bytes.len() as u64;
        let flatbuffer_offset = insert_header_space(&mut flatbuffer, HEADER_LENGTH as usize) as u64;
        let bytes = &mut flatbuffer.bytes;
        let (base, file_len) = layout.base_and_file_len(bytes.len() as u64)?;
        let fields = [flatbuffer_offset, flatbuffer_size, base, layout.data_size];
        write_header(bytes, HEADER_MAGIC.identifier, HEADER_LENGTH, &fields)?;
        // A file without segment data ends with its tables, padded up to the segment base that the header declares.
        if layout.data_size == 0 {
            bytes.resize(base as usize, 0);
        }
        let header = Header::parse(bytes, file_len)?;
        verify(&tables, &header, limits)?;
        Ok(Prepared { tables: flatbuffer.bytes, header, base, segments, placed: layout.placed })
    }

    /// Writes the file from front to back. Blobs are streamed and are never all in memory.
    pub fn write(self, out: &mut dyn Write) -> Result<Header> {
        let prepared = self.prepare()?;
        prepared.write_to(out)?;
        Ok(prepared.header)
    }
}

pub(super) fn flatbuffer(tables: &FlatTensor) -> Result<Finished> {
    let mut w = Writer::new();
    let named_data = w.tables(&tables.named_data, |w, entry: &NamedData| {
        let layout = entry.tensor_layout.as_ref().map(|layout: &TensorLayout| {
            let (dim_order, sizes) = (w.scalars(&layout.dim_order), w.scalars(&layout.sizes));
            w.table(&[Field::scalar(layout.scalar_type, 0), sizes.into(), dim_order.into()])
        });
        let key = w.string(&entry.key);
        w.table(&[key.into(), Field::scalar(entry.segment_index, 0), layout.into()])
    });
    let segments = write_data_segments(&mut w, &tables.segments);
    let root = w.table(&[Field::scalar(tables.version, 0), segments.into(), named_data.into()]);
    w.finish(root, IDENTIFIER)
}

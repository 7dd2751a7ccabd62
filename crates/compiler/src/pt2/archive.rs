//! The zip container of an archive: its records, and where their bytes are.

use crate::limits::{MAX_INFLATED_BYTES, MAX_JSON_BYTES};
use crate::{Error, Result};
use ir::SharedBytes;
use std::collections::HashMap;
use std::io::{Cursor, Read, Seek};
use std::ops::Range;
use std::sync::Arc;
use zip::{CompressionMethod, ZipArchive};

/// The magic bytes of a zip file that has records.
const MAGIC: &[u8; 4] = b"PK\x03\x04";

/// An archive with its records by name, without the folder that all have in common.
pub(super) struct Archive {
    bytes: SharedBytes,
    records: HashMap<String, Record>,
    inflated: u64,
}

struct Record {
    index: usize,
    /// Its byte range in the file, if it is stored uncompressed.
    stored: Option<Range<usize>>,
    size: u64,
}

/// The bytes of a record: a range of the file, or inflated.
#[derive(Clone)]
pub(super) struct RecordBytes {
    pub(super) bytes: SharedBytes,
    pub(super) range: Range<usize>,
}

impl Archive {
    pub(super) fn open(bytes: SharedBytes) -> Result<Self> {
        let mut zip = zip_of(&bytes)?;
        let names: Vec<String> = zip.file_names().map(str::to_owned).collect();
        let root = common_root(&names);
        let mut records = HashMap::with_capacity(names.len());
        for index in 0..zip.len() {
            let entry = zip.by_index_raw(index).map_err(broken)?;
            let name = entry.name().strip_prefix(&*root).unwrap_or(entry.name()).to_owned();
            let end = entry.data_start().and_then(|start| {
                let start = usize::try_from(start).ok()?;
                Some(start..start.checked_add(usize::try_from(entry.compressed_size()).ok()?)?)
            });
            let Some(range) = end.filter(|range| range.end <= bytes.bytes().len()) else {
                return Err(Error::archive(name, "its bytes reach beyond the end of the file"));
            };
            let is_stored = entry.compression() == CompressionMethod::Stored && !entry.encrypted();
            let record = Record { index, stored: is_stored.then_some(range), size: entry.size() };
            if records.insert(name.clone(), record).is_some() {
                return Err(Error::archive(name, "two records of the archive have this name"));
            }
        }
        Ok(Self { bytes, records, inflated: 0 })
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.records.contains_key(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.records.keys().map(String::as_str)
    }

    /// The bytes of a record, without a copy if it is stored uncompressed.
    pub(super) fn record(&mut self, name: &str) -> Result<RecordBytes> {
        let Some(record) = self.records.get(name) else {
            return Err(Error::archive(name, "the archive has no such record"));
        };
        if let Some(range) = &record.stored {
            return Ok(RecordBytes { bytes: Arc::clone(&self.bytes), range: range.clone() });
        }
        self.inflated = self.inflated.saturating_add(record.size);
        if self.inflated > MAX_INFLATED_BYTES {
            let problem = format!("its compressed records have more than {MAX_INFLATED_BYTES} bytes");
            return Err(Error::refused(name, problem, "store the records instead of compressing them"));
        }
        let mut bytes = Vec::new();
        let mut zip = zip_of(&self.bytes)?;
        let entry = zip.by_index(record.index).map_err(broken)?;
        let read = entry.take(record.size).read_to_end(&mut bytes);
        read.map_err(|e| Error::archive(name, e.to_string()))?;
        if bytes.len() as u64 != record.size {
            return Err(Error::archive(name, format!("it has {} of {} bytes", bytes.len(), record.size)));
        }
        let range = 0..bytes.len();
        Ok(RecordBytes { bytes: Arc::new(bytes), range })
    }

    /// The bytes of a record of JSON or text.
    pub(super) fn text(&mut self, name: &str) -> Result<RecordBytes> {
        match self.records.get(name) {
            Some(record) if record.size > MAX_JSON_BYTES => {
                Err(Error::archive(name, format!("{} bytes are more than {MAX_JSON_BYTES}", record.size)))
            }
            _ => self.record(name),
        }
    }
}

impl RecordBytes {
    pub(super) fn data(&self) -> &[u8] {
        self.bytes.bytes().get(self.range.clone()).unwrap_or_default()
    }
}

impl AsRef<[u8]> for RecordBytes {
    fn as_ref(&self) -> &[u8] {
        self.data()
    }
}

/// Whether a file is a zip archive saved by PyTorch: with models, which [`read`](super::read) reads, or with pickled
/// objects or compiled code, which it rejects with a remedy. Such archives are recognized by the names of their
/// records, which other zip archives (e.g. NumPy's) do not have.
pub fn is_archive(mut file: impl Read + Seek) -> bool {
    let mut magic = [0; MAGIC.len()];
    if file.read_exact(&mut magic).is_err() || magic != *MAGIC {
        return false;
    }
    ZipArchive::new(file).is_ok_and(|zip| zip.file_names().any(is_of_pytorch))
}

/// Whether a record has a name that PyTorch uses.
fn is_of_pytorch(name: &str) -> bool {
    let (folder, name) = name.rsplit_once('/').unwrap_or(("", name));
    let is_model = folder == "models" || folder.ends_with("/models");
    is_model && name.ends_with(".json")
        || matches!(name, "data.pkl" | "serialized_exported_program.json")
        || folder.contains("data/aotinductor")
}

fn zip_of(bytes: &SharedBytes) -> Result<ZipArchive<Cursor<&[u8]>>> {
    if !bytes.bytes().starts_with(MAGIC) {
        return Err(Error::archive("the archive", "it is no zip file, as torch.export archives (.pt2) are"));
    }
    ZipArchive::new(Cursor::new(bytes.bytes())).map_err(broken)
}

fn broken(error: zip::result::ZipError) -> Error {
    Error::archive("the archive", error.to_string())
}

/// The folder that contains all records, with a trailing slash; empty if there is none.
fn common_root(names: &[String]) -> String {
    let Some((root, _)) = names.first().and_then(|n| n.split_once('/')) else { return String::new() };
    let root = format!("{root}/");
    if names.iter().all(|n| n.starts_with(&root)) { root } else { String::new() }
}

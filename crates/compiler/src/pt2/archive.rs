//! The zip container of an archive: its records, and where their bytes are.

use super::measure::Measure;
use crate::limits::{MAX_INFLATED_BYTES, MAX_JSON_BYTES};
use crate::{Error, Result};
use pteron_exported::{CompileBudget, ConstantTensor};
use pteron_format::{FileKind, SNIFFED_BYTES, sniff};
use pteron_ir::SharedBytes;
use pteron_operator::Reservation;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use zip::{CompressionMethod, ZipArchive};

/// The file of an archive. Its weights need not be in memory: each record is read when it is accessed.
pub trait ArchiveFile: Send + Sync {
    /// The size of the file in bytes.
    fn size(&self) -> u64;

    /// Reads `target.len()` bytes at `offset`, which must be in bounds.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read_at(&self, offset: u64, target: &mut [u8]) -> io::Result<()>;

    /// The bytes of `range`, which must be in bounds. They are in memory, or are read on access.
    fn part(&self, range: Range<u64>) -> SharedBytes;
}

/// A whole archive in memory.
impl ArchiveFile for SharedBytes {
    fn size(&self) -> u64 {
        (**self).len() as u64
    }

    fn read_at(&self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        let range = usize::try_from(offset).ok().map(|start| start..start.saturating_add(target.len()));
        let bytes = range.and_then(|range| self.bytes().get(range)).ok_or(io::ErrorKind::UnexpectedEof)?;
        target.copy_from_slice(bytes);
        Ok(())
    }

    fn part(&self, range: Range<u64>) -> SharedBytes {
        let range =
            usize::try_from(range.start).unwrap_or(usize::MAX)..usize::try_from(range.end).unwrap_or(0);
        Arc::new(ConstantTensor { name: None, bytes: Arc::clone(self), range })
    }
}

/// A whole archive in memory.
impl ArchiveFile for Arc<Vec<u8>> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        (Arc::clone(self) as SharedBytes).read_at(offset, target)
    }

    fn part(&self, range: Range<u64>) -> SharedBytes {
        (Arc::clone(self) as SharedBytes).part(range)
    }
}

impl<F: ArchiveFile + ?Sized> ArchiveFile for &F {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_at(&self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, target)
    }

    fn part(&self, range: Range<u64>) -> SharedBytes {
        (**self).part(range)
    }
}

/// Reads an archive's file sequentially, from its start or from the position set by a seek.
struct Reader<'f> {
    file: &'f dyn ArchiveFile,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let len = self.file.size().saturating_sub(self.at).min(target.len() as u64) as usize;
        self.file.read_at(self.at, &mut target[..len])?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.file.size().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// An archive with its records by name, without the folder that all records have in common.
pub(super) struct Archive<'f> {
    file: &'f dyn ArchiveFile,
    records: HashMap<String, Record>,
    inflated: u64,
    budget: CompileBudget,
}

struct Record {
    index: usize,
    /// The record's byte range in the file, if the record is stored uncompressed.
    stored: Option<Range<u64>>,
    size: u64,
}

impl<'f> Archive<'f> {
    /// Reads the directory of an archive. Memory for copied records is charged to `budget`.
    pub(super) fn open(file: &'f dyn ArchiveFile, budget: &CompileBudget) -> Result<Self> {
        let mut zip = open_zip(file)?;
        let names: Vec<String> = zip.file_names().map(str::to_owned).collect();
        let root = common_root(&names);
        let mut records = HashMap::with_capacity(names.len());
        for index in 0..zip.len() {
            let entry = zip.by_index_raw(index).map_err(zip_error)?;
            let name = entry.name().strip_prefix(&*root).unwrap_or(entry.name()).to_owned();
            let start = entry.data_start();
            let range = start.and_then(|start| Some(start..start.checked_add(entry.compressed_size())?));
            let Some(range) = range.filter(|range| range.end <= file.size()) else {
                return Err(Error::archive(name, "its bytes reach beyond the end of the file"));
            };
            let is_stored = entry.compression() == CompressionMethod::Stored && !entry.encrypted();
            let record = Record { index, stored: is_stored.then_some(range), size: entry.size() };
            if records.insert(name.clone(), record).is_some() {
                return Err(Error::archive(name, "two records of the archive have this name"));
            }
        }
        Ok(Self { file, records, inflated: 0, budget: budget.clone() })
    }

    /// The memory that the archive may take.
    pub(super) fn budget(&self) -> &CompileBudget {
        &self.budget
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.records.contains_key(name)
    }

    /// The size of a record in bytes, if the archive has the record.
    pub(super) fn size(&self, name: &str) -> Option<u64> {
        self.records.get(name).map(|record| record.size)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.records.keys().map(String::as_str)
    }

    /// The bytes of a record: a range of the file if the record is stored uncompressed.
    pub(super) fn read_record(&mut self, name: &str) -> Result<SharedBytes> {
        let Some(record) = self.records.get(name) else {
            return Err(Error::archive(name, "the archive has no such record"));
        };
        if let Some(range) = &record.stored {
            return Ok(self.file.part(range.clone()));
        }
        self.inflated = self.inflated.saturating_add(record.size);
        if self.inflated > MAX_INFLATED_BYTES {
            let problem = format!("its compressed records have more than {MAX_INFLATED_BYTES} bytes");
            return Err(Error::archive_with_help(
                name,
                problem,
                "store the records instead of compressing them",
            ));
        }
        let reservation =
            self.budget.take("inflating it", usize::try_from(record.size).unwrap_or(usize::MAX));
        let reservation = reservation.map_err(|e| Error::archive(name, e.to_string()))?;
        let mut bytes = Vec::new();
        let mut zip = open_zip(self.file)?;
        let entry = zip.by_index(record.index).map_err(zip_error)?;
        let read = entry.take(record.size).read_to_end(&mut bytes);
        read.map_err(|e| Error::archive(name, e.to_string()))?;
        if bytes.len() as u64 != record.size {
            return Err(Error::archive(name, format!("it has {} of {} bytes", bytes.len(), record.size)));
        }
        Ok(Arc::new(CopiedBytes::new(bytes, reservation)))
    }

    /// Parses a record that contains JSON.
    pub(super) fn read_json<T: DeserializeOwned>(&mut self, name: &str) -> Result<T> {
        let text = self.read_text(name)?;
        let wrong = |e: serde_json::Error| Error::archive(name, e.to_string());
        let measure = Measure::from_text(text.bytes()).map_err(wrong)?;
        if let Err(limit) = self.budget.charge("the parsed JSON", measure.bytes()) {
            return Err(Error::archive(name, format!("{limit} ({measure})")));
        }
        serde_json::from_slice(text.bytes()).map_err(wrong)
    }

    /// The bytes of a record of JSON or text.
    pub(super) fn read_text(&mut self, name: &str) -> Result<SharedBytes> {
        let bytes = match self.records.get(name) {
            Some(record) if record.size > MAX_JSON_BYTES => {
                let problem = format!("{} bytes are more than {MAX_JSON_BYTES}", record.size);
                return Err(Error::archive(name, problem));
            }
            _ => self.read_record(name)?,
        };
        match bytes.problem() {
            Some(problem) => Err(Error::archive(name, problem)),
            None => Ok(bytes),
        }
    }
}

/// Copied bytes, with the reservation of the budget that they are charged to.
pub(super) struct CopiedBytes {
    bytes: Vec<u8>,
    _held: Reservation,
}

impl CopiedBytes {
    pub(super) fn new(bytes: Vec<u8>, reservation: Reservation) -> Self {
        Self { bytes, _held: reservation }
    }
}

impl AsRef<[u8]> for CopiedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Whether a file is a zip archive saved by PyTorch: with models, which [`read`](super::read) reads, or with pickled
/// objects or compiled code, which it rejects with a remedy. Such archives are recognized by the names of their
/// records, which other zip archives (e.g. NumPy's) do not have.
pub fn is_archive(mut file: impl Read + Seek) -> bool {
    let mut head = [0; 4];
    if file.read_exact(&mut head).is_err() || sniff(&head) != Some(FileKind::Zip) {
        return false;
    }
    ZipArchive::new(file).is_ok_and(|zip| zip.file_names().any(is_pytorch_record))
}

/// Whether a record has a name that PyTorch uses.
fn is_pytorch_record(name: &str) -> bool {
    let (folder, name) = name.rsplit_once('/').unwrap_or(("", name));
    let is_model = folder == "models" || folder.ends_with("/models");
    is_model && name.ends_with(".json")
        || matches!(name, "data.pkl" | "serialized_exported_program.json")
        || folder.contains("data/aotinductor")
}

fn open_zip(file: &dyn ArchiveFile) -> Result<ZipArchive<BufReader<Reader<'_>>>> {
    let mut head = [0; SNIFFED_BYTES];
    let head = &mut head[..file.size().min(SNIFFED_BYTES as u64) as usize];
    file.read_at(0, head).map_err(|e| Error::archive("the archive", e.to_string()))?;
    match sniff(head) {
        Some(FileKind::Zip) => ZipArchive::new(BufReader::new(Reader { file, at: 0 })).map_err(zip_error),
        Some(kind) => Err(Error::archive_with_help(
            "the archive",
            not_an_archive_text(kind.description()),
            verb_instead_of_compile(kind),
        )),
        None => Err(Error::archive("the archive", not_an_archive_text("no zip file"))),
    }
}

fn not_an_archive_text(found: &str) -> String {
    format!("it is {found}, and no archive of torch.export (.pt2)")
}

/// What to do with a file that `compile` does not take.
fn verb_instead_of_compile(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Pte | FileKind::Bpte => "`pteron retarget` compiles a program again for other backends",
        FileKind::Bef => "`pteron translate` writes BEF from MLIR text and the reverse",
        _ => "torch.export.save(torch.export.export(model, inputs), \"model.pt2\") writes an archive",
    }
}

fn zip_error(error: zip::result::ZipError) -> Error {
    Error::archive("the archive", error.to_string())
}

/// The folder that contains all records, with a trailing slash; empty if there is none.
fn common_root(names: &[String]) -> String {
    let Some((root, _)) = names.first().and_then(|n| n.split_once('/')) else { return String::new() };
    let root = format!("{root}/");
    if names.iter().all(|n| n.starts_with(&root)) { root } else { String::new() }
}

use super::origin::KEY;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use pteron_toolbox::{Error, Result};
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// The tables of a Parquet or Arrow file, which is recognised by its first bytes.
pub(super) struct Reader {
    path: PathBuf,
    batches: Box<dyn RecordBatchReader + Send>,
    /// The rows of the last table that were not returned yet.
    rest: Option<RecordBatch>,
    /// The maximum number of rows of a table.
    rows: usize,
    /// What the file was made of, if it says so.
    origin: Option<String>,
}

impl Reader {
    /// Opens a file of which columns are read, whose positions `choose` returns in ascending order. They are read in tables of up
    /// to `rows` rows.
    ///
    /// # Errors
    /// If the file cannot be read or is of another kind, and those of `choose`.
    pub(super) fn open(
        path: &Path,
        rows: usize,
        choose: impl FnOnce(&[&str]) -> Result<Vec<usize>>,
    ) -> Result<Self> {
        let mut file = File::open(path).map_err(Error::read(path))?;
        let mut magic = Vec::new();
        file.by_ref().take(6).read_to_end(&mut magic).map_err(Error::read(path))?;
        file.rewind().map_err(Error::read(path))?;
        let foreign = |error: String| {
            Error::bad_file(path, format!("it is no Parquet or Arrow file{}", with_remedy(&error)))
        };
        let select = |schema: &SchemaRef| {
            let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            Ok::<_, Error>((choose(&names)?, schema.metadata().get(KEY).cloned()))
        };
        guarded(path, || {
            let (batches, origin): (Box<dyn RecordBatchReader + Send>, _) = if magic.starts_with(b"PAR1") {
                let builder =
                    ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| foreign(e.to_string()))?;
                let (columns, origin) = select(builder.schema())?;
                let mask = ProjectionMask::roots(builder.parquet_schema(), columns);
                let reader = builder.with_projection(mask).with_batch_size(rows).build();
                (Box::new(reader.map_err(|e| foreign(e.to_string()))?), origin)
            } else if magic == b"ARROW1" {
                let open = |columns| {
                    FileReader::try_new(BufReader::new(reopened(&file, path)?), columns)
                        .map_err(|e| foreign(e.to_string()))
                };
                let (columns, origin) = select(&open(None)?.schema())?;
                (Box::new(open(Some(columns))?), origin)
            } else {
                let open = |columns| {
                    StreamReader::try_new(BufReader::new(reopened(&file, path)?), columns)
                        .map_err(|e| foreign(e.to_string()))
                };
                let (columns, origin) = select(&open(None)?.schema())?;
                (Box::new(open(Some(columns))?), origin)
            };
            Ok(Self { path: path.to_owned(), batches, rest: None, rows, origin })
        })
    }

    /// The columns that are read.
    pub(super) fn schema(&self) -> SchemaRef {
        self.batches.schema()
    }

    /// What the file was made of, if it says so.
    pub(super) fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// The next table, which has rows; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let batch = match self.rest.take() {
                Some(rest) => rest,
                None => {
                    let next = guarded(&self.path, || Ok(self.batches.next()))?;
                    match next {
                        None => return Ok(None),
                        Some(batch) => batch.map_err(|error| broken(&self.path, &error))?,
                    }
                }
            };
            match batch.num_rows() {
                0 => {}
                rows if rows <= self.rows => return Ok(Some(batch)),
                rows => {
                    self.rest = Some(batch.slice(self.rows, rows - self.rows));
                    return Ok(Some(batch.slice(0, self.rows)));
                }
            }
        }
    }
}

/// The same open file, from its start, whatever is at the path now.
fn reopened(file: &File, path: &Path) -> Result<File> {
    let mut again = file.try_clone().map_err(Error::read(path))?;
    again.rewind().map_err(Error::read(path))?;
    Ok(again)
}

fn broken(path: &Path, error: &ArrowError) -> Error {
    Error::bad_file(path, format!("it cannot be read{}", with_remedy(&error.to_string())))
}

/// The error, with what to do if a codec is missing in this build.
fn with_remedy(error: &str) -> String {
    let remedy = match !cfg!(feature = "zstd") && error.to_lowercase().contains("zstd") {
        true => " (files with Zstandard compression need a build with the cargo feature `batch-zstd`)",
        false => "",
    };
    format!(": {error}{remedy}")
}

/// Calls a decoder, which may panic on a damaged file.
fn guarded<T>(path: &Path, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    let damaged = |_| Err(Error::bad_file(path, "it is damaged: its decoder has failed"));
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(damaged)
}

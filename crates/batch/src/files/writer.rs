use super::origin::KEY;
use arrow_array::RecordBatch;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use arrow_schema::{Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use pteron_toolbox::{Error, Result};
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A row group is written when it has this many rows or bytes.
const GROUP_ROWS: usize = 1 << 16;
const GROUP_BYTES: usize = 64 << 20;

/// Writes tables with the same columns to a file, in the format of its suffix.
pub(super) struct Writer<'o> {
    path: &'o Path,
    out: Option<&'o mut dyn Write>,
    /// What the file is made of, for its metadata.
    origin: String,
    encoder: Option<Encoder<'o>>,
}

enum Encoder<'o> {
    Parquet(Box<ArrowWriter<Sink>>, Sink, &'o mut dyn Write),
    File(FileWriter<&'o mut dyn Write>),
    Stream(StreamWriter<&'o mut dyn Write>),
}

/// What an encoder has written, until it is passed on.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    fn pass_on(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.try_reserve(bytes.len())?;
        held.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'o> Writer<'o> {
    /// A writer to `out`, the new contents of the file with this path.
    pub(super) fn new(path: &'o Path, out: &'o mut dyn Write, origin: String) -> Self {
        Self { path, out: Some(out), origin, encoder: None }
    }

    /// Adds the rows of a table.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if let Some(out) = self.out.take() {
            self.encoder = Some(self.begin(out, &batch.schema())?);
        }
        match &mut self.encoder {
            None => Ok(()),
            Some(Encoder::File(writer)) => writer.write(batch).map_err(failed(self.path)),
            Some(Encoder::Stream(writer)) => writer.write(batch).map_err(failed(self.path)),
            Some(Encoder::Parquet(writer, sink, out)) => {
                writer.write(batch).map_err(failed(self.path))?;
                if writer.in_progress_size() >= GROUP_BYTES {
                    writer.flush().map_err(failed(self.path))?;
                }
                sink.pass_on(*out).map_err(Error::write(self.path))
            }
        }
    }

    /// Completes the file.
    pub(super) fn finish(self) -> Result<()> {
        match self.encoder {
            None => Ok(()),
            Some(Encoder::File(mut writer)) => writer.finish().map_err(failed(self.path)),
            Some(Encoder::Stream(mut writer)) => writer.finish().map_err(failed(self.path)),
            Some(Encoder::Parquet(writer, sink, out)) => {
                writer.close().map_err(failed(self.path))?;
                sink.pass_on(out).map_err(Error::write(self.path))
            }
        }
    }

    fn begin(&self, out: &'o mut dyn Write, schema: &SchemaRef) -> Result<Encoder<'o>> {
        let metadata = HashMap::from([(KEY.to_owned(), self.origin.clone())]);
        let schema = Schema::new(schema.fields().clone()).with_metadata(metadata);
        let suffix = self.path.extension().unwrap_or_default();
        if suffix == "arrows" {
            return Ok(Encoder::Stream(StreamWriter::try_new(out, &schema).map_err(failed(self.path))?));
        }
        if suffix != "parquet" {
            return Ok(Encoder::File(FileWriter::try_new(out, &schema).map_err(failed(self.path))?));
        }
        let origin = KeyValue { key: KEY.to_owned(), value: Some(self.origin.clone()) };
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .set_key_value_metadata(Some(vec![origin]))
            .build();
        let sink = Sink::default();
        let writer = ArrowWriter::try_new(sink.clone(), Arc::new(schema), Some(properties));
        Ok(Encoder::Parquet(Box::new(writer.map_err(failed(self.path))?), sink, out))
    }
}

fn failed<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> Error {
    let path = path.to_owned();
    move |error| Error::bad_file(path, format!("it cannot be written: {error}"))
}

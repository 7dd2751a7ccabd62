use super::identity::Identity;
use super::mapper::{Mapped, Mapper};
use super::origin::Origin;
use super::outputs::{MappedFile, Pair};
use super::reader::Reader;
use super::workers::{Reply, Task, submit};
use super::writer::Writer;
use arrow_array::RecordBatch;
use pteron_clock::Instant;
use pteron_toolbox::{Error, Result};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

/// Reads files and writes their outputs, one after the other.
pub(super) struct Lane<'j> {
    pub(super) mapper: &'j Mapper,
    pub(super) identity: &'j Identity,
    pub(super) options: &'j Value,
    pub(super) tasks: SyncSender<Task>,
    /// The number of tables of a file that are executed, or wait for their turn to be written.
    pub(super) window: usize,
    /// The number of rows that are read at a time.
    pub(super) rows: usize,
    pub(super) progress: Option<&'j (dyn Fn(usize) + Sync)>,
    /// Whether another lane has failed.
    pub(super) stopped: &'j AtomicBool,
}

/// The rows of an output so far, and those of them without a result.
#[derive(Default)]
struct Counts {
    rows: usize,
    failed: usize,
}

impl Lane<'_> {
    /// Makes the output of a file. It appears when it is complete.
    pub(super) fn process(&self, pair: &Pair) -> Result<MappedFile> {
        let started = Instant::now();
        let origin = Origin::of(&pair.input, self.identity.digest(), self.options)?;
        let counts = pteron_runtime::replace_file(&pair.output, |out| self.convert(pair, &origin, out));
        let Counts { rows, failed } = counts.map_err(|error: Error| in_file(&pair.input, error))?;
        Ok(MappedFile {
            input: pair.input.clone(),
            output: pair.output.clone(),
            rows,
            failed,
            seconds: started.elapsed().as_secs_f64(),
            is_old: false,
        })
    }

    fn convert(&self, pair: &Pair, origin: &Origin, out: &mut dyn Write) -> Result<Counts> {
        let mut reader = Reader::open(&pair.input, self.rows, |names| self.mapper.needed(names))?;
        let mut writer = Writer::new(&pair.output, out, origin.to_text());
        let mut ahead: VecDeque<Reply> = VecDeque::new();
        let (mut counts, mut first) = (Counts::default(), 0);
        while let Some(batch) = reader.next()? {
            if self.stopped.load(Ordering::Acquire) {
                return Err(stopped());
            }
            let rows = batch.num_rows();
            ahead.push_back(submit(&self.tasks, batch, first)?);
            first += rows;
            if ahead.len() >= self.window
                && let Some(reply) = ahead.pop_front()
            {
                self.write(&mut writer, reply.wait()?, &mut counts)?;
            }
        }
        for reply in ahead {
            self.write(&mut writer, reply.wait()?, &mut counts)?;
        }
        if first == 0 {
            let empty = RecordBatch::new_empty(reader.schema());
            self.write(&mut writer, submit(&self.tasks, empty, 0)?.wait()?, &mut counts)?;
        }
        if Origin::of(&pair.input, self.identity.digest(), self.options)? != *origin {
            return Err(Error::bad_file(&pair.input, "it was changed while it was read"));
        }
        // Whoever replaces a program wants its rows: those of the first one are no longer right.
        self.identity.check()?;
        writer.finish()?;
        Ok(counts)
    }

    fn write(&self, writer: &mut Writer<'_>, mapped: Mapped, counts: &mut Counts) -> Result<()> {
        writer.write(&mapped.batch)?;
        counts.rows += mapped.batch.num_rows();
        counts.failed += mapped.failed;
        if let Some(progress) = self.progress {
            progress(mapped.batch.num_rows());
        }
        Ok(())
    }
}

/// The error with the file in whose rows or columns it was found, unless it names the file.
pub(super) fn in_file(path: &Path, error: Error) -> Error {
    match error {
        Error::Input(_) => {
            Error::Context { context: format!("in {}", path.display()), source: Box::new(error) }
        }
        other => other,
    }
}

/// The error of a lane that ends because another one has failed.
fn stopped() -> Error {
    Error::input("the run was stopped")
}

use super::mapper::{Mapped, Mapper};
use arrow_array::RecordBatch;
use pteron_runtime::Module;
use pteron_toolbox::{Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

/// A table to execute.
pub(super) struct Task {
    batch: RecordBatch,
    /// The number of its first row in the file.
    first: usize,
    reply: SyncSender<Result<Mapped>>,
}

/// The result of a [`Task`], when it is there.
pub(super) struct Reply(Receiver<Result<Mapped>>);

impl Reply {
    pub(super) fn wait(self) -> Result<Mapped> {
        self.0.recv().unwrap_or_else(|_| Err(Error::input("a worker has ended before its time")))
    }
}

/// Gives a table to the next worker that is idle; waits if all have enough to do.
pub(super) fn submit(tasks: &SyncSender<Task>, batch: RecordBatch, first: usize) -> Result<Reply> {
    let (reply, result) = sync_channel(1);
    match tasks.send(Task { batch, first, reply }) {
        Ok(()) => Ok(Reply(result)),
        Err(_) => Err(Error::input("all workers have ended before their time")),
    }
}

/// Executes tables until no more come.
pub(super) fn work(tasks: &Mutex<Receiver<Task>>, mapper: &Mapper, module: &mut Module) {
    loop {
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Task { batch, first, reply }) = task else { return };
        let mapped = match module.method(&mapper.method) {
            Ok(method) => mapper.map(method, &batch, first),
            Err(error) => Err(error.into()),
        };
        // A lane that has failed does not wait for it any more.
        let _ = reply.send(mapped);
    }
}

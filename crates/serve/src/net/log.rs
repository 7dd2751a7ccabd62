use crate::refusal::Reason;
use crate::request::Timing;
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Called for every request when it has been answered, or its client has disconnected.
pub type Log = Arc<dyn Fn(&RequestLog) + Send + Sync>;

/// The log line of a request.
#[derive(Debug, Clone, Serialize)]
pub struct RequestLog {
    /// The address of the client.
    pub peer: SocketAddr,
    /// `GET`, `POST`, or `gRPC`.
    pub method: String,
    /// At most 256 characters of the requested path.
    pub path: String,
    /// `ok`, or the name of the refusal's reason.
    pub outcome: &'static str,
    /// The model of an inference request.
    pub model: Option<String>,
    /// The size of the request's body.
    pub bytes_in: usize,
    /// The time from the request's head to its response, in microseconds.
    pub total_us: u64,
    /// The time waiting for a worker, in microseconds.
    pub queued_us: u64,
    /// The time of the execution, in microseconds.
    pub computed_us: u64,
    /// The number of rows of its batch; 0 if it was executed alone.
    pub batch_rows: usize,
}

impl fmt::Display for RequestLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, method, path, outcome, total_us, queued_us, computed_us, batch_rows, .. } = self;
        write!(f, "{peer} {method} {path} {outcome} {total_us} us")?;
        if let Some(model) = &self.model {
            write!(f, ", {model}: queued {queued_us} us, computed {computed_us} us, batch {batch_rows}")?;
        }
        Ok(())
    }
}

/// Logs a request when it is dropped.
pub(super) struct Entry {
    begin: Instant,
    log: Option<Log>,
    pub(super) line: RequestLog,
}

impl Entry {
    pub(super) fn new(log: Option<Log>, peer: SocketAddr, method: &str, path: &str) -> Self {
        // Control characters such as line breaks could forge log lines.
        let path = path.chars().take(256).filter(|c| !c.is_control()).collect();
        let line = RequestLog {
            peer,
            method: method.to_owned(),
            path,
            outcome: Reason::Cancelled.name(),
            model: None,
            bytes_in: 0,
            total_us: 0,
            queued_us: 0,
            computed_us: 0,
            batch_rows: 0,
        };
        Self { begin: Instant::now(), log, line }
    }

    pub(super) fn outcome(&mut self, reason: Option<Reason>) {
        self.line.outcome = reason.map_or("ok", Reason::name);
    }

    pub(super) fn computed(&mut self, timing: &Timing) {
        let microseconds = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.line.queued_us = microseconds(timing.queued);
        self.line.computed_us = microseconds(timing.computed);
        self.line.batch_rows = timing.batch_rows;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(log) = &self.log {
            self.line.total_us = u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX);
            log(&self.line);
        }
    }
}

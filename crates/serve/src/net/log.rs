use crate::refusal::Reason;
use crate::request::Timing;
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A function that is called for every request when it has been answered, or its client has disconnected.
pub type Log = Arc<dyn Fn(&RequestLog) + Send + Sync>;

/// What is logged about a request.
#[derive(Debug, Clone, Serialize)]
pub struct RequestLog {
    /// The address of the client.
    pub peer: SocketAddr,
    /// The method of the HTTP request, such as `GET`, cut to 32 characters; or `gRPC`.
    pub method: String,
    /// The requested path, cut to 256 characters.
    pub path: String,
    /// `ok`, or the name of the refusal's reason.
    pub outcome: &'static str,
    /// The name of the model, for an inference request.
    pub model: Option<String>,
    /// The size of the request's body in bytes; 0 if it was not read.
    pub bytes_in: usize,
    /// The time from the end of the request's head to its response, in microseconds.
    pub total_us: u64,
    /// The time that the request waited for a worker and for other requests, in microseconds.
    pub queued_us: u64,
    /// The time to copy inputs, execute, and copy outputs, in microseconds.
    pub computed_us: u64,
    /// The number of rows of the batch that the request was executed in; 0 if it was executed alone.
    pub batch_rows: usize,
    /// The trace that the request is part of: its `traceparent`, as W3C's Trace Context defines it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

impl fmt::Display for RequestLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, method, path, outcome, total_us, queued_us, computed_us, batch_rows, .. } = self;
        write!(f, "{peer} {} {} {outcome} {total_us} us", Field(method), Field(path))?;
        if let Some(model) = &self.model {
            let model = Field(model);
            write!(f, ", {model}: queued {queued_us} us, computed {computed_us} us, batch {batch_rows}")?;
        }
        if let Some(traceparent) = &self.traceparent {
            write!(f, ", traceparent {traceparent}")?;
        }
        Ok(())
    }
}

/// Text of a client or a file as a field of a line: quoted and escaped unless it consists of characters that names and
/// paths have, so that it can forge neither lines nor fields, nor control a terminal.
pub struct Field<'a>(pub &'a str);

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || b"/._-~%!$&()*+;=:@".contains(&c);
        match !self.0.is_empty() && self.0.bytes().all(is_plain) {
            true => f.write_str(self.0),
            false => write!(f, "\"{}\"", self.0.escape_default()),
        }
    }
}

/// Text of a client or file as part of a line: all but printable ASCII is escaped.
pub struct Line<'a>(pub &'a str);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(|c: char| !matches!(c, ' '..='~')) {
            let plain = part.trim_end_matches(|c: char| !matches!(c, ' '..='~'));
            write!(f, "{plain}{}", part[plain.len()..].escape_default())?;
        }
        Ok(())
    }
}

/// JSON as one line of printable ASCII.
pub fn json_line(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' '..='~' => line.push(c),
            // Only strings contain others, which JSON writes as UTF-16.
            _ => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| line.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    line
}

/// The log line of a request, which is passed to `log` when this value is dropped.
pub(super) struct Entry {
    begin: Instant,
    log: Option<Log>,
    pub(super) line: RequestLog,
}

impl Entry {
    pub(super) fn new(log: Option<Log>, peer: SocketAddr, method: &str, path: &str) -> Self {
        let line = RequestLog {
            peer,
            method: method.chars().take(32).collect(),
            path: path.chars().take(256).collect(),
            outcome: Reason::Cancelled.name(),
            model: None,
            bytes_in: 0,
            total_us: 0,
            queued_us: 0,
            computed_us: 0,
            batch_rows: 0,
            traceparent: None,
        };
        Self { begin: Instant::now(), log, line }
    }

    /// Notes the trace that the request is part of, unless the header is malformed.
    pub(super) fn set_traceparent(&mut self, header: &[u8]) {
        let is_hex = |c: &u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
        let parts: Vec<&[u8]> = header.split(|c| *c == b'-').collect();
        let lens: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        if lens == [2, 32, 16, 2] && parts.iter().copied().flatten().all(is_hex) {
            self.line.traceparent = String::from_utf8(header.to_vec()).ok();
        }
    }

    pub(super) fn set_outcome(&mut self, reason: Option<Reason>) {
        self.line.outcome = reason.map_or("ok", Reason::name);
    }

    pub(super) fn set_timing(&mut self, timing: &Timing) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_forge_no_lines_and_no_fields() {
        assert_eq!(Field("/v2/models/a%20b-1.0/infer").to_string(), "/v2/models/a%20b-1.0/infer");
        assert_eq!(
            Field("x ok 3 us\n1.2.3.4 GET / ok\u{1b}[31m").to_string(),
            r#""x ok 3 us\n1.2.3.4 GET / ok\u{1b}[31m""#
        );
        assert_eq!(Field("").to_string(), "\"\"");
        assert_eq!(Line("of `a\u{9b}2J\u{202e}b`\r\n, c").to_string(), r"of `a\u{9b}2J\u{202e}b`\r\n, c");
        assert_eq!(json_line(&"ä\n\u{7f}😀"), r#""\u00e4\n\u007f\ud83d\ude00""#);
    }
}

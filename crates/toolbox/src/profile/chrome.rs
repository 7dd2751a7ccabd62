//! Recordings as traces of the Chrome format, which Chrome (`chrome://tracing`) and Perfetto
//! (<https://ui.perfetto.dev>) show. The format is Google's "Trace Event Format".

use super::Recording;
use crate::Result;
use serde_json::{Value, json};
use std::io::Write;
use trace::SpanKind;

/// Writes a recording as one JSON object. Times are microseconds since the recorder was made.
pub fn trace(recording: &Recording, out: &mut dyn Write) -> Result<()> {
    let us = |ns: u64| ns as f64 / 1e3;
    let mut events = vec![json!({
        "name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "pteron"},
    })];
    for block in &recording.blocks {
        for span in &block.spans {
            let mut args = serde_json::Map::new();
            if let (Some(chain), Some(instruction)) = (span.place.chain, span.place.instruction) {
                args.insert("chain".to_owned(), chain.into());
                args.insert("instruction".to_owned(), instruction.into());
            }
            events.push(json!({
                "name": span.name, "cat": category(span.kind), "ph": "X", "pid": 1, "tid": span.thread,
                "ts": us(span.start), "dur": us(span.nanoseconds()), "args": Value::Object(args),
            }));
        }
    }
    let trace = json!({"traceEvents": events, "displayTimeUnit": "ns"});
    serde_json::to_writer(&mut *out, &trace).map_err(|e| crate::Error::Context {
        context: "cannot write the trace".to_owned(),
        source: Box::new(e),
    })
}

fn category(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::LoadProgram | SpanKind::LoadMethod => "load",
        SpanKind::Prepare => "prepare",
        SpanKind::Execute => "execute",
        SpanKind::Kernel => "kernel",
        SpanKind::Delegate | SpanKind::DelegateStep => "delegate",
        _ => "other",
    }
}

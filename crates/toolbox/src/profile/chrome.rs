//! Writes recordings as traces in Google's "Trace Event Format", for Chrome (`chrome://tracing`) and Perfetto
//! (<https://ui.perfetto.dev>).

use super::{Recording, Span};
use crate::Result;
use pteron_trace::SpanKind;
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};

/// Writes a recording as one JSON object. Times are in microseconds since the recorder was created.
pub fn trace(recording: &Recording, out: &mut dyn Write) -> Result<()> {
    write(recording, out).map_err(|e| crate::Error::Context {
        context: "cannot write the trace".to_owned(),
        source: Box::new(e),
    })
}

/// A complete event (phase `X`).
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    cat: &'static str,
    ph: &'static str,
    pid: u32,
    tid: usize,
    ts: f64,
    dur: f64,
    args: Args<'a>,
}

/// The place of a span in the program.
#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Instruction {
        chain: u32,
        instruction: u32,
        /// For a node in the payload of a called delegate, the index of the node.
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<u32>,
    },
    Kernel {
        function: &'a str,
        kernel: u32,
    },
    None {},
}

fn write(recording: &Recording, out: &mut dyn Write) -> io::Result<()> {
    let process = json!({
        "name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "pteron"},
    });
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[{process}")?;
    for span in recording.blocks.iter().flat_map(|block| &block.spans) {
        out.write_all(b",\n")?;
        serde_json::to_writer(&mut *out, &event(recording, span))?;
    }
    out.write_all(b"]}\n")
}

fn event<'a>(recording: &'a Recording, span: &'a Span) -> Event<'a> {
    let us = |ns: u64| ns as f64 / 1e3;
    let args = match (span.place.chain, span.place.instruction) {
        (Some(chain), Some(instruction)) => match recording.functions.get(chain as usize) {
            Some(function) => Args::Kernel { function, kernel: instruction },
            None => Args::Instruction { chain, instruction, node: span.place.node },
        },
        _ => Args::None {},
    };
    Event {
        name: &span.name,
        cat: category(span.kind),
        ph: "X",
        pid: 1,
        tid: span.thread,
        ts: us(span.start),
        dur: us(span.nanoseconds()),
        args,
    }
}

fn category(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::LoadProgram | SpanKind::LoadMethod => "load",
        SpanKind::Prepare => "prepare",
        SpanKind::Execute => "execute",
        SpanKind::Kernel => "kernel",
        SpanKind::Delegate | SpanKind::DelegateStep => "delegate",
        SpanKind::Task => "task",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Block;
    use pteron_trace::Place;

    #[test]
    fn events_have_their_place_in_the_program() {
        let span = |chain| Span {
            kind: SpanKind::Kernel,
            name: "k\"".into(),
            place: Place::instruction(chain, 7),
            start: 1_500,
            end: 4_000,
            thread: 2,
        };
        let block = Block { spans: vec![span(0), span(1)], ..Block::default() };
        let functions = vec!["main".to_owned()];
        let recording = Recording { blocks: vec![block], functions, ..Recording::default() };
        let mut out = Vec::new();
        trace(&recording, &mut out).unwrap();
        let written: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let events = written["traceEvents"].as_array().unwrap();
        let expected = json!({
            "name": "k\"", "cat": "kernel", "ph": "X", "pid": 1, "tid": 2, "ts": 1.5, "dur": 2.5,
            "args": {"function": "main", "kernel": 7},
        });
        assert_eq!(events[1], expected);
        assert_eq!(events[2]["args"], json!({"chain": 1, "instruction": 7}));
    }
}

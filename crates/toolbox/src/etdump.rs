//! ETDumps as text: the spans with their durations, in the recorder's ticks, and the recorded
//! values.

use crate::show::{bytes, count, items, line, name, table};
use crate::{Error, Result};
use pteron_format::etdump::{self, DebugEvent, ETDump, Event, ProfileEvent, Value, ValueKind};
use pteron_runtime::{DataLoader, Limits, Purpose};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;

/// The contents of an ETDump.
#[derive(Debug, Clone, Serialize)]
pub struct EtdumpReport {
    /// The version of the report's schema.
    pub report: u32,
    pub file: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// The version of the ETDump's schema.
    pub version: u32,
    /// The blocks: usually loading, then each execution.
    pub blocks: Vec<BlockReport>,
}

/// A block of events.
#[derive(Debug, Clone, Serialize)]
pub struct BlockReport {
    pub name: Option<String>,
    /// The test case of a bundled program, if one was run.
    pub bundled_input: Option<i32>,
    /// The names of the tracked allocators.
    pub allocators: Vec<String>,
    /// Total bytes allocated from the tracked allocators.
    pub allocated: u64,
    /// The number of recorded values.
    pub values: usize,
    /// The spans, grouped by name; the groups are in the order in which their first spans ended.
    pub spans: Vec<SpanReport>,
}

/// The spans that have the same name.
#[derive(Debug, Clone, Serialize)]
pub struct SpanReport {
    /// The name of the spans; for steps inside a delegate, the id that the delegate gave.
    pub name: String,
    /// The number of spans.
    pub count: usize,
    /// The total duration of the spans, in ticks.
    pub ticks: u64,
}

/// Whether a file is an ETDump.
pub fn is_etdump(loader: &dyn DataLoader) -> Result<bool> {
    Ok(crate::kind::file_kind(loader)? == Some(pteron_format::FileKind::Etdump))
}

/// Reads a whole ETDump.
pub fn read(loader: &dyn DataLoader, limits: &Limits) -> Result<ETDump> {
    let file = loader.load(0, loader.size(), Purpose::Program)?;
    etdump::read(&file, &limits.format).map_err(|e| Error::Context {
        context: format!("{} is not valid", loader.name()),
        source: Box::new(e),
    })
}

/// Summarizes an ETDump.
pub fn report(loader: &dyn DataLoader, limits: &Limits) -> Result<EtdumpReport> {
    let dump = read(loader, limits)?;
    let blocks = dump.run_data.iter().map(|run| {
        let mut spans: Vec<SpanReport> = Vec::new();
        let mut index = HashMap::new();
        for event in run.events.iter().filter_map(|e| e.profile_event.as_ref()) {
            let name = span_name(event);
            let at = *index.entry(name.clone()).or_insert_with(|| {
                spans.push(SpanReport { name, count: 0, ticks: 0 });
                spans.len() - 1
            });
            spans[at].count += 1;
            spans[at].ticks = spans[at].ticks.saturating_add(event.ticks());
        }
        let allocations = run.events.iter().filter_map(|e| e.allocation_event);
        BlockReport {
            name: run.name.clone(),
            bundled_input: (run.bundled_input_index >= 0).then_some(run.bundled_input_index),
            allocators: run.allocators.iter().map(|a| a.name.clone().unwrap_or_default()).collect(),
            allocated: allocations.fold(0, |sum, a| sum.saturating_add(a.allocation_size)),
            values: run.events.iter().filter(|e| e.debug_event.is_some()).count(),
            spans,
        }
    });
    Ok(EtdumpReport {
        report: crate::inspect::REPORT_VERSION,
        file: loader.name().to_owned(),
        bytes: loader.size(),
        version: dump.version,
        blocks: blocks.collect(),
    })
}

fn span_name(event: &ProfileEvent) -> String {
    match (&event.name, &event.delegate_debug_id_str) {
        (Some(name), _) => name.clone(),
        (None, Some(step)) => step.clone(),
        (None, None) => format!("delegate step {}", event.delegate_debug_id_int),
    }
}

impl EtdumpReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut out =
            format!("{}: ETDump, {}; times in ticks of its recorder\n", self.file, bytes(self.bytes));
        for block in &self.blocks {
            let _ = write!(out, "\n{}", name(block.name.as_deref().unwrap_or("(no name)")));
            if let Some(case) = block.bundled_input {
                let _ = write!(out, ", test case {case}");
            }
            if block.allocated > 0 {
                let _ = write!(
                    out,
                    ", {} taken from {}",
                    bytes(block.allocated),
                    line(&block.allocators.join(", "))
                );
            }
            if block.values > 0 {
                let _ = write!(out, ", {} recorded", count(block.values, "value"));
            }
            out.push('\n');
            let rows =
                block.spans.iter().map(|s| vec![s.name.clone(), s.count.to_string(), s.ticks.to_string()]);
            out.push_str(&table(rows.collect(), "<>>", 2));
        }
        out
    }
}

/// All events of an ETDump, one per line.
pub fn listing(dump: &ETDump) -> String {
    let mut out = format!("etdump version {}\n", dump.version);
    for run in &dump.run_data {
        let _ = write!(out, "\nblock {}", name(run.name.as_deref().unwrap_or("(no name)")));
        if run.bundled_input_index >= 0 {
            let _ = write!(out, " of test case {}", run.bundled_input_index);
        }
        out.push('\n');
        for event in &run.events {
            let Event { profile_event, allocation_event, debug_event } = event;
            if let Some(e) = profile_event {
                let place = instruction_text(i64::from(e.chain_index), e.instruction_id);
                let _ = writeln!(
                    out,
                    "  {place:>6}  {} ticks {}..{} ({})",
                    name(&span_name(e)),
                    e.start_time,
                    e.end_time,
                    e.ticks()
                );
            }
            if let Some(e) = allocation_event {
                let index = usize::try_from(e.allocator_id).ok().and_then(|i| i.checked_sub(1));
                let owner = index.and_then(|i| run.allocators.get(i)?.name.as_deref()).unwrap_or("?");
                let _ = writeln!(out, "  {:>6}  {} bytes from {}", "", e.allocation_size, name(owner));
            }
            if let Some(e) = debug_event {
                let _ = writeln!(out, "  {}", debug_line(e));
            }
        }
    }
    out
}

fn debug_line(e: &DebugEvent) -> String {
    let place = instruction_text(i64::try_from(e.chain_index).unwrap_or(-1), e.instruction_id);
    let named = e.name.as_deref().or(e.delegate_debug_id_str.as_deref()).unwrap_or("");
    let value = e.debug_entry.as_ref().map_or_else(|| "nothing".to_owned(), value_text);
    let output = match &e.debug_entry {
        Some(Value { output: Some(true), .. }) => ", an output of the method",
        _ => "",
    };
    format!("{place:>6}  value {}{}{value}{output}", name(named), if named.is_empty() { "" } else { " " })
}

/// `3` for an instruction of chain 0, `1:3` for one of chain 1; empty for an event of the whole method.
fn instruction_text(chain: i64, instruction: i32) -> String {
    match chain {
        ..0 => String::new(),
        0 => instruction.to_string(),
        chain => format!("{chain}:{instruction}"),
    }
}

fn value_text(value: &Value) -> String {
    let tensor = |t: &etdump::Tensor| {
        let dtype = t.dtype().map_or_else(|| format!("type {}", t.scalar_type), |d| d.name().to_owned());
        format!("{dtype}{:?} at byte {}", t.sizes, t.offset)
    };
    match &value.kind {
        ValueKind::Null => "none".to_owned(),
        ValueKind::Int(v) => format!("int {v}"),
        ValueKind::Bool(v) => format!("bool {v}"),
        ValueKind::Float(v) => format!("float {v}"),
        ValueKind::Double(v) => format!("double {v}"),
        ValueKind::Tensor(t) => tensor(t),
        ValueKind::TensorList(list) => items(list.iter().map(tensor)),
        ValueKind::String => "string".to_owned(),
    }
}

//! The tables and key facts of a page: operators, weights, memory, delegates.

use super::data::{Arena, Cell, Column, ReportData, Row, Table};
use super::method::ExecutedAs;
use super::{Gathered, GraphKind};
use pteron_runtime::{BackendRegistry, PayloadBytes, PayloadRole, Program};
use pteron_toolbox::Result;
use pteron_toolbox::delegates;
use pteron_toolbox::etdump::EtdumpReport;
use pteron_toolbox::etrecord::EtrecordReport;
use pteron_toolbox::inspect::{ArraysReport, FlatTensorReport, GgufReport, ProgramReport, ValueReport};
use pteron_toolbox::plan::PlanReport;
use pteron_toolbox::show::{bytes, count};
use std::collections::{BTreeMap, BTreeSet};

impl Gathered {
    /// Adds a table, unless it has no rows.
    pub(super) fn add_table(&mut self, title: &str, note: &str, columns: &[(&str, Column)], rows: Vec<Row>) {
        if rows.is_empty() {
            return;
        }
        let (title, note) = (self.intern(title), self.intern(note));
        let columns = columns.iter().map(|&(name, kind)| (self.intern(name), kind)).collect();
        self.data.tables.push(Table { title, note, columns, rows });
    }

    pub(super) fn cell(&mut self, text: impl Into<String>) -> Cell {
        Cell::Text(self.intern(text))
    }
}

pub(super) fn number_cell(number: f64) -> Cell {
    if number.is_finite() { Cell::Number(number) } else { Cell::Empty }
}

fn row(cells: Vec<Cell>) -> Row {
    Row { cells, link: None }
}

/// Adds the key facts of a program.
pub(super) fn add_facts(to: &mut Gathered, report: &ProgramReport) {
    to.add_fact("Size", bytes(report.bytes));
    if let Some(compiled) = report.compiled_bytes {
        to.add_fact("Compiled", format!("a program of {}", bytes(compiled)));
    }
    let weights: u64 = report.constants.iter().map(|c| c.bytes).sum();
    if weights > 0 {
        to.add_fact("Weights in the program", bytes(weights));
    }
    let named: u64 = report.named_data.iter().map(|n| n.bytes).sum();
    if named > 0 {
        to.add_fact(
            "Named data",
            format!(
                "{}, {}",
                count(report.named_data.len(), "entry").replace("entrys", "entries"),
                bytes(named)
            ),
        );
    }
    for method in &report.invalid_methods {
        let name = method.name.as_deref().unwrap_or("without a name");
        to.add_fact(&format!("Method {name}"), format!("not valid: {}", method.problem));
    }
    for method in &report.methods {
        let name = &method.name;
        // If there is only one method, its name is omitted.
        let of =
            |what: &str| if report.methods.len() == 1 { capitalize(what) } else { format!("{name}, {what}") };
        let instructions: usize = method.instructions.0.values().sum();
        let delegated = method.delegates.iter().map(|d| d.calls).sum::<usize>();
        let delegated =
            if delegated > 0 { format!(", {delegated} of them delegated") } else { String::new() };
        to.add_fact(&format!("Method {name}"), format!("{}{delegated}", count(instructions, "instruction")));
        for (what, values) in [("input", &method.inputs), ("output", &method.outputs)] {
            for (i, value) in values.iter().enumerate() {
                to.add_fact(&of(&format!("{what} {i}")), value_text(value));
            }
        }
        if !method.arenas.is_empty() {
            let all = method.arenas.iter().map(|arena| arena.bytes).fold(0, u64::saturating_add);
            to.add_fact(&of("planned memory"), bytes(all));
        }
        if let Some(missing) = &method.missing {
            for sentence in &missing.sentences {
                to.add_note(format!("{name}: {sentence}"));
            }
        }
        let has_run = |g: &super::Graph| g.kind == GraphKind::Run;
        let steps: usize = to
            .data
            .graphs
            .iter()
            .filter(|g| has_run(g))
            .map(|g| g.nodes.iter().filter(|n| !n.pill).count())
            .sum();
        if steps > 0 && report.methods.len() == 1 {
            to.add_fact(&of("as it runs"), count(steps, "step"));
        }
    }
}

/// The text with its first letter in upper case.
fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn value_text(value: &ValueReport) -> String {
    match (&value.dtype, &value.sizes) {
        (Some(dtype), Some(sizes)) => {
            let dynamic = if value.dynamic == Some(true) { ", sizes may change" } else { "" };
            format!("{dtype}{sizes:?}{dynamic}")
        }
        _ => value.kind.clone(),
    }
}

/// Adds the table of operators, and a table of the calls that were not fused.
pub(super) fn add_operators(to: &mut Gathered, report: &ProgramReport) {
    let timed = to.data.time_unit.is_some();
    let mut columns = vec![
        ("Operator", Column::Text),
        ("Method", Column::Text),
        ("Calls", Column::Number),
        ("Runs", Column::Text),
    ];
    columns.extend(timed.then_some(("Time", Column::Time)));
    let (mut all, mut own) = (Vec::new(), Vec::new());
    let known: BTreeSet<String> = to.calls.keys().map(|(method, _)| method.clone()).collect();
    for ((method, operator), by_how) in std::mem::take(&mut to.calls) {
        for (how, nodes) in by_how {
            let time: f64 =
                nodes.iter().filter_map(|&(g, n)| to.data.graphs[g as usize].nodes[n as usize].time).sum();
            let mut cells = vec![
                to.cell(&operator),
                to.cell(&method),
                Cell::Number(nodes.len() as f64),
                to.cell(how.text()),
            ];
            let spent = if time > 0.0 { Cell::Number(time) } else { Cell::Empty };
            cells.extend(timed.then_some(spent));
            let row = Row { cells, link: nodes.first().copied() };
            if matches!(how, ExecutedAs::Step | ExecutedAs::AsWritten) {
                own.push((time, row.clone()));
            }
            all.push((time, nodes.len(), row));
        }
    }
    // Methods that could not be loaded are listed by their operator tables.
    for method in report.methods.iter().filter(|method| !known.contains(&method.name)) {
        for operator in &method.operators {
            let runs = to.cell(if operator.available { "" } else { "no kernel here" });
            let calls = Cell::Number(operator.calls as f64);
            let mut cells = vec![to.cell(&operator.name), to.cell(&method.name), calls, runs];
            cells.extend(timed.then_some(Cell::Empty));
            all.push((0.0, operator.calls, row(cells)));
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    own.sort_by(|a, b| b.0.total_cmp(&a.0));
    to.add_table("Operators", "", &columns, all.into_iter().map(|(_, _, row)| row).collect());
    let note = "Calls that became part of no fused step: the kernel of the operator runs each of them.";
    to.add_table("Not fused", note, &columns, own.into_iter().map(|(_, row)| row).collect());
}

/// A constant or external tensor in the table of weights.
struct Weight {
    bytes: u64,
    name: String,
    ty: String,
    place: String,
}

/// Adds the table of weights, largest first: constants of the program and of payloads, and external tensors.
pub(super) fn add_weights(
    to: &mut Gathered,
    program: &Program,
    report: &ProgramReport,
    backends: &BackendRegistry,
) -> Result<()> {
    let mut all: Vec<Weight> = Vec::new();
    for c in &report.constants {
        let name = c.name.clone().unwrap_or_default();
        let place = if c.mutable { "program, initial value of state" } else { "program" };
        all.push(Weight {
            bytes: c.bytes,
            name,
            ty: format!("{}{:?}", c.dtype, c.sizes),
            place: place.to_owned(),
        });
    }
    for plan in &program.tables().execution_plan {
        for tensor in
            plan.values.iter().filter_map(pteron_format::pte::EValue::as_tensor).filter(|t| t.is_external())
        {
            let name = tensor.fully_qualified_name().unwrap_or_default().to_owned();
            let ty = pteron_toolbox::print::tensor_type(tensor);
            all.push(Weight {
                bytes: tensor.nbytes().unwrap_or(0),
                name,
                ty,
                place: "outside (.ptd)".to_owned(),
            });
        }
    }
    for payload in delegates::payloads(program, backends)? {
        let Some(contents) = &payload.contents else { continue };
        // Values that share their bytes are one weight.
        let mut unique_weights: BTreeMap<String, Weight> = BTreeMap::new();
        for value in &contents.read.values {
            let PayloadRole::Constant(data) = &value.role else { continue };
            let (key, name) = match data {
                PayloadBytes::Named(key, _) => (key.clone(), key.clone()),
                PayloadBytes::Payload(range) => (format!("{range:?} {}", value.name), value.name.clone()),
            };
            let place = format!("{}, delegate {}", payload.method, payload.index);
            unique_weights.insert(key, Weight { bytes: data.len(), name, ty: value.type_text(), place });
        }
        all.extend(unique_weights.into_values());
    }
    add_table_of_weights(to, all);
    Ok(())
}

fn add_table_of_weights(to: &mut Gathered, mut all: Vec<Weight>) {
    all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    let rows = all
        .into_iter()
        .map(|w| row(vec![to.cell(w.name), to.cell(w.ty), to.cell(w.place), Cell::Number(w.bytes as f64)]));
    let rows: Vec<Row> = rows.collect();
    let columns =
        [("Name", Column::Text), ("Type", Column::Text), ("Kept in", Column::Text), ("Bytes", Column::Bytes)];
    to.add_table("Weights", "", &columns, rows);
}

/// Adds the arenas with the lifetimes of their blocks, and notes on overlaps.
pub(super) fn add_memory(to: &mut Gathered, program: &Program, report: &PlanReport) {
    for method in &report.methods {
        let plan = program.tables().execution_plan.iter().find(|plan| plan.name == method.name);
        let graph = to.node_at(&method.name, pteron_trace::Place::instruction(0, 0)).map(|(graph, _)| graph);
        for arena in &method.arenas {
            let mut blocks = Vec::new();
            for block in &arena.blocks {
                let named = block
                    .values
                    .iter()
                    .find_map(|&v| plan?.values.get(v)?.as_tensor()?.fully_qualified_name());
                let ids: Vec<String> = block.values.iter().take(4).map(|id| format!("%{id}")).collect();
                let name = format!(
                    "{} {}{}",
                    ids.join(" "),
                    block.layout,
                    named.map(|n| format!(" {n}")).unwrap_or_default()
                );
                let (name, role) = (to.intern(name), to.intern(block.role));
                for &(first, last) in &block.life {
                    blocks.push((
                        block.bytes.start,
                        block.bytes.end - block.bytes.start,
                        first,
                        last,
                        name,
                        role,
                    ));
                }
            }
            let name = to.intern(format!("{}, arena {}", method.name, arena.memory_id));
            let peak_at = to.intern(arena.peak_at.clone().unwrap_or_default());
            let (bytes, peak, instructions) = (arena.bytes, arena.peak, method.instructions as u64);
            to.data.arenas.push(Arena { name, bytes, peak, peak_at, instructions, graph, blocks });
        }
        for overlap in &method.overlaps {
            to.add_note(format!(
                "{}: {} and {} share bytes {}..{} of arena {}, and one is written while the other is needed",
                method.name,
                overlap.one.layout,
                overlap.other.layout,
                overlap.bytes.start,
                overlap.bytes.end,
                overlap.memory_id
            ));
        }
    }
}

/// Adds the table of the delegates of all methods.
pub(super) fn add_delegates(to: &mut Gathered, report: &ProgramReport, plan: &PlanReport) {
    let mut rows = Vec::new();
    for method in &report.methods {
        let plans = plan.methods.iter().find(|m| m.name == method.name);
        for delegate in &method.delegates {
            let inner = plans.and_then(|m| m.delegates.iter().find(|d| d.index == delegate.index));
            let inner = |of: &dyn Fn(&pteron_toolbox::plan::DelegatePlan) -> f64| {
                inner.map_or(Cell::Empty, |d| Cell::Number(of(d)))
            };
            let cells = vec![
                to.cell(format!("{}, delegate {}", method.name, delegate.index)),
                to.cell(&delegate.backend),
                to.cell(delegate.magic.clone().unwrap_or_default()),
                Cell::Number(delegate.calls as f64),
                Cell::Number(delegate.bytes as f64),
                inner(&|d| d.nodes as f64),
                inner(&|d| d.constants as f64),
                inner(&|d| d.peak as f64),
            ];
            let name = format!("{}, delegate {}", method.name, delegate.index);
            let graph = to.data.graphs.iter().position(|g| to.data.strings.get(g.name) == name);
            rows.push(Row { cells, link: graph.map(|g| (g as u32, 0)) });
        }
    }
    let columns = [
        ("Delegate", Column::Text),
        ("Backend", Column::Text),
        ("Format", Column::Text),
        ("Calls", Column::Number),
        ("Payload", Column::Bytes),
        ("Nodes", Column::Number),
        ("Constants", Column::Bytes),
        ("Peak memory", Column::Bytes),
    ];
    to.add_table("Delegates", "", &columns, rows);
}

/// The report data of a `.ptd` file, whose entries are listed as weights.
pub(super) fn flat_tensor_data(report: &FlatTensorReport) -> ReportData {
    let mut to = Gathered::new(&report.file, "Named data");
    to.add_fact("Size", bytes(report.bytes));
    to.add_fact("Entries", report.entries.len().to_string());
    let weights = report.entries.iter().map(|entry| {
        let sizes = entry.sizes.as_deref().unwrap_or_default();
        Weight {
            bytes: entry.bytes,
            name: entry.key.clone(),
            ty: entry.dtype.as_ref().map_or_else(|| "blob".to_owned(), |dtype| format!("{dtype}{sizes:?}")),
            place: format!("segment {}", entry.segment),
        }
    });
    add_table_of_weights(&mut to, weights.collect());
    to.data
}

/// The report data of a `.gguf` file, whose tensors are listed as weights.
pub(super) fn gguf_data(report: &GgufReport) -> ReportData {
    let metadata = report.metadata.iter().map(|(key, value)| (key, value.to_string()));
    let tensors =
        report.tensors.iter().map(|t| (t.name.clone(), format!("{}{:?}", t.kind, t.sizes), t.bytes));
    named_tensors_data(&report.file, "GGUF weights", report.bytes, metadata, tensors)
}

/// The report data of a file of arrays, which are listed as weights.
pub(super) fn arrays_data(report: &ArraysReport, format: &str) -> ReportData {
    let metadata = report.metadata.iter().map(|(key, text)| (key, text.clone()));
    let tensors = report.tensors.iter().map(|t| (t.name.clone(), t.ty.clone(), t.bytes));
    named_tensors_data(&report.file, format, report.bytes, metadata, tensors)
}

/// The report data of a file with metadata and tensors: name, type and bytes of each.
fn named_tensors_data<'r>(
    file: &str,
    format: &str,
    size: u64,
    metadata: impl Iterator<Item = (&'r String, String)>,
    tensors: impl Iterator<Item = (String, String, u64)>,
) -> ReportData {
    let mut to = Gathered::new(file, format);
    to.add_fact("Size", bytes(size));
    metadata.for_each(|(key, text)| to.add_fact(key, text));
    let weights = tensors.map(|(name, ty, bytes)| Weight { bytes, name, ty, place: "file".to_owned() });
    add_table_of_weights(&mut to, weights.collect());
    to.data
}

/// The report data of an ETDump: a table of spans for each block.
pub(super) fn etdump_data(report: &EtdumpReport) -> ReportData {
    let mut to = Gathered::new(&report.file, "ETDump");
    to.add_fact("Size", bytes(report.bytes));
    for block in &report.blocks {
        let spans = block.spans.iter().map(|span| {
            let (count, ticks) = (Cell::Number(span.count as f64), Cell::Number(span.ticks as f64));
            row(vec![to.cell(&span.name), count, ticks])
        });
        let rows: Vec<Row> = spans.collect();
        let columns = [("Span", Column::Text), ("Count", Column::Number), ("Ticks", Column::Number)];
        to.add_table(block.name.as_deref().unwrap_or("Block"), "", &columns, rows);
    }
    to.data
}

/// The report data of an ETRecord: a table of its entries.
pub(super) fn etrecord_data(report: &EtrecordReport) -> ReportData {
    let mut to = Gathered::new(&report.file, "ETRecord");
    to.add_fact("Size", bytes(report.bytes));
    let rows: Vec<Row> = report
        .entries
        .iter()
        .map(|entry| {
            let what = to.cell(entry.what.unwrap_or("unknown"));
            row(vec![to.cell(&entry.name), Cell::Number(entry.bytes as f64), what])
        })
        .collect();
    let columns = [("Entry", Column::Text), ("Bytes", Column::Number), ("Contents", Column::Text)];
    to.add_table("Entries", "", &columns, rows);
    to.data
}

/// The texts of a row's cells, for tests.
#[cfg(test)]
pub(super) fn texts(data: &ReportData, row: &Row) -> Vec<String> {
    let cell = |cell: &Cell| match cell {
        Cell::Text(text) => data.strings.get(*text).to_owned(),
        Cell::Number(number) => number.to_string(),
        Cell::Empty => String::new(),
    };
    row.cells.iter().map(cell).collect()
}

//! A self-contained page about a file: its graphs, with precomputed layout, operators, weights, memory, times and
//! differences.
//!
//! ```text
//! inspect, plan, delegates, graphs ─┐
//! profile, ETDump, compare, diff   ─┼─► ReportData ─► page: HTML that needs nothing else
//! BEF                              ─┘    layout        (or JSON)
//! ```
//!
//! The information comes from the other verbs; this module combines it. Every text of the file reaches the page as data,
//! never as markup.
// Items whose names say everything have no doc comments.
#![allow(missing_docs)]
#![forbid(unsafe_code)]

#[cfg(feature = "bef")]
mod bef;
mod data;
mod family;
pub mod layout;
mod measured;
mod method;
mod page;
mod sketch;
mod tables;
#[cfg(test)]
mod tests;

pub use data::{
    Arena, Cell, Column, Edge, Graph, GraphKind, Node, Operand, ReportData, Row, Strings, Table, Text,
};
pub use family::FAMILIES;
pub use measured::Measured;
pub use page::page;

use pteron_format::pte::Frame;
use pteron_runtime::{DataLoader, LoadOptions, Program};
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::inspect::{self, ProgramReport, Report};
use pteron_toolbox::{Result, plan};
use pteron_trace::Place;
use sketch::Sketch;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The version of the data's schema. It is incremented when a field is renamed or removed.
const REPORT_VERSION: u32 = 1;

/// The report data gathered so far, and lookup tables from instructions to nodes.
struct Gathered {
    data: ReportData,
    frames: HashMap<(Text, i32, Text, Text), u32>,
    /// The nodes (graph, node) that compute an instruction's result, by method and place; the node of the method's own
    /// graph comes first.
    places: HashMap<(String, Place), Vec<(u32, u32)>>,
    /// How each instruction that a prepared graph represents is executed, by method and place.
    how: HashMap<(String, Place), method::ExecutedAs>,
    /// The instructions in prepared regions, by method and place, including those without a node.
    prepared: HashSet<(String, Place)>,
    calls: method::Calls,
}

impl Gathered {
    fn new(file: &str, format: impl Into<String>) -> Self {
        let data = ReportData {
            report: REPORT_VERSION,
            file: file.to_owned(),
            format: format.into(),
            facts: Vec::new(),
            notes: Vec::new(),
            time_unit: None,
            graphs: Vec::new(),
            arenas: Vec::new(),
            tables: Vec::new(),
            frames: Vec::new(),
            strings: Strings::default(),
        };
        Self {
            data,
            frames: HashMap::new(),
            places: HashMap::new(),
            how: HashMap::new(),
            prepared: HashSet::new(),
            calls: method::Calls::new(),
        }
    }

    /// Interns a text.
    fn intern(&mut self, text: impl Into<String>) -> Text {
        self.data.strings.add(text)
    }

    fn add_fact(&mut self, name: &str, value: impl Into<String>) {
        let pair = (self.intern(name), self.intern(value));
        self.data.facts.push(pair);
    }

    fn add_note(&mut self, text: impl Into<String>) {
        let text = self.intern(text);
        self.data.notes.push(text);
    }

    fn next_graph(&self) -> u32 {
        self.data.graphs.len() as u32
    }

    fn add_graph(&mut self, sketch: Sketch) {
        let graph = sketch.draw(&mut self.data.strings);
        self.data.graphs.push(graph);
    }

    /// Interns source frames and returns their indices.
    fn add_frames(&mut self, frames: &[Frame]) -> Vec<u32> {
        let mut all = Vec::with_capacity(frames.len());
        for frame in frames {
            let text = |text: &Option<String>| text.as_deref().unwrap_or_default().trim().to_owned();
            let (file, name) = (self.intern(text(&frame.filename)), self.intern(text(&frame.name)));
            let key = (file, frame.lineno, name, self.intern(text(&frame.context)));
            let next = self.data.frames.len() as u32;
            let index = *self.frames.entry(key).or_insert(next);
            if index == next {
                self.data.frames.push(key);
            }
            all.push(index);
        }
        all
    }

    /// The node (graph, node) at a place of a method, if any; for an instruction, its node in the graph as written.
    fn node_at(&self, method: &str, place: Place) -> Option<(u32, u32)> {
        self.places.get(&(method.to_owned(), place))?.first().copied()
    }
}

/// Gathers the report data of a file: graphs of the methods of a program or of the functions of a BEF program, tables for
/// weights and recordings. Methods are loaded with `options`, to show their prepared form, but not executed.
///
/// # Errors
/// If the file is of a format that [`inspect::inspect`] does not know, or is not valid. A method that cannot be loaded is
/// not an error; the data has a note about it.
pub fn gather(
    loader: &Arc<dyn DataLoader>,
    options: &LoadOptions,
    measured: &Measured<'_>,
) -> Result<ReportData> {
    let inspected = inspect::inspect(loader, &options.kernels, &options.backends, &options.limits)?;
    match inspected {
        Report::Pte(report) => {
            let is_archive = report.compiled_bytes.is_some();
            let format = if is_archive { "torch.export archive" } else { "ExecuTorch program" };
            gather_program(Arc::clone(loader), &report, format, options, measured)
        }
        Report::Bpte(report) => {
            let program = Bundle::open(&**loader, &options.limits)?.program();
            gather_program(program, &report.program, "Bundled program", options, measured)
        }
        #[cfg(feature = "bef")]
        Report::Bef(report) => {
            let bytes = loader.load(0, loader.size(), pteron_runtime::Purpose::Program)?;
            bef::gather(&bytes, &report, measured)
        }
        Report::Ptd(report) => Ok(tables::flat_tensor_data(&report)),
        Report::Gguf(report) => Ok(tables::gguf_data(&report)),
        Report::Safetensors(report) => Ok(tables::arrays_data(&report, "safetensors")),
        Report::Npz(report) => Ok(tables::arrays_data(&report, "NumPy arrays")),
        Report::Npy(report) => Ok(tables::arrays_data(&report, "NumPy array")),
        Report::Etdump(report) => Ok(tables::etdump_data(&report)),
        Report::Etrecord(report) => Ok(tables::etrecord_data(&report)),
        // The toolbox may be built with the feature although this crate is not.
        #[cfg(not(feature = "bef"))]
        #[allow(unreachable_patterns)]
        _ => Err(pteron_toolbox::Error::input("this build makes no reports on BEF programs")),
    }
}

fn gather_program(
    loader: Arc<dyn DataLoader>,
    report: &ProgramReport,
    format: &str,
    options: &LoadOptions,
    measured: &Measured<'_>,
) -> Result<ReportData> {
    let program = Program::load(loader, &options.limits)?;
    let mut to = Gathered::new(&report.file, format);
    for method in &report.methods {
        method::add_method(&mut to, &program, &method.name, options)?;
    }
    tables::add_facts(&mut to, report);
    measured.mark_nodes(&mut to);
    tables::add_operators(&mut to, report);
    tables::add_weights(&mut to, &program, report, &options.backends)?;
    let plan = plan::plan(&program, &options.kernels, &options.backends)?;
    tables::add_memory(&mut to, &program, &plan);
    tables::add_delegates(&mut to, report, &plan);
    measured.add_tables(&mut to);
    Ok(to.data)
}

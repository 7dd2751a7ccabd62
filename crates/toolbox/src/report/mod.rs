//! One page about a file: its graphs, drawn ahead of time, with operators, weights, memory, times and differences.
//!
//! ```text
//! inspect, plan, delegates, graphs ─┐
//! profile, ETDump, compare, diff   ─┼─► ReportData ─► page: HTML that needs nothing else
//! BEF                              ─┘    layout        (or JSON)
//! ```
//!
//! What stands on the page is found by the other verbs; what is here brings it together. Every text of the file reaches
//! the page as data, never as markup.

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

use crate::bundle::Bundle;
use crate::inspect::{self, ProgramReport, Report};
use crate::{Result, plan};
use format::pte::Frame;
use runtime::{DataLoader, LoadOptions, Program};
use sketch::Sketch;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use trace::Place;

/// The version of the data's shape: it grows when a field is renamed or removed.
const REPORT_VERSION: u32 = 1;

/// What has been gathered so far, and where the instructions of methods are in it.
struct Gathered {
    data: ReportData,
    frames: HashMap<(Text, i32, Text, Text), u32>,
    /// The nodes that compute what instructions do, by method and place; those of the method's own graph first.
    places: HashMap<(String, Place), Vec<(u32, u32)>>,
    /// How instructions run that are part of a graph that was prepared.
    how: HashMap<(String, Place), method::How>,
    /// Instructions that became part of a graph, whether anything is left of them or not.
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

    fn text(&mut self, text: impl Into<String>) -> Text {
        self.data.strings.add(text)
    }

    fn fact(&mut self, name: &str, value: impl Into<String>) {
        let pair = (self.text(name), self.text(value));
        self.data.facts.push(pair);
    }

    fn note(&mut self, text: impl Into<String>) {
        let text = self.text(text);
        self.data.notes.push(text);
    }

    fn next_graph(&self) -> u32 {
        self.data.graphs.len() as u32
    }

    fn draw(&mut self, sketch: Sketch) {
        let graph = sketch.draw(&mut self.data.strings);
        self.data.graphs.push(graph);
    }

    /// Adds source frames.
    fn frames(&mut self, frames: &[Frame]) -> Vec<u32> {
        let mut all = Vec::with_capacity(frames.len());
        for frame in frames {
            let text = |text: &Option<String>| text.as_deref().unwrap_or_default().trim().to_owned();
            let (file, name) = (self.text(text(&frame.filename)), self.text(text(&frame.name)));
            let key = (file, frame.lineno, name, self.text(text(&frame.context)));
            let next = self.data.frames.len() as u32;
            let index = *self.frames.entry(key).or_insert(next);
            if index == next {
                self.data.frames.push(key);
            }
            all.push(index);
        }
        all
    }

    /// The node of a place in a method's own graph, or in a payload's.
    fn node_at(&self, method: &str, place: Place) -> Option<(u32, u32)> {
        self.places.get(&(method.to_owned(), place))?.first().copied()
    }
}

/// Everything that is known of a file: of a program its methods as graphs, of a BEF program its functions, of weights and
/// recordings tables. Methods are loaded with these options, to show what they become, and nothing is executed.
///
/// # Errors
/// If the file is of no kind that [`inspect::inspect`] knows, or is not valid. That a method cannot be loaded here is no
/// error: the data says so.
pub fn gather(
    loader: &Arc<dyn DataLoader>,
    options: &LoadOptions,
    measured: &Measured<'_>,
) -> Result<ReportData> {
    let inspected = inspect::inspect(loader, &options.kernels, &options.backends, &options.limits)?;
    match inspected {
        Report::Pte(report) => {
            of_program(Arc::clone(loader), &report, "ExecuTorch program", options, measured)
        }
        Report::Bpte(report) => {
            let program = Bundle::open(&**loader, &options.limits)?.program();
            of_program(program, &report.program, "Bundled program", options, measured)
        }
        #[cfg(feature = "bef")]
        Report::Bef(report) => {
            let bytes = loader.load(0, loader.size(), runtime::Purpose::Program)?;
            bef::gather(&bytes, &report, measured)
        }
        Report::Ptd(report) => Ok(tables::of_flat_tensor(&report)),
        Report::Gguf(report) => Ok(tables::of_gguf(&report)),
        Report::Etdump(report) => Ok(tables::of_etdump(&report)),
    }
}

fn of_program(
    loader: Arc<dyn DataLoader>,
    report: &ProgramReport,
    format: &str,
    options: &LoadOptions,
    measured: &Measured<'_>,
) -> Result<ReportData> {
    let program = Program::load(loader, &options.limits)?;
    let mut to = Gathered::new(&report.file, format);
    for method in &report.methods {
        method::add(&mut to, &program, &method.name, options)?;
    }
    tables::facts(&mut to, report);
    measured.mark(&mut to);
    tables::operators(&mut to, report);
    tables::weights(&mut to, &program, report, &options.backends)?;
    let plan = plan::plan(&program, &options.kernels, &options.backends)?;
    tables::memory(&mut to, &program, &plan);
    tables::delegates(&mut to, report, &plan);
    measured.tables(&mut to);
    Ok(to.data)
}

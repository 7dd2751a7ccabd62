//! The report data of BEF programs: a graph for each function.

use super::data::{Cell, Column, GraphKind, Node, Operand, ReportData, Row};
use super::family::family_of;
use super::sketch::Sketch;
use super::{Gathered, Measured};
use pteron_bef::section::functions::{FunctionRecord, KernelRecord};
use pteron_bef::{FunctionId, KernelCode, Location, Verified};
use pteron_toolbox::bef::{BefReport, truncated_value};
use pteron_toolbox::profile::bef::labels;
use pteron_toolbox::profile::time_text;
use pteron_toolbox::show::{bytes, count};
use pteron_toolbox::{Context, Result};
use std::collections::HashMap;

/// Collects the report data of a BEF program.
pub(super) fn gather(file: &[u8], report: &BefReport, measured: &Measured<'_>) -> Result<ReportData> {
    let context = || format!("{} is not a valid BEF file", report.file);
    let program = pteron_bef::File::open(file).and_then(|file| file.verify()).context(context)?;
    let mut to = Gathered::new(&report.file, "BEF program");
    to.add_fact("Size", bytes(report.bytes));
    to.add_fact("Functions", report.functions.len().to_string());
    to.add_fact("Kernels", report.kernels.iter().map(|k| k.calls).sum::<usize>().to_string());
    let missing: Vec<&str> = report.kernels.iter().filter(|k| !k.supported).map(|k| &*k.name).collect();
    if !missing.is_empty() {
        to.add_note(format!(
            "{} that this build does not have: {}",
            count(missing.len(), "kernel"),
            missing.join(", ")
        ));
    }
    let names: Vec<String> = labels(&program).context(context)?.into_iter().map(|(_, name)| name).collect();
    // Native functions have no graph.
    let mut graphs: HashMap<u32, u32> = HashMap::new();
    for index in 0..names.len() as u32 {
        if program.function(FunctionId(index)).context(context)?.is_some() {
            graphs.insert(index, graphs.len() as u32);
        }
    }
    for index in 0..names.len() as u32 {
        let Some(record) = program.function(FunctionId(index)).context(context)? else { continue };
        Function { program: &program, index, record, graphs: &graphs, names: &names }
            .add(&mut to)
            .context(context)?;
    }
    add_tables(&mut to, report);
    add_times(&mut to, &names, &graphs, measured);
    Ok(to.data)
}

struct Function<'a> {
    program: &'a Verified<'a>,
    index: u32,
    record: FunctionRecord<'a>,
    /// The index of each function's graph in the report, by the function's index.
    graphs: &'a HashMap<u32, u32>,
    names: &'a [String],
}

impl Function<'_> {
    fn add(&self, to: &mut Gathered) -> pteron_bef::Result<()> {
        let name = self.names.get(self.index as usize).cloned().unwrap_or_default();
        let mut sketch = Sketch::new(name, GraphKind::Function);
        let types = self.program.functions().get(FunctionId(self.index));
        let type_name =
            |types: &[pteron_bef::TypeId], i: usize| types.get(i).map_or("", |&t| self.program.type_name(t));
        let mut nodes_of_registers: HashMap<u32, u32> = HashMap::new();
        let mut kernels = self.record.kernels();
        if let Some(first) = kernels.next() {
            for (i, register) in first?.results().iter().enumerate() {
                let (label, detail) = (
                    to.intern(format!("argument {i}")),
                    to.intern(types.as_ref().map_or("", |t| type_name(t.arguments, i))),
                );
                nodes_of_registers.insert(register, sketch.add_pill(label, detail));
            }
        }
        for (number, kernel) in kernels.enumerate() {
            let kernel = kernel?;
            let node = self.add_kernel(to, number, &kernel)?;
            let node = sketch.add_node(node);
            for register in kernel.arguments().iter() {
                let (text, from) =
                    (to.intern(format!("register {register}")), nodes_of_registers.get(&register).copied());
                sketch.add_operand(node, Operand { text, from, ..Operand::default() });
            }
            nodes_of_registers.extend(kernel.results().iter().map(|register| (register, node)));
        }
        for (i, register) in self.record.results().iter().enumerate() {
            let (label, detail) = (
                to.intern(format!("result {i}")),
                to.intern(types.as_ref().map_or("", |t| type_name(t.results, i))),
            );
            let output = sketch.add_pill(label, detail);
            if let Some(&from) = nodes_of_registers.get(&register.0) {
                sketch.add_edge(from, output, detail, false);
            }
        }
        to.add_graph(sketch);
        Ok(())
    }

    fn add_kernel(
        &self,
        to: &mut Gathered,
        number: usize,
        kernel: &KernelRecord<'_>,
    ) -> pteron_bef::Result<Node> {
        let name = self.program.kernel_name(KernelCode(kernel.code()));
        let mut attributes = Vec::new();
        for offset in kernel.attributes().iter() {
            let kind = self.program.attribute_type(offset);
            let value = kind.and_then(|kind| self.program.attribute(offset).decode(kind).ok());
            attributes.push(
                value.map_or_else(|| format!("attribute at {offset}"), |value| truncated_value(&value)),
            );
        }
        let mut node = Node {
            label: to.intern(name),
            detail: to.intern(attributes.join(", ")),
            family: family_of(name),
            ..Node::default()
        };
        node.about.push((to.intern("Kernel"), to.intern(number.to_string())));
        for attribute in attributes {
            node.about.push((to.intern("Attribute"), to.intern(attribute)));
        }
        let results: Vec<String> = kernel.results().iter().map(|r| r.to_string()).collect();
        if !results.is_empty() {
            node.about.push((to.intern("Result registers"), to.intern(results.join(", "))));
        }
        if let Some(entry) = self.record.kernel_table().get(number + 1) {
            node.about.push((to.intern("Stream"), to.intern(entry.stream_id.to_string())));
        }
        if let Some(location) = self.program.location(kernel.location())?.filter(|l| *l != Location::Unknown)
        {
            node.about.push((to.intern("Source"), to.intern(location.to_string())));
        }
        for function in kernel.functions().iter() {
            let name = self.names.get(function as usize).cloned().unwrap_or_default();
            match self.graphs.get(&function) {
                Some(&graph) => {
                    node.opens.get_or_insert(graph);
                    let calls = to.intern(format!("Calls {name}"));
                    node.links.push((calls, graph, 0));
                }
                None => node.about.push((to.intern("Calls"), to.intern(name))),
            }
        }
        Ok(node)
    }
}

fn add_tables(to: &mut Gathered, report: &BefReport) {
    let rows = report.kernels.iter().map(|k| {
        let here = if k.supported { "" } else { "not in this build" };
        Row { cells: vec![to.cell(&k.name), Cell::Number(k.calls as f64), to.cell(here)], link: None }
    });
    let mut rows: Vec<Row> = rows.collect();
    let calls = |row: &Row| if let Cell::Number(calls) = row.cells[1] { calls } else { 0.0 };
    rows.sort_by(|a, b| calls(b).total_cmp(&calls(a)));
    to.add_table(
        "Kernels",
        "",
        &[("Kernel", Column::Text), ("Calls", Column::Number), ("Here", Column::Text)],
        rows,
    );
    let rows = report.sections.iter().map(|s| Row {
        cells: vec![
            to.cell(s.name.map_or_else(|| s.id.to_string(), str::to_owned)),
            Cell::Number(s.offset as f64),
            Cell::Number(s.bytes as f64),
        ],
        link: None,
    });
    let rows: Vec<Row> = rows.collect();
    to.add_table(
        "Sections",
        "",
        &[("Section", Column::Text), ("Offset", Column::Number), ("Bytes", Column::Bytes)],
        rows,
    );
}

/// Adds a profile's times to the nodes, and a table of the times to the report.
fn add_times(to: &mut Gathered, names: &[String], graphs: &HashMap<u32, u32>, measured: &Measured<'_>) {
    let Some(report) = measured.bef_profile else { return };
    to.data.time_unit = Some("µs");
    let by_name: HashMap<&str, u32> = names
        .iter()
        .enumerate()
        .filter_map(|(i, name)| Some((name.as_str(), *graphs.get(&(i as u32))?)))
        .collect();
    let mut rows = Vec::new();
    for function in &report.functions {
        to.add_fact(
            &format!("One run of {}", function.name),
            format!("{}, the mean of {}", time_text(function.run_us), function.runs),
        );
        for place in &function.places {
            let Some(&graph) = by_name.get(place.function.as_str()) else { continue };
            let nodes = &mut to.data.graphs[graph as usize].nodes;
            let first = nodes.iter().position(|n| !n.pill).unwrap_or(0);
            let at = first + place.kernel as usize;
            let Some(node) = nodes.get_mut(at) else { continue };
            node.time = Some(node.time.unwrap_or(0.0) + place.time.self_us);
            rows.push(Row {
                cells: vec![
                    to.cell(&place.name),
                    to.cell(&place.function),
                    Cell::Number(place.time.calls),
                    Cell::Number(place.time.self_us),
                ],
                link: Some((graph, at as u32)),
            });
        }
    }
    let columns = [
        ("Kernel", Column::Text),
        ("Function", Column::Text),
        ("Calls", Column::Number),
        ("Time", Column::Time),
    ];
    to.add_table("Time", "Self times of kernels in one run.", &columns, rows);
}

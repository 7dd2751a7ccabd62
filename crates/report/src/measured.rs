//! Adds measured times, errors and differences to the nodes.

use super::Gathered;
use super::data::{Cell, Column, Row};
use super::tables::number_cell;
use pteron_format::etdump::ETDump;
use pteron_toolbox::comparison::{Closeness, Comparison};
use pteron_toolbox::diff::{Class, DiffReport};
use pteron_toolbox::divergence::Divergence;
use pteron_toolbox::profile::{self, time_text};
use pteron_trace::Place;
use std::collections::HashMap;

/// Measurements and comparisons of a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measured<'a> {
    /// The profile of a method.
    pub profile: Option<&'a profile::Report>,
    /// The profile of a BEF program.
    #[cfg(feature = "bef")]
    pub bef_profile: Option<&'a profile::bef::Report>,
    /// The ETDump of a runtime, and the name of the recorded method; ignored if there is a profile.
    pub etdump: Option<(&'a ETDump, &'a str)>,
    /// The divergence of two runs.
    pub divergence: Option<&'a Divergence>,
    /// The comparison with another program of the same model, and that program's name.
    pub comparison: Option<(&'a Comparison, &'a str)>,
    /// The differences from another file.
    pub diff: Option<&'a DiffReport>,
}

/// The unit of the times of profiles.
const MICROSECONDS: &str = "µs";

impl Measured<'_> {
    /// Adds the measurements to the nodes.
    pub(super) fn mark_nodes(&self, to: &mut Gathered) {
        if let Some(report) = self.profile {
            to.data.time_unit = Some(MICROSECONDS);
            for step in &report.steps {
                let Some((chain, instruction)) = step.place else { continue };
                let place = Place { node: step.node, ..Place::instruction(chain, instruction) };
                match (step.in_delegate, step.node) {
                    // The step's time is included in the time of the delegate call.
                    (true, Some(_)) => change_nodes(to, &report.method, place, |node| {
                        node.time = Some(node.time.unwrap_or(0.0) + step.total_us);
                    }),
                    (true, None) => {}
                    (false, _) => add_time(to, &report.method, place, step.total_us),
                }
            }
            to.add_fact(
                "One run",
                format!(
                    "{}, the fastest of {} {}",
                    time_text(report.run_us),
                    report.runs,
                    time_text(report.fastest_run_us)
                ),
            );
            to.add_fact("Loading", time_text(report.load_us));
        } else if let Some((dump, method)) = self.etdump {
            to.data.time_unit = Some("ticks");
            for (place, ticks) in mean_ticks(dump) {
                add_time(to, method, place, ticks);
            }
        }
        if let Some(divergence) = self.divergence {
            for value in &divergence.values {
                let Some((chain, instruction)) = value.place else { continue };
                let place = Place { node: value.node, ..Place::instruction(chain, instruction) };
                let alert = value.difference.as_ref().map(|d| to.intern(format!("differs: {d}")));
                change_nodes(to, &divergence.method, place, |node| {
                    let larger = node.error.into_iter().chain(value.largest).fold(0.0, f64::max);
                    // JSON has no NaN and infinities; the alert mentions them.
                    node.error = Some(larger).filter(|e| e.is_finite());
                    node.alert = alert.unwrap_or(node.alert);
                });
            }
        }
        for difference in self.diff.iter().flat_map(|diff| &diff.differences) {
            if let Some((method, place)) = &difference.instruction {
                let alert = match &difference.b {
                    None => "not in the other file".to_owned(),
                    Some(b) => format!("in the other file: {b}"),
                };
                let alert = to.intern(alert);
                change_nodes(to, method, *place, |node| node.alert = alert);
            }
        }
    }

    /// Adds the tables of the measurements.
    pub(super) fn add_tables(&self, to: &mut Gathered) {
        if let Some(report) = self.profile {
            let rows = report.operators.iter().map(|o| Row {
                cells: vec![
                    to.cell(&o.name),
                    Cell::Number(o.calls),
                    Cell::Number(o.total_us),
                    Cell::Number(o.share),
                ],
                link: None,
            });
            let rows: Vec<Row> = rows.collect();
            let columns = [
                ("Step", Column::Text),
                ("Calls", Column::Number),
                ("Time", Column::Time),
                ("Share", Column::Share),
            ];
            to.add_table("Time", "One run: the mean over all recorded runs.", &columns, rows);
        }
        if let Some(divergence) = self.divergence {
            let rows = divergence.values.iter().map(|v| {
                let place = v.place.map(|(c, i)| Place { node: v.node, ..Place::instruction(c, i) });
                Row {
                    cells: vec![
                        to.cell(v.name()),
                        v.largest.map_or(Cell::Empty, number_cell),
                        to.cell(v.difference.clone().unwrap_or_default()),
                    ],
                    link: place.and_then(|place| to.node_at(&divergence.method, place)),
                }
            });
            let rows: Vec<Row> = rows.collect();
            let columns = [
                ("Value", Column::Text),
                ("Largest difference", Column::Number),
                ("Beyond tolerance", Column::Text),
            ];
            let note = format!(
                "{} of {} values were compared; {} were fused into others.",
                divergence.values.len(),
                divergence.recorded,
                divergence.fused.len()
            );
            to.add_table("Comparison", &note, &columns, rows);
        }
        if let Some((comparison, other)) = self.comparison {
            add_comparison(to, comparison, other);
        }
        if let Some(diff) = self.diff {
            to.add_fact("Compared with", &*diff.b);
            let rows = diff.differences.iter().map(|d| {
                let class = if d.class == Class::Meaning { "meaning" } else { "form" };
                Row {
                    cells: vec![
                        to.cell(&d.place),
                        to.cell(d.a.clone().unwrap_or_default()),
                        to.cell(d.b.clone().unwrap_or_default()),
                        to.cell(class),
                    ],
                    link: d.instruction.as_ref().and_then(|(method, place)| to.node_at(method, *place)),
                }
            });
            let rows: Vec<Row> = rows.collect();
            let columns = [
                ("Where", Column::Text),
                ("Here", Column::Text),
                ("There", Column::Text),
                ("Of", Column::Text),
            ];
            if rows.is_empty() {
                to.add_note(format!("{} says the same", diff.b));
            }
            to.add_table("Differences", &format!("Differences from {}.", diff.b), &columns, rows);
        }
    }
}

/// Adds the tables of a comparison with another program: its outputs, and the layers that both have.
fn add_comparison(to: &mut Gathered, comparison: &Comparison, other: &str) {
    let samples = pteron_toolbox::show::count(comparison.samples, "sample");
    let answer = if comparison.agree { "agrees" } else { "differs" };
    to.add_fact("On the same inputs", format!("{answer} with {other}, {samples}"));
    let rows = comparison.outputs.iter().enumerate().map(|(i, output)| {
        let mut cells = vec![to.cell(output.name.clone().unwrap_or_else(|| format!("output {i}")))];
        cells.extend(closeness_cells(to, output.closeness.as_ref()));
        cells.push(output.same_top.map_or(Cell::Empty, |share| to.cell(format!("{:.1} %", 100.0 * share))));
        cells.push(to.cell(output.difference.clone().unwrap_or_default()));
        Row { cells, link: None }
    });
    let rows: Vec<Row> = rows.collect();
    let columns = [
        ("Output", Column::Text),
        ("Largest difference", Column::Number),
        ("SQNR, dB", Column::Number),
        ("Cosine", Column::Number),
        ("Same top", Column::Text),
        ("Beyond tolerance", Column::Text),
    ];
    to.add_table("Outputs", &format!("Outputs beside those of {other}, over {samples}."), &columns, rows);

    let rows = comparison.layers.iter().enumerate().map(|(i, layer)| {
        let mark = match (comparison.first == Some(i), layer.differs) {
            (true, _) => "first to differ",
            (_, true) => "differs",
            _ => "",
        };
        let mut cells = vec![to.cell(&layer.a), to.cell(&layer.b)];
        cells.extend(closeness_cells(to, Some(&layer.closeness)));
        cells.extend([to.cell(mark), to.cell(layer.source.clone().unwrap_or_default())]);
        Row { cells, link: None }
    });
    let rows: Vec<Row> = rows.collect();
    let columns = [
        ("Here", Column::Text),
        ("There", Column::Text),
        ("Largest difference", Column::Number),
        ("SQNR, dB", Column::Number),
        ("Cosine", Column::Number),
        ("Differs", Column::Text),
        ("Source", Column::Text),
    ];
    let [here, there] = comparison.unpaired;
    let mut note = format!(
        "Values on the first sample that both compute; {here} are only here, {there} only in {other}."
    );
    if let Some(instruction) = &comparison.instruction {
        note += &format!(" As written, {instruction} is the first instruction whose result differs.");
    }
    to.add_table("Layers", &note, &columns, rows);
}

/// Cells for largest difference, signal-to-noise ratio and cosine; a number that is not finite becomes a text cell.
fn closeness_cells(to: &mut Gathered, closeness: Option<&Closeness>) -> [Cell; 3] {
    let numbers = closeness.map(|c| [c.largest, c.sqnr, c.cosine]);
    numbers.map_or([Cell::Empty, Cell::Empty, Cell::Empty], |numbers| {
        numbers
            .map(|number| if number.is_finite() { number_cell(number) } else { to.cell(number.to_string()) })
    })
}

/// Applies a change to every node that computes the result of an instruction.
fn change_nodes(to: &mut Gathered, method: &str, place: Place, change: impl Fn(&mut super::Node)) {
    for &(graph, node) in to.places.get(&(method.to_owned(), place)).into_iter().flatten() {
        change(&mut to.data.graphs[graph as usize].nodes[node as usize]);
    }
}

/// Adds a time to the nodes of a place; the time of a payload's node is added to the delegate call as well.
fn add_time(to: &mut Gathered, method: &str, place: Place, time: f64) {
    change_nodes(to, method, place, |node| node.time = Some(node.time.unwrap_or(0.0) + time));
    if place.node.is_some()
        && let Some((graph, node)) = to.node_at(method, Place { node: None, ..place })
    {
        let node = &mut to.data.graphs[graph as usize].nodes[node as usize];
        node.time = Some(node.time.unwrap_or(0.0) + time);
    }
}

/// The mean ticks of each instruction per run. Only `OPERATOR_CALL`, `DELEGATE_CALL` and the steps of payload nodes count,
/// because recorders write several events for the same call.
fn mean_ticks(dump: &ETDump) -> HashMap<Place, f64> {
    let mut ticks: HashMap<Place, f64> = HashMap::new();
    let mut runs = 0.0;
    for block in &dump.run_data {
        let calls = block.events.iter().filter_map(|e| e.profile_event.as_ref()).filter_map(|event| {
            let named = |name: &str| event.name.as_deref() == Some(name);
            let chain = u32::try_from(event.chain_index).ok()?;
            let place = Place::instruction(chain, u32::try_from(event.instruction_id).ok()?);
            let step = event.delegate_debug_id_str.as_deref().and_then(|id| id.rsplit_once('#'));
            match step.and_then(|(_, node)| node.parse().ok()) {
                Some(node) => Some((Place { node: Some(node), ..place }, event.ticks() as f64)),
                None => (named("OPERATOR_CALL") || named("DELEGATE_CALL"))
                    .then_some((place, event.ticks() as f64)),
            }
        });
        let mut any = false;
        for (place, time) in calls {
            *ticks.entry(place).or_default() += time;
            any = true;
        }
        runs += f64::from(u8::from(any));
    }
    ticks.values_mut().for_each(|t| *t /= f64::max(runs, 1.0));
    ticks
}

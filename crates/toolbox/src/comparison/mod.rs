//! Compares two programs of one model on the same inputs: their outputs, and layer by layer the values in between.
//!
//! Values are paired by their instruction if both programs have the same instructions; otherwise by source node, kind, sizes
//! and content, in the order of both (module `align`). A value that a program computes within a fused step has no
//! counterpart. Programs that compute with other precision (8-bit, half) are close if their outputs have a signal-to-noise
//! ratio of [`MIN_SQNR`], others if they agree within the tolerance of a network.

mod align;
mod measure;
mod text;

pub use measure::Closeness;

use crate::delegates::NodeKinds;
use crate::profile::{self, Value};
use crate::run::Request;
use crate::tolerance::{Tolerance, compare};
use crate::{Error, Result};
use align::{Fingerprint, align};
use measure::{Sums, elements, fitted};
use pteron_format::pte::Instruction;
use pteron_operator::EValue;
use pteron_runtime::{LoadOptions, Program};
use pteron_tensor::{ScalarType, Tensor};
use pteron_trace::Place;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::HashSet;

/// The signal-to-noise ratio, in decibels, of outputs that are the same but for the precision of their arithmetic.
pub const MIN_SQNR: f64 = 20.0;

/// One of two programs.
#[derive(Clone, Copy)]
pub struct Side<'p> {
    /// The program.
    pub program: &'p Program,
    /// How it is loaded.
    pub options: &'p LoadOptions,
}

/// What to compare, and how closely.
#[derive(Debug, Clone, Default)]
pub struct ComparisonOptions {
    /// The method; by default `forward`, or the only one.
    pub method: Option<String>,
    /// How far apart values of programs with the same precision may be.
    pub tolerance: Tolerance,
    /// If given, values are close if their signal-to-noise ratio is at least this, whatever the precision.
    pub min_sqnr: Option<f64>,
}

/// The result of a comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The method.
    pub method: String,
    /// The number of samples: lists of inputs.
    pub samples: usize,
    /// The signal-to-noise ratio that outputs must have, in decibels; `None` if they must agree within a tolerance.
    pub min_sqnr: Option<f64>,
    /// The outputs, over all samples.
    pub outputs: Vec<OutputComparison>,
    /// The layers that both programs have, on the first sample, in the order of the second.
    pub layers: Vec<Layer>,
    /// The number of values of each program that the other one does not have.
    pub unpaired: [usize; 2],
    /// The first layer that differs, as an index into `layers`; `None` if the programs agree.
    pub first: Option<usize>,
    /// If both programs have the same instructions: the first one whose result differs when they run as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// Whether the programs agree.
    pub agree: bool,
}

/// An output of two programs.
#[derive(Debug, Clone, Serialize)]
pub struct OutputComparison {
    /// Its name in the first program that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How close it is over all samples; `None` if it is no tensor of numbers.
    #[serde(flatten)]
    pub closeness: Option<Closeness>,
    /// The share of rows whose largest element is at the same position; `None` if it has no rows of floating-point numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_top: Option<f64>,
    /// How it differs on the first sample on which it does, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<String>,
}

/// A value that both programs compute.
#[derive(Debug, Clone, Serialize)]
pub struct Layer {
    /// What computes it in the first program: `linear, instruction 5 (aten::gelu.out)`.
    pub a: String,
    /// What computes it in the second.
    pub b: String,
    /// The source line or node that it comes from, if a program says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its sizes in the second program.
    pub sizes: Vec<usize>,
    /// How close it is.
    #[serde(flatten)]
    pub closeness: Closeness,
    /// Whether it differs by more than is allowed.
    pub differs: bool,
}

/// Compares two programs on samples: the inputs of the method, which both take.
///
/// # Errors
/// A program does not run on a sample, there are no samples, or the programs have other numbers of outputs.
pub fn compare_programs(
    a: Side<'_>,
    b: Side<'_>,
    samples: &[Vec<EValue>],
    options: &ComparisonOptions,
) -> Result<Comparison> {
    let Some(first) = samples.first() else {
        return Err(Error::input("there are no inputs to compare with"));
    };
    let method = match &options.method {
        Some(name) => name.clone(),
        None => crate::run::default_method(a.program)?,
    };
    let same_instructions = instructions(a.program, &method)? == instructions(b.program, &method)?;
    // Programs with other instructions fuse other ones: as written, they have more values in common.
    let layers =
        |side| recorded(side, &method, first, Run { no_prepare: !same_instructions, is_second: true });
    let (of_a, of_b) = (layers(a)?, layers(b)?);
    let same_precision = of_a.precisions() == of_b.precisions();
    let min_sqnr = options.min_sqnr.or((!same_precision).then_some(MIN_SQNR));
    let judge = Judge { tolerance: options.tolerance, min_sqnr };
    let outputs = outputs(a, b, &method, samples, &judge)?;
    let pairs = pairs(&of_a, &of_b, same_instructions);
    let unpaired = [of_a.layers.len() - pairs.len(), of_b.layers.len() - pairs.len()];
    let layers = judge.layers(&of_a, &of_b, &pairs)?;
    let outputs_agree = outputs.iter().all(|output| output.difference.is_none());
    // Where instructions differ, a pair may be of two values that are not meant to be equal.
    let agree = outputs_agree && !(same_instructions && layers.iter().any(|layer| layer.differs));
    let first_layer = if agree { None } else { layers.iter().position(|layer| layer.differs) };
    let mut instruction = None;
    // The first run reads no state that an earlier one wrote; in the second, a fault in what the first one wrote shows.
    for is_second in [false, true] {
        if agree || !same_instructions || instruction.is_some() {
            break;
        }
        let run = Run { no_prepare: true, is_second };
        let (of_a, of_b) = (recorded(a, &method, first, run)?, recorded(b, &method, first, run)?);
        let layers = judge.layers(&of_a, &of_b, &pairs_of_places(&of_a, &of_b))?;
        instruction = layers.into_iter().find(|layer| layer.differs).map(|layer| layer.b);
    }
    let samples = samples.len();
    Ok(Comparison {
        method,
        samples,
        min_sqnr,
        outputs,
        layers,
        unpaired,
        first: first_layer,
        instruction,
        agree,
    })
}

/// The operators and backends that the instructions of a method call, in order.
fn instructions(program: &Program, method: &str) -> Result<Vec<String>> {
    let plan = program.method_meta(method)?.plan();
    let name = |instruction: &Instruction| match instruction {
        Instruction::KernelCall { op_index, .. } => {
            plan.operators.get(*op_index as usize).map_or_else(String::new, |op| op.full_name())
        }
        Instruction::DelegateCall { delegate_index, .. } => {
            let delegate = plan.delegates.get(*delegate_index as usize);
            delegate.map_or_else(String::new, |d| {
                format!("{}, {} bytes", d.id, program.tables().delegate_data(d).count())
            })
        }
        other => other.kind().to_owned(),
    };
    Ok(plan.chains.iter().flat_map(|chain| &chain.instructions).map(name).collect())
}

/// The values of a run.
struct Recorded {
    layers: Vec<RecordedLayer>,
    is_quantized: bool,
}

struct RecordedLayer {
    place: Place,
    output: usize,
    /// What computes it.
    text: String,
    tensor: Tensor,
    elements: Vec<f64>,
    fingerprint: Fingerprint,
}

impl Recorded {
    /// The kinds of arithmetic that are less precise than f32.
    fn precisions(&self) -> (bool, HashSet<ScalarType>) {
        let halves = self.layers.iter().map(|layer| layer.tensor.dtype());
        let halves = halves.filter(|dtype| matches!(dtype, ScalarType::Half | ScalarType::BFloat16));
        (self.is_quantized, halves.collect())
    }
}

/// How a method runs for its values.
#[derive(Clone, Copy)]
struct Run {
    no_prepare: bool,
    /// Whether it is run once before: then regions with dynamic shapes are lowered.
    is_second: bool,
}

/// Runs a method, prepared or as written, and records the value of each instruction and of each node of its delegates.
fn recorded(side: Side<'_>, method: &str, inputs: &[EValue], run: Run) -> Result<Recorded> {
    let Side { program, options } = side;
    let values = inputs.iter().map(EValue::try_clone).collect::<Result<_, _>>()?;
    let request =
        Request { method: Some(method.to_owned()), values: Some(values), repeat: 1, ..Request::default() };
    let options = LoadOptions { no_prepare: run.no_prepare || options.no_prepare, ..options.clone() };
    let nodes = NodeKinds::of(program, method, &options.backends)?;
    let profile = profile::record(program, &request, true, run.is_second, options)?;
    profile.recording.expect_values()?;
    let values: Vec<Value> = profile.recording.blocks.into_iter().flat_map(|block| block.values).collect();
    let of_nodes: HashSet<_> =
        values.iter().filter(|v| v.place.node.is_some()).map(|v| instruction(v.place)).collect();
    let mut layers = Vec::new();
    for value in values {
        let is_output = value.place.chain.is_none();
        let is_of_nodes = value.place.node.is_none() && of_nodes.contains(&instruction(value.place));
        if is_output || is_of_nodes || value.tensor.numel() == 0 {
            continue;
        }
        let Some(elements) = elements(&value.tensor)? else { continue };
        let place = program.instruction_place(method, value.place)?;
        let (mut what, frame) = place.map(|place| (place.what, place.source_frame)).unwrap_or_default();
        if let Some(node) = nodes.text(value.place) {
            what += &format!(", {node}");
        }
        let source = nodes.source(value.place, &value.name).or(frame);
        let text = described(&value, &what);
        let mut fingerprint = Fingerprint::new(kind(&value.name), source, value.tensor.sizes(), &elements);
        fingerprint.is_quantized = is_byte(value.tensor.dtype());
        layers.push(RecordedLayer {
            place: value.place,
            output: value.output,
            text,
            tensor: value.tensor,
            elements,
            fingerprint,
        });
    }
    let is_quantized = nodes.are_quantized()
        || layers.iter().any(|layer| layer.fingerprint.is_quantized)
        || program.method_meta(method)?.operators().iter().any(|op| is_quantized_operator(&op.name));
    Ok(Recorded { layers, is_quantized })
}

fn instruction(place: Place) -> Option<(u32, u32)> {
    place.chain.zip(place.instruction)
}

fn is_byte(dtype: ScalarType) -> bool {
    matches!(dtype, ScalarType::Char | ScalarType::Byte)
}

fn is_quantized_operator(name: &str) -> bool {
    ["quantized", "torchao::"].iter().any(|prefix| name.starts_with(prefix))
}

/// The kind of a step or operator: `add` for `aten::add.out`, `linear` for `quantized_linear`.
fn kind(name: &str) -> String {
    let name = name.rsplit("::").next().unwrap_or(name);
    let name = name.split('.').next().unwrap_or(name).trim_start_matches('_');
    name.strip_prefix("quantized_").unwrap_or(name).to_owned()
}

/// `linear, instruction 5 (aten::gelu.out)`, or without the step if that is the operator.
fn described(value: &Value, what: &str) -> String {
    let Some((chain, instruction)) = instruction(value.place) else { return what.to_owned() };
    let chain = if chain == 0 { String::new() } else { format!("{chain}:") };
    let step = match what.contains(&value.name) {
        true => String::new(),
        false => format!("{}, ", value.name),
    };
    format!("{step}instruction {chain}{instruction} ({what})")
}

fn pairs(a: &Recorded, b: &Recorded, same_instructions: bool) -> Vec<(usize, usize)> {
    if same_instructions {
        return pairs_of_places(a, b);
    }
    let fingerprints = |side: &Recorded| -> Vec<Fingerprint> {
        side.layers.iter().map(|layer| layer.fingerprint.clone()).collect()
    };
    align(&fingerprints(a), &fingerprints(b))
}

/// The pairs of values of the same place and iteration.
fn pairs_of_places(a: &Recorded, b: &Recorded) -> Vec<(usize, usize)> {
    let keys = |side: &Recorded| -> Vec<_> {
        let mut seen = std::collections::HashMap::new();
        let key = |layer: &RecordedLayer| {
            let iteration = seen.entry((layer.place, layer.output)).or_insert(0usize);
            *iteration += 1;
            (layer.place, layer.output, *iteration)
        };
        side.layers.iter().map(key).collect()
    };
    let in_a: std::collections::HashMap<_, _> =
        keys(a).into_iter().enumerate().map(|(i, key)| (key, i)).collect();
    keys(b).into_iter().enumerate().filter_map(|(j, key)| Some((*in_a.get(&key)?, j))).collect()
}

/// Decides which values differ.
struct Judge {
    tolerance: Tolerance,
    min_sqnr: Option<f64>,
}

impl Judge {
    fn layers(&self, a: &Recorded, b: &Recorded, pairs: &[(usize, usize)]) -> Result<Vec<Layer>> {
        let both = pairs.iter().map(|&(i, j)| (&a.layers[i], &b.layers[j]));
        both.filter(|(a, b)| a.elements.len() == b.elements.len()).map(|(a, b)| self.layer(a, b)).collect()
    }

    fn layer(&self, a: &RecordedLayer, b: &RecordedLayer) -> Result<Layer> {
        let closeness = closest(a, b);
        let same_type = a.tensor.dtype() == b.tensor.dtype() && a.tensor.sizes() == b.tensor.sizes();
        let differs = match self.min_sqnr {
            None if same_type => {
                let (a, b) = (EValue::Tensor(a.tensor.clone()), EValue::Tensor(b.tensor.clone()));
                compare(&b, &a, &self.tolerance).is_err()
            }
            // The tolerance of a network: 1e-4 of the largest element.
            None => closeness.largest > 1e-4 * a.elements.iter().fold(0.0f64, |most, x| most.max(x.abs())),
            Some(min) => closeness.sqnr < min,
        };
        Ok(Layer {
            a: a.text.clone(),
            b: b.text.clone(),
            source: a.fingerprint.source.clone().or_else(|| b.fingerprint.source.clone()),
            sizes: b.tensor.sizes().to_vec(),
            closeness,
            differs,
        })
    }
}

/// How close two values are. If the programs lay them out differently, in the order of dimensions in which they are closest.
fn closest(a: &RecordedLayer, b: &RecordedLayer) -> Closeness {
    let close = |of_b: &[f64]| {
        let (mut of_a, mut of_b) = (Cow::Borrowed(&a.elements[..]), Cow::Borrowed(of_b));
        match (a.fingerprint.is_quantized, b.fingerprint.is_quantized) {
            (false, true) => of_b = fitted(&of_b, &of_a).into(),
            (true, false) => of_a = fitted(&of_a, &of_b).into(),
            _ => {}
        }
        let mut sums = Sums::default();
        sums.add(&of_a, &of_b);
        sums.closeness()
    };
    let sizes = |layer: &RecordedLayer| -> Vec<usize> {
        layer.tensor.sizes().iter().copied().filter(|&size| size != 1).collect()
    };
    let (sizes_a, sizes_b) = (sizes(a), sizes(b));
    let in_order = (sizes_a == sizes_b).then(|| close(&b.elements));
    if sizes_a.len() > MAX_REORDERED || in_order.is_some_and(|closeness| closeness.sqnr >= MIN_SQNR) {
        return in_order.unwrap_or_else(|| close(&b.elements));
    }
    let fits = |order: &Vec<usize>| order.iter().zip(&sizes_a).all(|(&d, &size)| sizes_b[d] == size);
    let orders = orders(sizes_b.len()).into_iter().filter(fits);
    let all = orders.map(|order| close(&reordered(&b.elements, &sizes_b, &order)));
    all.chain(in_order).max_by(|x, y| x.sqnr.total_cmp(&y.sqnr)).unwrap_or_else(|| close(&b.elements))
}

/// The dimensions up to which the orders of dimensions are tried.
const MAX_REORDERED: usize = 4;

/// The orders of some dimensions.
fn orders(dims: usize) -> Vec<Vec<usize>> {
    let Some(last) = dims.checked_sub(1) else { return vec![Vec::new()] };
    let with_last = |order: Vec<usize>| {
        (0..dims).map(move |at| [&order[..at], &[last], &order[at..]].concat()).collect::<Vec<_>>()
    };
    orders(last).into_iter().flat_map(with_last).collect()
}

/// The elements of a row-major tensor with its dimensions in another order.
fn reordered(elements: &[f64], sizes: &[usize], order: &[usize]) -> Vec<f64> {
    let mut strides = vec![1; sizes.len()];
    (0..sizes.len().saturating_sub(1)).rev().for_each(|d| strides[d] = strides[d + 1] * sizes[d + 1]);
    let mut at = vec![0];
    for &d in order {
        at = at
            .into_iter()
            .flat_map(|start| (0..sizes[d]).map(move |i| (start, i)))
            .map(|(start, i)| start + i * strides[d])
            .collect();
    }
    at.into_iter().map(|at: usize| elements[at]).collect()
}

/// An output under comparison.
#[derive(Default)]
struct OutputSums {
    sums: Sums,
    numbers: bool,
    /// Rows with the same largest element, and all rows.
    tops: Option<(usize, usize)>,
    difference: Option<String>,
}

/// Runs both programs on all samples and compares their outputs.
fn outputs(
    a: Side<'_>,
    b: Side<'_>,
    method: &str,
    samples: &[Vec<EValue>],
    judge: &Judge,
) -> Result<Vec<OutputComparison>> {
    let load = |side: Side<'_>| side.program.load_method(method, side.options.clone());
    let (mut of_a, mut of_b) = (load(a)?, load(b)?);
    let mut all: Vec<OutputSums> = Vec::new();
    for sample in samples {
        let (a, b) = (of_a.execute(sample)?, of_b.execute(sample)?);
        if a.len() != b.len() {
            let problem = format!(
                "the programs have {} and {} outputs: they are of different models",
                a.len(),
                b.len()
            );
            return Err(Error::input(problem));
        }
        all.resize_with(a.len(), OutputSums::default);
        for (output, (a, b)) in all.iter_mut().zip(a.iter().zip(&b)) {
            output.add(a, b, judge)?;
        }
    }
    let names =
        |side: Side<'_>| -> Result<_> { Ok(side.program.method_meta(method)?.value_names()?.outputs) };
    let names = names(a)?.into_iter().zip(names(b)?).map(|(a, b)| a.or(b));
    let finish = |(output, name): (OutputSums, Option<String>)| output.finish(name, judge);
    Ok(all.into_iter().zip(names).map(finish).collect())
}

impl OutputSums {
    fn add(&mut self, a: &EValue, b: &EValue, judge: &Judge) -> Result<()> {
        let (EValue::Tensor(x), EValue::Tensor(y)) = (a, b) else {
            self.judge(a, b, judge);
            return Ok(());
        };
        if x.sizes() != y.sizes() {
            let problem = format!("sizes {:?} and {:?}", x.sizes(), y.sizes());
            self.difference.get_or_insert(problem);
            return Ok(());
        }
        let (Some(of_x), Some(of_y)) = (elements(x)?, elements(y)?) else {
            self.judge(a, b, judge);
            return Ok(());
        };
        self.numbers = true;
        self.sums.add(&of_x, &of_y);
        let width = x.sizes().last().copied().unwrap_or(1);
        if x.dtype().is_floating() && width > 1 {
            let (same, rows) = self.tops.get_or_insert((0, 0));
            for (x, y) in of_x.chunks_exact(width).zip(of_y.chunks_exact(width)) {
                *same += usize::from(top(x) == top(y));
                *rows += 1;
            }
        }
        if judge.min_sqnr.is_none() {
            self.judge(a, b, judge);
        }
        Ok(())
    }

    fn judge(&mut self, a: &EValue, b: &EValue, judge: &Judge) {
        if let Err(difference) = compare(b, a, &judge.tolerance) {
            self.difference.get_or_insert(difference.to_string());
        }
    }

    fn finish(self, name: Option<String>, judge: &Judge) -> OutputComparison {
        let closeness = self.numbers.then(|| self.sums.closeness());
        let too_noisy = |min: f64| {
            let sqnr = closeness.as_ref().map_or(f64::INFINITY, |closeness| closeness.sqnr);
            (sqnr < min)
                .then(|| format!("a signal-to-noise ratio of {sqnr:.1} dB, at least {min} dB is wanted"))
        };
        let difference = self.difference.or_else(|| judge.min_sqnr.and_then(too_noisy));
        let same_top = self.tops.map(|(same, rows)| same as f64 / rows.max(1) as f64);
        OutputComparison { name, closeness, same_top, difference }
    }
}

/// The position of the largest element, the first of equal ones.
fn top(row: &[f64]) -> usize {
    row.iter().enumerate().fold(0, |best, (i, x)| if *x > row[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_reordered() {
        let rows = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(reordered(&rows, &[2, 3], &[1, 0]), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(reordered(&rows, &[2, 3], &[0, 1]), rows);
        assert_eq!((orders(0).len(), orders(3).len()), (1, 6));
    }

    #[test]
    fn steps_and_operators_have_the_same_kind() {
        for (name, expected) in [
            ("aten::_softmax.out", "softmax"),
            ("quantized_linear", "linear"),
            ("aten::add.Scalar_out", "add"),
        ] {
            assert_eq!(kind(name), expected);
        }
    }
}

//! Compares two programs of one model on the same inputs: their outputs, and layer by layer the values in between.
//!
//! Values are paired by their instruction if both programs have the same instructions; otherwise by source node, kind, sizes
//! and content, in the order of both (module `align`). A value that a program computes within a fused step has no
//! counterpart. Programs that compute with other precision (8-bit, half) are close if their outputs have a signal-to-noise
//! ratio of [`MIN_SQNR`], others if they agree within the tolerance of a network.

mod align;
mod layers;
mod measure;
mod outputs;
mod record;
mod text;

pub use measure::Closeness;

use crate::tolerance::Tolerance;
use crate::{Error, Result};
use layers::{pairs, pairs_of_places};
use outputs::outputs;
use pteron_format::pte::Instruction;
use pteron_operator::EValue;
use pteron_runtime::{LoadOptions, Program};
use record::{Run, recorded};
use serde::Serialize;

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

/// Decides which values differ.
struct Judge {
    tolerance: Tolerance,
    min_sqnr: Option<f64>,
}

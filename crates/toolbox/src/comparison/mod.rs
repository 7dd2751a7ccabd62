//! Compares two programs of one model on the same inputs: their outputs, and layer by layer the values in between.
//!
//! Values are paired by their instruction if both programs have the same instructions; otherwise by source node, kind, sizes
//! and content, in the order of both (module `align`). A value that a program computes within a fused step has no
//! counterpart. Programs that compute with other precision (8-bit, half) are close if their outputs have a signal-to-noise
//! ratio of [`MIN_SQNR`], others if they agree within the tolerance of a network.

mod align;
mod judge;
mod layers;
mod measure;
mod outputs;
mod programs;
mod record;
mod text;

pub use measure::Closeness;
pub use outputs::OutputCloseness;
pub use programs::compare_programs;

use crate::tolerance::Tolerance;
use pteron_runtime::{LoadOptions, Program};
use serde::Serialize;

/// The signal-to-noise ratio, in decibels, of outputs that are the same but for the precision of their arithmetic.
pub const MIN_SQNR: f64 = 20.0;

/// One of two programs.
#[derive(Clone, Copy)]
pub struct Side<'p> {
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

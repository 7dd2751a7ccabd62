//! Compares two programs of one model on the same inputs: their outputs, and layer by layer the values in between.
//!
//! Values are paired by their instruction if both programs have the same instructions; otherwise by source node, kind, sizes
//! and content, in the order of both (module `align`). A value that a program computes within a fused step has no
//! counterpart. Programs that compute with other precision (8-bit, half) are close if their outputs have a signal-to-noise
//! ratio of [`MIN_SQNR`], others if they agree within the tolerance of a network.

mod align;
mod eager;
mod judge;
mod layers;
mod measure;
mod outputs;
mod programs;
mod record;
mod text;

pub use eager::{Eager, EagerValue, compare_with_eager};
pub use measure::Closeness;
pub use outputs::OutputCloseness;
pub use programs::compare_programs;

use crate::tolerance::Tolerance;
use pteron_runtime::{LoadOptions, Program};
use serde::Serialize;

/// The minimum signal-to-noise ratio, in decibels, for outputs computed with different precisions.
pub const MIN_SQNR: f64 = 20.0;

/// One of the two programs of a comparison, with its load options.
#[derive(Clone, Copy)]
pub struct Side<'p> {
    pub program: &'p Program,
    /// The options with which methods of the program are loaded.
    pub options: &'p LoadOptions,
}

/// The method to compare, and how close values must be.
#[derive(Debug, Clone, Default)]
pub struct ComparisonOptions {
    /// The method; by default `forward`, or the only one.
    pub method: Option<String>,
    /// The tolerance for programs with the same precision.
    pub tolerance: Tolerance,
    /// Minimum signal-to-noise ratio in decibels; if given, it replaces the tolerance for all precisions.
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
    /// The values that both programs compute on the first sample, in the order of the second program.
    pub layers: Vec<Layer>,
    /// For each program, the number of values that the other one does not compute.
    pub unpaired: [usize; 2],
    /// The first layer that differs, as an index into `layers`; `None` if none does, or if the programs agree.
    pub first: Option<usize>,
    /// The first instruction whose result differs when both programs run unprepared. `None` if there is no such instruction,
    /// or if the programs' instructions differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// Whether the programs agree.
    pub agree: bool,
}

/// The comparison of one output over all samples.
#[derive(Debug, Clone, Serialize)]
pub struct OutputComparison {
    /// The output's name in the first program that names it, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The closeness over all samples; `None` if the output is no numeric tensor.
    #[serde(flatten)]
    pub closeness: Option<Closeness>,
    /// The share of rows whose largest element has the same position in both programs; `None` without floating-point rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_top: Option<f64>,
    /// How the output differs on the first sample on which it differs; `None` if it agrees on all samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<String>,
}

/// A value that both programs compute.
#[derive(Debug, Clone, Serialize)]
pub struct Layer {
    /// The step that computes the value in the first program: `linear, instruction 5 (aten::gelu.out)`.
    pub a: String,
    /// The step that computes the value in the second program.
    pub b: String,
    /// The source line or node of the value, if a program records it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The value's sizes in the second program.
    pub sizes: Vec<usize>,
    /// The closeness of the two programs' values.
    #[serde(flatten)]
    pub closeness: Closeness,
    /// Whether the values differ by more than is allowed.
    pub differs: bool,
}

//! Calibration: quantizes with the inputs in a folder.

use crate::failure::Result;
use crate::pictures::PictureOpts;
use crate::progress::Steps;
use crate::samples::Samples;
use pteron::Limits;
use pteron::compile::{QuantizationGoal, Quantized, Quantizer};
use std::path::Path;

/// Calibrates the quantizer with the samples in `folder`, and chooses the quantization that reaches `goal`.
pub(super) fn run(
    quantizer: &Quantizer<'_>,
    folder: &Path,
    pictures: &PictureOpts,
    goal: QuantizationGoal,
    limits: &Limits,
) -> Result<Quantized> {
    let (program, method) = (quantizer.program(), quantizer.method());
    let samples = Samples::list("--calibrate", folder, pictures, program, method, limits)?;
    let inputs = (0..samples.len()).map(|sample| samples.inputs(sample, program, method));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let steps = Steps::new(None);
    Ok(quantizer.run(&inputs, goal, &|what| steps.step(what.to_owned()))?)
}

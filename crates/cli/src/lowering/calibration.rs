//! Calibration: collects value ranges over the inputs in a folder.

use crate::failure::{Failure, Result};
use crate::pictures::PictureOpts;
use crate::progress::Steps;
use crate::samples::Samples;
use pteron::DataLoader;
use pteron::compile::{Calibration, Compiled, ValueRanges};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The range of each value over the samples in a folder, by method and value name.
pub(super) fn value_ranges(
    file: &Arc<dyn DataLoader>,
    observing: &Compiled,
    folder: &Path,
    pictures: &PictureOpts,
) -> Result<BTreeMap<String, ValueRanges>> {
    let methods: Vec<&str> = observing.methods.iter().map(|method| method.name.as_str()).collect();
    let method = match methods[..] {
        [only] => only,
        _ if methods.contains(&"forward") => "forward",
        _ => return Err(Failure::Usage("--calibrate: name one method with --method".to_owned())),
    };
    let mut calibration = Calibration::new(file, observing, method).map_err(pteron_toolbox::Error::from)?;
    let samples = Samples::list("--calibrate", folder, pictures, calibration.program(), method)?;
    let steps = Steps::new(Some(samples.len()));
    for sample in 0..samples.len() {
        let inputs = samples.inputs(sample, calibration.program(), method)?;
        calibration.run(&inputs).map_err(pteron_toolbox::Error::from)?;
        steps.step("calibrating".to_owned());
    }
    Ok(calibration.ranges())
}

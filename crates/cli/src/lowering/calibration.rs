//! Calibration: collects value ranges over the inputs in a folder.

use crate::failure::{Failure, Result};
use crate::progress::Steps;
use pteron::DataLoader;
use pteron::compile::{Calibration, Compiled, ValueRanges};
use pteron_toolbox::input::InputSpec;
use pteron_toolbox::picture::Preparation;
use pteron_toolbox::run;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The value ranges of a program over the inputs in a folder, by method and value name.
pub(super) fn ranges(
    file: &Arc<dyn DataLoader>,
    observing: &Compiled,
    folder: &Path,
) -> Result<BTreeMap<String, ValueRanges>> {
    let methods: Vec<&str> = observing.methods.iter().map(|method| method.name.as_str()).collect();
    let method = match methods[..] {
        [only] => only,
        _ if methods.contains(&"forward") => "forward",
        _ => return Err(Failure::Usage("--calibrate: name one method with --method".to_owned())),
    };
    let mut calibration = Calibration::new(file, observing, method).map_err(pteron_toolbox::Error::from)?;
    let samples = entries(folder)?;
    if samples.is_empty() {
        return Err(Failure::Usage(format!("--calibrate: {} is empty", folder.display())));
    }
    let steps = Steps::new(Some(samples.len()));
    for path in samples {
        let specs = sample(path)?;
        let inputs = run::inputs(calibration.program(), method, specs, &Preparation::default())?;
        calibration.run(&inputs).map_err(pteron_toolbox::Error::from)?;
        steps.step("calibrating".to_owned());
    }
    Ok(calibration.ranges())
}

/// The inputs of a sample: one file, or the files of a folder, one for each input.
fn sample(path: PathBuf) -> Result<Vec<InputSpec>> {
    let files = if path.is_dir() { entries(&path)? } else { vec![path] };
    let refused = |file: &Path| {
        let message = format!("--calibrate: {} is no array (.npy) or image (.png, .jpg)", file.display());
        Failure::Usage(message)
    };
    files.iter().map(|file| InputSpec::of_file(file).ok_or_else(|| refused(file))).collect()
}

/// The entries of a folder, sorted by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let fail = |e| Failure::Usage(format!("--calibrate: cannot read {}: {e}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(fail)?;
    let mut paths = entries.map(|entry| Ok(entry.map_err(fail)?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

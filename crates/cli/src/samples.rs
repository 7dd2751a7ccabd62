//! Samples in a folder: inputs of a method, for calibration and comparison.

use crate::failure::{Failure, Result};
use crate::pictures::PictureOpts;
use crate::terminal::say;
use pteron::{EValue, Program};
use pteron_toolbox::input::{GivenInput, InputSpec};
use pteron_toolbox::picture::Preparation;
use pteron_toolbox::run;
use std::path::{Path, PathBuf};

/// The samples in a folder, in the order of their names: one file each, or a folder with a file for each input.
///
/// # Errors
/// The folder cannot be read, or is empty. `option` is the option that names it.
pub(crate) fn paths(option: &str, folder: &Path) -> Result<Vec<PathBuf>> {
    let samples = entries(option, folder)?;
    match samples.is_empty() {
        true => Err(Failure::Usage(format!("{option}: {} is empty", folder.display()))),
        false => Ok(samples),
    }
}

/// Notes how images are preprocessed, if some of the samples are images and no option says it.
pub(crate) fn note_images(option: &str, samples: &[PathBuf], pictures: &PictureOpts) -> Result {
    let is_image = |file: &PathBuf| matches!(InputSpec::of_file(file), Some(InputSpec::Image(_)));
    let mut has_images = false;
    for sample in samples {
        has_images |=
            if sample.is_dir() { entries(option, sample)?.iter().any(is_image) } else { is_image(sample) };
    }
    match (has_images, pictures.given().iter().any(|(_, given)| *given)) {
        (true, false) => say(format_args!(
            "{option}: images are stretched to the size of the input, with values from 0 to 1; if the model takes others, say so \
             (--preset, --resize, --crop, --scale, --mean, --std)"
        )),
        (false, true) => pictures.refuse()?,
        _ => {}
    }
    Ok(())
}

/// The inputs of a sample. The files of a folder are inputs by name if all have the names of inputs (`input_ids.npy`),
/// otherwise in the order of their names.
pub(crate) fn inputs(
    option: &str,
    program: &Program,
    method: &str,
    sample: PathBuf,
    pictures: &Preparation,
) -> Result<Vec<EValue>> {
    let names = program.method_meta(method).and_then(|meta| meta.value_names());
    let names = names.map_err(pteron_toolbox::Error::from)?.inputs;
    let files = if sample.is_dir() { entries(option, &sample)? } else { vec![sample] };
    let name = |file: &PathBuf| {
        let stem = file.file_stem()?.to_str()?;
        names.iter().flatten().find(|name| *name == stem).cloned()
    };
    let by_name = files.iter().all(|file| name(file).is_some());
    let refused = |file: &Path| {
        Failure::Usage(format!("{option}: {} is no array (.npy) or image (.png, .jpg)", file.display()))
    };
    let input = |file: &PathBuf| {
        let value = InputSpec::of_file(file).ok_or_else(|| refused(file))?;
        Ok(GivenInput { name: name(file).filter(|_| by_name), value })
    };
    let inputs = files.iter().map(input).collect::<Result<_>>()?;
    Ok(run::inputs(program, method, inputs, pictures)?)
}

/// The entries of a folder, sorted by name.
fn entries(option: &str, folder: &Path) -> Result<Vec<PathBuf>> {
    let fail = |e| Failure::Usage(format!("{option}: cannot read {}: {e}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(fail)?;
    let mut paths = entries.map(|entry| Ok(entry.map_err(fail)?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

//! Samples: inputs of a method in files, for runs, comparison and calibration.

use crate::failure::{Failure, Result};
use crate::pictures::PictureOpts;
use pteron::{EValue, Program};
use pteron_toolbox::input::{GivenInput, InputSpec};
use pteron_toolbox::picture::Preparation;
use pteron_toolbox::{run, task};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Samples, sorted by name: each is a file, or a folder with a file for each input.
pub(crate) struct Samples {
    /// The option that names them, for messages.
    option: &'static str,
    /// The names of the method's inputs; `None` for an input whose name the program does not record.
    names: Vec<Option<String>>,
    pictures: Preparation,
    /// The name of each sample: that of its file or folder, without the extension if they differ without.
    labels: Vec<String>,
    /// The input files of each sample.
    files: Vec<Vec<PathBuf>>,
    has_images: bool,
}

impl Samples {
    /// Lists the samples of a method in a folder, or the one in a file. A folder with as many files as the method takes
    /// tensors, if it takes several, is one sample. Warns of the default preprocessing, if some of the samples are images and neither an
    /// option nor the program says how they are preprocessed.
    ///
    /// # Errors
    /// The folder or file cannot be read, or is empty, or the task metadata of the program is not valid.
    pub(crate) fn list(
        option: &'static str,
        path: &Path,
        pictures: &PictureOpts,
        program: &Program,
        method: &str,
    ) -> Result<Self> {
        let meta = program.method_meta(method).map_err(pteron_toolbox::Error::from)?;
        let tensors = meta.inputs().iter().filter(|input| input.tensor.is_some()).count();
        let samples = match path.is_file() {
            true => vec![path.to_owned()],
            false => sorted_entries(option, path)?,
        };
        if samples.is_empty() {
            return Err(Failure::Usage(format!("{option}: {} is empty", path.display())));
        }
        let is_one = tensors > 1 && samples.len() == tensors && samples.iter().all(|path| path.is_file());
        let samples = if is_one { vec![path.to_owned()] } else { samples };
        let labels = labels_of(&samples);
        let of_sample =
            |path: PathBuf| if path.is_dir() { sorted_entries(option, &path) } else { Ok(vec![path]) };
        let files = samples.into_iter().map(of_sample).collect::<Result<Vec<_>>>()?;
        let is_image = |file: &PathBuf| matches!(InputSpec::of_file(file), Some(InputSpec::Image(_)));
        let stored = task::of(program)?;
        let has_images = files.iter().flatten().any(is_image);
        if has_images {
            pictures.warn_of_default(option, stored.as_ref());
        }
        let names = meta.value_names().map_err(pteron_toolbox::Error::from)?.inputs;
        let pictures = pictures.preparation(stored.as_ref());
        Ok(Self { option, names, pictures, labels, files, has_images })
    }

    /// Whether some of the samples are images.
    pub(crate) fn has_images(&self) -> bool {
        self.has_images
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// The name of a sample.
    pub(crate) fn label(&self, index: usize) -> &str {
        &self.labels[index]
    }

    /// The inputs of a sample. The files of a folder are inputs by name if all have the names of inputs (`input_ids.npy`),
    /// otherwise in the order of their names.
    pub(crate) fn inputs(&self, index: usize, program: &Program, method: &str) -> Result<Vec<EValue>> {
        let files = &self.files[index];
        let name = |file: &PathBuf| {
            let stem = file.file_stem()?.to_str()?;
            self.names.iter().flatten().find(|name| *name == stem).cloned()
        };
        let by_name = files.iter().all(|file| name(file).is_some());
        let refused = |file: &Path| {
            let (option, file) = (self.option, file.display());
            Failure::Usage(format!("{option}: {file} is no array (.npy) or image (.png, .jpg, .webp, .bmp)"))
        };
        let input = |file: &PathBuf| {
            let value = InputSpec::of_file(file).ok_or_else(|| refused(file))?;
            Ok(GivenInput { name: name(file).filter(|_| by_name), value })
        };
        let inputs = files.iter().map(input).collect::<Result<_>>()?;
        Ok(run::input_values(program, method, inputs, &self.pictures)?)
    }
}

/// The names of files and folders, without their extensions if they differ without.
fn labels_of(paths: &[PathBuf]) -> Vec<String> {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let stems: Vec<String> = paths.iter().map(|path| text(path.file_stem())).collect();
    match stems.iter().collect::<BTreeSet<_>>().len() == stems.len() {
        true => stems,
        false => paths.iter().map(|path| text(path.file_name())).collect(),
    }
}

/// The entries of a folder, sorted by name.
fn sorted_entries(option: &str, folder: &Path) -> Result<Vec<PathBuf>> {
    let fail = |e| Failure::Usage(format!("{option}: cannot read {}: {e}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(fail)?;
    let mut paths = entries.map(|entry| Ok(entry.map_err(fail)?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

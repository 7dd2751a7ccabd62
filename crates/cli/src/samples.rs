//! Samples: inputs of a method in files, for runs, comparison and calibration.
//!
//! A sample is an array (`.npy`), an image, a folder with a file for each input, or arrays of a file of several (`.npz`,
//! `.safetensors`), which may hold many samples.

use crate::failure::{Failure, Result};
use crate::pictures::PictureOpts;
use pteron::{EValue, Limits, Program};
use pteron_toolbox::arrays::{ArrayFile, Arrays};
use pteron_toolbox::input::{GivenInput, InputSpec};
use pteron_toolbox::picture::Preparation;
use pteron_toolbox::{run, task};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Samples, sorted by name.
pub(crate) struct Samples {
    /// The option that names them, for messages.
    option: &'static str,
    /// The names of the method's inputs; `None` for an input whose name the program does not record.
    names: Vec<Option<String>>,
    pictures: Preparation,
    /// The name of each sample: that of its file or folder, without the extension if they differ without, and its index in a file
    /// of several samples.
    labels: Vec<String>,
    sources: Vec<Source>,
    has_images: bool,
    limits: Limits,
    /// The arrays of the file that was read last.
    arrays: Mutex<Option<(PathBuf, Arc<Arrays>)>>,
}

/// The inputs of a sample.
enum Source {
    /// A file for each input.
    Files(Vec<PathBuf>),
    /// A sample in a file of arrays, by index.
    Arrays(PathBuf, usize),
}

impl Samples {
    /// Lists the samples of a method in a folder or in a file. A folder with as many files as the method takes
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
        limits: &Limits,
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
        let is_input = |path: &PathBuf| path.is_file() && !ArrayFile::has_extension(path);
        let is_one = tensors > 1 && samples.len() == tensors && samples.iter().all(is_input);
        let samples = if is_one { vec![path.to_owned()] } else { samples };
        let (mut labels, mut sources) = (Vec::new(), Vec::new());
        for (label, path) in labels_of(&samples).into_iter().zip(samples) {
            if path.is_dir() {
                sources.push(Source::Files(sorted_entries(option, &path)?));
            } else if ArrayFile::has_extension(&path) {
                let count = ArrayFile::open(&path, program, method, limits)?.samples();
                if let Some(count) = count {
                    labels.extend((0..count).map(|sample| format!("{label}[{sample}]")));
                    sources.extend((0..count).map(|sample| Source::Arrays(path.clone(), sample)));
                    continue;
                }
                sources.push(Source::Arrays(path, 0));
            } else {
                sources.push(Source::Files(vec![path]));
            }
            labels.push(label);
        }
        if sources.is_empty() {
            return Err(Failure::Usage(format!("{option}: the arrays in {} are empty", path.display())));
        }
        let is_image = |source: &Source| match source {
            Source::Files(files) => {
                files.iter().any(|file| matches!(InputSpec::of_file(file), Some(InputSpec::Image(_))))
            }
            Source::Arrays(..) => false,
        };
        let stored = task::of(program)?;
        let has_images = sources.iter().any(is_image);
        if has_images {
            pictures.warn_of_default(option, stored.as_ref());
        }
        let names = meta.value_names().map_err(pteron_toolbox::Error::from)?.inputs;
        let pictures = pictures.preparation(stored.as_ref());
        let (limits, arrays) = (limits.clone(), Mutex::new(None));
        Ok(Self { option, names, pictures, labels, sources, has_images, limits, arrays })
    }

    /// Whether some of the samples are images.
    pub(crate) fn has_images(&self) -> bool {
        self.has_images
    }

    pub(crate) fn len(&self) -> usize {
        self.sources.len()
    }

    /// The name of a sample.
    pub(crate) fn label(&self, index: usize) -> &str {
        &self.labels[index]
    }

    /// The inputs of a sample. The files of a folder are inputs by name if all have the names of inputs (`input_ids.npy`),
    /// otherwise in the order of their names.
    pub(crate) fn inputs(&self, index: usize, program: &Program, method: &str) -> Result<Vec<EValue>> {
        let files = match &self.sources[index] {
            Source::Files(files) => files,
            Source::Arrays(path, sample) => {
                return Ok(self.arrays(path, program, method)?.inputs(*sample, program, method)?);
            }
        };
        let name = |file: &PathBuf| {
            let stem = file.file_stem()?.to_str()?;
            self.names.iter().flatten().find(|name| *name == stem).cloned()
        };
        let by_name = files.iter().all(|file| name(file).is_some());
        let refused = |file: &Path| {
            let problem = match ArrayFile::has_extension(file) {
                true => "holds whole samples, but is in the folder of one: move it out",
                false => "is no file of arrays (.npy, .npz, .safetensors) or image (.png, .jpg, .webp, .bmp)",
            };
            Failure::Usage(format!("{}: {} {problem}", self.option, file.display()))
        };
        let input = |file: &PathBuf| {
            let value = InputSpec::of_file(file).ok_or_else(|| refused(file))?;
            Ok(GivenInput { name: name(file).filter(|_| by_name), value })
        };
        let inputs = files.iter().map(input).collect::<Result<_>>()?;
        Ok(run::input_values(program, method, inputs, &self.pictures)?)
    }
}

impl Samples {
    /// The arrays of a file, which are kept until those of another file are asked for.
    fn arrays(&self, path: &Path, program: &Program, method: &str) -> Result<Arc<Arrays>> {
        let mut last = self.arrays.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, arrays)) = last.as_ref().filter(|(of, _)| of == path) {
            return Ok(Arc::clone(arrays));
        }
        let arrays = Arc::new(ArrayFile::open(path, program, method, &self.limits)?.read()?);
        *last = Some((path.to_owned(), Arc::clone(&arrays)));
        Ok(arrays)
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

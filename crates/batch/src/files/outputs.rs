//! The output of each input file.

use pteron_toolbox::{Error, Result};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

/// The suffixes of files that can be read and written: Parquet, Arrow files (`.arrow`, `.feather`, `.ipc`) and Arrow
/// streams (`.arrows`).
pub const SUFFIXES: [&str; 5] = ["parquet", "arrow", "feather", "ipc", "arrows"];

/// An input file, and the output that is made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) input: PathBuf,
    pub(super) output: PathBuf,
}

/// A file that was mapped.
#[derive(Debug, Clone, PartialEq)]
pub struct MappedFile {
    /// The input file.
    pub input: PathBuf,
    /// Its output.
    pub output: PathBuf,
    /// The number of rows.
    pub rows: usize,
    /// The number of rows without a result.
    pub failed: usize,
    /// The seconds that it took.
    pub seconds: f64,
    /// Whether an earlier run has made it.
    pub is_old: bool,
}

/// The files, and those in the folders among them, each with its output in `folder`.
///
/// # Errors
/// If a file has none of the suffixes, a folder has no such files, an output would replace its input, or two inputs have one
/// name.
pub(super) fn pairs(files: &[PathBuf], folder: &Path) -> Result<Vec<Pair>> {
    let mut pairs: Vec<Pair> = Vec::new();
    let mut known: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for file in files {
        for input in expanded(file)? {
            let Some(name) = input.file_name() else { continue };
            let output = folder.join(name);
            if is_same_file(&input, &output) {
                return Err(Error::Input(format!(
                    "{} would be replaced by its output: give another folder",
                    input.display()
                )));
            }
            match known.entry(output.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(input.clone());
                    pairs.push(Pair { input, output });
                }
                Entry::Occupied(other) if is_same_file(other.get(), &input) => {}
                Entry::Occupied(other) => {
                    return Err(Error::Input(format!(
                        "{} and {} have the same name, and so would their outputs",
                        input.display(),
                        other.get().display()
                    )));
                }
            }
        }
    }
    Ok(pairs)
}

/// The files of a folder that have the suffixes, or the file.
fn expanded(file: &Path) -> Result<Vec<PathBuf>> {
    let suffixes = || SUFFIXES.map(|suffix| format!(".{suffix}")).join(", ");
    if !file.is_dir() {
        return match has_suffix(file) {
            true => Ok(vec![file.to_owned()]),
            false => Err(Error::Input(format!("{} has none of the suffixes {}", file.display(), suffixes()))),
        };
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(file).map_err(Error::read(file))? {
        let path = entry.map_err(Error::read(file))?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if has_suffix(&path) && !is_hidden {
            found.push(path);
        }
    }
    found.sort();
    match found.is_empty() {
        true => {
            Err(Error::Input(format!("{} has no files with the suffixes {}", file.display(), suffixes())))
        }
        false => Ok(found),
    }
}

fn has_suffix(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| SUFFIXES.iter().any(|known| suffix == *known))
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

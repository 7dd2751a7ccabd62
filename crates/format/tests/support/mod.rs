//! Where the corpus files are.
#![allow(dead_code, unreachable_pub)]

pub mod files;
pub mod newer;
pub mod program;
pub mod random;

use std::path::{Path, PathBuf};

fn testdata(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(folder)
}

/// The files in the sample of this repository and, if `PTERON_CORPUS` is set, in the whole corpus, which the reference
/// wrote: not those of the folder `found`, which are odd on purpose.
pub fn corpus(extension: &str) -> Vec<PathBuf> {
    let mut files = files::under(&files::roots(vec![testdata("corpus")]), &[extension]);
    files.retain(|path| path.components().all(|part| part.as_os_str() != "found"));
    files
}

/// The files under `testdata/corpus/tiny`, smallest first.
pub fn tiny(extension: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    };
    let files = files::under(&[testdata("corpus/tiny")], &[extension]);
    let mut files: Vec<_> = files.into_iter().map(read).collect();
    files.sort_by_key(|(path, bytes)| (bytes.len(), path.clone()));
    files
}

//! Where the corpus files are.
#![allow(dead_code, unreachable_pub)]

pub mod program;

use std::path::{Path, PathBuf};

/// The files under the sample in this repository and, if `PTERON_CORPUS` names it, the whole corpus.
pub fn corpus(extension: &str) -> Vec<PathBuf> {
    let mut roots = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/corpus")];
    match std::env::var_os("PTERON_CORPUS") {
        Some(root) => roots.push(root.into()),
        None => eprintln!("PTERON_CORPUS is not set: only the sample in testdata/corpus is tested"),
    }
    let mut files = Vec::new();
    for root in roots {
        assert!(root.is_dir(), "no corpus at {}", root.display());
        walk(&root, extension, &mut files);
    }
    files.sort();
    files
}

/// The files under `testdata/corpus/tiny`, smallest first.
pub fn tiny(extension: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/corpus/tiny"), extension, &mut files);
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).unwrap();
        (path, bytes)
    };
    let mut files: Vec<_> = files.into_iter().map(read).collect();
    files.sort_by_key(|(path, bytes)| (bytes.len(), path.clone()));
    files
}

fn walk(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, extension, files);
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
}

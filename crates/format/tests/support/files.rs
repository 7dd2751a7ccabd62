//! Files of test data. Crates that depend on this one include this module by its path.

use std::path::{Path, PathBuf};

/// These folders and, if `PTERON_CORPUS` is set, the corpus that it names.
pub fn roots(folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut roots = folders;
    match std::env::var_os("PTERON_CORPUS") {
        Some(root) => roots.push(root.into()),
        None => eprintln!("PTERON_CORPUS is not set: only what is in testdata is tested"),
    }
    roots
}

/// The files below these folders that have one of these extensions, sorted.
pub fn under(roots: &[PathBuf], extensions: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for root in roots {
        assert!(root.is_dir(), "no folder {}", root.display());
        walk(root, extensions, &mut files);
    }
    files.sort();
    files
}

fn walk(folder: &Path, extensions: &[&str], files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, extensions, files);
        } else if path.extension().is_some_and(|found| extensions.iter().any(|e| found == *e)) {
            files.push(path);
        }
    }
}

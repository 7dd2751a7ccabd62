//! Passes in isolation, decompositions among them: programs given as text run through the passes that a case names, and the
//! result is compared as text.
//!
//! A file of `tests/passes` or `tests/decompose` contains cases. Each consists of a line `== what is tested`, a line
//! `passes: one, another`, which may end with `; portable` for the reference's kernels alone or `; auto` for those if they suffice, a
//! program, a line `--`, and the expected program. A pass `size NAME=A..B` fixes or narrows a size. `PTERON_BLESS=1` rewrites the expected programs in the files.

use super::{FOLD_NORMS, PASSES, norms};
use crate::operators::OperatorTable;
use crate::specialize::{SizeBounds, specialize};
use pteron_exported::{Bounds, PrintOptions, parse};
use std::fmt::Write;
use std::path::Path;

#[test]
fn passes_give_the_expected_programs() {
    compare("tests/passes");
}

#[test]
fn decompositions_give_the_expected_programs() {
    compare("tests/decompose");
}

/// Every family of decompositions has a file of cases.
#[test]
fn every_family_of_decompositions_has_cases() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lacks: Vec<String> = names(&root.join("src/decompose"), "rs")
        .into_iter()
        .filter(|name| {
            !["mod", "nodes"].contains(&&**name)
                && !root.join("tests/decompose").join(format!("{name}.txt")).exists()
        })
        .collect();
    assert!(lacks.is_empty(), "no tests/decompose/*.txt for {lacks:?}");
}

/// The names of the files of a folder with this extension, sorted.
fn names(folder: &Path, extension: &str) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|e| e == extension));
    let mut names: Vec<String> =
        files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn compare(folder: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut wrong = String::new();
    for name in names(&folder, "txt") {
        let path = folder.join(format!("{name}.txt"));
        let text = std::fs::read_to_string(&path).unwrap();
        let actual = ran(&text);
        if std::env::var_os("PTERON_BLESS").is_some() {
            std::fs::write(&path, &actual).unwrap();
        } else if actual != text {
            let differs = text.lines().zip(actual.lines()).position(|(a, b)| a != b).unwrap_or(0);
            writeln!(wrong, "{}, line {}:\n{actual}", path.display(), differs + 1).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The size `NAME=A..B`.
fn size(text: &str) -> SizeBounds {
    let (name, bounds) = text.split_once('=').expect("a name");
    let (min, max) = bounds.split_once("..").unwrap_or((bounds, bounds));
    let bounds = Bounds { min: min.parse().expect("a number"), max: max.parse().expect("a number") };
    SizeBounds { name: name.to_owned(), bounds }
}

/// The test file's text with the expected programs replaced by the actual results.
fn ran(text: &str) -> String {
    let registry = pteron_kernels::registry();
    let (head, cases) = text.split_once("== ").expect("a case");
    let mut out = head.to_owned();
    for case in cases.split("\n== ") {
        let (name, rest) = case.split_once('\n').expect("a name");
        let (passes, rest) = rest.split_once('\n').expect("passes");
        let names = passes.strip_prefix("passes: ").unwrap_or_else(|| panic!("{name}: no passes"));
        let (names, table) = match names.split_once("; ") {
            Some((names, "portable")) => (names, OperatorTable::portable(&registry)),
            Some((names, "auto")) => (names, OperatorTable::preferring_portable(&registry)),
            Some((_, other)) => panic!("{name}: no table {other}"),
            None => (names, OperatorTable::all(&registry)),
        };
        let (input, _) = rest.split_once("--\n").unwrap_or_else(|| panic!("{name}: no result"));
        let mut program = parse(input).unwrap_or_else(|e| panic!("{name}: {e}"));
        program.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut result = Ok(());
        for pass in names.split(", ") {
            if pass == FOLD_NORMS {
                norms::fold_norms(&mut program);
                continue;
            }
            if let Some(text) = pass.strip_prefix("size ") {
                result = result.and_then(|()| specialize(std::slice::from_mut(&mut program), &[size(text)]));
                continue;
            }
            let (_, run) = PASSES.iter().find(|p| p.0 == pass).unwrap_or_else(|| panic!("no pass {pass}"));
            result = result.and_then(|()| run(&mut program, &table));
        }
        let listing = match result {
            Ok(()) => {
                program.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
                program.listing(PrintOptions { source: false, constants: true })
            }
            Err(error) => format!("error: {error}\n"),
        };
        writeln!(out, "== {name}\n{passes}\n{input}--\n{listing}").unwrap();
    }
    out.truncate(out.trim_end().len());
    out + "\n"
}

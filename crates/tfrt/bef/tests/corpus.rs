//! Every file of a corpus of converted programs is verified, read into a module and written back to the same bytes.
//!
//! The fixtures in `tests/data` are a sample. `PTERON_CORPUS=<folder>` adds all of a corpus whose folder `bef` holds
//! programs and whose folder `bef/bad` holds malformed files, with the verdicts in `bad/index.json`.

use std::fs;
use std::path::{Path, PathBuf};

use pteron_bef::File;

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "bef"))
        .collect();
    files.sort();
    files
}

fn sample() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn corpus() -> Option<PathBuf> {
    let corpus = std::env::var_os("PTERON_CORPUS").map(|root| Path::new(&root).join("bef"));
    if corpus.is_none() {
        eprintln!("SKIPPED: set PTERON_CORPUS to a corpus folder to run this on all of it");
    }
    corpus
}

fn round_trip(folder: &Path) -> usize {
    let files = files(folder);
    for path in &files {
        let name = path.file_name().unwrap().to_string_lossy();
        let bytes = fs::read(path).unwrap();
        let verified = File::open(&bytes).unwrap().verify().unwrap_or_else(|error| panic!("{name}: {error}"));
        let module = verified.to_module().unwrap();
        assert_eq!(module.optional_sections, !name.contains(".noopt."), "{name}");
        let written = module.to_bytes().unwrap_or_else(|error| panic!("{name}: {error}"));
        if written != bytes {
            let at = written.iter().zip(&bytes).position(|(a, b)| a != b);
            panic!(
                "{name}: written differently from byte {at:?} on ({} and {} bytes)",
                written.len(),
                bytes.len()
            );
        }
    }
    files.len()
}

#[test]
fn sample_round_trips() {
    assert!(round_trip(&sample()) >= 10);
}

#[test]
fn corpus_round_trips() {
    let Some(corpus) = corpus() else { return };
    println!("{} files", round_trip(&corpus));
}

/// Checks that programs without cost attributes have the streams that the default analysis assigns.
fn streams(folder: &Path) -> usize {
    let mut bodies = 0;
    for path in files(folder) {
        if path.file_name().unwrap().to_string_lossy().starts_with("stream_costs") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let module = File::open(&bytes).unwrap().verify().unwrap().to_module().unwrap();
        for (index, body) in module.bodies() {
            let mut assigned = body.clone();
            let options = pteron_bef::stream_analysis::Options::default();
            pteron_bef::stream_analysis::assign_streams(&mut assigned, &options, |_| None, |_| false);
            assert_eq!(&assigned, body, "{}: function {index}", path.display());
            bodies += 1;
        }
    }
    bodies
}

#[test]
fn sample_has_the_streams_that_the_analysis_assigns() {
    assert!(streams(&sample()) > 30);
}

#[test]
fn corpus_has_the_streams_that_the_analysis_assigns() {
    let Some(corpus) = corpus() else { return };
    println!("{} functions", streams(&corpus));
}

fn verdicts(folder: &Path) -> usize {
    let index = fs::read_to_string(folder.join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let entries = index["files"].as_array().unwrap();
    let mut wrong = Vec::new();
    for entry in entries {
        let name = entry["file"].as_str().unwrap();
        let bytes = fs::read(folder.join(name)).unwrap();
        let verdict = File::open(&bytes).and_then(|file| file.verify().map(drop));
        let agrees = match entry["strict_verifier"].as_str().unwrap() {
            "accept" => verdict.is_ok(),
            "reject" => verdict.is_err(),
            _ => true,
        };
        if std::env::var_os("PTERON_SHOW").is_some() {
            println!("{name}: {}", verdict.as_ref().map_or_else(ToString::to_string, |()| "accepted".into()));
        }
        if !agrees {
            wrong.push(format!("{name} ({}): {verdict:?}", entry["reason"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    entries.len()
}

#[test]
fn corpus_verdicts() {
    let Some(corpus) = corpus() else { return };
    println!("{} files", verdicts(&corpus.join("bad")));
}

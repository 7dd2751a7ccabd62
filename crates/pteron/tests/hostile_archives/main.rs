//! Hostile torch.export archives: structure-aware mutations of real ones, and every operator with every kind of argument. They are
//! compiled with each backend; what that gives is validated, inspected, reported and run, all under strict limits. Nothing may panic,
//! abort, hang, or take more memory than the limits allow.
//!
//! `PTERON_ARCHIVES` sets the number of mutated archives (default 400) and `PTERON_SEED` the first seed; `PTERON_ARGUMENTS` sets how many
//! variants of calls are skipped for each that is tried (default 150; 0 tries all). A failure names the archive and the seed, or the
//! operator and its argument. `PTERON_KEEP` names a file where each archive is written before it is tried: the last one aborted.

mod arguments;
mod exercise;
mod mutate;

use exercise::Exercise;
use mutate::{Random, Records, mutated};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Held during each test: tests measure the memory of the whole process, so only one may run at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The archives of the repository, by the names of their folders.
fn archives() -> Vec<(String, Records)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives");
    let folders = std::fs::read_dir(&root).expect("testdata/archives").map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        folders.map(|folder| folder.join("model.pt2")).filter(|f| f.exists()).collect();
    files.sort();
    assert!(files.len() > 30, "only {} archives in {}", files.len(), root.display());
    let name = |file: &Path| {
        file.parent().and_then(Path::file_name).map_or_else(String::new, |n| n.display().to_string())
    };
    files.iter().map(|file| (name(file), Records::read(&std::fs::read(file).unwrap()))).collect()
}

fn keep(bytes: &[u8]) {
    if let Some(path) = std::env::var_os("PTERON_KEEP") {
        std::fs::write(path, bytes).expect("the file of PTERON_KEEP is written");
    }
}

#[test]
fn mutated_archives_are_compiled_and_run_or_refused() {
    let _alone = ALONE.lock();
    let (count, first) = (number("PTERON_ARCHIVES", 400), number("PTERON_SEED", 1));
    let archives = archives();
    let mut exercise = Exercise::new();
    for seed in first..first + count {
        let mut random = Random(seed);
        let (name, records) = &archives[random.below(archives.len())];
        let bytes = Arc::new(mutated(records, &mut random));
        keep(&bytes);
        exercise.archive(&bytes, &format!("{name}, seed {seed}"));
    }
    println!("{:?}", exercise.counts);
    exercise.failures.assert_none();
    assert!(count < 400 || exercise.counts.get("ran").is_some_and(|&ran| ran > 20), "{:?}", exercise.counts);
}

#[test]
fn every_argument_of_every_operator_is_compiled_or_refused() {
    let _alone = ALONE.lock();
    let skipped = number("PTERON_ARGUMENTS", 150) as usize;
    let archives = archives();
    let mut calls = arguments::of_archives(archives.iter().map(|(_, records)| records));
    let of_archives = calls.len();
    let decomposed = arguments::of_decompositions();
    let is_new = |call: &arguments::Call| !calls.iter().any(|known| known.target == call.target);
    let decomposed: Vec<_> = decomposed.into_iter().filter(is_new).collect();
    calls.extend(decomposed);
    calls.extend(arguments::of_kernels(&pteron::kernel_registry()));
    let mut exercise = Exercise::new();
    let variants = calls.iter().enumerate().flat_map(|(i, call)| {
        // Each operator begins elsewhere, so that a part of the variants covers all kinds of them.
        call.variants().into_iter().skip(i % (skipped + 1)).step_by(skipped + 1).map(move |v| (call, v))
    });
    for (call, (what, variant)) in variants {
        let bytes = Arc::new(variant.archive());
        keep(&bytes);
        exercise.archive(&bytes, &format!("{}: {what}", call.target));
    }
    println!("{of_archives} of {} operators from archives: {:?}", calls.len(), exercise.counts);
    exercise.failures.assert_none();
}

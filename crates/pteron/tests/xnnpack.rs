//! Programs that are lowered to XNNPACK give the reference's results: a sample of the corpus, and single quantized
//! operators, whose results must be equal.
#![cfg(all(feature = "xnnpack", feature = "tools"))]

use pteron::tools::verify::{Options, Outcome, check_all, find};
use std::path::{Path, PathBuf};

fn testdata(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(folder)
}

/// Checks all cases of a folder of `testdata`. Fails if one fails, or if fewer than `least` pass.
fn check(folder: &str, no_prepare: bool, least: usize) {
    let cases = find(&testdata(folder)).expect("the sample is readable");
    let mut load = pteron::load_options();
    load.no_prepare = no_prepare;
    let options = Options { load, ..Options::default() };
    let mut failed = Vec::new();
    let counts = check_all(&cases, &options, 2, |case, outcome| {
        if let Outcome::Failed(why) = outcome {
            failed.push(format!("{}: {why}", case.name));
        }
    });
    assert!(failed.is_empty(), "{} cases failed:\n  {}", failed.len(), failed.join("\n  "));
    assert!(counts.passed >= least, "{} cases were run", counts.passed);
}

#[test]
fn programs_of_the_corpus_give_the_results_of_the_reference() {
    check("corpus/tiny", false, 5);
    check("corpus/compat", false, 6);
}

#[test]
fn single_nodes_give_the_results_of_the_reference() {
    check("xnnpack/nodes", false, 36);
    check("xnnpack/nodes", true, 36);
}

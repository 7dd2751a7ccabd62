//! Conformance over parts of the corpus sample in `testdata`, and over programs with outputs computed by PyTorch: every program
//! that needs no backend must reproduce the recorded outputs, prepared and as written.

use pteron_runtime::LoadOptions;
use pteron_verify::{Options, Outcome, check_all, find};
use std::path::Path;

/// Checks all cases of a folder of `testdata`. Fails if a case fails or none passes.
fn check(folder: &str, no_prepare: bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(folder);
    let cases = find(&path).expect("the sample is readable");
    let mut load = LoadOptions::new(pteron_kernels::registry());
    load.no_prepare = no_prepare;
    let options = Options { load, undelegated: true, ..Options::default() };
    let mut failed = Vec::new();
    let counts = check_all(&cases, &options, 2, |case, outcome| {
        if let Outcome::Failed(why) = outcome {
            failed.push(format!("{}: {why}", case.name));
        }
    });
    assert!(failed.is_empty(), "{} cases failed:\n  {}", failed.len(), failed.join("\n  "));
    assert!(counts.passed > 0, "no case was run");
}

macro_rules! parts {
    ($($part:ident = $folder:literal;)*) => { $(
        mod $part {
            #[test]
            fn as_prepared() {
                super::check($folder, false);
            }

            #[test]
            fn as_written() {
                super::check($folder, true);
            }
        }
    )* };
}

parts! {
    tiny = "corpus/tiny";
    compat = "corpus/compat";
    wild = "corpus/wild";
    operators = "operators";
    dynamic = "dynamic";
    half = "half";
    random = "random";
}

//! Archives compiled for the kernels of the reference runtime give PyTorch's results here, or are refused by name.
#![cfg(all(feature = "compile", feature = "tools"))]

use pteron::compile::{self, OperatorTable};
use pteron::tools::verify::{Convert, Options, Outcome, check_all, find};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn archives() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives")
}

fn portable() -> Convert {
    let table = OperatorTable::portable(&pteron::kernel_registry());
    Arc::new(move |(loader, data)| {
        let compiled =
            compile::from_loader(&loader, &table, &compile::Options::default(), &mut |_, _, _| {})?;
        Ok((compile::in_memory(loader, &compiled), data))
    })
}

/// Whether the compiler names operators or nodes that the reference runtime has no kernel for.
fn is_refused(why: &str) -> bool {
    why.starts_with("cannot compile") && (why.contains("not supported:") || why.contains("node `"))
}

#[test]
fn archives_compiled_for_the_reference_runtime_give_the_results_of_pytorch() {
    let cases: Vec<_> =
        find(&archives()).expect("cases").iter().flat_map(|case| case.archive_cases()).collect();
    let options = Options { load: pteron::load_options(), convert: Some(portable()), ..Options::default() };
    let mut failed = Vec::new();
    let counts = check_all(&cases, &options, 2, |case, outcome| {
        if let Outcome::Failed(why) = outcome
            && !is_refused(why)
        {
            failed.push(format!("{}: {why}", case.name));
        }
    });
    assert!(failed.is_empty(), "{} cases failed:\n  {}", failed.len(), failed.join("\n  "));
    assert!(counts.passed >= 64, "{} cases were run", counts.passed);
}

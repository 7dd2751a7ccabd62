//! Archives compiled for the kernels of the reference runtime give PyTorch's results here, and what those kernels do
//! not take is refused with the node named.
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
            compile::from_loader(&*loader, &table, &compile::Options::default(), &mut |_, _, _| {})?;
        Ok((compile::in_memory(&*loader, &compiled)?, data))
    })
}

/// Cases with operators for which the reference runtime has no kernel.
const REFUSED: &[&str] = &["batch_statistics"];

#[test]
fn archives_compiled_for_the_reference_runtime_give_the_results_of_pytorch() {
    let cases: Vec<_> =
        find(&archives()).expect("cases").iter().flat_map(|case| case.of_archives()).collect();
    let options = Options { load: pteron::load_options(), convert: Some(portable()), ..Options::default() };
    let mut failed = Vec::new();
    let counts = check_all(&cases, &options, 2, |case, outcome| {
        if let Outcome::Failed(why) = outcome
            && !REFUSED.iter().any(|name| case.name.contains(name))
        {
            failed.push(format!("{}: {why}", case.name));
        }
    });
    assert!(failed.is_empty(), "{} cases failed:\n  {}", failed.len(), failed.join("\n  "));
    assert!(counts.passed >= 40, "{} cases were run", counts.passed);
}

//! Archives compiled for Pteron's own backend give PyTorch's results, and damaged payloads are run or refused without a
//! panic.
#![cfg(all(feature = "bef", feature = "bef-backend", feature = "compile", feature = "tools"))]

use pteron::compile::{Options as Compile, program_with, to_bef};
use pteron::format::pte;
use pteron::tools::verify::{Convert, Options, Outcome, check_all, find};
use pteron::{Backend, BytesLoader, EValue, Isa, Limits, LoadOptions, Program, Tensor, TensorMeta};
use pteron_backend_bef::Payload;
use pteron_pool::Pool;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[path = "../../format/tests/support/random.rs"]
#[allow(unreachable_pub)]
mod random;

fn archives() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives")
}

fn convert(target: Option<Isa>) -> Convert {
    let kernels = Arc::new(pteron::kernel_registry());
    Arc::new(move |(loader, data)| {
        let options = Compile { delegation: vec![to_bef(&kernels, target)], ..Compile::default() };
        Ok((program_with(loader, &kernels, &options)?, data))
    })
}

/// The program compiled from an archive of `testdata/archives`.
fn compiled(name: &str) -> Vec<u8> {
    compiled_for(name, None)
}

fn compiled_for(name: &str, target: Option<Isa>) -> Vec<u8> {
    let archive = std::fs::read(archives().join(name).join("model.pt2")).expect("an archive");
    let (program, _) = convert(target)((Arc::new(BytesLoader::new(archive)), None)).expect("it compiles");
    program.load(0, program.size(), pteron_runtime::Purpose::Program).expect("it is in memory").to_vec()
}

/// The byte ranges of a program's payloads.
fn payloads(program: &[u8]) -> Vec<Range<usize>> {
    let loaded =
        Program::load(Arc::new(BytesLoader::new(program.to_vec())), &Limits::default()).expect("a program");
    let (header, tables) = (loaded.header(), loaded.tables());
    let delegates = tables.execution_plan.iter().flat_map(|plan| &plan.delegates);
    let segment = |delegate: &pte::BackendDelegate| {
        assert_eq!(delegate.id, pteron_backend_bef::BACKEND_ID);
        let pte::DataLocation::Segment = delegate.processed.location else { panic!("payloads are segments") };
        let segment = &tables.segments[delegate.processed.index as usize];
        let start = (header.segment_base_offset + segment.offset) as usize;
        start..start + segment.size as usize
    };
    delegates.map(segment).collect()
}

#[test]
fn compiled_archives_give_the_results_of_pytorch() {
    let cases: Vec<_> =
        find(&archives()).expect("cases").iter().flat_map(|case| case.archive_cases()).collect();
    for (no_prepare, target) in [(false, None), (true, None), (false, Some(Isa::detect()))] {
        let mut load = pteron::load_options();
        load.no_prepare = no_prepare;
        let options = Options { load, convert: Some(convert(target)), ..Options::default() };
        let mut failed = Vec::new();
        let counts = check_all(&cases, &options, 2, |case, outcome| {
            if let Outcome::Failed(why) = outcome {
                failed.push(format!("{}: {why}", case.name));
            }
        });
        assert!(failed.is_empty(), "{} cases failed:\n  {}", failed.len(), failed.join("\n  "));
        assert!(counts.passed >= 33, "{} cases were run", counts.passed);
    }
}

/// A payload as MLIR text.
fn text(payload: &[u8]) -> String {
    match pteron::tools::bef::to_text(payload, "payload", Default::default()).expect("it is a BEF file") {
        pteron::tools::bef::Translation::Done(text) => text,
        pteron::tools::bef::Translation::Refused(_) => panic!("text can say it"),
    }
}

#[test]
fn payloads_are_read_printed_and_written_without_loss() {
    let program = compiled("transformer");
    let [payload] = &payloads(&program)[..] else { panic!("one part") };
    let bytes = &program[payload.clone()];
    let read = Payload::read(bytes).unwrap();
    assert_eq!(read.to_bytes().unwrap(), bytes, "what is read is written as it was");
    let text = text(bytes);
    assert!(text.contains("pteron.graph") && text.contains("!pteron.tensor<float32, 3, 8>"), "{text}");
    let backend = pteron::BefBackend::new(Arc::new(pteron::kernel_registry()));
    let contents = backend.contents(bytes).unwrap().unwrap();
    assert_eq!((contents.nodes.len(), contents.values.len()), (read.nodes.len(), read.values.len()));
    assert_eq!(compiled("transformer"), program, "an archive is compiled to the same bytes each time");
}

#[test]
fn quantized_partitions_are_stored_fused() {
    for (name, kernel) in [
        ("quantized_convolutions", "pteron.quantized_conv"),
        ("quantized_products", "pteron.quantized_linear"),
        ("quantized_products_dynamic", "pteron.quantized_linear"),
    ] {
        let program = compiled(name);
        let texts: String = payloads(&program).into_iter().map(|payload| text(&program[payload])).collect();
        assert!(texts.contains(kernel), "{name}: {texts}");
    }
}

/// Zeros for the inputs of a program's only method.
fn zeros(program: &Program) -> Option<Vec<EValue>> {
    let inputs = program.method_meta("forward").ok()?.inputs().into_iter().map(|input| {
        let meta = input.tensor?.meta;
        let meta = TensorMeta::new(meta.dtype(), meta.sizes(), *meta.dim_order()).ok()?;
        Some(EValue::Tensor(Tensor::zeros(meta).ok()?))
    });
    inputs.collect()
}

#[test]
fn weights_that_are_stored_packed_are_not_copied() {
    for name in ["layers", "transformer"] {
        let [without, with] = [None, Some(Isa::detect())].map(|target| {
            let file = Arc::new(BytesLoader::new(compiled_for(name, target)));
            let program = Program::load(file, &Limits::default()).unwrap();
            let mut method = program.load_method("forward", pteron::load_options()).unwrap();
            let outputs = method.execute(&zeros(&program).unwrap()).unwrap();
            let bytes = outputs.iter().map(|output| output.as_tensor().unwrap().bytes().to_vec());
            (method.memory(), bytes.collect::<Vec<_>>())
        });
        assert!(with.0 < without.0, "{name}: {} bytes with packed weights, {} without", with.0, without.0);
        assert!(with.1 == without.1, "{name}: other results");
    }
}

/// Loads and runs a program on zeros, under strict limits. Errors are fine.
fn runs(program: Vec<u8>) -> Option<()> {
    let program = Program::load(Arc::new(BytesLoader::new(program)), &Limits::strict()).ok()?;
    let inputs = zeros(&program)?;
    let options = LoadOptions { pool: Pool::serial(), ..pteron::load_options() }.limits(Limits::strict());
    let mut method = program.load_method("forward", options).ok()?;
    (0..2).try_for_each(|_| method.execute(&inputs).map(|_| ()).ok())
}

#[test]
fn damaged_payloads_are_run_or_refused() {
    let mut random = random::Random(11);
    let (mut ran, mut refused) = (0, 0);
    let quantized = ["quantized_convolutions", "quantized_products", "quantized_products_dynamic"];
    for name in ["layers", "dynamic", "transformer", "products"].into_iter().chain(quantized) {
        let program = compiled_for(name, (name == "layers").then(Isa::detect));
        let payloads = payloads(&program);
        for round in 0..100 {
            let payload = payloads[random.below(payloads.len())].clone();
            let mut damaged = program.clone();
            random.mutate(&mut damaged[payload]);
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| runs(damaged).is_some()));
            match outcome.unwrap_or_else(|_| panic!("{name}, round {round}, panicked")) {
                true => ran += 1,
                false => refused += 1,
            }
        }
    }
    assert!(ran > 0 && refused > 0, "{ran} ran, {refused} refused");
}

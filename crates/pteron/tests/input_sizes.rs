//! The sizes that an export allows for inputs are held in every way of running, and survive every edit.
#![cfg(all(feature = "bef-backend", feature = "compile", feature = "tools", feature = "xnnpack"))]

use pteron::compile::{Delegation, Options, program_with, retargeted, to_bef, to_xnnpack};
use pteron::tools::edit::{MoveOptions, StripOptions, embed, externalize, strip};
use pteron::tools::file::Progress;
use pteron::{BytesLoader, DataLoader, EValue, Limits, LoadOptions, Program, PtdDataMap, Tensor, TensorMeta};
use std::path::Path;
use std::sync::Arc;

type Loader = Arc<dyn DataLoader>;

fn archive(name: &str) -> Loader {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives").join(name);
    Arc::new(BytesLoader::new(std::fs::read(path.join("model.pt2")).expect("an archive")))
}

fn delegations() -> [(&'static str, Vec<Delegation>); 3] {
    let kernels = Arc::new(pteron::kernel_registry());
    [("none", Vec::new()), ("bef", vec![to_bef(&kernels, None)]), ("xnnpack", vec![to_xnnpack()])]
}

fn compiled(archive: Loader, delegation: &[Delegation]) -> Loader {
    let options = Options { delegation: delegation.to_vec(), ..Options::default() };
    program_with(archive, &pteron::kernel_registry(), &options).expect("it compiles")
}

fn program(loader: &Loader) -> Program {
    Program::load(Arc::clone(loader), &Limits::default()).expect("a program")
}

fn in_memory(output: &pteron::tools::edit::Output) -> Loader {
    Arc::new(BytesLoader::new(output.to_vec().expect("it is written")))
}

/// The program after edits, each of which must keep what it says of its inputs.
fn edited(loader: &Loader) -> Vec<(&'static str, Loader)> {
    let (program, progress) = (program(loader), Progress::default());
    let stripped = strip(&program, StripOptions { names: true, ..StripOptions::default() }, &progress)
        .expect("it is stripped");
    let mut all = vec![("strip", in_memory(&stripped.program))];
    if let Ok(again) =
        retargeted(Arc::clone(loader), None, &pteron::Registries::default(), &Options::default())
    {
        all.push(("retarget", again));
    }
    if let Ok(moved) = externalize(&program, &MoveOptions::default(), &progress) {
        let data = PtdDataMap::load(in_memory(&moved.data), &Limits::default()).expect("named data");
        let alone = self::program(&in_memory(&moved.program));
        let embedded = embed(&alone, &[data], &progress).expect("it is embedded");
        all.push(("embed", in_memory(&embedded.program)));
    }
    all
}

fn ones(sizes: &[usize]) -> EValue {
    let mut tensor = Tensor::zeros(TensorMeta::contiguous(pteron::ScalarType::Float, sizes).expect("sizes"))
        .expect("memory");
    tensor.as_mut_slice::<f32>().expect("floats").fill(1.0);
    tensor.into()
}

/// The result of a run with inputs of these sizes: an error as text.
fn run(loader: &Loader, no_prepare: bool, sizes: [&[usize]; 3]) -> Result<(), String> {
    let mut options: LoadOptions = pteron::load_options();
    options.no_prepare = no_prepare;
    let mut method = program(loader).load_method("forward", options).expect("it loads");
    let inputs = sizes.map(ones);
    let together = method.execute(&inputs).map(drop).map_err(|e| pteron::tools::one_line(&e));
    // A clone, a session and inputs that are set one by one behave alike.
    let mut forked = method.fork().expect("it can be forked");
    let set = |(i, input): (usize, &EValue)| forked.set_input(i, input);
    let one_by_one = inputs.iter().enumerate().try_for_each(set).and_then(|()| forked.run());
    assert_eq!(one_by_one.map_err(|e| pteron::tools::one_line(&e)), together);
    together
}

#[test]
fn sizes_are_held_in_every_way_of_running() {
    for (backend, delegation) in delegations() {
        let compiled = compiled(archive("related_sizes"), &delegation);
        let mut ways = edited(&compiled);
        ways.push(("compile", compiled));
        for (edit, loader) in &ways {
            for no_prepare in [false, true] {
                let way = format!("{backend}, {edit}, no_prepare {no_prepare}");
                let run = |x: &[usize], y: usize, z: usize| run(loader, no_prepare, [x, &[y, 3], &[z]]);
                assert_eq!(run(&[4, 32], 8, 5), Ok(()), "{way}");
                assert_eq!(run(&[16, 32], 32, 17), Ok(()), "{way}");
                let refused = |result: Result<(), String>, problem: &str| {
                    let error = result.expect_err(&way);
                    assert!(error.contains(problem), "{way}: {error}");
                };
                refused(run(&[4, 31], 8, 5), "input 0: dimension 1 has size 31; it was exported with 32");
                refused(
                    run(&[2, 32], 4, 3),
                    "input 0: dimension 0 has size 2; it was exported with s77 from 3 to 16",
                );
                refused(
                    run(&[17, 32], 34, 18),
                    "dimension 0 has size 17; it was exported with s77 from 3 to 16",
                );
                refused(
                    run(&[4, 32], 6, 5),
                    "input 1: dimension 0 has size 6; it was exported with 2*s77, which is 8",
                );
                refused(
                    run(&[4, 32], 8, 4),
                    "input 2: dimension 0 has size 4; it was exported with 1 + s77, which is 5",
                );
            }
        }
    }
}

#[test]
fn damaged_sizes_are_refused_by_name() {
    let compiled = compiled(archive("related_sizes"), &[]);
    let bytes = compiled.load(0, compiled.size(), pteron_runtime::Purpose::Program).expect("bytes").to_vec();
    let text = b"input s0; 32\n";
    let at = bytes.windows(text.len()).position(|window| window == text).expect("the sizes");
    for damaged in
        [&b"input s0; 99\n"[..], b"input s9; 32\n", b"input s0 ; 2\n", b"inputs s0; 2\n", b"input s0 mul\n"]
    {
        let mut bytes = bytes.clone();
        bytes[at..at + text.len()].copy_from_slice(damaged);
        let loader: Loader = Arc::new(BytesLoader::new(bytes));
        let error =
            program(&loader).load_method("forward", pteron::load_options()).expect_err("it is refused");
        assert!(error.to_string().contains("pteron.input_sizes.forward"), "{error}");
        let validation = pteron::tools::validate::validate(
            &loader,
            &pteron::kernel_registry(),
            &pteron::backend_registry(),
            &Limits::default(),
        );
        assert!(!validation.expect("it is read").valid, "what cannot be loaded is not valid");
    }
}

//! The names of inputs, outputs and weights survive compilation and every edit.
#![cfg(all(feature = "bef-backend", feature = "compile", feature = "tools", feature = "xnnpack"))]

use pteron::compile::{Delegation, Options, program_with, retargeted, to_bef, to_xnnpack};
use pteron::tools::edit::{MoveOptions, StripOptions, embed, externalize, strip};
use pteron::tools::file::Progress;
use pteron::{
    BytesLoader, DataLoader, EValue, Limits, Module, Program, PtdDataMap, Purpose, Tensor, ValueNames,
};
use pteron_format::pte::{Tensor as Table, TensorData};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Loader = Arc<dyn DataLoader>;

fn archives() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives");
    let entries = std::fs::read_dir(folder).expect("a folder");
    let files = entries.map(|entry| entry.expect("an entry").path().join("model.pt2"));
    let files: Vec<PathBuf> = files.filter(|file| file.exists()).collect();
    assert!(files.len() >= 50, "{} archives", files.len());
    files
}

fn compiled(file: &Path, delegation: Vec<Delegation>) -> Loader {
    let archive: Loader = Arc::new(BytesLoader::new(std::fs::read(file).expect("an archive")));
    let options = Options { delegation, ..Options::default() };
    program_with(archive, &pteron::kernel_registry(), &options).expect("it compiles")
}

fn program(loader: &Loader) -> Program {
    Program::load(Arc::clone(loader), &Limits::default()).expect("a program")
}

fn in_memory(output: &pteron::tools::edit::Output) -> Loader {
    Arc::new(BytesLoader::new(output.to_vec().expect("it is written")))
}

/// The names of inputs and outputs by method, and those of the weights in the tables.
fn names(loader: &Loader) -> (Vec<(String, ValueNames)>, BTreeSet<String>) {
    let program = program(loader);
    let methods = program.methods().map(|meta| (meta.name().to_owned(), meta.value_names().expect("names")));
    let tensors = program.methods().flat_map(|meta| meta.plan().values.iter().filter_map(|v| v.as_tensor()));
    let is_weight =
        |t: &&Table| !matches!(program.tables().tensor_data(t), TensorData::Planned | TensorData::Unplanned);
    let weights =
        tensors.filter(is_weight).filter_map(Table::fully_qualified_name).map(str::to_owned).collect();
    (methods.collect(), weights)
}

#[test]
fn names_survive_compilation_and_edits() {
    let (kernels, progress) = (Arc::new(pteron::kernel_registry()), Progress::default());
    let mut weights_seen = 0;
    for file in archives() {
        let plain = compiled(&file, Vec::new());
        let (values, weights) = names(&plain);
        for (method, names) in &values {
            let all: Vec<_> = names.inputs.iter().chain(&names.outputs).collect();
            assert!(all.iter().all(|name| name.is_some()), "{}: {method} {names:?}", file.display());
        }
        weights_seen += weights.len();
        for (backend, delegation) in [("bef", vec![to_bef(&kernels, None)]), ("xnnpack", vec![to_xnnpack()])]
        {
            assert_eq!(names(&compiled(&file, delegation)).0, values, "{} for {backend}", file.display());
        }
        // `externalize` names weights that have no name by their digests.
        let edited = |edit: &str, loader: &Loader| {
            let after = names(loader);
            assert_eq!(after.0, values, "{} after {edit}", file.display());
            assert!(after.1.is_superset(&weights), "{} after {edit}: {:?}", file.display(), after.1);
        };
        let stripped = strip(&program(&plain), StripOptions::default(), &progress).expect("it is stripped");
        edited("strip", &in_memory(&stripped.program));
        if let Ok(moved) = externalize(&program(&plain), &MoveOptions::default(), &progress) {
            let data = PtdDataMap::load(in_memory(&moved.data), &Limits::default()).expect("named data");
            let alone = in_memory(&moved.program);
            edited("externalize", &alone);
            let embedded = embed(&program(&alone), &[data], &progress).expect("it is embedded");
            edited("embed", &in_memory(&embedded.program));
        }
        let registries = pteron::Registries::default();
        if let Ok(again) = retargeted(Arc::clone(&plain), None, &registries, &Options::default()) {
            assert_eq!(names(&again).0, values, "{} after retarget", file.display());
        }
    }
    assert!(weights_seen > 100, "{weights_seen} weights");
}

#[test]
fn names_are_stripped_if_that_is_asked_for() {
    let file = archives().into_iter().find(|file| file.ends_with("layers/model.pt2")).expect("the archive");
    let options = StripOptions { names: true, ..StripOptions::default() };
    let stripped = strip(&program(&compiled(&file, Vec::new())), options, &Progress::default());
    let (values, weights) = names(&in_memory(&stripped.expect("it is stripped").program));
    assert!(values.iter().all(|(_, names)| names.is_empty()) && weights.is_empty(), "{values:?} {weights:?}");
}

#[test]
fn inputs_are_given_by_name() {
    let file = archives().into_iter().find(|file| file.ends_with("keywords/model.pt2")).expect("the archive");
    let mut module = Module::load(compiled(&file, Vec::new()), pteron::load_options()).expect("it loads");
    let value = |sizes: &[usize], value: f32| -> EValue {
        Tensor::from_slice(sizes, &vec![value; sizes.iter().product()]).expect("a tensor").into()
    };
    let [x, scale, early, late] =
        [value(&[2, 3], 1.0), value(&[3], 2.0), value(&[2, 3], 3.0), value(&[3], 4.0)];
    let copies = || [&x, &scale, &early, &late].map(|value| value.try_clone().expect("memory"));
    let mut inputs = Vec::from(copies());
    inputs.push(EValue::Double(2.0));
    let in_order = module.forward(&inputs).expect("it runs");
    let [x, scale, early, late] = copies();
    let named = [("offset.late", late), ("scale", scale), ("x", x), ("offset.early", early)];
    let by_name = module.execute_named("forward", named).expect("it runs");
    assert_eq!(format!("{by_name:?}"), format!("{in_order:?}"));
    let fails = |module: &mut Module, inputs: Vec<(&str, EValue)>| {
        module.execute_named("forward", inputs).expect_err("it is refused").to_string()
    };
    let error = fails(&mut module, vec![("scales", value(&[3], 1.0))]);
    assert_eq!(error, "method `forward`: there is no input `scales`; did you mean `scale`?");
    let error = fails(&mut module, vec![("scale", value(&[3], 1.0)), ("scale", value(&[3], 1.0))]);
    assert_eq!(error, "method `forward`: the input `scale` was given twice");
    let error = fails(&mut module, vec![("scale", value(&[3], 1.0))]);
    assert_eq!(error, "method `forward`: it takes 5 input(s), 1 were given");
}

#[test]
fn names_that_cannot_be_read_are_an_error() {
    let file = archives().into_iter().find(|file| file.ends_with("keywords/model.pt2")).expect("the archive");
    let loader = compiled(&file, Vec::new());
    let mut bytes = loader.load(0, loader.size(), Purpose::Program).expect("its bytes").to_vec();
    let at = bytes.windows(7).position(|part| part == b"names 1").expect("the entry");
    bytes[at + 6] = b'9';
    let loader: Loader = Arc::new(BytesLoader::new(bytes));
    let error =
        program(&loader).method_meta("forward").expect("it").value_names().expect_err("it is refused");
    let expected = "method `forward`, named data `pteron.names.forward`: it does not begin with `names 1`";
    assert_eq!(error.to_string(), expected);
}

//! Applies every edit to every program of the corpus sample: the meaning and the results must stay the same.

#[allow(dead_code, unreachable_pub)]
#[path = "../../format/tests/support/newer.rs"]
mod newer;
#[allow(dead_code, unreachable_pub)]
#[path = "../../format/tests/support/random.rs"]
mod random;

use pteron_runtime::{
    BackendRegistry, BytesLoader, DataLoader, Limits, LoadOptions, NamedDataMap, Program, PtdDataMap,
};
use pteron_toolbox::bundle::{Bundle, rebundle};
use pteron_toolbox::convert::{self, Format, convert};
use pteron_toolbox::diff::{Registries, diff};
use pteron_toolbox::edit::{
    MoveOptions, Output, StripOptions, dedupe, embed, externalize, set_weight, strip,
};
use pteron_toolbox::file::{File, Progress};
use pteron_toolbox::merge::{MergeOptions, Prefer, merge};
use pteron_toolbox::plan::plan;
use pteron_toolbox::validate::validate;
use pteron_verify::{Options, Outcome, check_all, find};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn sample(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/corpus").join(folder)
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|end| end == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn programs() -> Vec<PathBuf> {
    let all: Vec<_> = ["tiny", "compat", "wild"].iter().flat_map(|f| files(&sample(f), "pte")).collect();
    assert!(all.len() > 100, "{}", all.len());
    all
}

fn in_memory(output: &Output) -> Arc<dyn DataLoader> {
    Arc::new(BytesLoader::new(output.to_vec().expect("it is written")))
}

fn program(output: &Output) -> Program {
    Program::load(in_memory(output), &Limits::default()).expect("it is sound")
}

fn data(output: &Output) -> PtdDataMap {
    PtdDataMap::load(in_memory(output), &Limits::default()).expect("it is sound")
}

fn assert_same_meaning(path: &Path, a: Program, b: Program) {
    let (kernels, backends) = (pteron_kernels::registry(), BackendRegistry::new());
    let registries = Registries { kernels: &kernels, backends: &backends };
    let report =
        diff(&File::Program(a), &File::Program(b), registries, &Progress::default()).expect("both are read");
    let report = report.only_meaning();
    assert!(report.differences.is_empty(), "{}:\n{}", path.display(), report.text());
}

#[test]
fn stripped_programs_mean_the_same() {
    for path in programs() {
        let old = Program::open(&path).unwrap();
        let stripped =
            strip(&old, StripOptions { names: true, ..StripOptions::default() }, &Progress::default())
                .unwrap();
        let new = program(&stripped.program);
        assert!(new.tables().execution_plan.iter().flat_map(|p| &p.chains).all(|c| c.stacktrace.is_empty()));
        assert_same_meaning(&path, old, new);
    }
}

#[test]
fn externalize_and_embed_round_trip() {
    let mut moved = 0;
    for path in programs() {
        let old = Program::open(&path).unwrap();
        let options = MoveOptions { initial: true, ..MoveOptions::default() };
        let Ok(out) = externalize(&old, &options, &Progress::default()) else { continue };
        moved += 1;
        // Include the external data that the program had before.
        let mut outside = vec![data(&out.data)];
        let before = files(path.parent().unwrap(), "ptd");
        let asks_for_more = embed(&program(&out.program), &outside, &Progress::default()).is_err();
        outside.extend(before.iter().filter(|_| asks_for_more).map(|ptd| PtdDataMap::open(ptd).unwrap()));
        let back = embed(&program(&out.program), &outside, &Progress::default()).unwrap();
        if !asks_for_more {
            assert_same_meaning(&path, old, program(&back.program));
        }
    }
    assert!(moved > 50, "{moved}");
}

#[test]
fn programs_with_common_weights_share_them() {
    let mut shared = 0;
    for path in programs() {
        let a = Program::open(&path).unwrap();
        let b = program(
            &strip(&a, StripOptions { names: false, ..StripOptions::default() }, &Progress::default())
                .unwrap()
                .program,
        );
        let Ok(deduped) = dedupe(&[a.clone(), b], 1, &Progress::default()) else { continue };
        let weights = data(&deduped.data);
        for member in &deduped.programs {
            let new = program(&member.program);
            let Ok(back) = embed(&new, std::slice::from_ref(&weights), &Progress::default()) else {
                continue;
            };
            assert_same_meaning(&path, a.clone(), program(&back.program));
            shared += 1;
        }
    }
    assert!(shared > 80, "{shared}");
}

#[test]
fn every_plan_is_sound() {
    let kernels = pteron_kernels::registry();
    for path in programs() {
        let report = plan(&Program::open(&path).unwrap(), &kernels, &BackendRegistry::new()).unwrap();
        assert!(report.is_sound(), "{}: {:?}", path.display(), report);
    }
}

/// Runs the cases of a folder with edited programs. `edit` returns the new program and, if it moved them out, its weights.
fn cases_pass(folder: &str, edit: fn(&Program) -> Option<(Vec<u8>, Option<Vec<u8>>)>) {
    let scratch = std::env::temp_dir().join(format!("pteron-edits-{folder}-{}-{edit:p}", std::process::id()));
    let mut edited = 0;
    for case in files(&sample(folder), "json").iter().filter(|path| path.ends_with("case.json")) {
        let from = case.parent().unwrap();
        let mut text: Value = serde_json::from_slice(&fs::read(case).unwrap()).unwrap();
        let Some(model) = text["model"].as_str().map(|name| from.join(name)).filter(|m| m.exists()) else {
            continue;
        };
        if model.extension().is_none_or(|end| end != "pte") {
            continue;
        }
        let Some((program, weights)) = edit(&Program::open(&model).unwrap()) else { continue };
        let to = scratch.join(from.file_name().unwrap());
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
        fs::write(to.join(model.file_name().unwrap()), program).unwrap();
        if let Some(weights) = weights {
            fs::write(to.join("moved.ptd"), &weights).unwrap();
            let entry = json!({"file": "moved.ptd", "bytes": weights.len()});
            match text["data_files"].as_array_mut() {
                Some(files) => files.push(entry),
                None => text["data_files"] = json!([entry]),
            }
        }
        fs::write(to.join("case.json"), text.to_string()).unwrap();
        edited += 1;
    }
    assert!(edited > 10, "{edited}");
    let cases = find(&scratch).unwrap();
    let load = LoadOptions::new(pteron_kernels::registry());
    let options = Options { load, undelegated: true, ..Options::default() };
    let mut failed = Vec::new();
    check_all(&cases, &options, 2, |case, outcome| {
        if let Outcome::Failed(why) = outcome {
            failed.push(format!("{}: {why}", case.name));
        }
    });
    fs::remove_dir_all(&scratch).unwrap();
    assert!(failed.is_empty(), "{} cases failed:\n  {}", failed.len(), failed.join("\n  "));
}

#[test]
fn externalized_programs_give_the_same_results() {
    cases_pass("tiny", |program| {
        let options = MoveOptions { initial: true, ..MoveOptions::default() };
        let out = externalize(program, &options, &Progress::default()).ok()?;
        Some((out.program.to_vec().unwrap(), Some(out.data.to_vec().unwrap())))
    });
}

#[test]
fn stripped_programs_give_the_same_results() {
    cases_pass("tiny", |program| {
        let out =
            strip(program, StripOptions { names: true, ..StripOptions::default() }, &Progress::default())
                .ok()?;
        Some((out.program.to_vec().unwrap(), None))
    });
}

#[test]
fn entries_with_equal_bytes_share_a_segment_after_merge() {
    let path = sample("wild/flat_tensor_align16/data.ptd");
    let (one, other) = (PtdDataMap::open(&path).unwrap(), PtdDataMap::open(&path).unwrap());
    let merged = data(&merge(&[one, other], &sharing(), &Progress::default()).unwrap().data);
    let entry = |key: &str| merged.tables().get(key).unwrap().segment_index;
    assert_eq!(entry("a.weight"), entry("alias_of_a"));
    assert_eq!(*merged.data("a.weight").unwrap(), *merged.data("alias_of_a").unwrap());
}

fn sharing() -> MergeOptions {
    MergeOptions { share: true, ..MergeOptions::default() }
}

#[test]
fn merged_entries_are_chosen_and_renamed() {
    let folder = std::env::temp_dir().join(format!("pteron-merge-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("other.npy");
    let one = || PtdDataMap::open(sample("wild/flat_tensor_align16/data.ptd")).unwrap();
    let layout = one().tables().get("a.weight").unwrap().tensor_layout.clone().unwrap();
    npy(&path, &layout.sizes, &vec![7.0; layout.sizes.iter().product::<i32>() as usize]);
    let changed = set_weight(&File::Data(one()), "a.weight", &path, &Progress::default()).unwrap().file;
    let merged = |options: &MergeOptions| merge(&[one(), data(&changed)], options, &Progress::default());
    let values = |merged: &PtdDataMap, key: &str| merged.data(key).unwrap().to_vec();

    assert!(merged(&MergeOptions::default()).is_err(), "they disagree");
    for (prefer, of) in [(Prefer::First, one()), (Prefer::Last, data(&changed))] {
        let options = MergeOptions { prefer: Some(prefer), ..MergeOptions::default() };
        let got = data(&merged(&options).unwrap().data);
        for entry in &of.tables().named_data {
            assert_eq!(values(&got, &entry.key), values(&of, &entry.key), "{prefer:?} {}", entry.key);
        }
        assert_eq!(got.tables().named_data.len(), of.tables().named_data.len());
    }

    let options = MergeOptions {
        names: vec!["a.*".into(), "alias?of?a".into()],
        rename: vec![("a.weight".to_owned(), "new".to_owned())],
        prefer: Some(Prefer::First),
        share: false,
    };
    let got = data(&merged(&options).unwrap().data);
    assert_eq!(values(&got, "new"), values(&one(), "a.weight"));
    assert!(got.tables().get("a.weight").is_none() && got.tables().get("b.weight").is_none());
    assert_eq!(values(&got, "alias_of_a"), values(&one(), "alias_of_a"));
    let unknown = MergeOptions { names: vec!["nothing*".into()], ..MergeOptions::default() };
    assert!(merged(&unknown).unwrap_err().to_string().contains("nothing*"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_edited_program_is_bundled_with_the_same_test_cases() {
    let path = sample("wild/bundled_linear/model.bpte");
    let file: Arc<dyn DataLoader> = Arc::new(BytesLoader::new(fs::read(&path).unwrap()));
    let (limits, progress) = (Limits::default(), Progress::default());
    let program = File::open_program(Arc::clone(&file), "strip", &limits).unwrap();
    let same = strip(&program, StripOptions::default(), &progress).unwrap().program;
    let bundle = rebundle(&file, &same, &limits, &progress).unwrap().unwrap();
    assert!(bundle.to_vec().unwrap() == fs::read(&path).unwrap(), "an edit that changes nothing");

    let small =
        strip(&program, StripOptions { names: true, ..StripOptions::default() }, &progress).unwrap().program;
    let bundle = rebundle(&file, &small, &limits, &progress).unwrap().unwrap().to_vec().unwrap();
    let (old, new) = (fs::read(&path).unwrap(), bundle);
    let read = |bytes: &[u8]| pteron_format::bpte::read(bytes, &limits.format).unwrap();
    assert_eq!(read(&old).method_test_suites, read(&new).method_test_suites);
    let range = read(&new).program;
    assert_eq!(&new[range.start as usize..range.end as usize], small.to_vec().unwrap());
    let plain: Arc<dyn DataLoader> = Arc::new(BytesLoader::new(small.to_vec().unwrap()));
    assert!(rebundle(&plain, &small, &limits, &progress).unwrap().is_none());
}

fn in_bytes(bytes: Vec<u8>) -> Program {
    Program::load(Arc::new(BytesLoader::new(bytes)), &Limits::default()).expect("it is sound")
}

/// Writes a `.npy` file of a float32 tensor.
fn npy(path: &Path, shape: &[i32], values: &[f32]) {
    let shape: Vec<String> = shape.iter().map(|size| format!("{size},")).collect();
    let mut head = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", shape.join(" "));
    head.push_str(&" ".repeat(63 - (10 + head.len()) % 64));
    head.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((head.len() as u16).to_le_bytes());
    bytes.extend(head.bytes());
    values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    fs::write(path, bytes).unwrap();
}

#[test]
fn edits_that_change_nothing_give_the_same_file() {
    let (mut stripped, mut merged) = (0, 0);
    for path in programs() {
        let file = fs::read(&path).unwrap();
        let done =
            strip(&Program::open(&path).unwrap(), StripOptions::default(), &Progress::default()).unwrap();
        if done.frames == 0 {
            assert!(done.program.to_vec().unwrap() == file, "{}", path.display());
            stripped += 1;
        }
    }
    for path in ["tiny", "compat", "wild"].iter().flat_map(|folder| files(&sample(folder), "ptd")) {
        let file = fs::read(&path).unwrap();
        let one = [PtdDataMap::open(&path).unwrap()];
        assert!(
            merge(&one, &MergeOptions::default(), &Progress::default()).unwrap().data.to_vec().unwrap()
                == file
        );
        let loader: Arc<dyn DataLoader> = Arc::new(BytesLoader::new(file.clone()));
        let options = convert::Options::default();
        let done = convert(&loader, Format::Ptd, options, &Limits::default(), &Progress::default()).unwrap();
        assert!(done.file.to_vec().unwrap() == file);
        merged += 1;
    }
    assert!(stripped > 90 && merged > 8, "{stripped} {merged}");
}

#[test]
fn a_weight_of_the_same_size_replaces_only_its_bytes() {
    let folder = std::env::temp_dir().join(format!("pteron-set-weight-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let array = folder.join("a.npy");
    let mut set = 0;
    for path in programs() {
        let file = fs::read(&path).unwrap();
        let opened = File::Program(Program::open(&path).unwrap());
        let File::Program(program) = &opened else { unreachable!() };
        let values = program.tables().execution_plan.iter().flat_map(|plan| &plan.values);
        let mut constants =
            values.filter_map(|value| value.as_tensor()).filter(|t| t.constant_idx().is_some());
        let Some(tensor) = constants.rfind(|t| t.scalar_type == 6 && t.dim_order.is_sorted()) else {
            continue;
        };
        let count = tensor.numel().unwrap() as usize;
        let name = tensor.constant_idx().unwrap().to_string();
        npy(&array, &tensor.sizes, &vec![f32::NAN; count]);
        let done = set_weight(&opened, &name, &array, &Progress::default()).unwrap();
        let new = done.file.to_vec().unwrap();
        if new.len() == file.len() {
            let differs = new.iter().zip(&file).filter(|(a, b)| a != b).count();
            assert!(differs <= 4 * count, "{}: {differs} of {count}", path.display());
            set += 1;
        }
        let again = File::Program(in_bytes(new.clone()));
        let done = set_weight(&again, &name, &array, &Progress::default()).unwrap();
        assert!(done.file.to_vec().unwrap() == new, "{}", path.display());
    }
    fs::remove_dir_all(&folder).unwrap();
    assert!(set > 20, "{set}");
}

#[test]
fn edits_keep_what_newer_schemas_add_or_say_that_they_cannot() {
    let mut random = random::Random(5);
    let (mut kept, mut said) = (0, 0);
    let mut check = |path: &Path, marks: &[Vec<u8>], files: &[&[u8]], lost: &[String]| {
        let missing =
            marks.iter().filter(|mark| files.iter().all(|f| newer::missing(&[mark.to_vec()], f) > 0)).count();
        assert!(missing == 0 || !lost.is_empty(), "{}: {missing} of {}", path.display(), marks.len());
        kept += marks.len() - missing;
        said += missing;
    };
    for path in files(&sample("tiny"), "pte") {
        let file = fs::read(&path).unwrap();
        if file.len() > 50_000 {
            continue;
        }
        for rarity in [1, 3] {
            let newer = newer::program(&file, &mut random, rarity);
            let old = in_bytes(newer.file.clone());
            let done =
                strip(&old, StripOptions { names: true, ..StripOptions::default() }, &Progress::default())
                    .unwrap();
            let new = done.program.to_vec().unwrap();
            check(&path, &newer.marks, &[&new], &done.lost);
            assert_same_meaning(&path, old.clone(), in_bytes(new));
            let options = MoveOptions { initial: true, ..MoveOptions::default() };
            let Ok(out) = externalize(&old, &options, &Progress::default()) else { continue };
            let code = out.program.to_vec().unwrap();
            check(&path, &newer.marks, &[&code], &out.lost);
            let Ok(back) = embed(&in_bytes(code), &[data(&out.data)], &Progress::default()) else { continue };
            let lost: Vec<String> = out.lost.iter().chain(&back.lost).cloned().collect();
            let whole = back.program.to_vec().unwrap();
            check(&path, &newer.marks, &[&whole], &lost);
            assert_same_meaning(&path, old, in_bytes(whole));
        }
    }
    eprintln!("{kept} kept, {said} said to be lost");
    assert!(kept > 1000 && kept > 5 * said, "{kept} kept, {said} said to be lost");
}

#[test]
fn what_a_bundle_holds_is_validated_as_a_program() {
    let nested = |inner: &dyn DataLoader| {
        let mut out = Vec::new();
        Bundle::new(inner).unwrap().write(&mut out).unwrap();
        BytesLoader::named("nested".to_owned(), out)
    };
    let add = files(&sample("tiny/ModuleAdd"), "pte").remove(0);
    let once = nested(&BytesLoader::named("add".to_owned(), fs::read(add).unwrap()));
    let validated = |file: BytesLoader| {
        let file: Arc<dyn DataLoader> = Arc::new(file);
        let (kernels, backends) = (pteron_kernels::registry(), BackendRegistry::default());
        validate(&file, &kernels, &backends, &Limits::default()).unwrap()
    };
    let twice = validated(nested(&once));
    assert!(!twice.valid);
    assert!(twice.problems[0].message.starts_with("program, from byte 0x"), "{:?}", twice.problems);
    assert!(validated(once).valid);
}

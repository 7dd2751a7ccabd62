//! Task metadata is stored when compiling, and kept by edits and recompiling.
#![cfg(feature = "tools")]

use pteron::compile::{Options, program_with, retargeted, to_xnnpack};
use pteron::data::BytesLoader;
use pteron::tools::edit::{MoveOptions, StripOptions, embed, externalize, set_task, strip};
use pteron::tools::file::Progress;
use pteron::tools::task::{self, TaskMetadata};
use pteron::{DataLoader, Limits, Program, PtdDataMap};
use std::io::{Cursor, Read, Write};
use std::path::Path;
use std::sync::Arc;

type Loader = Arc<dyn DataLoader>;

const TASK: &str = r#"{"preprocessing":{"resize":256,"crop":224,"interpolation":"bilinear"},"labels":["cat","dog"],
    "tokenizer":{"sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},"license":"MIT","epoch":7}"#;

fn archive() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives/layers/model.pt2");
    std::fs::read(path).expect("an archive")
}

fn loader(bytes: Vec<u8>) -> Loader {
    Arc::new(BytesLoader::new(bytes))
}

fn compiled(archive: Vec<u8>, task: Option<&str>) -> pteron::Result<Loader> {
    let options = Options { task: task.map(str::to_owned), ..Options::default() };
    program_with(loader(archive), &pteron::kernel_registry(), &options)
}

fn program(loader: &Loader) -> Program {
    Program::load(Arc::clone(loader), &Limits::default()).expect("a program")
}

fn stored(loader: &Loader) -> Option<TaskMetadata> {
    task::of(&program(loader)).expect("valid metadata")
}

fn in_memory(output: &pteron::tools::edit::Output) -> Loader {
    loader(output.to_vec().expect("it is written"))
}

/// The archive with an extra file of this name.
fn with_extra(archive: Vec<u8>, name: &str, text: &[u8]) -> Vec<u8> {
    let mut old = zip::ZipArchive::new(Cursor::new(archive)).expect("a zip file");
    let mut new = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let method = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let mut root = String::new();
    for index in 0..old.len() {
        let mut entry = old.by_index(index).expect("a record");
        root = entry.name().split('/').next().unwrap_or_default().to_owned();
        new.start_file(entry.name(), method).expect("memory");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("its bytes");
        new.write_all(&bytes).expect("memory");
    }
    new.start_file(format!("{root}/extra/{name}"), method).expect("memory");
    new.write_all(text).expect("memory");
    new.finish().expect("memory").into_inner()
}

#[test]
fn metadata_survives_edits_and_recompiling() {
    let (task, progress) = (TaskMetadata::parse(TASK).expect("valid"), Progress::default());
    let plain = compiled(archive(), Some(TASK)).expect("it compiles");
    assert_eq!(stored(&plain).as_ref(), Some(&task));
    let registries = pteron::Registries::default();
    let again = Options { delegation: vec![to_xnnpack()], ..Options::default() };
    let again = retargeted(Arc::clone(&plain), None, &registries, &again).expect("it compiles again");
    assert_eq!(stored(&again).as_ref(), Some(&task), "after retarget");
    for names in [false, true] {
        let options = StripOptions { names, ..StripOptions::default() };
        let stripped = strip(&program(&plain), options, &progress).expect("it is stripped");
        assert_eq!(stored(&in_memory(&stripped.program)).as_ref(), Some(&task), "after strip");
    }
    let moved =
        externalize(&program(&plain), &MoveOptions::default(), &progress).expect("weights are moved out");
    let alone = in_memory(&moved.program);
    assert_eq!(stored(&alone).as_ref(), Some(&task), "after externalize");
    let data = PtdDataMap::load(in_memory(&moved.data), &Limits::default()).expect("named data");
    let embedded = embed(&program(&alone), &[data], &progress).expect("weights are embedded");
    assert_eq!(stored(&in_memory(&embedded.program)).as_ref(), Some(&task), "after embed");
    let options = StripOptions { task: true, ..StripOptions::default() };
    let stripped = strip(&program(&plain), options, &progress).expect("it is stripped");
    assert_eq!(stored(&in_memory(&stripped.program)), None);
}

#[test]
fn metadata_of_a_program_is_replaced() {
    let (task, progress) = (TaskMetadata::parse(TASK).expect("valid"), Progress::default());
    let plain = compiled(archive(), None).expect("it compiles");
    assert_eq!(stored(&plain), None);
    let set = set_task(&program(&plain), task.clone(), &progress).expect("it is stored");
    let first = in_memory(&set.program);
    assert_eq!(stored(&first).as_ref(), Some(&task));
    let other = TaskMetadata::parse(r#"{"license":"Apache-2.0"}"#).expect("valid");
    let set = set_task(&program(&first), other.clone(), &progress).expect("it is replaced");
    assert_eq!(stored(&in_memory(&set.program)), Some(other));
    let set = set_task(&program(&first), TaskMetadata::default(), &progress).expect("it is removed");
    assert_eq!(stored(&in_memory(&set.program)), None);
    let mut wrong = task;
    wrong.labels.push("x".repeat(1 << 20));
    let error = set_task(&program(&first), wrong, &progress).expect_err("it is too large").to_string();
    assert!(error.contains("at most 1048576"), "{error}");
}

#[test]
fn an_archive_has_metadata_in_an_extra_file() {
    let with = |text: &[u8]| compiled(with_extra(archive(), "pteron.task", text), None);
    assert_eq!(stored(&with(TASK.as_bytes()).expect("it compiles")), TaskMetadata::parse(TASK).ok());
    let other = with_extra(archive(), "notes.txt", b"hello");
    assert_eq!(stored(&compiled(other, None).expect("it compiles")), None);
    let error = pteron::tools::one_line(&with(b"\xff").map(drop).expect_err("it is no text"));
    assert!(error.contains("pteron.task: it is no text"), "{error}");
    let error =
        pteron::tools::one_line(&with(&vec![b' '; (1 << 20) + 1]).map(drop).expect_err("it is too large"));
    assert!(error.contains("at most 1048576"), "{error}");
    // The options override the archive.
    let both = compiled(with_extra(archive(), "pteron.task", TASK.as_bytes()), Some(r#"{"license":"BSD"}"#));
    assert_eq!(stored(&both.expect("it compiles")).and_then(|task| task.license).as_deref(), Some("BSD"));
}

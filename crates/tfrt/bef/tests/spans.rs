//! Spans cover every byte of a file exactly once.

use std::fs;
use std::path::{Path, PathBuf};

use pteron_bef::{Attribute, File, FunctionBuilder, Module, Span};

fn spans(bytes: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    File::open(bytes).unwrap().spans(&mut |span| spans.push(span)).unwrap();
    spans
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "bef")).collect()
}

#[test]
fn spans_cover_files_without_gaps() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths = files(&sample);
    match std::env::var_os("PTERON_CORPUS") {
        Some(corpus) => paths.extend(files(&Path::new(&corpus).join("bef"))),
        None => eprintln!("SKIPPED: set PTERON_CORPUS to a corpus folder to run this on all of it"),
    }
    for path in &paths {
        let bytes = fs::read(path).unwrap();
        let mut end = 0;
        for span in spans(&bytes) {
            assert_eq!(span.start, end, "{}: {span:?}", path.display());
            assert!(span.len > 0 && span.meaning != "not used", "{}: {span:?}", path.display());
            assert!(!span.path.is_empty() && !span.meaning.is_empty(), "{}: {span:?}", path.display());
            end += span.len;
        }
        assert_eq!(end, bytes.len() as u64, "{}", path.display());
    }
    assert!(paths.len() >= 18);
}

#[test]
fn meanings_of_a_small_program_are_as_expected() {
    let mut module = Module::new(true);
    let mut main = FunctionBuilder::new(&mut module, "main", &[]);
    let list = Attribute::Aggregate(vec![Attribute::I32(7), Attribute::string("x")]);
    let one = main.kernel("list").attribute("values", list).result("i32");
    main.finish(&[one]).unwrap();
    let bytes = module.to_bytes().unwrap();
    let shown: Vec<String> = spans(&bytes)
        .into_iter()
        .map(|span| format!("{:3} {:2} {}: {}", span.start, span.len, span.path, span.meaning))
        .collect();
    let shown = shown.join("\n");
    if std::env::var_os("PTERON_BLESS").is_some() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/spans.txt"), format!("{shown}\n"))
            .unwrap();
    }
    let expected = include_str!("data/spans.txt").trim_end();
    assert_eq!(shown, expected, "{shown}");
}

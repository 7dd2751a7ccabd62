//! Compares translations with the output of the reference converter, for the programs in `tests/data` and, if
//! `PTERON_CORPUS` is set to its folder, for the full corpus.
//!
//! `NAME.mlir` is a source; `NAME.bef` and `NAME.noopt.bef` are its translations, with and without optional sections;
//! `NAME.roundtrip.mlir` and `NAME.roundtrip.loc.mlir` are the texts that the reference printed for `NAME.bef`, without
//! and with locations; `NAME.err` has the errors of a program that the reference rejected.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

type Files = BTreeMap<String, Vec<u8>>;

fn read(folder: &Path) -> Files {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable folder").path();
        if path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.insert(name, std::fs::read(&path).expect("a readable file"));
        }
    }
    found
}

/// The files in `tests/data`, then those of the corpus.
fn sets() -> Vec<Files> {
    let mut sets = vec![read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data"))];
    match std::env::var("PTERON_CORPUS") {
        Ok(root) => sets.push(read(&PathBuf::from(root).join("bef"))),
        Err(_) => eprintln!("SKIPPED the corpus: PTERON_CORPUS does not name its folder"),
    }
    sets
}

/// Collects failures and counts the files.
struct Tally {
    what: &'static str,
    count: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn new(what: &'static str) -> Tally {
        Tally { what, count: 0, wrong: Vec::new() }
    }

    fn check(&mut self, name: &str, outcome: Result<(), String>) {
        self.count += 1;
        if let Err(reason) = outcome {
            self.wrong.push(format!("{name}: {reason}"));
        }
    }

    fn finish(self) {
        let good = self.count - self.wrong.len();
        println!("{}: {good} of {}", self.what, self.count);
        assert!(self.wrong.is_empty(), "{}", self.wrong.join("\n"));
        assert!(self.count > 0, "no files");
    }
}

fn first(diagnostics: pteron_mlir::Error) -> String {
    diagnostics.first().map(ToString::to_string).unwrap_or_default()
}

fn difference(want: &[u8], got: &[u8]) -> Result<(), String> {
    if want == got {
        return Ok(());
    }
    let at = want.iter().zip(got).position(|(a, b)| a != b).unwrap_or(want.len().min(got.len()));
    Err(format!("differs at byte {at} (lengths {} and {})", want.len(), got.len()))
}

fn text_difference(want: &[u8], got: &str) -> Result<(), String> {
    let want = String::from_utf8_lossy(want);
    if want == got {
        return Ok(());
    }
    let line = want.lines().zip(got.lines()).find(|(a, b)| a != b);
    Err(line.map_or("differs in length".into(), |(a, b)| format!("want `{a}`\n     got `{b}`")))
}

fn translate(source: &[u8], name: &str, optional_sections: bool) -> Result<Vec<u8>, String> {
    let module = pteron_mlir::parse(source, name).map_err(first)?;
    let options = pteron_mlir::Options { optional_sections, ..pteron_mlir::Options::default() };
    pteron_mlir::to_bef(&module, options).map_err(first)
}

fn restore(bytes: &[u8], name: &str, as_reference: bool) -> Result<pteron_mlir::Module, String> {
    let file = pteron_bef::File::open(bytes).and_then(|file| file.verify()).map_err(|e| e.to_string())?;
    let program = file.to_module().map_err(|e| e.to_string())?;
    pteron_mlir::from_bef_named(
        &program,
        name,
        pteron_mlir::FromBefOptions { as_reference, ..Default::default() },
    )
    .map_err(first)
}

/// Text that the reference printed is parsed and printed unchanged.
#[test]
fn reference_text_prints_the_same() {
    let mut tally = Tally::new("texts that print the same");
    for corpus in sets() {
        for (name, text) in corpus.iter().filter(|(name, _)| name.contains(".roundtrip.")) {
            let options = pteron_mlir::PrintOptions { locations: name.contains(".loc."), generic: false };
            let printed = pteron_mlir::parse(text, name)
                .map(|module| pteron_mlir::print(&module, options))
                .map_err(first);
            tally.check(name, printed.and_then(|printed| text_difference(text, &printed)));
        }
    }
    tally.finish();
}

/// Every program translates to the reference's bytes.
#[test]
fn programs_translate_to_the_same_bytes() {
    let mut tally = Tally::new("programs that translate to the same bytes");
    for corpus in sets() {
        for (name, source) in &corpus {
            let Some(stem) = name.strip_suffix(".mlir").filter(|stem| !stem.contains(".roundtrip")) else {
                continue;
            };
            for (suffix, optional) in [(".bef", true), (".noopt.bef", false)] {
                if let Some(want) = corpus.get(&format!("{stem}{suffix}")) {
                    let got = translate(source, name, optional);
                    tally.check(&format!("{stem}{suffix}"), got.and_then(|got| difference(want, &got)));
                }
            }
        }
    }
    tally.finish();
}

/// Every file prints to text that translates back to its bytes.
#[test]
fn files_print_to_text_that_translates_back() {
    let mut tally = Tally::new("files whose text translates back");
    for corpus in sets() {
        for (name, bytes) in corpus.iter().filter(|(name, _)| name.ends_with(".bef")) {
            for generic in [false, true] {
                let options = pteron_mlir::PrintOptions { locations: true, generic };
                let text = restore(bytes, name, false).map(|module| pteron_mlir::print(&module, options));
                let optional = !name.ends_with(".noopt.bef");
                let back = text.and_then(|text| {
                    translate(text.as_bytes(), "text", optional)
                        .and_then(|back| difference(bytes, &back))
                        .map_err(|e| format!("{e}\n{text}"))
                });
                tally.check(name, back);
            }
        }
    }
    tally.finish();
}

/// Every file prints as the reference prints it.
#[test]
fn files_print_as_the_reference_does() {
    let mut tally = Tally::new("files that print as the reference prints");
    for corpus in sets() {
        for (name, want) in corpus.iter().filter(|(name, _)| name.contains(".roundtrip.")) {
            let stem = name.split(".roundtrip").next().unwrap_or("");
            let file = format!("{stem}.bef");
            let options = pteron_mlir::PrintOptions { locations: name.contains(".loc."), generic: false };
            let got = restore(&corpus[&file], &file, true).map(|module| pteron_mlir::print(&module, options));
            tally.check(name, got.and_then(|got| text_difference(want, &got)));
        }
    }
    tally.finish();
}

/// Programs that the reference rejects are rejected with the same message at the same position.
#[test]
fn errors_are_those_of_the_reference() {
    let mut tally = Tally::new("programs refused at the same place");
    for corpus in sets() {
        for (name, transcript) in corpus.iter().filter(|(name, _)| name.ends_with(".err")) {
            let source = name.replace(".err", ".mlir");
            let outcome = match translate(&corpus[&source], &source, true) {
                Ok(_) => Err("accepted".to_string()),
                Err(message) => {
                    let want = String::from_utf8_lossy(transcript).lines().next().unwrap_or("").to_string();
                    let got = message.lines().next().unwrap_or("").to_string();
                    if want == got { Ok(()) } else { Err(format!("want `{want}`\n     got `{got}`")) }
                }
            };
            tally.check(name, outcome);
        }
    }
    tally.finish();
}

//! The external corpus, whose folder `PTERON_CORPUS` names. Skipped, loudly, without it.

use std::path::PathBuf;

/// Names and texts of the corpus's programs.
fn programs() -> Option<Vec<(String, Vec<u8>)>> {
    let Ok(root) = std::env::var("PTERON_CORPUS") else {
        eprintln!("SKIPPED: set PTERON_CORPUS to the folder of the corpus");
        return None;
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(PathBuf::from(root).join("bef")).expect("a corpus folder with bef/") {
        let path = entry.expect("a readable folder").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".mlir") {
            found.push((name, std::fs::read(&path).expect("a readable file")));
        }
    }
    found.sort();
    Some(found)
}

/// What the reference printed reads back and prints the same.
#[test]
fn reference_text_prints_the_same() {
    let Some(programs) = programs() else { return };
    let mut wrong = Vec::new();
    let printed = programs.iter().filter(|(name, _)| name.contains(".roundtrip."));
    for (name, text) in printed {
        let options = mlir::PrintOptions { locations: name.contains(".loc."), generic: false };
        match mlir::parse(text, name) {
            Ok(module) if mlir::print(&module, options).as_bytes() == *text => {}
            Ok(_) => wrong.push(format!("{name}: prints differently")),
            Err(diagnostics) => wrong.push(diagnostics[0].to_string()),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

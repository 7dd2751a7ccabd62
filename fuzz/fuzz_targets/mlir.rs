//! Any text is parsed as a module or refused; a parsed module round-trips through the printer. A module that translates to
//! BEF verifies, and round-trips through MLIR text to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pteron_mlir::{FromBefOptions, Options, PrintOptions};

const LOCATIONS: PrintOptions = PrintOptions { locations: true, generic: false };

fuzz_target!(|source: &[u8]| {
    let Ok(module) = pteron_mlir::parse(source, "fuzz") else { return };
    pteron_mlir::parse(pteron_mlir::print(&module, LOCATIONS), "fuzz").unwrap();
    // Operations outside functions only add kernel names, which MLIR text generated from BEF does not reproduce.
    let in_functions = |op: &pteron_mlir::Operation| op.is("func.func") || op.is("builtin.module");
    if !module.operations().iter().all(in_functions) {
        return;
    }
    let options = Options { max_payload: 1 << 20, ..Options::default() };
    let Ok(bytes) = pteron_mlir::to_bef(&module, options) else { return };
    let program = pteron_bef::File::open(&bytes).unwrap().verify().unwrap().to_module().unwrap();
    // BEF has one attribute type for iN and siN: text that mixes them comes back as iN.
    let names: Vec<&str> = program.type_names().collect();
    let both = |n: &&str| names.contains(n) && names.contains(&format!("s{n}").as_str());
    if ["i8", "i16", "i32", "i64"].iter().any(both) {
        return;
    }
    let text = pteron_mlir::print(&pteron_mlir::from_bef(&program, FromBefOptions::default()).unwrap(), LOCATIONS);
    let back = pteron_mlir::to_bef(&pteron_mlir::parse(&text, "fuzz").unwrap(), options).unwrap();
    assert!(back == bytes);
});

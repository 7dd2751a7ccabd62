//! A verified BEF file translates to MLIR text or is refused; text that parses translates back or is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pteron_mlir::{FromBefOptions, Options, PrintOptions};

fuzz_target!(|file: &[u8]| {
    let Ok(verified) = pteron_bef::File::open(file).and_then(|file| file.verify()) else { return };
    let Ok(program) = verified.to_module() else { return };
    for as_reference in [false, true] {
        let Ok(module) = pteron_mlir::from_bef(&program, FromBefOptions { as_reference, ..Default::default() }) else { continue };
        let text = pteron_mlir::print(&module, PrintOptions { locations: true, generic: false });
        let Ok(module) = pteron_mlir::parse(&text, "fuzz") else { continue };
        let _ = pteron_mlir::to_bef(&module, Options { max_payload: 1 << 20, ..Options::default() });
    }
});

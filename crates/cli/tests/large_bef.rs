//! BEF programs of more than 4 GiB. The files are sparse: a hole takes no disk space, and the command, which maps the
//! file, touches none of its pages.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

#[path = "../../tfrt/bef/tests/common/sparse.rs"]
mod sparse;

use pteron_bef::{Attribute, DType, Dense, FunctionBuilder, Module};
use sparse::{Holes, Scratch};
use std::io::{Seek, SeekFrom, Write};
use std::process::Command;
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;

/// Long enough to start a command on a busy machine, too short to read gigabytes.
const SOON: Duration = Duration::from_secs(2);

/// Runs a verb on the file, checks that it takes less than [`SOON`], and returns its output.
fn pteron(verb: &str, scratch: &Scratch) -> String {
    let start = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_pteron")).arg(verb).arg(&scratch.path).output().unwrap();
    let time = start.elapsed();
    println!("pteron {verb}, {} bytes: {time:?}", scratch.file.metadata().unwrap().len());
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(time < SOON, "{verb} took {time:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Adds a function with this many kernels that have an attribute, which returns 7.
fn seven(module: &mut Module<'_>, kernels: i64) {
    let mut function = FunctionBuilder::new(module, "main", &[]);
    for i in 0..kernels {
        function.kernel("tfrt.new.chain").attribute("data", Attribute::I64(i)).result("!tfrt.chain");
    }
    let seven = function.kernel("tfrt.constant.i32").attribute("value", Attribute::I32(7)).result("i32");
    function.finish(&[seven]).unwrap();
}

#[test]
fn an_unknown_section_of_4_5_gib_is_skipped() {
    let mut module = Module::new(true);
    seven(&mut module, 0);
    let program = module.to_bytes().unwrap();
    let mut scratch = Scratch::new("unknown-section.bef");
    let header = |length: u64| {
        let mut header = pteron_bef::HEADER.to_vec();
        header.push(200);
        pteron_bef::vbr::encode(length << 1, &mut header);
        header
    };
    // The program's sections keep their alignment if they move by a multiple of 8.
    let mut length = 4 * GIB + GIB / 2;
    let moved = header(length).len() as u64 + length - pteron_bef::HEADER.len() as u64;
    length += (8 - moved % 8) % 8;
    scratch.file.write_all(&header(length)).unwrap();
    scratch.file.seek(SeekFrom::Current(length as i64)).unwrap();
    scratch.file.write_all(&program[pteron_bef::HEADER.len()..]).unwrap();

    assert!(pteron("validate", &scratch).ends_with(": valid\n"));
    assert_eq!(pteron("run", &scratch), "--- Running 'main':\n'main' returned 7\n");
}

#[test]
fn two_attributes_of_2_5_gib_are_not_read() {
    // Untouched zero pages, which take no memory.
    let payload = vec![0u8; (5 * GIB / 2) as usize];
    let mut module = Module::new(true);
    seven(&mut module, 2);
    for i in 0..2 {
        let dims = vec![payload.len() as i64];
        let tensor = Attribute::Dense(Dense::new(DType::UI8, dims, &payload[..]).unwrap());
        let tensor = module.push_attribute(tensor);
        module.functions[0].body.as_mut().unwrap().kernels[i].attributes[0].value = tensor;
    }
    let mut scratch = Scratch::new("attributes.bef");
    let written = module.write_to(&mut Holes(&mut scratch.file)).unwrap();
    assert!(written > 5 * GIB);

    assert!(pteron("validate", &scratch).ends_with(": valid\n"));
    assert_eq!(pteron("run", &scratch), "--- Running 'main':\n'main' returned 7\n");
}

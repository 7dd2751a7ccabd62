//! Any bytes are read as a bundled program or an ETDump or refused; an accepted file round-trips through the writer.
#![no_main]

use pteron_format::{Limits, bpte, etdump};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let limits = Limits::default();
    if let Ok(bundle) = bpte::read(file, &limits) {
        let program = &file[bundle.program.start as usize..bundle.program.end as usize];
        let mut written = Vec::new();
        bpte::write(&bundle.method_test_suites, program, &mut written).unwrap();
        let again = bpte::read(&written, &limits).unwrap();
        assert_eq!(format!("{:?}", again.method_test_suites), format!("{:?}", bundle.method_test_suites));
        assert_eq!(&written[again.program.start as usize..again.program.end as usize], program);
    }
    if let Ok(dump) = etdump::read(file, &limits) {
        let mut written = Vec::new();
        etdump::write(&dump, &mut written).unwrap();
        let again = etdump::read(&written, &limits).unwrap();
        assert_eq!(format!("{again:?}"), format!("{dump:?}"));
    }
});

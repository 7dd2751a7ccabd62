//! Any bytes are read as a torch.export archive and compiled, or refused. Bytes that do not begin like a zip file are used
//! as the JSON of the model in a generated archive.
#![no_main]

use pteron_compiler::pt2::SharedBytes;
use pteron_compiler::{OperatorTable, Options};
use libfuzzer_sys::fuzz_target;
use std::io::{Cursor, Write};
use std::sync::{Arc, LazyLock};
use zip::write::SimpleFileOptions;

static TABLE: LazyLock<OperatorTable> = LazyLock::new(|| OperatorTable::portable(&pteron_kernels::registry()));

fn archive_of(json: &[u8]) -> Option<Vec<u8>> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    writer.start_file("m/models/model.json", stored).ok()?;
    writer.write_all(json).ok()?;
    Some(writer.finish().ok()?.into_inner())
}

fuzz_target!(|bytes: &[u8]| {
    let archive = match bytes.starts_with(b"PK") {
        true => bytes.to_vec(),
        false => match archive_of(bytes) {
            Some(archive) => archive,
            None => return,
        },
    };
    let archive: SharedBytes = Arc::new(archive);
    let _ = pteron_compiler::compile(&archive, &TABLE, &Options::default(), &mut |_, _, _| {});
});

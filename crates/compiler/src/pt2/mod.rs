//! Reads torch.export archives: a zip file of JSON graphs and raw storages. Nothing is unpickled.

mod archive;
mod examples;
mod expression;
mod graph;
mod measure;
mod model;
mod schema;
mod source;
mod weights;

pub use archive::{ArchiveFile, is_archive};
pub use examples::{ExampleInput, example_inputs};
pub(crate) use expression::parse as parse_size;
pub use pteron_ir::SharedBytes;

use crate::limits::MAX_MODELS;
use crate::{Error, Result};
use archive::Archive;
use pteron_exported::CompileBudget;
use pteron_exported::ExportedProgram;
use pteron_format::pte::{MAX_OWN_BYTES, TASK_KEY};

/// What an error suggests if an archive cannot be read.
const SAVE_ANEW: &str =
    "save it with `torch.export.save(torch.export.export(model, args), path)` of PyTorch 2.9 or later";

/// Reads every model of an archive. Weights are not read: they are parts of `file`. What must be copied, and the
/// graphs, are taken from `budget`.
///
/// The model called `model`, which is what `torch.export.save` calls the only one, becomes the method `forward`;
/// others keep their names. Programs come in the order of their names.
///
/// # Errors
/// The archive is malformed, and where; or it is of a kind that cannot be read, and how to save the model instead.
pub fn read(file: &dyn ArchiveFile, budget: &CompileBudget) -> Result<Vec<ExportedProgram>> {
    let mut archive = Archive::open(file, budget)?;
    let model = |record: &str| -> Option<String> {
        Some(record.strip_prefix("models/")?.strip_suffix(".json")?.to_owned())
    };
    let mut models: Vec<String> = archive.names().filter_map(model).collect();
    models.sort_unstable();
    if models.is_empty() {
        return Err(no_models_error(&archive));
    }
    if models.len() > MAX_MODELS {
        return Err(Error::archive("models", format!("{} models are more than {MAX_MODELS}", models.len())));
    }
    models.iter().map(|name| model::read(&mut archive, name)).collect()
}

/// The task metadata that an archive has in the extra file `pteron.task`, as
/// `torch.export.save(program, path, extra_files={"pteron.task": text})` writes it.
///
/// # Errors
/// The archive cannot be read, or the extra file is no text, or larger than a program can store.
pub fn task(file: &dyn ArchiveFile) -> Result<Option<String>> {
    let mut archive = Archive::open(file, &CompileBudget::default())?;
    let record = format!("extra/{TASK_KEY}");
    match archive.size(&record) {
        None => return Ok(None),
        Some(0..=MAX_OWN_BYTES) => {}
        Some(size) => {
            let problem = format!("it has {size} bytes, at most {MAX_OWN_BYTES} can be stored");
            return Err(Error::archive(record, problem));
        }
    }
    let text = archive.read_text(&record)?;
    let text = std::str::from_utf8(text.bytes()).map_err(|_| Error::archive(record, "it is no text"))?;
    Ok(Some(text.to_owned()))
}

/// The error for an archive without models.
fn no_models_error(archive: &Archive<'_>) -> Error {
    let has = |part: &str| archive.names().any(|n| n.contains(part));
    let problem = if has("data/aotinductor/") {
        "an AOTInductor package holds code compiled for one machine, and no graph"
    } else if archive.contains("serialized_exported_program.json") {
        "an archive from before PyTorch 2.9 keeps its weights pickled, and nothing is unpickled here"
    } else if has("data.pkl") && has("constants.pkl") {
        "a TorchScript archive holds no exported program"
    } else if has("data.pkl") {
        "a file of `torch.save` holds pickled objects, and no graph"
    } else {
        "the archive holds no model (`models/*.json`)"
    };
    Error::archive_with_help("the archive", problem, SAVE_ANEW)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::{Cursor, Write};
    use std::sync::Arc;
    use zip::write::SimpleFileOptions;

    /// An archive with these records.
    pub(crate) fn zip(records: &[(&str, &[u8])]) -> SharedBytes {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        for (name, bytes) in records {
            writer.start_file(format!("m/{name}"), stored).unwrap();
            writer.write_all(bytes).unwrap();
        }
        Arc::new(writer.finish().unwrap().into_inner())
    }

    fn error(bytes: SharedBytes) -> String {
        read(&bytes, &CompileBudget::default()).unwrap_err().to_string()
    }

    #[test]
    fn other_kinds_of_archives_are_rejected_with_a_remedy() {
        for (records, part) in [
            (&[("data/aotinductor/model/x.so", &b""[..])][..], "AOTInductor"),
            (&[("serialized_exported_program.json", b"{}")], "before PyTorch 2.9"),
            (&[("data.pkl", b""), ("constants.pkl", b"")], "TorchScript"),
            (&[("data.pkl", b"")], "torch.save"),
            (&[("x", b"")], "no model"),
        ] {
            let error = error(zip(records));
            assert!(error.contains(part) && error.contains("torch.export.save("), "{error}");
        }
        assert!(error(Arc::new(b"PK\x03\x04 and nothing".to_vec())).contains("archive"));
    }

    #[test]
    fn archives_are_recognized_by_their_records() {
        let is_known = |records: &[(&str, &[u8])]| is_archive(Cursor::new(zip(records).bytes().to_vec()));
        assert!(is_known(&[("archive_version", b"0"), ("models/model.json", b"{}")]));
        assert!(is_known(&[("data.pkl", b"")]) && is_known(&[("data/aotinductor/model/x.so", b"")]));
        assert!(!is_known(&[("weight.npy", b""), ("models.npy", b""), ("models/x.npy", b"")]));
        assert!(
            !is_archive(Cursor::new(b"PK\x03\x04 and nothing".to_vec())) && !is_archive(Cursor::new(b"P"))
        );
    }

    #[test]
    fn unsupported_schema_versions_are_rejected() {
        let json = br#"{"schema_version": {"major": 9, "minor": 1}, "graph_module": 5}"#;
        assert!(error(zip(&[("models/model.json", json)])).contains("9.1"));
    }
}
